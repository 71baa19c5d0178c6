//! Acting on the pods of a node: restart, stop and start; and looking at them: `ps -o wide`, `history`, `top`.

use std::process::{Command, Output};

use serde_json::{Value, json};

use super::harness::eventually;
use super::world::{Node, World, e2e, with};

fn write(world: &World, container: &Value) {
    let _ = std::fs::create_dir(world.path("manifests"));
    let written = world.manifest("web", &json!({"containers": [container]}));
    std::fs::rename(written, world.path("manifests/web.json")).unwrap();
}

fn out(command: &mut Command) -> Output {
    command.output().expect("pulselet runs")
}

/// The output of a command that must succeed.
fn said(world: &World, command: &str, args: &[&str]) -> String {
    let output = out(world.command(command).args(args));
    assert!(output.status.success(), "{command} {args:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits for the only pod to be as it should.
fn wait_for(world: &World, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
    eventually(what, || {
        let mut pods = world.pods()?;
        let pod = pods.pop().filter(|_| pods.is_empty())?;
        fits(&pod).then_some(pod)
    })
}

fn app(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

fn is_ready(pod: &Value) -> bool {
    app(pod)["ready"] == true
}

e2e!(a_container_is_restarted_in_its_pod, |world| {
    write(world, &world.ready_demo("app", &[]));
    let node = Node::start(world);
    let before = wait_for(world, "pod", is_ready);
    assert_eq!(
        said(world, "restart", &["web"]),
        "pod default/web: 1 container restarting\n"
    );
    let after = wait_for(world, "another life", |pod| {
        is_ready(pod) && app(pod)["restartCount"] == 1
    });
    assert_eq!(after["uid"], before["uid"]);
    assert_eq!(after["status"]["podIP"], before["status"]["podIP"]);
    let history = said(world, "history", &["web"]);
    assert!(history.contains("restart asked for"), "{history}");
    for (args, says) in [
        (&["nobody"][..], "there is no pod default/nobody"),
        (&["web", "-c", "other"], "has no container"),
    ] {
        let refused = out(world.command("restart").args(args));
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert!(
            String::from_utf8_lossy(&refused.stderr).contains(says),
            "{refused:?}"
        );
    }
    said(world, "stop", &["web"]);
    drop(node);
    assert!(world.processes().is_empty());
});

e2e!(a_binary_is_replaced_while_its_pods_run, [Process, Oci], |world| {
    let program = world.path("pulselet");
    // As `install` and package managers do it: beside the old one, then in its place.
    let install = || {
        let new = world.path("pulselet-new");
        std::fs::copy(env!("CARGO_BIN_EXE_pulselet"), &new).unwrap();
        std::fs::rename(&new, &program).unwrap();
    };
    install();
    write(world, &world.ready_demo("app", &[]));
    let node = Node::start_program(world, &program);
    let before = wait_for(world, "pod", is_ready);
    drop(node);
    let written = std::fs::OpenOptions::new().write(true).open(&program);
    assert_eq!(
        written.unwrap_err().kind(),
        std::io::ErrorKind::ExecutableFileBusy
    );
    install();
    let node = Node::start_program(world, &program);
    let after = wait_for(world, "same pod", is_ready);
    for field in ["containerID", "restartCount"] {
        assert_eq!(app(&after)[field], app(&before)[field], "{field}");
    }
    said(world, "stop", &["web"]);
    drop(node);
    assert!(world.processes().is_empty());
});

e2e!(
    a_stopped_pod_stays_known_and_stopped_until_it_is_started,
    [Process, Oci, OwnCri],
    |world| {
        write(world, &world.ready_demo("app", &[]));
        let node = Node::start(world);
        wait_for(world, "pod", is_ready);
        assert_eq!(said(world, "stop", &["web"]), "pod default/web stopped\n");
        assert!(
            world
                .processes()
                .iter()
                .all(|pid| u32::try_from(*pid) == Ok(node.id()))
        );
        let listed = said(world, "ps", &[]);
        assert!(
            listed.contains("default/web") && listed.contains("Stopped"),
            "{listed}"
        );
        let twice = out(world.command("stop").arg("web"));
        assert_eq!(twice.status.code(), Some(1), "{twice:?}");
        // Neither another agent nor another manifest starts it.
        drop(node);
        let node = Node::start(world);
        wait_for(world, "answer", |pod| pod["stopped"] == true);
        write(world, &world.ready_demo("app", &["--stop-in", "1ms"]));
        said(world, "start", &["web"]);
        wait_for(world, "pod again", |pod| {
            is_ready(pod) && pod["stopped"].is_null()
        });
        let running = out(world.command("start").arg("web"));
        assert_eq!(running.status.code(), Some(1), "{running:?}");
        // Without its file it is forgotten, stopped or not.
        said(world, "stop", &["web"]);
        std::fs::remove_file(world.path("manifests/web.json")).unwrap();
        eventually("end", || world.pods()?.is_empty().then_some(()));
        drop(node);
        assert!(world.processes().is_empty());
    }
);

e2e!(
    addresses_ports_images_and_messages_are_listed,
    [Process, Oci, OwnCri],
    |world| {
        let ports = json!({"ports": [{"containerPort": 8080}, {"containerPort": 53, "protocol": "UDP"}]});
        write(
            world,
            &with(world.container("app", &["sh", "-c", "exit 3"]), ports),
        );
        let node = Node::start(world);
        wait_for(world, "end of a life", |pod| {
            app(pod)["lastState"]["terminated"].is_object()
        });
        let wide = said(world, "ps", &["-o", "wide"]);
        for part in ["ADDRESS", "8080/TCP,53/UDP", world.image(), "exit"] {
            assert!(wide.contains(part), "no {part:?} in {wide}");
        }
        said(world, "stop", &["web"]);
        drop(node);
    }
);

e2e!(
    effective_probes_and_stop_signals_are_where_an_operator_looks,
    [Process, Oci, OwnCri],
    |world| {
        let often = json!({"periodSeconds": 1, "periodMilliseconds": -500, "timeoutSeconds": 3});
        let app = world.server("app", &[], |http| {
            json!({
                "livenessProbe": http(json!({"timeoutSeconds": 2})), "readinessProbe": http(often),
                "lifecycle": {"stopSignal": "SIGINT"},
            })
        });
        let _ = std::fs::create_dir(world.path("manifests"));
        let spec = json!({"containers": [app], "os": {"name": "linux"}});
        let written = world.manifest("web", &spec);
        std::fs::rename(written, world.path("manifests/web.json")).unwrap();
        let node = Node::start(world);
        wait_for(world, "pod", is_ready);
        let wide = said(world, "ps", &["-o", "wide"]);
        let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let table: Vec<_> = wide.lines().map(cells).collect();
        let from = table[0].iter().position(|it| it == "SIGNAL").expect("a heading");
        assert_eq!(
            table[0][from..from + 4],
            ["SIGNAL", "STARTUP", "LIVENESS", "READINESS"]
        );
        // It has succeeded: the whole seconds count.
        assert_eq!(
            table[1][from..from + 4],
            ["SIGINT", "-", "10s/2s", "1s/3s"],
            "{wide}"
        );
        let history = said(world, "history", &["web"]);
        for part in [
            "no container has ended",
            "default/web  container app  now",
            "liveness every 10s, timeout 2s",
            "readiness every 1s, timeout 3s",
            "SIGINT stops it",
        ] {
            assert!(history.contains(part), "no {part:?} in {history}");
        }
        said(world, "stop", &["web"]);
        // What ended is told without an agent too, and nothing of what is there now.
        drop(node);
        let after = said(world, "history", &["web"]);
        assert!(
            after.contains("killed at") && !after.contains("stops it"),
            "{after}"
        );
    }
);

e2e!(what_containers_use_is_shown, [Oci, OwnCri], |world| {
    write(world, &world.ready_demo("app", &[]));
    let node = Node::start(world);
    wait_for(world, "pod", is_ready);
    let top = said(world, "top", &[]);
    let row = top
        .lines()
        .find(|line| line.starts_with("default/web"))
        .unwrap_or_else(|| panic!("{top}"));
    assert!(row.contains("app") && row.ends_with("Mi"), "{top}");
    let json: Value = serde_json::from_str(&said(world, "top", &["web", "-o", "json"])).unwrap();
    assert!(
        json["memoryBytes"].as_u64().is_some_and(|bytes| bytes > 0),
        "{json}"
    );
    let nobody = out(world.command("top").arg("nobody"));
    assert_eq!(nobody.status.code(), Some(1), "{nobody:?}");
    said(world, "stop", &["web"]);
    drop(node);
});
