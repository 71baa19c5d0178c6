"""Servers on a file system of their own, and the pods that they run."""

import hashlib
import http.client
import io
import json
import os
import random
import resource
import signal
import socket
import subprocess
import tarfile
import tempfile
import time

from .client import Api, Violation, wait_for
from .interposer import Interposer
from .machine import KINDS, Machine, PidLimit, command_of, pids

# How long a started server may take to answer, on a loaded machine.
START_PATIENCE = 120
# How long one may take to end that was told to: it finishes removals of sandboxes that it has begun.
END_PATIENCE = 120
# Size of the data directory's file system: the API's events of an hour take a hundred megabytes, and images are only taken
# where much stays free.
DISK = "256m"
HEALTHY = 3
PODS = "/api/v1/namespaces/default/pods"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
NODE = "faults"
# What is under test, and the servers that it takes, in the order in which they are started. The subject has the containers,
# and most faults are done to it.
SUBJECTS = {"serve": ["serve"], "node": ["api", "node"], "cri": ["api", "cri", "node"]}
# Of a program that panicked.
PANICKED = 101


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class World:
    """A subject with everything that it needs; `interposed` is for faults that a library has to give."""

    def __init__(self, binary, seed, disk=DISK, subject="serve", interposed=False):
        self.binary, self.random, self.seed = binary, random.Random(seed), seed
        self.subject, self.roles = subject, SUBJECTS[subject]
        self.home = tempfile.mkdtemp(prefix="pulselet-faults-")
        self.disk = os.path.join(self.home, "disk")
        os.mkdir(self.disk)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={disk}", "tmpfs", self.disk], check=True)
        self.data = os.path.join(self.disk, "data")
        os.mkdir(self.data)
        self.config = os.path.join(self.home, "config.yaml")
        with open(self.config, "w", encoding="utf-8") as file:
            # The one that is condemned again and again must come back before the next fault, and a disk that is full for
            # seconds is not a reason to evict: those that are checked are not to blame for it.
            file.write("hostImage: true\ncrashLoopBackOff: {initial: 1s, max: 3s}\nevictionHard: {memory.available: 1Mi}\n")
        self.log = open(os.path.join(self.home, "log"), "ab")
        self.port, self.health = free_port(), free_port()
        self.api = Api(self.place("api"), self.port)
        self.interposer = Interposer(self.home, self.disk) if interposed else None
        self.machine = Machine(self.home, self.data)
        self.pid_limit = PidLimit(os.path.basename(self.home))
        self.servers, self.processes = {}, {}
        self.before, self.after = {}, {}
        # Ends that nobody asked for, by the server.
        self.exits = []

    # The servers

    @property
    def server(self):
        """The one that most faults are done to."""
        return self.servers[self.subject]

    def role(self, part):
        """Who is the API, the node or the runtime here."""
        return self.subject if part == "runtime" or part not in self.roles else part

    def place(self, part):
        """The data directory of the API, the node or the runtime."""
        return os.path.join(self.data, self.role(part)) if len(self.roles) > 1 else self.data

    def command(self, role):
        listen = ["--listen", f"127.0.0.1:{self.port}"]
        node = ["--metrics", f"127.0.0.1:{self.health}", "--node-listen", "127.0.0.1:0", "--config", self.config]
        kubeconfig = ["--kubeconfig", os.path.join(self.home, "node.kubeconfig"), "--node-name", NODE]
        socket_of_cri = f"unix://{self.home}/cri.sock"
        runtime = ["--runtime", socket_of_cri] if self.subject == "cri" else []
        return {
            "serve": ["serve", "--data-dir", self.data, *listen, *node],
            "api": ["api", "--data-dir", self.place("api"), *listen, "--bind-pods"],
            "node": ["node", "--data-dir", self.place("node"), *kubeconfig, *node, *runtime],
            "cri": ["cri", "--data-dir", self.place("runtime"), "--bridge", "--listen", socket_of_cri],
        }[role]

    def start(self, role=None, descriptors=None, processes=None):
        role = role or self.subject

        def limit():
            if descriptors:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
            if processes:
                self.pid_limit.take(os.getpid())
                self.pid_limit.allow_more(processes)

        environment = {**os.environ, **(self.interposer.environment() if self.interposer else {})}
        options = {"stdout": self.log, "stderr": self.log, "preexec_fn": limit, "cwd": "/", "env": environment}
        self.servers[role] = subprocess.Popen([self.binary, *self.command(role)], **options)

    def begin(self):
        """Starts all for the first time, and once more, so that their files are those of servers without pods."""
        if "cri" in self.roles:
            self.load_image()
        for role in self.roles:
            if role == "node":
                self.join()
            self.start(role)
        self.is_up()
        self.end_all()
        self.machine.learn_names()
        self.before = self.machine.listing()
        for role in self.roles:
            self.start(role)
        self.is_up()
        if self.interposer and self.interposer.counts()[0] == 0:
            raise Violation("the program does not load libraries, so EIO and clocks cannot be tried: it is static")

    def join(self):
        """A kubeconfig for the node; the API makes what it needs for that at its start."""
        wait_for("the API answers", lambda: self.api.ask("GET", "/readyz", timeout=2)[0] == 200, START_PATIENCE)
        command = [self.binary, "api", "kubeconfig", "--node", NODE, "--server", f"https://127.0.0.1:{self.port}"]
        made = subprocess.run([*command, "--data-dir", self.place("api")], capture_output=True, check=True)
        with open(os.path.join(self.home, "node.kubeconfig"), "wb") as file:
            file.write(made.stdout)

    def load_image(self):
        """A server of CRI has no image of the host, so it gets a shell."""
        command = [self.binary, "image", "load", "-", "--data-dir", self.place("runtime")]
        subprocess.run(command, input=shell_image(), stdout=self.log, stderr=self.log, check=True)

    def answers(self):
        for role in self.roles:
            if (code := self.servers[role].poll()) is not None:
                if code < 0 or code == PANICKED:
                    raise Violation(f"{role} ended by itself with {code}")
                self.exits.append((role, code))
                self.start(role)
                time.sleep(0.5)
        return self.api.ask("GET", "/readyz", timeout=2)[0] == 200 and self.node_answers()

    def node_answers(self):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.health, timeout=6)
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False

    def is_up(self):
        wait_for("the servers answer", self.answers, START_PATIENCE)

    def end(self, how, role=None):
        role = role or self.subject
        server = self.servers[role]
        server.send_signal(how)
        try:
            return server.wait(END_PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise Violation(f"{role} does not end") from error

    def end_all(self):
        """A node finishes what it has begun, for which it needs its runtime."""
        for role in ["serve", "node", "cri", "api"]:
            if role in self.roles:
                self.end(signal.SIGTERM, role)

    # Pods

    def add_pod(self, name, probed=True):
        container = {"name": "app", **self.program(name)}
        if probed:
            probe = {"exec": {"command": ["test", "!", "-e", "/data/sick"]}, "periodSeconds": 1, "failureThreshold": 2}
            container["livenessProbe"] = {**probe, "timeoutSeconds": 30, "terminationGracePeriodSeconds": 1}
        container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        spec = {"containers": [container], "volumes": [{"name": "data", "emptyDir": {}}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        wait_for(f"pod {name} is created", lambda: self.api.ask("POST", PODS, pod)[0] in (201, 409), 60)

    def program(self, name):
        """A program that can be found by its arguments and does nothing."""
        if "cri" in self.roles:
            command = ["sh", "-c", "while :; do sleep 100000; done", self.token(name)]
            return {"image": SHELL_IMAGE, "imagePullPolicy": "Never", "command": command}
        command = ["bash", "-c", f"exec -a {self.token(name)} sleep 100000"]
        return {"image": "pulselet.local/host", "command": command}

    def token(self, name):
        return f"{os.path.basename(self.home)}-{name}"

    def pids(self, name):
        """The processes of a pod, seen from outside."""
        token = self.token(name)
        return {pid for pid in pids() if token in command_of(pid)}

    def one_process(self, name, patience=60):
        found = wait_for(f"{name} runs once", lambda: len(self.pids(name)) == 1 and self.pids(name), patience)
        self.machine.remember_links()
        return found

    def volume(self, name):
        status, pod = self.api.ask("GET", f"{PODS}/{name}")
        if status != 200 or pod is None:
            return None
        return f"{self.place('node')}/pods/{pod['metadata']['uid']}/volumes/kubernetes.io~empty-dir/data"

    def shim_of(self, name):
        for pid in self.pids(name):
            try:
                with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                    return int(file.read().rsplit(")", 1)[1].split()[1])
            except OSError:
                pass
        return None

    def healthy(self):
        return [f"healthy-{number}" for number in range(HEALTHY)]

    def add_pods(self):
        for name in [*self.healthy(), "victim"]:
            self.add_pod(name)
            self.processes[name] = self.one_process(name)

    def check_healthy(self):
        for name in self.healthy():
            if self.pids(name) != self.processes[name]:
                raise Violation(f"{name} was killed: {self.processes[name]} became {self.pids(name)}")

    # The end

    def clean(self):
        """Deletes all pods, ends the servers, and compares what there is with what there was."""
        wait_for("all pods are deleted", self.no_pods, 120)
        if "cri" in self.roles:
            # What a runtime that was killed has left of a pod that nobody knows any more, the next node removes.
            self.end(signal.SIGTERM, "node")
            self.start("node")
        self.is_up()
        # Pods that were deleted by force are gone from the API before they are gone from the node.
        self.wait_until_gone(["file"], 120)
        self.end_all()
        self.wait_until_gone(KINDS, 30)

    def wait_until_gone(self, kinds, patience):
        left = {}

        def nothing_left():
            left.clear()
            left.update({kind: new for kind, new in self.new().items() if new and kind in kinds})
            return not left

        try:
            wait_for("nothing is left", nothing_left, patience)
        except Violation as violation:
            raise Violation(f"left on the machine: {left}") from violation

    def no_pods(self):
        status, listed = self.api.ask("GET", PODS)
        if status != 200 or listed is None:
            return False
        for pod in listed["items"]:
            self.api.ask("DELETE", f"{PODS}/{pod['metadata']['name']}?gracePeriodSeconds=0")
        return not listed["items"]

    def new(self):
        self.after = self.machine.listing()
        return {kind: names - self.before[kind] for kind, names in self.after.items()}

    def destroy(self):
        if self.interposer:
            self.interposer.errors()
        self.pid_limit.lift()
        for server in self.servers.values():
            if server.poll() is None:
                server.kill()
                server.wait()
        for process in self.machine.listing()["process"]:
            try:
                os.kill(int(process.split()[0]), signal.SIGKILL)
            except OSError:
                pass
        reset = [self.binary, "reset", "--yes", "--data-dir", self.place("runtime")]
        subprocess.run(reset, stdout=self.log, stderr=self.log, check=False)
        for mount in sorted(self.machine.listing()["mount"], reverse=True):
            subprocess.run(["umount", "-l", mount], check=False)
        subprocess.run(["umount", "-l", self.disk], check=False)
        self.pid_limit.remove()


SHELL_IMAGE = "pulselet.local/shell:1"
SHELL = "/bin/busybox"


def shell_image():
    """An archive as `docker save` makes them: a static shell and the programs that pods and probes call."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(os.path.realpath(SHELL), "bin/busybox")
        for name in ("sh", "sleep", "test", "true"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    layer = layer.getvalue()
    config = {"architecture": "amd64" if os.uname().machine == "x86_64" else "arm64", "os": "linux"}
    config["config"] = {"Env": ["PATH=/bin"]}
    config["rootfs"] = {"type": "layers", "diff_ids": [f"sha256:{sha256(layer)}"]}
    config = json.dumps(config).encode()
    manifest = [{"Config": f"{sha256(config)}.json", "RepoTags": [SHELL_IMAGE], "Layers": ["layer.tar"]}]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        files = [(f"{sha256(config)}.json", config), ("layer.tar", layer)]
        for name, content in [*files, ("manifest.json", json.dumps(manifest).encode())]:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


def sha256(content):
    return hashlib.sha256(content).hexdigest()
