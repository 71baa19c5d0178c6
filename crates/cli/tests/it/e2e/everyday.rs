//! What a person does on an ordinary day, and sees: a job that fails, a file with its configuration in it, a verdict.

use std::process::{Command, Output};

use serde_json::{Value, json};

use super::harness::{Agent, eventually, in_order};
use super::world::{Node, World, e2e, http, port, with};

fn out(command: &mut Command) -> Output {
    command.output().expect("pulselet runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A run of one pod named `web` to its end.
fn run(world: &World, spec: &Value, flags: &[&str]) -> Output {
    let file = world.manifest("web", spec);
    out(world.run_command(&[file]).args(flags))
}

/// A pod whose only container says something and leaves with a code.
fn job(world: &World, code: u8) -> Value {
    let script = format!("echo working; echo 'it broke' >&2; exit {code}");
    let app = world.container("app", &["sh", "-c", &script]);
    json!({"containers": [app], "restartPolicy": "Never"})
}

e2e!(a_failed_job_shows_what_it_printed_and_its_log_stays, |world| {
    let spec = job(world, 7);
    let failed = run(world, &spec, &[]);
    assert_eq!(failed.status.code(), Some(7), "its own code: {failed:?}");
    let shown = stdout(&failed);
    assert!(
        shown.contains("app | working\n") && shown.contains("app | it broke\n"),
        "{shown}"
    );
    let logs = |args: &[&str]| out(world.command("logs").args(args));
    let kept = logs(&["web"]);
    assert_eq!(kept.status.code(), Some(0), "{kept:?}");
    let mut lines: Vec<_> = stdout(&kept).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["it broke", "working"]);
    // Only the last run's are kept.
    let quiet = run(world, &spec, &["--no-logs"]);
    assert!(!stdout(&quiet).contains("working"), "{quiet:?}");
    assert_eq!(stdout(&logs(&["web", "--tail", "2"])).lines().count(), 2);
    assert_eq!(
        stdout(&logs(&["web"])).lines().count(),
        2,
        "not those of both runs"
    );
});

e2e!(
    event_lines_are_not_mixed_with_what_containers_print,
    [Process],
    |world| {
        let failed = run(world, &job(world, 7), &["-o", "json"]);
        for line in stdout(&failed).lines() {
            assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
        }
        assert!(stderr(&failed).contains("app | working\n"), "{failed:?}");
    }
);

e2e!(
    every_life_is_shown_and_containers_are_told_apart,
    [Process],
    |world| {
        let one = world.container("one", &["sh", "-c", "echo first"]);
        let two = world.container("two", &["sh", "-c", "echo second; printf unfinished"]);
        let spec = json!({"containers": [one, two], "restartPolicy": "Never"});
        let other = world.manifest("other", &spec);
        let files = [world.manifest("web", &spec), other];
        let both = out(&mut world.run_command(&files));
        assert_eq!(both.status.code(), Some(0), "{both:?}");
        for line in [
            "default/web/one | first",
            "default/web/two | second",
            "default/web/two | unfinished",
            "default/other/one | first",
        ] {
            assert!(stdout(&both).contains(line), "no {line:?} in {both:?}");
        }
    }
);

/// A pod that uses a config map and a secret of its own file, in variables and in a volume.
fn with_objects(world: &World, greeting: &str) -> Value {
    let volume = match world.runtime {
        // Host processes have no mounts: the variable says where the volume is.
        super::world::Runtime::Process => "$PULSELET_VOLUME_SETTINGS",
        super::world::Runtime::Oci | super::world::Runtime::Containerd | super::world::Runtime::OwnCri => {
            "/settings"
        }
    };
    let script =
        format!("echo $GREETING $NAME $(cat {volume}/motd); trap 'exit 0' TERM; while :; do sleep 0.1; done");
    let mut app = world.container("app", &["sh", "-c", &script]);
    app["env"] = json!([
        {"name": "GREETING", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "greeting"}}},
        {"name": "NAME", "valueFrom": {"secretKeyRef": {"name": "names", "key": "first"}}},
    ]);
    let mount = json!({"name": "settings", "mountPath": "/settings"});
    app["volumeMounts"].as_array_mut().unwrap().push(mount);
    let mut spec = world.with_volumes(&json!({"containers": [app], "terminationGracePeriodSeconds": 2}));
    let volume = json!({"name": "settings", "configMap": {"name": "settings"}});
    spec["volumes"].as_array_mut().unwrap().push(volume);
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"},
            "data": {"greeting": greeting, "motd": "today"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "names"}, "stringData": {"first": "world"}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec},
    ]})
}

fn log_of(world: &World) -> String {
    stdout(&out(world.command("logs").arg("web")))
}

e2e!(config_maps_and_secrets_of_the_same_file_are_there, |world| {
    let file = world.path("all.json");
    std::fs::write(&file, with_objects(world, "hello").to_string()).unwrap();
    let check = out(Command::new(env!("CARGO_BIN_EXE_pulselet"))
        .arg("check")
        .arg(&file));
    assert_eq!(check.status.code(), Some(0), "{check:?}");
    let mut agent = world.run_files(&[file], &[]);
    agent.until_is("", "ready");
    eventually("greeting", || {
        (log_of(world) == "hello world today\n").then_some(())
    });
    agent.interrupt();
});

e2e!(
    objects_are_handed_over_with_their_pods_and_outlive_the_agent,
    [Process],
    |world| {
        std::fs::create_dir(world.path("manifests")).unwrap();
        let node = Node::start(world);
        eventually("agent", || world.pods());
        let file = world.path("all.json");
        std::fs::write(&file, with_objects(world, "hello").to_string()).unwrap();
        let handed = out(world.command("run").arg("--detach").arg(&file));
        assert_eq!(handed.status.code(), Some(0), "{handed:?}");
        eventually("greeting", || {
            (log_of(world) == "hello world today\n").then_some(())
        });
        // Another agent has them for another life.
        drop(node);
        let node = Node::start(world);
        eventually("agent", || world.pods());
        let restarted = out(world.command("restart").arg("web"));
        assert_eq!(restarted.status.code(), Some(0), "{restarted:?}");
        eventually("another life", || {
            (world.app_status()["restartCount"] == 1).then_some(())
        });
        eventually("greeting", || {
            (log_of(world) == "hello world today\n").then_some(())
        });
        let stopped = out(world.command("stop").args(["web", "--remove"]));
        assert_eq!(stopped.status.code(), Some(0), "{stopped:?}");
        drop(node);
        assert!(world.processes().is_empty());
    }
);

e2e!(
    objects_of_a_manifest_directory_follow_their_file,
    [Process, Oci, OwnCri],
    |world| {
        let manifests = world.path("manifests");
        std::fs::create_dir(&manifests).unwrap();
        let write = |greeting: &str| {
            std::fs::write(
                manifests.join("all.json"),
                with_objects(world, greeting).to_string(),
            )
            .unwrap();
        };
        write("hello");
        let mut command = world.command("node");
        command.arg("--manifests").arg(&manifests);
        command.args(["--config", &world.config("hostImage: true\n")]);
        command.args(["--runtime", &world.runtime_flag(), "--metrics", "127.0.0.1:0"]);
        let node = Agent::start(command);
        eventually("greeting", || {
            (log_of(world) == "hello world today\n").then_some(())
        });
        // What a life began with it keeps; the next one has the new value.
        write("good day");
        eventually("new greeting", || {
            // Until the change of the file was noticed.
            let restarted = out(world.command("restart").arg("web"));
            assert_eq!(restarted.status.code(), Some(0), "{restarted:?}");
            (log_of(world) == "good day world today\n").then_some(())
        });
        let stopped = out(world.command("stop").arg("web"));
        assert!(stopped.status.success(), "{stopped:?}");
        node.interrupt();
        assert!(world.processes().is_empty());
    }
);

#[test]
fn a_bad_config_map_is_explained() {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: Bad_Name}\ndata: {'a b': x}\n---\n\
                apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {a: '!'}\n---\n\
                apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndatum: {}\n---\n\
                apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n";
    std::fs::write(file.path(), text).unwrap();
    let check = out(Command::new(env!("CARGO_BIN_EXE_pulselet"))
        .args(["check", "-o", "json"])
        .arg(file.path()));
    assert_eq!(check.status.code(), Some(1), "{check:?}");
    let lines: Vec<Value> = stdout(&check)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let codes: Vec<_> = lines.iter().map(|line| line["code"].as_u64().unwrap()).collect();
    assert_eq!(codes, [422, 400, 400, 422], "{lines:#?}");
    let fields: Vec<_> = lines[0]["causes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["field"])
        .collect();
    assert_eq!(fields, ["metadata.name", "data[a b]"]);
    let text = out(Command::new(env!("CARGO_BIN_EXE_pulselet"))
        .arg("check")
        .arg(file.path()));
    let text = stdout(&text) + &stderr(&text);
    for part in ["datum", "Deployment d: rejected", "ConfigMap"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

e2e!(
    history_tells_exits_and_the_wait_after_them,
    [Process, Oci, OwnCri],
    |world| {
        let app = world.container("app", &["sh", "-c", "exit 3"]);
        let mut agent = world.run(&json!({"containers": [app]}));
        agent.until_is("app", "running:1");
        agent.until_is("app", "backoff");
        let history = eventually("back-off in the history", || {
            let history = stdout(&out(world.command("history").arg("web")));
            history.contains("back-off").then_some(history)
        });
        for part in [
            "container app  exited at ",
            "code 3 (Error)",
            "number 1",
            "(back-off)",
        ] {
            assert!(history.contains(part), "no {part:?} in {history}");
        }
        assert!(!history.contains("killed"), "{history}");
        assert_eq!(history.matches("exited at").count(), 2, "{history}");
        agent.interrupt();
    }
);

e2e!(an_early_exit_is_not_ready, [Process, Oci, OwnCri], |world| {
    let app = world.container("app", &["sh", "-c", "echo 'no database'; exit 7"]);
    let verdict = run(
        world,
        &json!({"containers": [app]}),
        &["--wait", "ready", "--timeout", "1h"],
    );
    assert_eq!(verdict.status.code(), Some(1), "{verdict:?}");
    let said = stderr(&verdict);
    for part in ["container app has exited with 7", "no database"] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    assert!(!said.contains("again"), "nobody pressed Ctrl-C: {said}");
});

e2e!(what_a_pod_waits_for_is_said, [Process, Oci, OwnCri], |world| {
    let mut app = world.container("app", &["sleep", "100"]);
    app["envFrom"] = json!([{"configMapRef": {"name": "settings"}}]);
    let spec = json!({"containers": [app]});
    let flags = ["--wait", "ready", "--timeout", "2s"];
    let said = stderr(&run(world, &spec, &flags));
    for part in ["CreateContainerConfigError", "settings"] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    let mut spec = world.with_volumes(&json!({"containers": [world.container("app", &["sleep", "100"])]}));
    let volume = json!({"name": "settings", "configMap": {"name": "missing-one"}});
    spec["volumes"].as_array_mut().unwrap().push(volume);
    let said = stderr(&run(world, &spec, &flags));
    assert!(said.contains("missing-one"), "{said}");
});

e2e!(
    ready_can_be_asked_to_last_and_a_job_to_complete,
    [Process],
    |world| {
        let steady = json!({"containers": [world.ready_demo("app", &[])]});
        let held = run(world, &steady, &["--wait", "stable=1s"]);
        assert_eq!(held.status.code(), Some(0), "{held:?}");
        let port = port();
        let flaky = with(
            world.listening("app", port, &["--fail-at", "2s"]),
            json!({"readinessProbe": http(port, json!({"periodSeconds": 1, "failureThreshold": 1}))}),
        );
        let broken = run(
            world,
            &json!({"containers": [flaky]}),
            &["--wait", "stable=1h", "--timeout", "5s"],
        );
        assert_eq!(broken.status.code(), Some(1), "{broken:?}");
        let done = run(world, &job(world, 0), &["--wait", "completed"]);
        assert_eq!(done.status.code(), Some(0), "{done:?}");
        let failed = run(world, &job(world, 4), &["--wait", "completed", "--timeout", "1h"]);
        assert_eq!(failed.status.code(), Some(1), "{failed:?}");
        assert!(stderr(&failed).contains("it broke"), "{failed:?}");
        for wrong in ["stable", "stable=x", "done"] {
            let usage = run(world, &steady, &["--wait", wrong]);
            assert_eq!(usage.status.code(), Some(2), "{usage:?}");
        }
    }
);

e2e!(
    beside_an_agent_a_run_says_how_to_hand_pods_over,
    [Process],
    |world| {
        let mut agent = world.run(&json!({"containers": [world.ready_demo("app", &[])]}));
        agent.until_is("", "ready");
        let second = run(world, &job(world, 0), &[]);
        assert_eq!(second.status.code(), Some(3));
        assert!(stderr(&second).contains("--detach"), "{second:?}");
        agent.interrupt();
    }
);

e2e!(who_lacks_the_right_is_told_of_sudo, [Process], |world| {
    if !pulselet_testing::requires("root", pulselet_testing::is_root()) {
        return;
    }
    let mut agent = world.run(&json!({"containers": [world.ready_demo("app", &[])]}));
    agent.until_is("", "ready");
    let nobody = out(world.command_as_nobody("ps").arg("--data-dir").arg(world.data()));
    assert_eq!(nobody.status.code(), Some(3), "{nobody:?}");
    let said = stderr(&nobody);
    assert!(said.contains("sudo") && !said.contains("pulselet node"), "{said}");
    agent.interrupt();
});

e2e!(
    a_log_is_followed_through_restarts,
    [Process, Oci, OwnCri],
    |world| {
        let script = "echo one life; sleep 0.3; exit 1";
        let quiet = world.container("quiet", &["sh", "-c", "echo init"]);
        let app = world.container("app", &["sh", "-c", script]);
        let spec = json!({"initContainers": [quiet], "containers": [app]});
        let mut agent = world.run(&spec);
        agent.until_is("app", "running:0");
        let mut follower = world.command("logs");
        follower.args(["web", "-f"]).stdout(std::process::Stdio::piped());
        let mut follower = follower.spawn().unwrap();
        agent.until_is("app", "running:1");
        let lines = std::io::BufRead::lines(std::io::BufReader::new(follower.stdout.take().unwrap()));
        let two: Vec<String> = lines.take(2).map(Result::unwrap).collect();
        assert_eq!(two, ["one life", "one life"]);
        follower.kill().unwrap();
        follower.wait().unwrap();
        let all = out(world.command("logs").args(["web", "--all-containers"]));
        let all = stdout(&all);
        assert!(
            all.contains("quiet | init\n") && all.contains("app | one life\n"),
            "{all}"
        );
        let none = out(world.command("logs").args(["web", "--since", "0s"]));
        assert_eq!(stdout(&none), "");
        agent.interrupt();
    }
);

/// The first thing people run: its own period must not make it look slow.
#[test]
fn the_first_example_is_ready_before_its_first_counted_probe() {
    if !super::world::Runtime::Oci.is_usable() {
        return;
    }
    let world = World::new(super::world::Runtime::Oci);
    let file = std::path::Path::new(crate::command::repository()).join("examples/web.yaml");
    let mut agent = world.run_files(&[file], &[]);
    let ready = agent.until_is("", "ready");
    let running = agent.sooner_or_later("running", |line| line.is("app", "running:0"));
    assert!(
        ready.t() - running.t() < 1.0,
        "before the first counted tick: {}",
        agent.transcript()
    );
    let ended = agent.interrupt();
    in_order(
        &ended.seen,
        &[("app", "running:0"), ("", "ready"), ("", "deleted")],
    );
}
