"""What a program does with a cluster, by the official Python client. Any surprise is a failure."""

import json

from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException
from kubernetes.stream import portforward, stream

config.load_kube_config()
core = client.CoreV1Api()


def config_map(name):
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name), data={"key": name})


def watched(version, count):
    """The next changes of config maps after a version: their names, and the last version."""
    names = []
    watcher = watch.Watch()
    for event in watcher.stream(
        core.list_namespaced_config_map, "default", resource_version=version, timeout_seconds=60
    ):
        names.append((event["type"], event["object"].metadata.name))
        if len(names) == count:
            return names, event["object"].metadata.resource_version
    raise AssertionError(f"the watch ended after {names}")


def lists_and_watches():
    assert [pod.metadata.name for pod in core.list_namespaced_pod("default").items] == ["web"]
    version = core.list_namespaced_config_map("default").metadata.resource_version
    core.create_namespaced_config_map("default", config_map("one"))
    names, version = watched(version, 1)
    assert names == [("ADDED", "one")], names
    # What happens while nobody watches is reported when the watch is resumed, once.
    core.create_namespaced_config_map("default", config_map("two"))
    core.delete_namespaced_config_map("one", "default")
    names, _ = watched(version, 2)
    assert names == [("ADDED", "two"), ("DELETED", "one")], names


def creates():
    container = client.V1Container(name="app", image="app:1")
    pod = client.V1Pod(
        metadata=client.V1ObjectMeta(name="made"), spec=client.V1PodSpec(containers=[container])
    )
    made = core.create_namespaced_pod("default", pod)
    assert made.spec.restart_policy == "Always", made
    try:
        core.create_namespaced_pod("default", pod)
        raise AssertionError("it was created twice")
    except ApiException as error:
        assert error.status == 409, error
        assert json.loads(error.body)["reason"] == "AlreadyExists", error.body


def executes():
    common = {"stderr": True, "stdout": True, "tty": False, "_preload_content": False}
    ended = stream(
        core.connect_get_namespaced_pod_exec, "web", "default", command=["exit", "3"], stdin=False, **common
    )
    ended.run_forever(timeout=60)
    assert ended.read_stdout() == "out\n"
    assert ended.read_stderr() == "err\n"
    assert ended.returncode == 3, ended.returncode
    cat = stream(
        core.connect_get_namespaced_pod_exec, "web", "default", command=["cat"], stdin=True, **common
    )
    cat.write_stdin("hello\n")
    assert cat.readline_stdout(timeout=60) == "hello"
    cat.close()


def forwards():
    forwarded = portforward(core.connect_get_namespaced_pod_portforward, "web", "default", ports="80")
    socket = forwarded.socket(80)
    socket.settimeout(60)
    socket.sendall(b"hello")
    received = b""
    while len(received) < 5:
        received += socket.recv(5)
    assert received == b"hello", received
    socket.close()


lists_and_watches()
creates()
executes()
forwards()
print("done")
