//! What is restarted, when, and what is left alone.

use serde_json::json;

use super::harness::{Line, before, in_order, of};
use super::world::{e2e, http, port, with};

/// Asserts how long a container had to wait before its restarts. A pause counts from the exit, which its line shows a
/// little later: what is left of it is then said, and kept.
fn pauses_are(lines: &[Line], container: &str, expected: &[f64]) {
    let backoffs = lines.iter().enumerate();
    let backoffs = backoffs.filter(|(_, line)| line.is(container, "backoff"));
    let mut pauses = Vec::new();
    for (place, line) in backoffs {
        let left = line["seconds"].as_f64().expect("a number");
        let next = of(&lines[place..], container, "running").next();
        let lasted = next.expect("it starts again").t() - line.t();
        assert!(lasted >= left - 0.001, "{lasted} instead of {left}");
        pauses.push(left);
    }
    assert_eq!(pauses.len(), expected.len(), "{pauses:?}");
    for (pause, whole) in pauses.iter().zip(expected) {
        // Counted from an end that a busy machine may have noticed late.
        assert!(*pause > 0.0 && pause <= whole, "{pauses:?}");
    }
}

e2e!(only_the_condemned_container_is_replaced, |world| {
    let sick = world.server(
        "sick",
        &["--fail-at", "500ms"],
        |http| json!({"livenessProbe": http(json!({"periodSeconds": 1, "failureThreshold": 1}))}),
    );
    let mut agent = world.run(&json!({"containers": [sick, world.demo("well", &[])]}));
    let pod = || world.pods().expect("the agent answers").remove(0)["status"].take();
    agent.until_is("sick", "running:0");
    let address = pod()["podIP"].take();
    agent.until_is("sick", "running:1");
    assert_eq!(pod()["podIP"], address, "the sandbox stays");
    let ended = agent.interrupt();
    let before_its_end = before(&ended.seen, "well", "killing:deleted");
    let happened: Vec<String> = of(before_its_end, "well", "").map(Line::brief).collect();
    assert!(
        happened.iter().all(|brief| brief != "unready") && !happened.contains(&"running:1".to_owned()),
        "{happened:?}"
    );
});

e2e!(with_never_the_pod_ends_by_its_exit_codes, |world| {
    let good = world.demo("good", &["--exit-at", "500ms"]);
    let bad = world.demo("bad", &["--exit-at", "1s", "--exit-code", "3"]);
    let ended = world
        .run(&json!({"containers": [good.clone(), bad], "restartPolicy": "Never"}))
        .finish();
    assert_eq!(ended.code, Some(3));
    in_order(
        &ended.seen,
        &[
            ("good", "exited:0"),
            ("bad", "exited:3"),
            ("", "phase:Failed"),
            ("", "deleted"),
        ],
    );
    let ended = world
        .run(&json!({"containers": [good], "restartPolicy": "Never"}))
        .finish();
    assert_eq!(ended.code, Some(0));
    in_order(&ended.seen, &[("good", "exited:0"), ("", "phase:Succeeded")]);
});

e2e!(with_never_a_probes_grace_period_still_counts, |world| {
    let grace = json!({"terminationGracePeriodSeconds": 1});
    let app = world.condemned(&["--ignore", "SIGTERM"], grace);
    let spec = json!({"containers": [app], "restartPolicy": "Never", "terminationGracePeriodSeconds": 3600});
    let ended = world.run(&spec).finish();
    let kill = ended.all("app", "killing").next().unwrap();
    assert_eq!(
        (kill["gracePeriodSeconds"].as_f64(), kill["graceFrom"].as_str()),
        (Some(1.0), Some("probe"))
    );
    assert_eq!(ended.count("", "phase:Failed"), 1);
});

e2e!(
    on_failure_restarts_after_a_probe_kill_whatever_the_exit_code,
    |world| {
        let app = world.condemned(&[], json!({}));
        let mut agent = world.run(&json!({"containers": [app], "restartPolicy": "OnFailure"}));
        agent.until_is("app", "exited:0");
        agent.until_is("app", "running:1");
        agent.interrupt();
    }
);

e2e!(on_failure_leaves_a_success_alone, |world| {
    let good = world.demo("good", &["--exit-at", "100ms"]);
    let ended = world
        .run(&json!({"containers": [good], "restartPolicy": "OnFailure"}))
        .finish();
    assert_eq!(ended.code, Some(0));
    assert_eq!(ended.count("good", "running:1"), 0);
});

e2e!(exits_are_answered_with_growing_pauses, |world| {
    let app = world.demo("app", &["--exit-at", "50ms", "--exit-code", "1"]);
    let config = world.config("crashLoopBackOff: {initial: 1s, max: 2s}\n");
    let mut agent = world.run_with(&json!({"containers": [app]}), &["--config", &config]);
    agent.until_is("app", "running:4");
    // At once, then 1 s, 2 s, and 2 s again: no more than the maximum.
    pauses_are(&agent.seen, "app", &[1.0, 2.0, 2.0]);
    agent.interrupt();
});

e2e!(while_it_waits_its_status_says_so, |world| {
    let app = world.demo("app", &["--exit-at", "0s", "--exit-code", "1"]);
    let mut agent = world.run(&json!({"containers": [app]}));
    agent.until_is("app", "backoff");
    let status = world.app_status();
    assert_eq!(
        status["state"]["waiting"]["reason"], "CrashLoopBackOff",
        "{status:#}"
    );
    assert_eq!(status["restartCount"], 1, "{status:#}");
    assert_eq!(status["lastState"]["terminated"]["exitCode"], 1, "{status:#}");
    let message = world.event("BackOff");
    assert!(
        message.starts_with("Back-off restarting failed container app in pod web_default"),
        "{message}"
    );
    agent.interrupt();
});

e2e!(a_container_that_is_condemned_again_and_again_waits_too, |world| {
    let fields = json!({"periodSeconds": 1, "failureThreshold": 1});
    let app = with(
        world.demo("app", &[]),
        json!({"livenessProbe": http(port(), fields)}),
    );
    let config = world.config("crashLoopBackOff: {initial: 30s, max: 300s}\n");
    let mut agent = world.run_with(&json!({"containers": [app]}), &["--config", &config]);
    // Its first two ends are answered at once: there was none before the first, and no pause before the second.
    agent.until_is("app", "backoff");
    assert_eq!(of(&agent.seen, "app", "killing:livenessProbe").count(), 3);
    assert_eq!(
        of(&agent.seen, "app", "running").count(),
        3,
        "{}",
        agent.transcript()
    );
    agent.interrupt();
});

e2e!(
    a_container_that_served_longer_than_its_pause_is_replaced_at_once,
    |world| {
        let fields = json!({"periodSeconds": 2, "failureThreshold": 1});
        let app = with(
            world.demo("app", &[]),
            json!({"livenessProbe": http(port(), fields)}),
        );
        let config = world.config("crashLoopBackOff: {initial: 1s, max: 1s}\n");
        let mut agent = world.run_with(&json!({"containers": [app]}), &["--config", &config]);
        agent.until_is("app", "running:3");
        let ended = agent.interrupt();
        assert_eq!(ended.count("app", "backoff"), 0, "{}", ended.transcript());
    }
);

e2e!(a_container_may_have_a_restart_policy_of_its_own, |world| {
    let again = with(
        world.demo("again", &["--exit-at", "200ms", "--exit-code", "1"]),
        json!({"restartPolicy": "OnFailure"}),
    );
    let once = world.demo("once", &["--exit-at", "200ms", "--exit-code", "1"]);
    let spec = json!({"containers": [again, once], "restartPolicy": "Never"});
    let mut agent = world.run(&spec);
    agent.until_is("again", "running:1");
    agent.sooner_or_later("an end", |line| line.is("once", "exited:1"));
    let ended = agent.interrupt();
    assert_eq!(ended.count("once", "running:1"), 0, "{}", ended.transcript());
});

e2e!(a_sidecar_is_restarted_whatever_the_pods_policy, |world| {
    let sidecar = with(
        world.demo("sidecar", &["--exit-at", "300ms"]),
        json!({"restartPolicy": "Always"}),
    );
    let app = world.demo("app", &["--exit-at", "1500ms"]);
    let spec = json!({"initContainers": [sidecar], "containers": [app], "restartPolicy": "Never"});
    let ended = world.run(&spec).finish();
    assert_eq!(ended.code, Some(0), "{}", ended.transcript());
    assert_eq!(ended.count("sidecar", "running:1"), 1, "{}", ended.transcript());
    assert_eq!(ended.count("app", "running:1"), 0);
});

e2e!(an_init_container_is_tried_again_after_the_same_pauses, |world| {
    let init = world.demo("init", &["--exit-at", "0s", "--exit-code", "1"]);
    let config = world.config("crashLoopBackOff: {initial: 1s, max: 1s}\n");
    let spec = json!({"initContainers": [init], "containers": [world.demo("app", &[])]});
    let mut agent = world.run_with(&spec, &["--config", &config]);
    agent.until_is("init", "running:2");
    pauses_are(&agent.seen, "init", &[1.0]);
    let ended = agent.interrupt();
    assert_eq!(ended.all("app", "created").count(), 0);
});

e2e!(init_containers_run_one_by_one, |world| {
    let step = |name, at| world.demo(name, &["--exit-at", at]);
    let port = port();
    let sidecar = with(
        world.demo(
            "sidecar",
            &["--port", &port.to_string(), "--start-after", "300ms"],
        ),
        json!({"restartPolicy": "Always", "startupProbe": http(port, json!({"periodSeconds": 1, "failureThreshold": 60}))}),
    );
    let spec = json!({
        "initContainers": [step("one", "200ms"), sidecar, step("two", "200ms")],
        "containers": [world.demo("app", &["--exit-at", "500ms"])],
        "restartPolicy": "Never",
    });
    let ended = world.run(&spec).finish();
    assert_eq!(ended.code, Some(0), "{}", ended.transcript());
    in_order(
        &ended.seen,
        &[
            ("one", "created"),
            ("one", "exited:0"),
            ("sidecar", "created"),
            ("sidecar", "started"),
            ("two", "created"),
            ("two", "exited:0"),
            ("app", "created"),
            ("app", "exited:0"),
            ("sidecar", "killing:completed"),
            ("sidecar", "exited:0"),
            ("", "phase:Succeeded"),
        ],
    );
});

e2e!(
    a_failed_init_container_ends_a_pod_that_restarts_nothing,
    |world| {
        let spec = json!({
            "initContainers": [world.demo("init", &["--exit-at", "0s", "--exit-code", "7"])],
            "containers": [world.demo("app", &[])],
            "restartPolicy": "Never",
        });
        let ended = world.run(&spec).finish();
        assert_eq!(ended.code, Some(7));
        in_order(&ended.seen, &[("init", "exited:7"), ("", "phase:Failed")]);
        assert_eq!(ended.all("app", "created").count(), 0);
    }
);

e2e!(a_program_that_is_not_there_is_tried_again, |world| {
    let app = world.container("app", &["/no/such/program"]);
    let config = world.config("crashLoopBackOff: {initial: 1s, max: 1s}\n");
    let mut agent = world.run_with(&json!({"containers": [app]}), &["--config", &config]);
    agent.until_is("app", "backoff");
    let ended = agent.interrupt();
    assert_eq!(ended.all("app", "running").count(), 0, "{}", ended.transcript());
    assert!(
        ended.transcript().contains("/no/such/program"),
        "{}",
        ended.transcript()
    );
});

e2e!(all_containers_restart_and_keep_their_volumes, [Oci], |world| {
    let data = json!([{"name": "data", "mountPath": "/data"}]);
    let shell = |name: &str, script: &str, fields: serde_json::Value| {
        let container = world.container(name, &["/bin/sh", "-c", script]);
        with(with(container, json!({"volumeMounts": data})), fields)
    };
    // It fails once, and the init container counts how often the pod began.
    let script = "if [ -e /data/failed ]; then exec sleep 3600; fi; touch /data/failed; exit 42";
    let rule = json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}});
    let app = shell(
        "app",
        script,
        json!({"restartPolicy": "Never", "restartPolicyRules": [rule]}),
    );
    let setup = shell("setup", "echo begun >> /data/begun", json!({}));
    let script = "cat /data/begun; exec sleep 3600";
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [setup],
        "containers": [app, shell("other", script, json!({}))],
        "volumes": [{"name": "data", "emptyDir": {}}],
    });
    let mut agent = world.run(&spec);
    agent.until_is("app", "exited:42");
    agent.until_is("app", "running:1");
    let logs = || {
        let logs = world.command("logs").args(["web", "-c", "other"]).output();
        String::from_utf8(logs.expect("pulselet runs").stdout).expect("UTF-8")
    };
    crate::e2e::harness::eventually("the file has two lines", || {
        (logs().matches("begun").count() == 2).then_some(())
    });
    let status = world.pods().expect("the agent answers").remove(0)["status"].take();
    let containers = status["containerStatuses"].as_array().expect("a list").iter();
    let counts: Vec<_> = containers.map(|it| it["restartCount"].clone()).collect();
    assert_eq!(counts, [1, 1]);
    assert_eq!(status["initContainerStatuses"][0]["restartCount"], 1);
    let last = &status["containerStatuses"][1]["lastState"]["terminated"];
    assert_eq!(last["reason"], "RestartingAllContainers");
    agent.interrupt();
});
