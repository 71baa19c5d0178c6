//! `run`'s own flags, and the commands that ask an agent.

use std::process::{Command, Output};

use serde_json::{Value, json};

use super::harness::in_order;
use super::world::{World, e2e, http, port, with};

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn out(command: &mut Command) -> Output {
    command.output().expect("pulselet runs")
}

fn plain_run(world: &World, spec: &Value, flags: &[&str]) -> Output {
    let file = world.manifest("web", spec);
    out(world
        .command("run")
        .arg(file)
        .args(["--runtime", &world.runtime_flag()])
        .args(flags))
}

e2e!(
    waiting_for_ready_is_a_smoke_test,
    [Process, Oci, OwnCri],
    |world| {
        let port = port();
        let app = with(
            world.demo("app", &["--port", &port.to_string()]),
            json!({"readinessProbe": http(port, json!({"periodSeconds": 1}))}),
        );
        let run = plain_run(world, &json!({"containers": [app]}), &["--wait", "ready"]);
        assert_eq!(run.status.code(), Some(0), "{run:?}");
        let transcript = text(&run);
        assert!(
            transcript.contains("pod  ready") && transcript.contains("pod  deleted"),
            "{transcript}"
        );
        assert!(world.processes().is_empty());
    }
);

e2e!(waiting_in_vain_says_what_is_missing, [Process], |world| {
    let app = with(
        world.demo("app", &[]),
        json!({"readinessProbe": http(port(), json!({"periodSeconds": 1}))}),
    );
    let run = plain_run(
        world,
        &json!({"containers": [app]}),
        &["--wait", "ready", "--timeout", "2s"],
    );
    assert_eq!(run.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&run.stderr);
    assert!(stderr.contains("not all pods are ready after 2s"), "{stderr}");
    assert!(
        stderr.contains("container app is started but not ready (readiness probe: ")
            && stderr.contains("connection refused"),
        "{stderr}"
    );
    assert!(
        text(&run).contains("pod  deleted"),
        "the pods are stopped either way"
    );
});

e2e!(waiting_for_a_pod_that_ends_is_over_at_once, [Process], |world| {
    let app = with(
        world.demo("app", &["--exit-at", "0s", "--exit-code", "5"]),
        json!({"readinessProbe": http(port(), json!({"periodSeconds": 1}))}),
    );
    let spec = json!({"containers": [app], "restartPolicy": "Never"});
    let run = plain_run(world, &spec, &["--wait", "ready", "--timeout", "1h"]);
    assert_eq!(run.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&run.stderr).contains("pod default/web is Failed"),
        "{run:?}"
    );
});

e2e!(
    an_agent_is_asked_over_its_socket,
    [Process, Oci, OwnCri],
    |world| {
        let port = port();
        let app = with(
            world.demo("app", &["--port", &port.to_string(), "--fail-at", "2s"]),
            json!({
                "readinessProbe": http(port, json!({"periodSeconds": 1})),
                "livenessProbe": http(port, json!({"periodSeconds": 1, "failureThreshold": 1, "terminationGracePeriodSeconds": 5})),
            }),
        );
        let mut agent = world.run(&json!({"containers": [app]}));
        agent.until_is("app", "running:1");
        agent.until_is("", "ready");
        let ps = text(&out(&mut world.command("ps")));
        let rows: Vec<Vec<&str>> = ps.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            rows[0],
            ["POD", "CONTAINER", "STATE", "STARTED", "READY", "RESTARTS", "AGE"]
        );
        assert_eq!(
            rows[1][..6],
            ["default/web", "app", "Running", "yes", "yes", "1"],
            "{ps}"
        );
        let logs = |flags: &[&str]| text(&out(world.command("logs").arg("web").args(flags)));
        assert_eq!(logs(&["--previous"]), "start\nup\ndown\ngot SIGTERM\nbye\n");
        assert!(logs(&[]).starts_with("start\n"));
        assert_eq!(logs(&["--previous", "--tail", "1", "-c", "app"]), "bye\n");
        assert!(logs(&["--timestamps"]).starts_with("20"));
        let history = text(&out(world.command("history").arg("web")));
        for part in [
            "container app",
            "liveness failure",
            "statuscode: 503",
            "grace period 5s (of the probe)",
            "SIGTERM",
            "code 0",
            "number 1",
        ] {
            assert!(history.contains(part), "no {part:?} in {history}");
        }
        let stop = out(world.command("stop").arg("web"));
        assert_eq!(stop.status.code(), Some(0), "{stop:?}");
        assert_eq!(text(&stop), "pod default/web stopped\n");
        let ended = agent.finish();
        assert_eq!(ended.code, Some(0), "a run ends with its last pod");
        in_order(&ended.seen, &[("app", "killing:stopped"), ("", "deleted")]);
        // The history is kept, agent or not.
        let lines = text(&out(world.command("history").args(["-o", "json"])));
        let kills = lines.lines().filter(|line| line.contains("\"type\":\"killing\""));
        assert_eq!(kills.count(), 2, "{lines}");
    }
);

e2e!(a_log_is_followed_until_its_container_ends, [Process], |world| {
    let app = world.demo("app", &["--start-after", "500ms", "--exit-at", "2s"]);
    let mut agent = world.run(&json!({"containers": [app], "restartPolicy": "Never"}));
    agent.until_is("app", "running:0");
    let logs = out(world.command("logs").args(["web", "-f"]));
    assert_eq!(text(&logs), "start\nup\nexit 0\n", "{logs:?}");
    assert_eq!(agent.finish().code, Some(0));
});

e2e!(
    questions_about_what_is_not_there_are_answered_with_no,
    [Process],
    |world| {
        let two = [world.demo("one", &[]), world.demo("two", &[])];
        let mut agent = world.run(&json!({"containers": two}));
        agent.until_is("", "ready");
        for (command, args, says) in [
            ("stop", &["nobody"][..], "there is no pod default/nobody"),
            ("logs", &["nobody"][..], "there is no pod default/nobody"),
            ("logs", &["web"][..], "choose one of one, two"),
            ("logs", &["web", "-c", "three"][..], "has no container \"three\""),
            (
                "logs",
                &["web", "-c", "one", "--previous"][..],
                "has not been restarted",
            ),
        ] {
            let output = out(world.command(command).args(args));
            assert_eq!(output.status.code(), Some(1), "{args:?} {output:?}");
            assert!(
                String::from_utf8_lossy(&output.stderr).contains(says),
                "{output:?}"
            );
        }
        agent.interrupt();
    }
);

e2e!(
    without_an_agent_the_commands_say_how_to_start_one,
    [Process],
    |world| {
        let file = world.manifest("web", &json!({"containers": [world.demo("app", &[])]}));
        let file = file.to_str().unwrap();
        for (command, args) in [
            ("ps", &[][..]),
            ("logs", &["web"]),
            ("stop", &["web"]),
            ("run", &[file, "--detach"]),
        ] {
            let output = out(world.command(command).args(args));
            assert_eq!(output.status.code(), Some(3), "{command} {output:?}");
            assert!(
                String::from_utf8_lossy(&output.stderr).contains("pulselet node"),
                "{output:?}"
            );
        }
    }
);

e2e!(
    a_run_without_a_terminal_prints_what_happens_in_words,
    [Process],
    |world| {
        let spec = json!({"containers": [world.demo("app", &["--exit-at", "500ms", "--exit-code", "4"])], "restartPolicy": "Never"});
        let run = plain_run(world, &spec, &[]);
        assert_eq!(run.status.code(), Some(4), "the container's own");
        let transcript = text(&run);
        for part in [
            "pod  Pending",
            "app  running",
            "app  exited with 4 (Error)",
            "pod  Failed",
            "pod  deleted",
        ] {
            assert!(transcript.contains(part), "no {part:?} in {transcript}");
        }
        assert!(!transcript.contains('\x1b'), "no colours in a file");
    }
);

e2e!(a_reader_that_goes_away_ends_the_run, [Process], |world| {
    let port = port();
    let app = with(
        world.demo("app", &["--port", &port.to_string()]),
        json!({"readinessProbe": http(port, json!({"periodSeconds": 1}))}),
    );
    let file = world.manifest("web", &json!({"containers": [app]}));
    let mut command = world.run_command(&[file]);
    command.args(["-o", "json"]);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    child.wait().unwrap();
    assert!(world.processes().is_empty(), "its pods are stopped");
});
