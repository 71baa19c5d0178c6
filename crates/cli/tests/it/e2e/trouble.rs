//! What goes wrong around an agent: each has a message that says what to do, and nothing running is lost.

use std::net::TcpListener;
use std::process::Output;

use serde_json::json;

use super::harness::{in_order, of};
use super::world::{World, e2e, http, port, with};

fn run(world: &World, args: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = world
        .command("run")
        .args(args)
        .args(["--runtime", "process"])
        .output()
        .unwrap();
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

e2e!(an_unreadable_manifest_starts_nothing, [Process], |world| {
    let good = world.manifest("good", &json!({"containers": [world.demo("app", &[])]}));
    let (code, stderr) = run(world, &[good.to_str().unwrap(), "/no/such/file.yaml"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("cannot read /no/such/file.yaml"), "{stderr}");
    assert!(!world.data().exists(), "nothing was begun");
});

e2e!(a_rejected_manifest_starts_nothing, [Process], |world| {
    let good = world.manifest("good", &json!({"containers": [world.demo("app", &[])]}));
    let bad = world.manifest("bad", &json!({"containers": []}));
    let (code, stderr) = run(world, &[good.to_str().unwrap(), bad.to_str().unwrap()]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("spec.containers: Required value"), "{stderr}");
    assert!(!world.data().exists(), "nothing was begun");
});

e2e!(the_same_pod_twice_is_refused, [Process], |world| {
    let file = world.manifest("web", &json!({"containers": [world.demo("app", &[])]}));
    let file = file.to_str().unwrap();
    let (code, stderr) = run(world, &[file, file]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("pod default/web is there twice"), "{stderr}");
});

e2e!(a_second_agent_is_turned_away, [Process], |world| {
    let spec = json!({"containers": [world.ready_demo("app", &[])]});
    let mut agent = world.run(&spec);
    agent.until_is("", "ready");
    let other = world.manifest("other", &spec);
    let (code, stderr) = run(world, &[other.to_str().unwrap()]);
    assert_eq!(code, Some(3));
    assert!(
        stderr.contains(&format!("pid {}", agent.pid())) && stderr.contains("--data-dir"),
        "{stderr}"
    );
    let ended = agent.interrupt();
    in_order(&ended.seen, &[("app", "killing:deleted"), ("app", "exited:0")]);
});

e2e!(a_taken_port_for_metrics_is_named, [Process], |world| {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let file = world.manifest("web", &json!({"containers": [world.demo("app", &[])]}));
    let (code, stderr) = run(world, &[file.to_str().unwrap(), "--metrics", &address]);
    assert_eq!(code, Some(3));
    assert!(
        stderr.contains(&address) && stderr.contains("--metrics"),
        "{stderr}"
    );
});

e2e!(an_unusable_data_directory_is_named, [Process], |world| {
    std::fs::write(world.data(), "").unwrap();
    let file = world.manifest("web", &json!({"containers": [world.demo("app", &[])]}));
    let (code, stderr) = run(world, &[file.to_str().unwrap()]);
    assert_eq!(code, Some(3));
    assert!(stderr.contains("--data-dir"), "{stderr}");
});

e2e!(
    a_program_whose_port_is_taken_fails_and_is_tried_again,
    [Process],
    |world| {
        let port = port();
        let _taken = TcpListener::bind(("0.0.0.0", port)).unwrap();
        let app = world.demo("app", &["--port", &port.to_string()]);
        let mut agent = world.run(&json!({"containers": [app]}));
        agent.until_is("app", "exited:3");
        agent.until_is("app", "running:1");
        let logs = world
            .command("logs")
            .args(["web", "--previous"])
            .output()
            .unwrap();
        assert!(
            String::from_utf8_lossy(&logs.stdout).contains("cannot listen on port"),
            "{logs:?}"
        );
        agent.interrupt();
    }
);

e2e!(
    a_corrupt_state_is_kept_aside_and_the_containers_are_adopted,
    [Process, Oci, Containerd, OwnCri],
    |world| {
        let port = port();
        let app = with(
            world.demo("app", &["--port", &port.to_string()]),
            json!({
                "startupProbe": http(port, json!({"periodSeconds": 1, "failureThreshold": 60})),
                "readinessProbe": http(port, json!({"periodSeconds": 1})),
            }),
        );
        let spec = json!({"containers": [app]});
        let mut agent = world.run(&spec);
        agent.until_is("", "ready");
        agent.kill();
        for file in ["node.db", "node.db-wal", "node.db-shm"] {
            let path = world.data().join(file);
            if path.exists() {
                std::fs::write(path, vec![0x5a; 100_000]).unwrap();
            }
        }
        let mut agent = world.run(&spec);
        agent.until_is("app", "probe:readiness:success");
        assert_eq!(
            of(&agent.seen, "app", "created").count(),
            0,
            "{}",
            agent.transcript()
        );
        assert_eq!(
            of(&agent.seen, "app", "unready").count(),
            0,
            "{}",
            agent.transcript()
        );
        let kept = std::fs::read_dir(world.data()).unwrap().flatten();
        assert!(
            kept.into_iter()
                .any(|entry| entry.file_name().to_string_lossy().contains(".corrupt-"))
        );
        let ended = agent.interrupt();
        assert!(ended.stderr.contains("kept aside"), "{}", ended.stderr);
        assert!(world.processes().is_empty());
    }
);

e2e!(a_full_disk_stops_nothing_and_is_reported, [Process], |world| {
    let data = world.data();
    std::fs::create_dir_all(&data).unwrap();
    let mount = |args: &[&str]| {
        std::process::Command::new(args[0])
            .args(&args[1..])
            .arg(&data)
            .status()
            .is_ok_and(|it| it.success())
    };
    let is_mounted = mount(&["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs"]);
    if !pulselet_testing::requires("the right to mount", is_mounted) {
        return;
    }
    let port = port();
    let app = with(
        world.demo(
            "app",
            &[
                "--port",
                &port.to_string(),
                "--fail-at",
                "4s",
                "--recover-at",
                "8s",
            ],
        ),
        json!({"readinessProbe": http(port, json!({"periodSeconds": 1, "failureThreshold": 1}))}),
    );
    let mut agent = world.run(&json!({"containers": [app]}));
    agent.until_is("", "ready");
    let filler = data.join("filler");
    let written = std::fs::write(&filler, vec![0; 4 << 20]);
    assert!(written.is_err(), "the disk is full");
    agent.until("a warning", |line| {
        line["type"] == "warning" && line.to_string().contains("make room on the disk")
    });
    std::fs::remove_file(&filler).unwrap();
    // The room that is kept for it may have lasted until the program had recovered.
    agent.until("a success", |line| {
        line["type"] == "probe" && line["outcome"] == "success"
    });
    let ended = agent.interrupt();
    assert_eq!(ended.code, Some(130));
    assert_eq!(ended.count("app", "running:1"), 0, "{}", ended.transcript());
    in_order(
        &ended.seen,
        &[
            ("app", "unready"),
            ("app", "ready"),
            ("app", "killing:deleted"),
            ("app", "exited:0"),
            ("", "deleted"),
        ],
    );
    assert!(mount(&["umount", "-l"]));
});
