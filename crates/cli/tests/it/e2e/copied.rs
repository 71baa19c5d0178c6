//! A data directory that was copied while its pods run: they stay the original's.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::{Value, json};

use super::harness::eventually;
use super::world::{Node, World, e2e};

const PODS: [&str; 3] = ["one", "two", "three"];

/// A command that must end by itself, and is killed if it does not.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Ending {
    fn of(command: &mut Command) -> (ExitStatus, String) {
        let piped = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = Self(piped.spawn().expect("pulselet starts"));
        let status = eventually("end of the command", || child.0.try_wait().expect("a child"));
        let mut stderr = child.0.stderr.take().expect("is piped");
        (status, std::io::read_to_string(&mut stderr).expect("UTF-8"))
    }
}

/// `command` of the program on a data directory.
fn on(command: &str, data: &Path) -> Command {
    let mut on = Command::new(env!("CARGO_BIN_EXE_pulselet"));
    on.arg(command).arg("--data-dir").arg(data);
    on
}

fn node_on(world: &World, data: &Path) -> Command {
    let mut node = on("node", data);
    node.arg("--manifests").arg(world.path("manifests"));
    node.args(["--config", &world.config("hostImage: true\n")]);
    node.args(["--runtime", &world.runtime_flag(), "--metrics", "127.0.0.1:0"]);
    node
}

/// Every pod's container id and restart count, once all are ready.
fn containers(data: &Path) -> Vec<(Value, Value, Value)> {
    eventually("ready pods", || {
        let output = on("ps", data)
            .args(["-o", "json"])
            .output()
            .expect("pulselet runs");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let pods = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        let mut all: Vec<_> = pods
            .map(|pod: Value| {
                let status = &pod["status"]["containerStatuses"][0];
                let ready = status["ready"] == true;
                let field = |name: &str| status[name].clone();
                (
                    ready,
                    pod["metadata"]["name"].to_string(),
                    field("containerID"),
                    field("restartCount"),
                )
            })
            .collect();
        all.sort_by(|one, other| one.1.cmp(&other.1));
        let is_ready = all.len() == PODS.len() && all.iter().all(|(ready, ..)| *ready);
        is_ready.then(|| {
            all.into_iter()
                .map(|(_, name, id, count)| (name.into(), id, count))
                .collect()
        })
    })
}

fn copy(from: &Path, to: &Path) {
    let mut copy = Command::new("cp");
    copy.args(["-a", "--one-file-system"]).args([from, to]);
    // The pins of namespaces, which are mounted files, cannot be read: cp says so and copies the rest.
    copy.stderr(Stdio::null()).status().expect("cp runs");
    assert!(to.join("node.db").exists());
}

/// Three pods, and a node that runs them.
fn run_pods(world: &World) -> Node {
    let manifests = world.path("manifests");
    std::fs::create_dir(&manifests).expect("makes");
    for name in PODS {
        let app = world.ready_demo("app", &[]);
        let written = world.manifest(name, &json!({"containers": [app]}));
        std::fs::rename(written, manifests.join(format!("{name}.json"))).expect("moves");
    }
    Node::start(world)
}

/// The commands between the backticks of a hint.
fn hinted(stderr: &str) -> Vec<String> {
    let hint = stderr.lines().find_map(|line| line.strip_prefix("hint: "));
    let hint = hint.unwrap_or_else(|| panic!("no hint: {stderr}"));
    hint.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn run_hinted(world: &World, hint: &str) {
    let mut words = hint.split(' ');
    assert_eq!(words.next(), Some("pulselet"), "{hint}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_pulselet"));
    command.args(words);
    if world.runtime.name() == "cri" {
        command.args(["--runtime", &world.runtime_flag()]);
    }
    let (status, stderr) = Ending::of(&mut command);
    assert_eq!(status.code(), Some(0), "{hint}: {stderr}");
}

e2e!(
    a_copy_leaves_the_pods_of_the_original_alone,
    [Process, Oci, Containerd, OwnCri],
    |world| {
        let node = run_pods(world);
        let data = world.data();
        let before = containers(&data);
        let [first, second]: [PathBuf; 2] = ["copy", "taken"].map(|name| world.path(name));
        copy(&data, &first);
        copy(&data, &second);
        let (status, stderr) = Ending::of(&mut node_on(world, &first));
        assert_eq!(status.code(), Some(3), "{stderr}");
        assert!(
            stderr.contains(&format!("is a copy of {}", data.display())),
            "{stderr}"
        );
        let mut serve = on("serve", &first);
        serve.args(["--listen", "127.0.0.1:0", "--node-listen", "127.0.0.1:0"]);
        serve.args(["--runtime", &world.runtime_flag(), "--metrics", "127.0.0.1:0"]);
        let (status, _) = Ending::of(&mut serve);
        assert_eq!(status.code(), Some(3));
        assert!(!first.join("api.db").exists(), "nothing was touched");
        let hints = hinted(&stderr);
        assert_eq!(hints.len(), 2, "{stderr}");
        run_hinted(world, &hints[0]);
        assert!(!first.exists());
        assert_eq!(containers(&data), before, "the pods are those that were there");
        drop(node);
        assert_eq!(
            Ending::of(&mut node_on(world, &second)).0.code(),
            Some(3),
            "no agent has them, and they run"
        );
        run_hinted(world, &hints[1]);
        assert!(!data.exists() && world.processes().is_empty());
        let node = Ending(
            node_on(world, &second)
                .stderr(Stdio::null())
                .spawn()
                .expect("starts"),
        );
        let taken = containers(&second);
        assert!(
            taken.iter().all(|container| !before.contains(container)),
            "{taken:?}"
        );
        drop(node);
        let mut reset = on("reset", &second);
        if world.runtime.name() == "cri" {
            reset.args(["--runtime", &world.runtime_flag()]);
        }
        assert_eq!(Ending::of(reset.arg("--yes")).0.code(), Some(0));
    }
);

e2e!(
    a_copy_without_identity_is_known_by_the_shims,
    [Process, Oci],
    |world| {
        let _node = run_pods(world);
        let before = containers(&world.data());
        let copied = world.path("copy");
        copy(&world.data(), &copied);
        // As a build leaves it that does not record the identity.
        std::fs::remove_file(copied.join("agent.identity")).expect("is there");
        assert_eq!(Ending::of(&mut node_on(world, &copied)).0.code(), Some(3));
        assert_eq!(containers(&world.data()), before);
    }
);

e2e!(
    pods_of_a_moved_directory_run_on,
    [Process, Oci, Containerd, OwnCri],
    |world| {
        let node = run_pods(world);
        let before = containers(&world.data());
        drop(node);
        let moved = world.path("moved");
        std::fs::rename(world.data(), &moved).expect("moves");
        let node = Ending(
            node_on(world, &moved)
                .stderr(Stdio::null())
                .spawn()
                .expect("starts"),
        );
        assert_eq!(containers(&moved), before);
        drop(node);
        std::fs::rename(&moved, world.data()).expect("moves back");
    }
);
