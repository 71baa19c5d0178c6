//! Real clients, a server, and the endpoint of a node whose containers are scripted.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use pulselet_agent::{DataDir, LogPlace, Node, NodeHandle, NodeOptions, Origin};
use pulselet_node_server::{NodeServer, Options, Tls};
use pulselet_runtime_fake::{FakeRuntime, RuntimeFaults};
use pulselet_vocabulary::PodName;
use serde_json::json;
use tempfile::TempDir;

use crate::client::Client;
use crate::harness::{Answer, TestServer, kubectl_command};

/// A kubectl and how it speaks.
enum Program {
    Recent,
    /// As it did before WebSocket.
    RecentOverSpdy,
    /// 1.20, which knows nothing else than SPDY.
    Old(OsString),
}

/// All kubectls there are. In CI all must be there.
fn programs() -> Vec<Program> {
    let mut programs = Vec::new();
    let recent = std::env::var_os("PULSELET_KUBECTL").unwrap_or_else(|| "kubectl".into());
    let recent = Command::new(recent)
        .args(["version", "--client"])
        .output()
        .is_ok();
    if pulselet_testing::requires("kubectl", recent) {
        programs.extend([Program::Recent, Program::RecentOverSpdy]);
    }
    let old = std::env::var_os("PULSELET_OLD_KUBECTL");
    if pulselet_testing::requires("kubectl 1.20 (PULSELET_OLD_KUBECTL)", old.is_some()) {
        programs.extend(old.map(Program::Old));
    }
    programs
}

/// The same command with another program.
fn at(program: &OsStr, command: &Command) -> Command {
    let mut other = Command::new(program);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => other.env(name, value),
            None => other.env_remove(name),
        };
    }
    other
}

const PODS: &str = "/api/v1/namespaces/default/pods";

/// A server and a node with a running pod `web` whose container is `app`.
struct Cluster {
    server: TestServer,
    node: NodeHandle,
    runtime: FakeRuntime,
    _endpoint: NodeServer,
    _directory: TempDir,
}

impl Cluster {
    async fn new() -> Self {
        let server = TestServer::start();
        let directory = TempDir::new().expect("a directory");
        let runtime = FakeRuntime::new(RuntimeFaults::default());
        let data = DataDir::claim(directory.path().join("data")).expect("nobody else has it");
        let node = Node::start(NodeOptions::new(data, Arc::new(runtime.clone())))
            .await
            .expect("the node starts");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let endpoint = pulselet_node_server::serve(Options {
            node: node.clone(),
            runtime: Arc::new(runtime.clone()),
            listener,
            tls: Tls {
                certificates: server.node_certificate.certificate.clone(),
                key: server.node_certificate.key.clone(),
                client_authorities: server.node_certificate.authority.clone(),
            },
            callers: None,
        })
        .expect("it is served");
        let cluster = Self {
            server,
            node,
            runtime,
            _endpoint: endpoint,
            _directory: directory,
        };
        cluster.populate(port).await;
        cluster
    }

    /// What a joined node would do: its Node, the pod on it, and the pod's status.
    async fn populate(&self, port: u16) {
        let mut client = Client::admin(&self.server).await;
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "allocatable": {"cpu": "2", "memory": "1Gi"},
        }});
        assert_eq!(client.post("/api/v1/nodes", &node).await.0, 201);
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web"},
            "spec": {"nodeName": "n1", "containers": [{"name": "app", "image": "app:1", "stdin": true}]},
        });
        let (code, mut stored) = client.post(PODS, &pod).await;
        assert_eq!(code, 201, "{stored}");
        let admitted = serde_json::from_value(stored.clone()).expect("a pod");
        let added = self.node.add_pod(admitted, Origin::Run).await;
        added.expect("the node is there").expect("the pod is taken");
        while !matches!(self.node.container(&web(), "app").await, Ok(Ok(_))) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let objects = self.node.objects().await.expect("the node is there");
        stored["status"] = serde_json::to_value(&objects[0].status).expect("a status");
        let path = format!("{PODS}/web/status");
        let (code, answer) = client.json(http::Method::PUT, &path, Some(&stored)).await;
        assert_eq!(code, 200, "{answer}");
    }

    async fn log_place(&self) -> LogPlace {
        let place = self.node.log(&web(), None, false).await;
        place.expect("the node is there").expect("a log")
    }

    fn start(&self, arguments: &[&str], program: &Program) -> Child {
        let mut command = kubectl_command(self.server.path(), &self.server.kubeconfig);
        match program {
            Program::Recent => {}
            Program::RecentOverSpdy => {
                command
                    .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
                    .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false");
            }
            Program::Old(path) => command = at(path, &command),
        }
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts")
    }

    fn kubectl(&self, arguments: &[&str]) -> Option<Answer> {
        self.server.kubectl(arguments)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_run_over_websocket_and_spdy() {
    let cluster = Cluster::new().await;
    for program in programs() {
        let child = cluster.start(&["exec", "web", "--", "exit", "3"], &program);
        let output = child.wait_with_output().expect("kubectl ends");
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert_eq!(output.stdout, b"out\n");
        assert!(output.stderr.starts_with(b"err\n"), "{output:?}");

        let mut child = cluster.start(&["exec", "-i", "web", "--", "cat"], &program);
        let typed = "z".repeat(300_000);
        let mut stdin = child.stdin.take().expect("a pipe");
        let typing = std::thread::spawn({
            let typed = typed.clone();
            move || stdin.write_all(typed.as_bytes())
        });
        let output = child.wait_with_output().expect("kubectl ends");
        typing.join().expect("no panic").expect("all is typed");
        assert!(output.status.success(), "{output:?}");
        assert!(output.stdout == typed.as_bytes(), "what was typed comes back");
    }
    let refused = cluster
        .kubectl(&["exec", "web", "--", "nonsense"])
        .expect("kubectl");
    assert!(refused.failure().contains("error executing command in container"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_killed_leaves_nothing_behind() {
    let cluster = Cluster::new().await;
    for program in programs() {
        let mut child = cluster.start(&["attach", "-i", "web"], &program);
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(b"x").expect("it is typed");
        let mut received = [0];
        let mut stdout = child.stdout.take().expect("a pipe");
        stdout.read_exact(&mut received).expect("it comes back");
        assert_eq!(cluster.runtime.open_streams(), 1);
        child.kill().expect("it is killed");
        child.wait().expect("it ends");
        let waiting = async {
            while cluster.runtime.open_streams() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), waiting)
            .await
            .expect("the command ends with its client");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_are_forwarded_over_websocket_and_spdy() {
    let cluster = Cluster::new().await;
    for program in programs() {
        let mut child = cluster.start(&["port-forward", "pod/web", ":80"], &program);
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let line = lines.next().expect("a line").expect("text");
        let port = line
            .split("127.0.0.1:")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        let port: u16 = port.and_then(|port| port.parse().ok()).expect(&line);
        for _ in 0..3 {
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("a connection");
            stream.write_all(b"hello").expect("it is sent");
            stream.shutdown(std::net::Shutdown::Write).expect("it ends");
            let mut echo = String::new();
            stream.read_to_string(&mut echo).expect("an echo");
            assert_eq!(echo, "hello");
        }
        child.kill().expect("it is killed");
        child.wait().expect("it ends");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_and_complaints_about_them_come_from_the_node() {
    let cluster = Cluster::new().await;
    let place = cluster.log_place().await;
    std::fs::create_dir_all(place.path.parent().expect("a directory")).expect("it is made");
    let line = |text: &str| format!("2026-01-02T03:04:05.000000000Z stdout F {text}\n");
    std::fs::write(&place.path, line("one") + &line("two")).expect("it is written");
    let Some(all) = cluster.kubectl(&["logs", "web"]) else {
        return;
    };
    assert_eq!(all.success(), "one\ntwo\n");
    let kubectl = |arguments: &[&str]| cluster.kubectl(arguments).expect("kubectl");
    assert_eq!(kubectl(&["logs", "web", "--tail=1"]).success(), "two\n");
    let stamped = kubectl(&["logs", "web", "--timestamps", "--tail=1"]).success();
    assert_eq!(stamped, "2026-01-02T03:04:05.000000000Z two\n");
    let complaint = kubectl(&["logs", "web", "--previous"]).failure();
    let expected = "(BadRequest): previous terminated container \"app\" in pod \"web\" not found";
    assert!(complaint.contains(expected), "{complaint}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_pods_and_nodes_use_is_shown() {
    let cluster = Cluster::new().await;
    let Some(pods) = cluster.kubectl(&["top", "pod", "--containers", "--no-headers"]) else {
        return;
    };
    let pods = pods.success();
    assert!(pods.contains("web") && pods.contains("app"), "{pods}");
    let nodes = cluster.kubectl(&["top", "node"]).expect("kubectl").success();
    assert!(nodes.contains("n1"), "{nodes}");
    let mut client = Client::admin(&cluster.server).await;
    let base = "/apis/metrics.k8s.io/v1beta1";
    let (code, status) = client.get(&format!("{base}/namespaces/default/pods/nope")).await;
    assert_eq!(code, 404, "{status}");
    let (_, one) = client.get(&format!("{base}/namespaces/default/pods/web")).await;
    assert_eq!(one["kind"], "PodMetrics");
    let (_, none) = client.get(&format!("{base}/pods?labelSelector=a%3Db")).await;
    assert_eq!(none["items"], json!([]));
    let (code, _) = client.get(&format!("{base}/namespaces/default/nodes")).await;
    assert_eq!(code, 404);
}

/// Runs a program that uses a client of its language, with the administrator's kubeconfig.
fn run_client(cluster: &Cluster, command: &mut Command) {
    let output = command
        .env("KUBECONFIG", &cluster.server.kubeconfig)
        .env_remove("HTTPS_PROXY")
        .env_remove("https_proxy")
        .output()
        .expect("it starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(output.stdout, b"done\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_lists_watches_creates_and_executes() {
    let python = std::env::var_os("PULSELET_PYTHON");
    if !pulselet_testing::requires("a Python with the client (PULSELET_PYTHON)", python.is_some()) {
        return;
    }
    let python = python.expect("just looked");
    let cluster = Cluster::new().await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/client.py");
    run_client(&cluster, Command::new(python).arg(script));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_javascript_client_lists_watches_creates_and_executes() {
    let home = std::env::var_os("PULSELET_JAVASCRIPT");
    let what = "Node.js and a directory with the JavaScript client (PULSELET_JAVASCRIPT)";
    if !pulselet_testing::requires(what, home.is_some()) {
        return;
    }
    let cluster = Cluster::new().await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/client.mjs");
    run_client(&cluster, Command::new("node").arg(script));
}

/// The pod of every test.
fn web() -> PodName {
    PodName::new("default", "web")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_serves_itself_is_passed_on() {
    let cluster = Cluster::new().await;
    let mut admin = Client::admin(&cluster.server).await;
    let answer = admin
        .send(http::Method::GET, "/api/v1/nodes/n1/proxy/healthz", "", "")
        .await;
    let (code, body) = crate::client::collect(answer).await;
    assert_eq!((code.as_u16(), &body[..]), (200, &b"ok"[..]));
    let (code, pods) = admin.get("/api/v1/nodes/n1/proxy/pods").await;
    assert_eq!((code, &pods["kind"]), (200, &json!("PodList")));
    assert_eq!(admin.get("/api/v1/nodes/n1:22/proxy/").await.0, 400);
    assert_eq!(admin.get("/api/v1/nodes/none/proxy/").await.0, 404);
    if let Some(answer) = cluster
        .server
        .kubectl(&["get", "--raw", "/api/v1/nodes/n1/proxy/healthz"])
    {
        assert_eq!(answer.success(), "ok");
    }
    // A pod's address is what its node says: this machine's own is refused.
    let status = json!({"status": {"podIP": "127.0.0.1"}});
    let patched = admin
        .send(
            http::Method::PATCH,
            &format!("{PODS}/web/status"),
            "application/merge-patch+json",
            status.to_string(),
        )
        .await;
    assert_eq!(patched.status().as_u16(), 200);
    let _ = crate::client::collect(patched).await;
    let (code, refused) = admin.get(&format!("{PODS}/web:80/proxy/")).await;
    assert_eq!((code, &refused["message"]), (400, &json!("address not allowed")));
}
