//! `pulselet node`: static pods, and containers that outlive their agent.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::harness::{PATIENCE, eventually};
use super::world::{World, e2e, http, port, with};

/// A running `pulselet node`.
struct Node {
    child: Child,
    metrics: u16,
}

impl Node {
    fn start(world: &World) -> Self {
        Self::start_with(world, |_| {})
    }

    fn start_with(world: &World, change: impl FnOnce(&mut Command)) -> Self {
        let metrics = port();
        std::fs::create_dir_all(world.path("manifests")).unwrap();
        let mut command = world.command("node");
        command.arg("--manifests").arg(world.path("manifests"));
        command.args(["--config", &world.config("hostImage: true\n")]);
        command.args([
            "--runtime",
            &world.runtime_flag(),
            "--metrics",
            &format!("127.0.0.1:{metrics}"),
        ]);
        change(&mut command);
        let child = command.stderr(Stdio::null()).spawn().expect("pulselet starts");
        Self { child, metrics }
    }

    fn terminate(mut self) {
        let pid = i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.metrics)).expect("the node listens");
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write(world: &World, name: &str, spec: &Value) {
    let spec = world.with_volumes(spec);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    std::fs::write(
        world.path("manifests").join(format!("{name}.yaml")),
        pod.to_string(),
    )
    .unwrap();
}

/// Asks until the pods are as expected.
fn wait_for(world: &World, what: &str, fits: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    eventually(what, || {
        let pods = world.pods()?;
        fits(&pods).then_some(pods)
    })
}

fn is_ready(pod: &Value) -> bool {
    pod["status"]["containerStatuses"][0]["ready"] == true
}

fn container_id(pod: &Value) -> String {
    pod["status"]["containerStatuses"][0]["containerID"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn stop_all(world: &World) {
    let stopped = world
        .command("stop")
        .args(["--all", "--grace-period", "1"])
        .status()
        .unwrap();
    assert!(stopped.success());
}

e2e!(static_pods_follow_their_files, [Process], |world| {
    let node = Node::start(world);
    wait_for(world, "answer", <[Value]>::is_empty);
    write(world, "one", &json!({"containers": [world.demo("app", &[])]}));
    let first = wait_for(world, "pod", |pods| pods.len() == 1 && is_ready(&pods[0]));
    // A broken file is reported and leaves the pod alone.
    std::fs::write(
        world.path("manifests/one.yaml"),
        "kind: Pod\nspec: {containers: 7}\n",
    )
    .unwrap();
    write(world, "two", &json!({"containers": [world.demo("app", &[])]}));
    let both = wait_for(world, "second pod", |pods| {
        pods.len() == 2 && pods.iter().all(is_ready)
    });
    assert_eq!(container_id(&both[0]), container_id(&first[0]));
    // A changed one is replaced.
    write(
        world,
        "one",
        &json!({"containers": [world.demo("app", &["--stop-in", "1ms"])]}),
    );
    wait_for(world, "replacement", |pods| {
        let one = pods.iter().find(|pod| pod["name"] == "one");
        one.is_some_and(|one| is_ready(one) && container_id(one) != container_id(&first[0]))
    });
    for name in ["one", "two"] {
        std::fs::remove_file(world.path(&format!("manifests/{name}.yaml"))).unwrap();
    }
    wait_for(world, "end", <[Value]>::is_empty);
    node.terminate();
    assert!(world.processes().is_empty());
});

e2e!(
    containers_outlive_the_agent_and_are_adopted,
    [Process, Oci, Containerd, OwnCri],
    |world| {
        let port = port();
        std::fs::create_dir_all(world.path("manifests")).unwrap();
        let app = with(
            world.demo("app", &["--port", &port.to_string()]),
            json!({"readinessProbe": http(port, json!({"periodSeconds": 1}))}),
        );
        write(world, "web", &json!({"containers": [app]}));
        let node = Node::start(world);
        let before = wait_for(world, "pod", |pods| pods.len() == 1 && is_ready(&pods[0]));
        node.terminate();
        assert!(!world.processes().is_empty(), "the container runs on");
        let node = Node::start(world);
        let after = wait_for(world, "pod", |pods| pods.len() == 1);
        assert!(is_ready(&after[0]), "ready from the first moment on: {after:#?}");
        assert_eq!(container_id(&after[0]), container_id(&before[0]));
        stop_all(world);
        node.terminate();
    }
);

e2e!(
    a_pod_runs_on_until_the_next_image_is_there,
    [Oci, OwnCri],
    |world| {
        let node = Node::start(world);
        wait_for(world, "answer", <[Value]>::is_empty);
        let app = world.demo("app", &[]);
        write(world, "web", &json!({"containers": [app.clone()]}));
        let before = wait_for(world, "pod", |pods| pods.len() == 1 && is_ready(&pods[0]));
        // Nobody has this image.
        let next = with(
            app,
            json!({"image": "127.0.0.1:1/none:2", "imagePullPolicy": "IfNotPresent"}),
        );
        write(world, "web", &json!({"containers": [next]}));
        let why = world.event("ReplacementWaits");
        assert!(
            why.contains("this pod runs on") && why.contains("127.0.0.1:1/none"),
            "{why}"
        );
        let after = world.pods().unwrap();
        assert!(after.len() == 1 && is_ready(&after[0]), "{after:#?}");
        assert_eq!(container_id(&after[0]), container_id(&before[0]));
        stop_all(world);
        node.terminate();
    }
);

e2e!(
    the_program_is_replaced_while_pods_run,
    [Process, Oci, OwnCri],
    |world| {
        std::fs::create_dir_all(world.path("manifests")).unwrap();
        let (program, next) = (world.path("pulselet"), world.path("pulselet-new"));
        for copy in [&program, &next] {
            std::fs::copy(env!("CARGO_BIN_EXE_pulselet"), copy).unwrap();
        }
        let start = || {
            let mut command = Command::new(&program);
            command.args(["node", "--manifests"]).arg(world.path("manifests"));
            command.arg("--data-dir").arg(world.data());
            command.args([
                "--config",
                &world.config("hostImage: true\n"),
                "--metrics",
                "127.0.0.1:0",
            ]);
            command
                .args(["--runtime", &world.runtime_flag()])
                .stderr(Stdio::null());
            let child = command.spawn().expect("pulselet starts");
            Node { child, metrics: 0 }
        };
        write(world, "web", &json!({"containers": [world.demo("app", &[])]}));
        let node = start();
        let before = wait_for(world, "pod", |pods| pods.len() == 1 && is_ready(&pods[0]));
        // As `install` and package managers do it; what runs goes on with the old one.
        std::fs::rename(&next, &program).unwrap();
        node.terminate();
        let node = start();
        let after = wait_for(world, "pod", |pods| pods.len() == 1);
        assert!(is_ready(&after[0]), "ready from the first moment on: {after:#?}");
        assert_eq!(container_id(&after[0]), container_id(&before[0]));
        // The next life is the new one's.
        let restarted = world.command("restart").arg("web").status().unwrap();
        assert!(restarted.success());
        wait_for(world, "another life", |pods| {
            is_ready(&pods[0]) && container_id(&pods[0]) != container_id(&before[0])
        });
        stop_all(world);
        node.terminate();
    }
);

e2e!(health_and_metrics_are_served, [Process], |world| {
    let port = port();
    std::fs::create_dir_all(world.path("manifests")).unwrap();
    let app = with(
        world.demo("app", &["--port", &port.to_string()]),
        json!({"readinessProbe": http(port, json!({"periodSeconds": 1})), "lifecycle": {"stopSignal": "SIGTERM"}}),
    );
    write(
        world,
        "web",
        &json!({"containers": [app], "os": {"name": "linux"}}),
    );
    let node = Node::start(world);
    wait_for(world, "pod", |pods| pods.len() == 1 && is_ready(&pods[0]));
    assert!(node.get("/healthz").starts_with("HTTP/1.1 200"));
    assert!(node.get("/readyz").starts_with("HTTP/1.1 200"));
    let metrics = node.get("/metrics");
    for part in [
        "prober_probe_total{probe_type=\"Readiness\",result=\"successful\",container=\"app\",pod=\"web\",namespace=\"default\"",
        "kubernetes_feature_enabled",
        "kubelet_pod_stop_signals_count",
        "pulselet_probe_lateness_seconds",
        "pulselet_container_time_to_first_success_seconds",
    ] {
        assert!(metrics.contains(part), "no {part} in {metrics}");
    }
    let mode = std::fs::metadata(world.data().join("pulselet.sock"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    stop_all(world);
    node.terminate();
});

e2e!(pods_are_handed_over, [Process], |world| {
    let node = Node::start(world);
    wait_for(world, "answer", <[Value]>::is_empty);
    let file = world.manifest("web", &json!({"containers": [world.demo("app", &[])]}));
    let hand_over = || {
        let output = world.command("run").arg(&file).arg("--detach").output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(hand_over(), "pod default/web created\n");
    wait_for(world, "pod", |pods| pods.len() == 1 && is_ready(&pods[0]));
    assert_eq!(hand_over(), "pod default/web unchanged\n");
    stop_all(world);
    node.terminate();
});

e2e!(
    a_service_manager_hears_of_start_life_and_end,
    [Process],
    |world| {
        let path = world.path("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let node = Node::start_with(world, |command| {
            command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "400000");
        });
        let receive = || {
            let mut buffer = [0; 64];
            let length = socket.recv(&mut buffer).expect("a message comes");
            String::from_utf8_lossy(&buffer[..length]).into_owned()
        };
        assert_eq!(receive(), "READY=1");
        assert_eq!([receive(), receive()], ["WATCHDOG=1", "WATCHDOG=1"]);
        node.terminate();
        let last = std::iter::repeat_with(receive).find(|message| message != "WATCHDOG=1");
        assert_eq!(last.as_deref(), Some("STOPPING=1"));
    }
);

#[test]
fn the_unit_starts_a_node_and_ends_nothing_but_the_agent() {
    let path = std::path::Path::new(crate::command::repository()).join("dist/pulselet.service");
    let unit = std::fs::read_to_string(path).unwrap();
    let setting = |name: &str| {
        let lines = unit.lines().filter_map(|line| line.split_once('='));
        lines
            .into_iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value)
    };
    assert_eq!(setting("Type"), Some("notify"));
    assert_eq!(setting("KillMode"), Some("process"));
    assert!(setting("WatchdogSec").is_some());
    let command: Vec<&str> = setting("ExecStart").unwrap().split(' ').skip(1).collect();
    let understood = crate::command::pulselet(&[&command[..], &["--help"]].concat());
    assert_eq!(understood.code, Some(0), "{}", understood.stderr);
}
