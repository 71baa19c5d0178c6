//! Off the machine again: what was there before is there after, whatever happened in between.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use pulselet_testing::{is_root, requires};
use serde_json::{Value, json};

use super::harness::eventually;
use super::world::{Node, Runtime, World, e2e, port, with};

/// What a machine has of one data directory, by kind.
#[derive(Debug, Default, PartialEq, Eq)]
struct Traces {
    processes: BTreeSet<i32>,
    mounts: BTreeSet<String>,
    links: BTreeSet<String>,
    tables: BTreeSet<String>,
    cgroups: BTreeSet<PathBuf>,
    files: BTreeSet<PathBuf>,
}

/// The names under which the machine has what belongs to the directory, from the file in which its runtime keeps them.
fn names(world: &World) -> Option<(String, String)> {
    let text = std::fs::read(world.data().join("oci/place.json")).ok()?;
    let place: Value = serde_json::from_slice(&text).ok()?;
    let name = |field: &str| place["names"][field].as_str().map(str::to_owned);
    Some((name("bridge")?, name("cgroup")?))
}

impl Traces {
    fn of(world: &World, (bridge, cgroup): &(String, String)) -> Self {
        let here = world.data();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let below = mounts
            .lines()
            .filter(|line| line.contains(here.to_str().unwrap()));
        let links = [Path::new("/sys/class/net").join(bridge)];
        let ports = std::fs::read_dir(links[0].join("brif"))
            .into_iter()
            .flatten()
            .flatten();
        let nft = Command::new("nft").args(["list", "tables"]).output();
        let tables = nft.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let tables = tables.unwrap_or_default();
        let tables = tables
            .lines()
            .filter(|line| line.contains(&bridge.replace('-', "_")));
        let hierarchies = std::fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten();
        let hierarchies = hierarchies
            .map(|entry| entry.path())
            .chain(["/sys/fs/cgroup".into()]);
        let announced = std::fs::read_dir("/run/pulselet/data-dirs")
            .into_iter()
            .flatten()
            .flatten();
        let announced = announced
            .map(|entry| entry.path())
            .filter(|file| std::fs::read_to_string(file).is_ok_and(|text| Path::new(&text) == here));
        Self {
            processes: world.processes(),
            mounts: below.map(str::to_owned).collect(),
            links: links
                .iter()
                .filter(|link| link.exists())
                .map(|link| link.display().to_string())
                .chain(ports.map(|port| port.file_name().to_string_lossy().into_owned()))
                .collect(),
            tables: tables.map(str::to_owned).collect(),
            cgroups: hierarchies
                .map(|it| it.join(cgroup))
                .filter(|it| it.exists())
                .collect(),
            files: announced.chain(here.exists().then_some(here.clone())).collect(),
        }
    }
}

fn reset(world: &World, flags: &[&str]) -> Output {
    let mut command = world.command("reset");
    if matches!(world.runtime, Runtime::Containerd | Runtime::OwnCri) {
        command.args(["--runtime", &world.runtime_flag()]);
    }
    command.args(flags).stdin(Stdio::null()).output().unwrap()
}

/// Writes a pod with everything that leaves traces: a network, a port of the host, a volume in memory.
fn write_pod(world: &World) {
    std::fs::create_dir(world.path("manifests")).unwrap();
    let mut app = world.ready_demo("app", &[]);
    if matches!(world.runtime, Runtime::Oci | Runtime::OwnCri) {
        app = with(app, json!({"ports": [{"containerPort": 80, "hostPort": port()}]}));
        let memory = json!({"name": "memory", "mountPath": "/memory"});
        app["volumeMounts"].as_array_mut().unwrap().push(memory);
    }
    let mut spec = world.with_volumes(&json!({"containers": [app]}));
    let volume = json!({"name": "memory", "emptyDir": {"medium": "Memory"}});
    spec["volumes"].as_array_mut().unwrap().push(volume);
    let written = world.manifest("web", &spec);
    std::fs::rename(written, world.path("manifests/web.json")).unwrap();
}

fn until_ready(world: &World) {
    eventually("pod", || {
        let pods = world.pods()?;
        (pods.first()?["status"]["containerStatuses"][0]["ready"] == true).then_some(())
    });
}

e2e!(
    nothing_is_left_after_a_killed_agent,
    [Process, Oci, Containerd, OwnCri],
    |world| {
        write_pod(world);
        let node = Node::start(world);
        until_ready(world);
        let held = reset(world, &["--yes"]);
        assert_eq!(held.status.code(), Some(3), "{held:?}");
        assert!(
            String::from_utf8_lossy(&held.stderr).contains("systemctl stop"),
            "{held:?}"
        );
        drop(node);
        let names = names(world).unwrap_or_default();
        if world.runtime == Runtime::Oci {
            let during = Traces::of(world, &names);
            let all = [
                during.processes.is_empty(),
                during.mounts.is_empty(),
                during.links.is_empty(),
                during.tables.is_empty(),
                during.cgroups.is_empty(),
                during.files.is_empty(),
            ];
            assert_eq!(all, [false; 6], "{during:#?}");
        }
        let asked = reset(world, &[]);
        assert_eq!(asked.status.code(), Some(2), "{asked:?}");
        let listed = String::from_utf8_lossy(&asked.stdout).into_owned();
        assert!(
            listed.contains("pod default/web") && listed.contains("node.db"),
            "{listed}"
        );
        assert!(!world.processes().is_empty(), "nothing goes without a yes");
        let done = reset(world, &["--yes"]);
        assert_eq!(done.status.code(), Some(0), "{done:?}");
        if world.runtime == Runtime::Oci {
            assert_eq!(Traces::of(world, &names), Traces::default());
        }
        assert!(world.processes().is_empty() && !world.data().exists());
        let again = reset(world, &["--yes"]);
        assert_eq!(again.status.code(), Some(0), "{again:?}");
    }
);

e2e!(
    containers_of_a_removed_directory_are_ended_by_the_next_agent,
    [Oci],
    |world| {
        write_pod(world);
        let node = Node::start(world);
        until_ready(world);
        drop(node);
        let names = names(world).unwrap();
        let before = Traces::of(world, &names).processes;
        assert!(!before.is_empty());
        // What is mounted there stays, which is not the user's fault.
        let _ = Command::new("rm")
            .arg("-rf")
            .arg(world.data())
            .stderr(Stdio::null())
            .status();
        std::fs::remove_file(world.path("manifests/web.json")).unwrap();
        let node = Node::start(world);
        eventually("end of what nobody knows", || {
            before.is_disjoint(&world.processes()).then_some(())
        });
        drop(node);
        let done = reset(world, &["--yes"]);
        assert_eq!(done.status.code(), Some(0), "{done:?}");
        assert_eq!(Traces::of(world, &names), Traces::default());
    }
);

e2e!(host_processes_go_without_cgroups, [Process], |world| {
    if !requires("root", is_root()) {
        return;
    }
    write_pod(world);
    let node = Node::start(world);
    until_ready(world);
    drop(node);
    let reset = world.command("reset");
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "sh",
        "-c",
        "umount -a -l -t cgroup,cgroup2 && exec \"$@\"",
        "sh",
    ]);
    command
        .arg(reset.get_program())
        .args(reset.get_args())
        .arg("--yes");
    let done = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(world.processes().is_empty() && !world.data().exists());
});

e2e!(
    a_directory_that_does_not_exist_is_not_created,
    [Process],
    |world| {
        for path in [world.data(), world.path("no/such/directory")] {
            for flags in [&[][..], &["--yes"]] {
                let mut command = Command::new(env!("CARGO_BIN_EXE_pulselet"));
                command.args(["reset", "--data-dir"]).arg(&path).args(flags);
                let done = command.stdin(Stdio::null()).output().unwrap();
                assert_eq!(done.status.code(), Some(0), "{done:?}");
                let text = String::from_utf8_lossy(&done.stdout);
                assert!(
                    text.contains("nothing to remove") && text.contains(path.to_str().unwrap()),
                    "{text}"
                );
            }
        }
        let left = std::fs::read_dir(world.directory.path()).unwrap().count();
        assert_eq!(left, 0, "something was created");
    }
);

e2e!(files_of_others_stay, [Process], |world| {
    std::fs::create_dir(world.data()).unwrap();
    std::fs::write(world.data().join("mine.txt"), "").unwrap();
    let done = reset(world, &["--yes"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(
        String::from_utf8_lossy(&done.stdout).contains("mine.txt"),
        "{done:?}"
    );
    assert!(world.data().join("mine.txt").exists());
});

e2e!(every_kind_of_file_goes, [Process], |world| {
    // Objects that were handed over, which may be secrets.
    std::fs::create_dir(world.path("manifests")).unwrap();
    let node = Node::start(world);
    eventually("agent", || world.pods());
    let objects = world.path("objects.json");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"containers": [world.container("app", &["sleep", "1000000"])]}});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"key": "k"}});
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [secret, pod]});
    std::fs::write(&objects, list.to_string()).unwrap();
    let handed = world
        .command("run")
        .arg("--detach")
        .arg(&objects)
        .output()
        .unwrap();
    assert!(handed.status.success(), "{handed:?}");
    drop(node);
    assert!(world.data().join("objects.json").exists());
    // An API, and another in its place; the store of the first is put aside.
    for flags in [&[][..], &["--new-store"]] {
        let mut serve = world.command("serve");
        serve
            .args(["--listen", "127.0.0.1:0", "--node-listen", "127.0.0.1:0"])
            .args(flags);
        serve.args(["--metrics", "127.0.0.1:0", "--runtime", "process"]);
        let mut serve = serve.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        eventually("server", || world.pods());
        serve.kill().unwrap();
        serve.wait().unwrap();
    }
    // What joining with a bootstrap kubeconfig leaves, and what the package keeps to be purged.
    for name in [
        "node-client.pem",
        "node-serving.pem",
        "node.kubeconfig",
        "reset-program",
    ] {
        std::fs::write(world.data().join(name), "").unwrap();
    }
    let done = reset(world, &["--yes"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(!world.data().exists(), "{text}");
});
