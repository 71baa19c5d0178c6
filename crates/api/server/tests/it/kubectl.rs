//! The real kubectl against a server in this process.

use serde_json::{Value, json};

use crate::harness::TestServer;

/// Runs kubectl, or ends the test where there is none.
macro_rules! kubectl {
    ($server:expr, $($argument:expr),+ $(,)?) => {
        match $server.kubectl(&[$($argument),+]) {
            Some(answer) => answer,
            None => return,
        }
    };
}

macro_rules! kubectl_input {
    ($server:expr, $input:expr, $($argument:expr),+ $(,)?) => {
        match $server.kubectl_with(&$server.kubeconfig, &[$($argument),+], $input) {
            Some(answer) => answer,
            None => return,
        }
    };
}

const POD: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: web
  labels: {app: web}
spec:
  containers:
  - name: app
    image: app:1
    ports: [{containerPort: 80}]
    livenessProbe: {httpGet: {path: /, port: 80}, periodSeconds: 5}
";

#[test]
fn discovery_and_versions() {
    let server = TestServer::start();
    let version = kubectl!(server, "version", "-o", "json").success();
    let version: Value = serde_json::from_str(&version).unwrap();
    assert!(
        version["serverVersion"]["gitVersion"]
            .as_str()
            .unwrap()
            .starts_with("v1.36.")
    );
    let resources = kubectl!(server, "api-resources").success();
    for (name, short) in [
        ("pods", "po"),
        ("configmaps", "cm"),
        ("leases", "leases"),
        ("namespaces", "ns"),
    ] {
        assert!(
            resources.contains(name) && resources.contains(short),
            "{resources}"
        );
    }
    assert_eq!(kubectl!(server, "get", "--raw", "/readyz").success(), "ok");
    let namespaces = kubectl!(server, "get", "ns", "-o", "name").success();
    assert_eq!(namespaces.lines().count(), 4, "{namespaces}");
    assert!(kubectl!(server, "get", "sa").success().contains("default"));
}

#[test]
fn fields_are_explained_ours_included() {
    let server = TestServer::start();
    let probe = kubectl!(server, "explain", "pod.spec.containers.readinessProbe").success();
    assert!(
        probe.contains("periodMilliseconds") && probe.contains("periodSeconds"),
        "{probe}"
    );
    // What the texts say is what happens here: see the pages of the proposals.
    for (field, says) in [
        ("pod.spec.containers.lifecycle.postStart", "delays neither probes"),
        ("pod.spec.containers.lifecycle.stopSignal", "StopSignalNotHandled"),
        (
            "pod.spec.containers.livenessProbe.terminationGracePeriodSeconds",
            "0 means SIGKILL immediately",
        ),
        ("pod.spec.containers.startupProbe", "neither liveness"),
        (
            "pod.spec.containers.readinessProbe.initializationFailureThreshold",
            "remembers across its restarts",
        ),
        ("pod.spec.containers.readinessProbe.periodMilliseconds", "500 ms"),
        (
            "deployment.spec.template.spec.containers.readinessProbe.periodMilliseconds",
            "500 ms",
        ),
        ("pod.spec.containers.readinessProbe.timeoutMilliseconds", "100 ms"),
        (
            "pod.status.containerStatuses.started",
            "has not started is not ready",
        ),
        (
            "pod.status.containerStatuses.lifecycle.stopSignal",
            "stops the container",
        ),
    ] {
        let text = kubectl!(server, "explain", field).success();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(says), "{field}: {says} in {text}");
    }
    let lease = kubectl!(server, "explain", "leases.spec").success();
    assert!(lease.contains("holderIdentity"), "{lease}");
    let event = kubectl!(server, "explain", "events", "--api-version=events.k8s.io/v1").success();
    assert!(event.contains("regarding"), "{event}");
}

#[test]
fn a_pod_is_applied_changed_labelled_and_deleted() {
    let server = TestServer::start();
    assert_eq!(
        kubectl_input!(server, POD, "apply", "-f", "-").success(),
        "pod/web created\n"
    );
    assert_eq!(
        kubectl_input!(server, POD, "apply", "-f", "-").success(),
        "pod/web unchanged\n"
    );
    let changed = POD.replace("app:1", "app:2");
    assert_eq!(
        kubectl_input!(server, &changed, "apply", "-f", "-").success(),
        "pod/web configured\n"
    );
    let image = kubectl!(
        server,
        "get",
        "pod",
        "web",
        "-o",
        "jsonpath={.spec.containers[0].image}"
    );
    assert_eq!(image.success(), "app:2");
    let table = kubectl!(server, "get", "pods").success();
    let columns: Vec<&str> = table
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    assert_eq!(columns, ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]);
    assert!(table.contains("0/1") && table.contains("Pending"), "{table}");
    assert!(
        kubectl!(server, "get", "pods", "-o", "wide")
            .success()
            .contains("NOMINATED NODE")
    );
    kubectl!(server, "label", "pod", "web", "tier=front").success();
    kubectl!(server, "annotate", "pod", "web", "note=x").success();
    assert!(
        kubectl!(server, "get", "pods", "-l", "tier=front", "-o", "name")
            .success()
            .contains("pod/web")
    );
    assert_eq!(
        kubectl!(server, "get", "pods", "-l", "tier=back", "-o", "name").success(),
        ""
    );
    let by_field = [
        "get",
        "pods",
        "-A",
        "--field-selector",
        "status.phase=Pending,metadata.name=web",
        "-o",
        "name",
    ];
    assert!(server.kubectl(&by_field).unwrap().success().contains("pod/web"));
    assert!(
        kubectl!(server, "describe", "pod", "web")
            .success()
            .contains("Liveness:")
    );
    kubectl!(server, "delete", "pod", "web").success();
    assert!(
        kubectl!(server, "get", "pod", "web")
            .failure()
            .contains("pods \"web\" not found")
    );
}

#[test]
fn three_kinds_of_patch_and_replace() {
    let server = TestServer::start();
    kubectl_input!(server, POD, "create", "-f", "-").success();
    let strategic = r#"{"spec":{"containers":[{"name":"app","image":"app:2"}]}}"#;
    kubectl!(server, "patch", "pod", "web", "-p", strategic).success();
    let merge = r#"{"metadata":{"labels":{"app":null,"x":"y"}}}"#;
    kubectl!(server, "patch", "pod", "web", "--type", "merge", "-p", merge).success();
    let json = r#"[{"op":"add","path":"/metadata/labels/z","value":"1"}]"#;
    kubectl!(server, "patch", "pod", "web", "--type", "json", "-p", json).success();
    let pod: Value =
        serde_json::from_str(&kubectl!(server, "get", "pod", "web", "-o", "json").success()).unwrap();
    assert_eq!(pod["metadata"]["labels"], json!({"x": "y", "z": "1"}));
    assert_eq!(pod["spec"]["containers"][0]["image"], "app:2");
    assert_eq!(pod["metadata"]["generation"], 2);
    let refused = r#"{"spec":{"containers":[{"name":"app","command":["x"]}]}}"#;
    let complaint = kubectl!(server, "patch", "pod", "web", "-p", refused).failure();
    assert!(
        complaint.contains("pod updates may not change fields other than"),
        "{complaint}"
    );

    let mut replaced = pod.clone();
    replaced["metadata"]["labels"] = json!({"only": "this"});
    kubectl_input!(server, &replaced.to_string(), "replace", "-f", "-").success();
    let conflict = kubectl_input!(server, &pod.to_string(), "replace", "-f", "-").failure();
    assert!(conflict.contains("the object has been modified"), "{conflict}");
}

#[test]
fn server_side_apply_knows_owners_and_conflicts() {
    let server = TestServer::start();
    let apply = |manager: &str, text: &str, extra: &[&str]| {
        let flag = format!("--field-manager={manager}");
        let mut arguments = vec!["apply", "--server-side", flag.as_str(), "-f", "-"];
        arguments.extend(extra);
        server.kubectl_with(&server.kubeconfig, &arguments, text)
    };
    let map = |data: Value| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data}).to_string()
    };
    let Some(first) = apply("ann", &map(json!({"a": "1", "b": "1"})), &[]) else {
        return;
    };
    assert!(first.success().contains("serverside-applied"));
    apply("bob", &map(json!({"c": "1"})), &[]).unwrap().success();
    let conflict = apply("bob", &map(json!({"a": "2", "c": "1"})), &[])
        .unwrap()
        .failure();
    assert!(
        conflict.contains("conflict with \"ann\"") && conflict.contains(".data.a"),
        "{conflict}"
    );
    apply("bob", &map(json!({"a": "2", "c": "1"})), &["--force-conflicts"])
        .unwrap()
        .success();
    // What ann no longer wants and nobody else owns goes away; what bob took stays.
    apply("ann", &map(json!({})), &[]).unwrap().success();
    let data = server
        .kubectl(&["get", "cm", "m", "-o", "jsonpath={.data}"])
        .unwrap()
        .success();
    assert_eq!(
        serde_json::from_str::<Value>(&data).unwrap(),
        json!({"a": "2", "c": "1"})
    );
}

#[test]
fn bad_input_is_explained_and_changes_nothing() {
    let server = TestServer::start();
    let unknown = POD.replace("image: app:1", "image: app:1\n    imagee: x");
    let strict = kubectl_input!(server, &unknown, "create", "-f", "-").failure();
    assert!(
        strict.contains("unknown field \"spec.containers[0].imagee\""),
        "{strict}"
    );
    let warned = kubectl_input!(server, &unknown, "create", "--validate=warn", "-f", "-");
    assert!(warned.stderr.contains("unknown field"), "{}", warned.stderr);
    warned.success();
    let invalid = POD.replace("name: web", "name: Web_1").replace("app:1", "''");
    let complaint = kubectl_input!(server, &invalid, "create", "-f", "-").failure();
    assert!(complaint.contains("metadata.name: Invalid value"), "{complaint}");
    assert!(
        complaint.contains("spec.containers[0].image: Required value"),
        "{complaint}"
    );
    let elsewhere = kubectl_input!(server, POD, "create", "-n", "nowhere", "-f", "-").failure();
    assert!(
        elsewhere.contains("namespaces \"nowhere\" not found"),
        "{elsewhere}"
    );
    kubectl!(server, "delete", "pod", "web").success();
    kubectl_input!(server, POD, "create", "--dry-run=server", "-f", "-").success();
    assert!(
        kubectl!(server, "get", "pod", "web")
            .failure()
            .contains("not found")
    );
}

#[test]
fn an_edit_is_made_by_the_users_editor() {
    let server = TestServer::start();
    kubectl!(server, "create", "configmap", "a", "--from-literal=n=before").success();
    let mut command = crate::harness::kubectl_command(server.path(), &server.kubeconfig);
    let edited = command
        .args(["edit", "cm", "a"])
        .env("KUBE_EDITOR", "sed -i s/before/after/")
        .output();
    assert!(edited.expect("kubectl runs").status.success());
    let data = kubectl!(server, "get", "cm", "a", "-o", "jsonpath={.data.n}").success();
    assert_eq!(data, "after");
}

#[test]
fn wait_watch_and_graceful_deletion() {
    let server = TestServer::start();
    let bound = POD.replace(
        "spec:",
        "spec:\n  nodeName: n1\n  terminationGracePeriodSeconds: 20",
    );
    kubectl_input!(server, &bound, "create", "-f", "-").success();
    let ready = json!({"status": {"phase": "Running", "podIP": "10.0.0.9",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "app", "ready": true, "started": true, "restartCount": 2,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]}});
    let waiting = std::thread::scope(|scope| {
        let waiter =
            scope.spawn(|| server.kubectl(&["wait", "--for=condition=Ready", "pod/web", "--timeout=60s"]));
        let patched = server.kubectl(&[
            "patch",
            "pod",
            "web",
            "--subresource=status",
            "-p",
            &ready.to_string(),
        ]);
        patched.map(|patched| patched.success());
        waiter.join().expect("kubectl wait ends")
    });
    let Some(waiting) = waiting else { return };
    assert!(waiting.success().contains("condition met"));
    let table = kubectl!(server, "get", "pod", "web", "-o", "wide").success();
    assert!(
        table.contains("1/1") && table.contains("Running") && table.contains("10.0.0.9"),
        "{table}"
    );

    kubectl!(server, "delete", "pod", "web", "--wait=false").success();
    let table = kubectl!(server, "get", "pod", "web").success();
    assert!(table.contains("Terminating"), "{table}");
    let grace = [
        "get",
        "pod",
        "web",
        "-o",
        "jsonpath={.metadata.deletionGracePeriodSeconds}",
    ];
    assert_eq!(server.kubectl(&grace).unwrap().success(), "20");
    kubectl!(server, "delete", "pod", "web", "--grace-period=5", "--wait=false").success();
    assert_eq!(server.kubectl(&grace).unwrap().success(), "5");
    // The node says that it is gone.
    let node = server.path().join("node-n1.kubeconfig");
    let gone = ["delete", "pod", "web", "--grace-period=0", "--force"];
    server.kubectl_with(&node, &gone, "").unwrap();
    kubectl!(server, "wait", "--for=delete", "pod/web", "--timeout=60s").success();
}

#[test]
fn a_namespace_is_emptied_and_goes() {
    let server = TestServer::start();
    kubectl!(server, "create", "namespace", "team").success();
    kubectl_input!(server, POD, "create", "-n", "team", "-f", "-").success();
    kubectl!(
        server,
        "create",
        "configmap",
        "c",
        "-n",
        "team",
        "--from-literal=a=b"
    )
    .success();
    kubectl!(
        server,
        "create",
        "secret",
        "generic",
        "s",
        "-n",
        "team",
        "--from-literal=p=q"
    )
    .success();
    assert!(
        kubectl!(server, "get", "secret", "-n", "team")
            .success()
            .contains("Opaque")
    );
    kubectl!(server, "delete", "namespace", "team", "--timeout=60s").success();
    assert!(
        kubectl!(server, "get", "ns", "team")
            .failure()
            .contains("not found")
    );
    assert_eq!(
        kubectl!(server, "get", "pods,cm", "-A", "-l", "app=web", "-o", "name").success(),
        ""
    );
    let kept = kubectl!(server, "delete", "namespace", "default").failure();
    assert!(kept.contains("may not be deleted"), "{kept}");
}

#[test]
fn pages_and_collections() {
    let server = TestServer::start();
    let list: Vec<Value> = (0..25)
        .map(|index| {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("c{index:02}"),
                "labels": {"set": if index % 2 == 0 { "even" } else { "odd" }}}})
        })
        .collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": list});
    kubectl_input!(server, &list.to_string(), "create", "-f", "-").success();
    let names = kubectl!(server, "get", "cm", "--chunk-size=10", "-l", "set", "-o", "name").success();
    assert_eq!(names.lines().count(), 25);
    kubectl!(server, "delete", "cm", "-l", "set=odd").success();
    let names = kubectl!(server, "get", "cm", "--chunk-size=5", "-l", "set", "-o", "name").success();
    assert_eq!(names.lines().count(), 13);
    kubectl!(server, "delete", "cm", "--all").success();
    assert_eq!(kubectl!(server, "get", "cm", "-o", "name").success(), "");
}

#[test]
fn run_debug_and_events() {
    let server = TestServer::start();
    kubectl!(server, "run", "quick", "--image=busybox", "--restart=Never").success();
    kubectl!(
        server,
        "debug",
        "quick",
        "--image=busybox",
        "--container=dbg",
        "--attach=false"
    )
    .success();
    let added = kubectl!(
        server,
        "get",
        "pod",
        "quick",
        "-o",
        "jsonpath={.spec.ephemeralContainers[0].name}"
    );
    assert_eq!(added.success(), "dbg");
    let uid = kubectl!(server, "get", "pod", "quick", "-o", "jsonpath={.metadata.uid}").success();
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": "e1", "namespace": "default"}, "eventTime": "2026-11-15T08:00:00.000000Z",
        "reason": "Started", "note": "Started container", "type": "Normal", "action": "Start",
        "reportingController": "node", "reportingInstance": "n1",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "uid": uid, "name": "quick", "namespace": "default"}});
    kubectl_input!(server, &event.to_string(), "create", "-f", "-").success();
    assert!(kubectl!(server, "get", "events").success().contains("pod/quick"));
    assert!(
        kubectl!(server, "events", "--for", "pod/quick")
            .success()
            .contains("Started container")
    );
    assert!(
        kubectl!(server, "describe", "pod", "quick")
            .success()
            .contains("Started container")
    );
}

/// A running kubectl whose output is read line by line; killed when dropped.
struct Running {
    child: std::process::Child,
    lines: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Running {
    fn start(server: &TestServer, arguments: &[&str]) -> Self {
        let mut child = crate::harness::kubectl_command(server.path(), &server.kubeconfig)
            .args(arguments)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        let stdout = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
        Self {
            child,
            lines: std::io::BufRead::lines(stdout),
        }
    }

    fn next(&mut self) -> String {
        self.lines.next().expect("the watch goes on").expect("text")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_watch_sees_every_change() {
    let server = TestServer::start();
    kubectl!(server, "create", "configmap", "a", "--from-literal=n=0").success();
    let mut values = Running::start(
        &server,
        &["get", "cm", "a", "-w", "-o", "jsonpath={.data.n}{\"\\n\"}"],
    );
    let mut table = Running::start(&server, &["get", "cm", "a", "-w"]);
    assert_eq!(values.next(), "0");
    assert!(table.next().starts_with("NAME"));
    assert!(table.next().starts_with("a "));
    for value in 1..4 {
        let patch = format!("{{\"data\":{{\"n\":\"{value}\"}}}}");
        server
            .kubectl(&["patch", "cm", "a", "-p", &patch])
            .unwrap()
            .success();
        assert_eq!(values.next(), value.to_string());
        assert!(table.next().starts_with("a "));
    }
}
