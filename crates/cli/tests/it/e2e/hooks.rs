//! What runs after a container's start and before its stop signal.

use serde_json::{Value, json};

use super::harness::{in_order, of};
use super::world::{World, e2e, http, port, with};

/// A container that takes signals once its pod is ready, with a hook before them.
fn with_pre_stop(world: &World, flags: &[&str], hook: &Value) -> Value {
    let lifecycle = json!({"preStop": hook});
    with(world.ready_demo("app", flags), json!({"lifecycle": lifecycle}))
}

e2e!(post_start_delays_neither_probes_nor_started, |world| {
    let app = with(
        world.ready_demo("app", &[]),
        json!({"lifecycle": {"postStart": {"exec": {"command": ["sleep", "3"]}}}}),
    );
    let mut agent = world.run(&json!({"containers": [app]}));
    agent.until_is("app", "hook:postStart:success");
    in_order(
        &agent.seen,
        &[
            ("app", "started"),
            ("app", "ready"),
            ("app", "hook:postStart:success"),
        ],
    );
    agent.interrupt();
});

e2e!(a_failing_post_start_kills_its_container, |world| {
    // It waits until the demo takes signals.
    let healthy = world.shared().join("healthy").display().to_string();
    let script = format!("until [ -e {healthy} ]; do sleep 0.05; done; exit 1");
    let failing = json!({"postStart": {"exec": {"command": ["sh", "-c", script]}}});
    let app = with(
        world.demo("app", &["--health-file", &healthy]),
        json!({"lifecycle": failing}),
    );
    let app = world.sharing(app);
    let spec = json!({"containers": [app], "terminationGracePeriodSeconds": 7, "restartPolicy": "Never"});
    let mut agent = world.run(&spec);
    let kill = agent.until_is("app", "killing:postStartHook");
    assert_eq!(
        (kill["gracePeriodSeconds"].as_f64(), kill["graceFrom"].as_str()),
        (Some(7.0), Some("pod"))
    );
    let ended = agent.finish();
    in_order(
        &ended.seen,
        &[
            ("app", "hook:postStart:failure"),
            ("app", "signal:SIGTERM"),
            ("app", "exited:0"),
        ],
    );
});

e2e!(
    while_it_waits_after_a_failed_post_start_the_status_says_so,
    |world| {
        let failing = json!({"postStart": {"exec": {"command": ["false"]}}});
        let app = with(world.demo("app", &[]), json!({"lifecycle": failing}));
        let spec = json!({"containers": [app], "terminationGracePeriodSeconds": 1});
        let mut agent = world.run(&spec);
        agent.until_is("app", "backoff");
        let status = world.app_status();
        assert_eq!(
            status["state"]["waiting"]["reason"], "PostStartHookError",
            "{status:#}"
        );
        world.event("FailedPostStartHook");
        agent.interrupt();
    }
);

e2e!(hooks_may_ask_over_http, |world| {
    let port = port();
    let fields = json!({"periodSeconds": 1, "failureThreshold": 60});
    // It answers before the other one starts.
    let server = with(
        world.listening("server", port, &[]),
        json!({"restartPolicy": "Always", "startupProbe": http(port, fields)}),
    );
    let get = json!({"httpGet": {"port": port, "path": "/hook"}});
    let app = with(
        world.ready_demo("app", &[]),
        json!({"lifecycle": {"postStart": get, "preStop": get}}),
    );
    let mut agent = world.run(&json!({"initContainers": [server], "containers": [app]}));
    agent.sooner_or_later("a hook", |line| line.is("app", "hook:postStart:success"));
    agent.sooner_or_later("readiness", |line| line.is("", "ready"));
    let ended = agent.interrupt();
    in_order(
        &ended.seen,
        &[
            ("app", "killing:deleted"),
            ("app", "hook:preStop:success"),
            ("app", "signal:SIGTERM"),
            ("app", "exited:0"),
        ],
    );
});

e2e!(
    a_pre_stop_hook_runs_first_and_its_time_counts,
    [Process, Oci, Containerd, OwnCri],
    |world| {
        let hook = json!({"exec": {"command": ["sleep", "1"]}});
        let app = with_pre_stop(world, &[], &hook);
        let mut agent = world.run(&json!({"containers": [app]}));
        agent.until_is("", "ready");
        let ended = agent.interrupt();
        in_order(
            &ended.seen,
            &[
                ("app", "killing:deleted"),
                ("app", "hook:preStop:success"),
                ("app", "signal:SIGTERM"),
                ("app", "exited:0"),
            ],
        );
        let hook = ended.all("app", "hook").next().expect("seen");
        assert!(
            hook["seconds"].as_f64().is_some_and(|took| took >= 0.9),
            "{hook:?}"
        );
    }
);

e2e!(a_hook_may_only_sleep, |world| {
    let app = with_pre_stop(world, &[], &json!({"sleep": {"seconds": 1}}));
    let mut agent = world.run(&json!({"containers": [app], "terminationGracePeriodSeconds": 60}));
    agent.until_is("", "ready");
    let ended = agent.interrupt();
    let order = ["killing:deleted", "hook:preStop:success", "signal:SIGTERM"];
    in_order(&ended.seen, &order.map(|brief| ("app", brief)));
    let hook = ended.all("app", "hook").next().expect("seen");
    assert!(
        hook["seconds"].as_f64().is_some_and(|took| took >= 0.999),
        "{hook:?}"
    );
});

e2e!(
    a_hook_that_fails_does_not_keep_a_container_from_stopping,
    |world| {
        let nobody = port();
        for hook in [
            json!({"exec": {"command": ["false"]}}),
            json!({"exec": {"command": ["/no/such/program"]}}),
            json!({"httpGet": {"port": nobody}}),
            // Accepted and never carried out, as upstream.
            json!({"tcpSocket": {"port": nobody}}),
        ] {
            let app = with_pre_stop(world, &[], &hook);
            let mut agent = world.run(&json!({"containers": [app]}));
            agent.until_is("", "ready");
            let ended = agent.interrupt();
            let order = ["hook:preStop:failure", "signal:SIGTERM", "exited:0"];
            in_order(&ended.seen, &order.map(|brief| ("app", brief)));
        }
    }
);

e2e!(a_connection_as_post_start_hook_fails, |world| {
    let app = with(
        world.demo("app", &[]),
        json!({"lifecycle": {"postStart": {"tcpSocket": {"port": port()}}}}),
    );
    let ended = world
        .run(&json!({"containers": [app], "restartPolicy": "Never"}))
        .finish();
    in_order(
        &ended.seen,
        &[
            ("app", "hook:postStart:failure"),
            ("app", "killing:postStartHook"),
        ],
    );
});

e2e!(a_hook_that_takes_all_the_grace_is_cut_off, |world| {
    let hook = json!({"exec": {"command": ["sleep", "1000"]}});
    let app = with_pre_stop(world, &["--ignore", "SIGTERM"], &hook);
    let mut agent = world.run(&json!({"containers": [app], "terminationGracePeriodSeconds": 1}));
    agent.until_is("", "ready");
    let stop = world.command("stop").arg("web").spawn();
    let mut stop = stop.expect("pulselet starts");
    agent.until_is("app", "hook:preStop:timeout");
    world.event("FailedPreStopHook");
    agent.until_is("app", "exited:137");
    assert!(stop.wait().expect("it is a child").success());
    let ended = agent.finish();
    in_order(
        &ended.seen,
        &[
            ("app", "hook:preStop:timeout"),
            ("app", "signal:SIGTERM"),
            ("app", "graceExceeded"),
            ("app", "exited:137"),
        ],
    );
    let exit = of(&ended.seen, "app", "exited").next().expect("seen");
    assert!(
        exit["seconds"].as_f64().is_some_and(|took| took >= 1.999),
        "two seconds are left for the signal: {exit:?}"
    );
    assert!(world.processes().is_empty(), "the hook's program is gone too");
});
