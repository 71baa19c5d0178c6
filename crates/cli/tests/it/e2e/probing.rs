//! When probes run and what follows from their results.

use serde_json::json;

use super::harness::{Line, in_order, of};
use super::world::{e2e, http, port, probe, with};

e2e!(a_pod_comes_up_serves_and_goes, [Process, Oci], |world| {
    let port = port();
    let app = with(
        world.demo("app", &["--port", &port.to_string(), "--start-after", "300ms"]),
        json!({
            "startupProbe": http(port, json!({"periodSeconds": 1, "failureThreshold": 60})),
            "livenessProbe": http(port, json!({"periodSeconds": 1})),
            "readinessProbe": http(port, json!({"periodSeconds": 1})),
        }),
    );
    let mut agent = world.run(&json!({"containers": [app], "terminationGracePeriodSeconds": 60}));
    agent.until_is("", "ready");
    agent.until_is("app", "probe:liveness:success");
    let ended = agent.interrupt();
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    in_order(
        &ended.seen,
        &[
            ("", "phase:Pending"),
            ("app", "created"),
            ("app", "running:0"),
            ("app", "probe:startup:success"),
            ("app", "started"),
            ("app", "probe:readiness:success"),
            ("app", "ready"),
            ("", "ready"),
            ("app", "probe:liveness:success"),
            ("app", "killing:deleted"),
            ("app", "signal:SIGTERM"),
            ("app", "exited:0"),
            ("app", "unready"),
            ("", "unready"),
            ("", "deleted"),
        ],
    );
    let first = &ended.seen[0];
    assert_eq!((first.t(), first["pod"].as_str()), (0.0, Some("default/web")));
    assert!(ended.seen.iter().all(|line| line["time"].is_string()));
    assert!(world.processes().is_empty(), "nothing is left behind");
});

e2e!(
    without_probes_a_running_container_is_started_and_ready,
    [Process, Oci],
    |world| {
        let mut agent = world.run(&json!({"containers": [world.demo("app", &[])]}));
        agent.until_is("", "ready");
        let ended = agent.interrupt();
        in_order(
            &ended.seen,
            &[("app", "running:0"), ("app", "started"), ("app", "ready")],
        );
        assert_eq!(ended.all("app", "probe").count(), 0);
    }
);

e2e!(the_other_probes_wait_for_the_startup_probe, [Process], |world| {
    let port = port();
    // Healthy for the startup probe only after a while; the file is what the others look at, and it is there at once.
    let app = with(
        world.demo("app", &["--port", &port.to_string(), "--start-after", "1500ms"]),
        json!({
            "startupProbe": http(port, json!({"periodSeconds": 1, "failureThreshold": 60})),
            "livenessProbe": probe(json!({"exec": {"command": ["true"]}}), json!({"periodSeconds": 1})),
            "readinessProbe": probe(json!({"exec": {"command": ["true"]}}), json!({"periodSeconds": 1})),
        }),
    );
    let mut agent = world.run(&json!({"containers": [app]}));
    agent.until_is("app", "probe:liveness:success");
    let started = agent.seen.iter().position(|line| line.is("app", "started"));
    let started = started.expect("it is started before anything else is probed");
    assert!(of(&agent.seen[..started], "app", "probe:startup:failure").count() > 0);
    assert_eq!(of(&agent.seen[..started], "app", "probe:liveness").count(), 0);
    assert_eq!(of(&agent.seen[..started], "app", "probe:readiness").count(), 0);
    agent.interrupt();
});

e2e!(
    readiness_looks_as_soon_as_startup_has_succeeded,
    [Process],
    |world| {
        let port = port();
        let app = with(
            world.demo("app", &["--port", &port.to_string()]),
            json!({
                "startupProbe": http(port, json!({"periodSeconds": 1, "failureThreshold": 60})),
                // A period nobody would wait for.
                "readinessProbe": http(port, json!({"periodSeconds": 3600})),
            }),
        );
        let mut agent = world.run(&json!({"containers": [app]}));
        agent.until_is("app", "ready");
        agent.interrupt();
    }
);

e2e!(
    a_look_sees_a_program_long_before_its_first_tick,
    [Process],
    |world| {
        let port = port();
        let app = with(
            world.demo("app", &["--port", &port.to_string(), "--start-after", "60ms"]),
            json!({"readinessProbe": http(port, json!({"periodSeconds": 3600}))}),
        );
        let mut agent = world.run(&json!({"containers": [app]}));
        agent.until_is("app", "ready");
        let looks: Vec<_> = of(&agent.seen, "app", "probe:readiness:failure").collect();
        assert!(
            looks
                .iter()
                .all(|look| look["counted"] == false && look["run"] == 0)
        );
        agent.interrupt();
    }
);

e2e!(without_looks_the_first_tick_decides, [Process], |world| {
    let port = port();
    let app = with(
        world.demo("app", &["--port", &port.to_string(), "--start-after", "100ms"]),
        json!({"readinessProbe": http(port, json!({"periodSeconds": 1}))}),
    );
    let config = world.config("looks: false\n");
    let mut agent = world.run_with(&json!({"containers": [app]}), &["--config", &config]);
    let ready = agent.until_is("app", "ready");
    // Its clock counts from its start, which comes before anybody sees it run.
    let created = of(&agent.seen, "app", "created").next().expect("it is made").t();
    assert!(ready.t() - created >= 0.999, "{}", agent.story());
    agent.interrupt();
});

e2e!(the_first_probe_waits_for_the_initial_delay, [Process], |world| {
    let port = port();
    let delay = json!({"initialDelaySeconds": 1, "initialDelayMilliseconds": 250, "periodSeconds": 1});
    let app = with(
        world.demo("app", &["--port", &port.to_string()]),
        json!({"readinessProbe": http(port, delay)}),
    );
    let mut agent = world.run(&json!({"containers": [app]}));
    agent.until_is("app", "ready");
    // Its clock counts from its start, which comes before anybody sees it run.
    let created = of(&agent.seen, "app", "created").next().expect("it is made").t();
    let first = of(&agent.seen, "app", "probe").next().expect("it is probed").t();
    assert!(first - created >= 1.249, "{}", agent.story());
    agent.interrupt();
});

e2e!(
    thresholds_are_reached_by_equal_results_in_a_row,
    [Process],
    |world| {
        let port = port();
        let app = with(
            world.demo(
                "app",
                &[
                    "--port",
                    &port.to_string(),
                    "--fail-at",
                    "3s",
                    "--recover-at",
                    "7s",
                ],
            ),
            json!({"readinessProbe": http(port, json!({"periodSeconds": 1, "successThreshold": 2, "failureThreshold": 2}))}),
        );
        let mut agent = world.run(&json!({"containers": [app]}));
        agent.until_is("app", "ready");
        agent.until_is("app", "unready");
        agent.until_is("app", "ready");
        let ended = agent.interrupt();
        for line in ended
            .seen
            .windows(2)
            .filter(|pair| pair[1].is("app", "ready") || pair[1].is("app", "unready"))
        {
            if line[0]["type"] == "probe" {
                assert_eq!(line[0]["run"], 2, "{}", ended.story());
            }
        }
        assert_eq!(ended.count("app", "running:1"), 0, "readiness kills nobody");
    }
);

e2e!(an_error_of_the_handler_is_thrown_away, [Process, Oci], |world| {
    let missing = probe(
        json!({"exec": {"command": ["/no/such/program"]}}),
        json!({"periodSeconds": 1, "failureThreshold": 1}),
    );
    let app = with(world.demo("app", &[]), json!({"livenessProbe": missing}));
    let mut agent = world.run(&json!({"containers": [app]}));
    for _ in 0..3 {
        let line = agent.until("a probe", |line| line["type"] == "probe");
        assert_eq!(
            (line["outcome"].as_str(), line["run"].as_u64()),
            (Some("error"), Some(0)),
            "{line:?}"
        );
    }
    let ended = agent.interrupt();
    assert_eq!(ended.count("app", "killing:livenessProbe"), 0);
});

e2e!(a_setting_makes_such_an_error_a_failure, [Process], |world| {
    let missing = probe(
        json!({"exec": {"command": ["/no/such/program"]}}),
        json!({"periodSeconds": 1, "failureThreshold": 1}),
    );
    let app = with(world.demo("app", &[]), json!({"livenessProbe": missing}));
    let config = world.config("execErrorIsFailure: true\n");
    let mut agent = world.run_with(&json!({"containers": [app]}), &["--config", &config]);
    agent.until_is("app", "killing:livenessProbe");
    agent.interrupt();
});

e2e!(
    a_startup_probe_condemns_a_container_that_is_never_up,
    [Process, Oci],
    |world| {
        let port = port();
        let app = with(
            world.demo("app", &[]),
            json!({
                "startupProbe": http(port, json!({"periodSeconds": 1, "failureThreshold": 2})),
                "readinessProbe": http(port, json!({"periodSeconds": 1})),
            }),
        );
        let mut agent = world.run(&json!({"containers": [app]}));
        agent.until_is("app", "running:1");
        let ended = agent.interrupt();
        let upto = ended
            .seen
            .iter()
            .position(|line| line.is("app", "running:1"))
            .expect("seen");
        let life = &ended.seen[..upto];
        let counted = of(life, "app", "probe:startup:failure").filter(|line| line["counted"] == true);
        assert_eq!(
            counted
                .map(|line| line["run"].as_u64().unwrap())
                .collect::<Vec<_>>(),
            [1, 2]
        );
        assert_eq!(
            of(life, "app", "killing").count(),
            1,
            "on hold after the decision"
        );
        let kill = of(life, "app", "killing").next().expect("seen");
        let created = of(life, "app", "created").next().expect("seen");
        assert!(
            kill.t() - created.t() >= 1.999,
            "never less than threshold x period"
        );
        assert_eq!(
            of(&ended.seen, "app", "started").count() + of(&ended.seen, "app", "ready").count(),
            0
        );
    }
);

e2e!(
    a_container_that_is_up_in_its_last_moment_lives,
    [Process],
    |world| {
        let port = port();
        // The budget is 4 s; it is up in time for the last attempt only.
        let app = with(
            world.demo("app", &["--port", &port.to_string(), "--start-after", "3200ms"]),
            json!({"startupProbe": http(port, json!({"periodSeconds": 1, "failureThreshold": 4}))}),
        );
        let mut agent = world.run(&json!({"containers": [app]}));
        agent.until_is("app", "started");
        let ended = agent.interrupt();
        assert_eq!(ended.count("app", "killing:startupProbe"), 0);
    }
);

e2e!(
    until_the_first_success_the_initialization_threshold_counts,
    [Process],
    |world| {
        let port = port();
        let app = |start: &str, fail: &[&str]| {
            let port = port.to_string();
            let mut flags = vec!["--port", &port, "--start-after", start];
            flags.extend(fail);
            let fields =
                json!({"periodSeconds": 1, "failureThreshold": 1, "initializationFailureThreshold": 4});
            with(
                world.demo("app", &flags),
                json!({"livenessProbe": http(port.parse().unwrap(), fields)}),
            )
        };
        // Up within the window, dead before the window is over: the ordinary threshold condemns it.
        let mut agent = world.run(&json!({"containers": [app("1500ms", &["--fail-at", "2500ms"])]}));
        let kill = agent.until_is("app", "killing:livenessProbe");
        let failures: Vec<_> = of(&agent.seen, "app", "probe:liveness:failure").collect();
        assert!(
            of(&agent.seen, "app", "probe:liveness:success").count() > 0,
            "{}",
            agent.story()
        );
        assert_eq!(failures.last().expect("it failed")["run"], 1, "{kill:?}");
        agent.interrupt();
    }
);

e2e!(
    a_container_that_never_initializes_gets_all_of_its_threshold,
    [Process],
    |world| {
        let fields = json!({"periodSeconds": 1, "failureThreshold": 1, "initializationFailureThreshold": 3});
        let app = with(
            world.demo("app", &[]),
            json!({"livenessProbe": http(port(), fields)}),
        );
        let mut agent = world.run(&json!({"containers": [app]}));
        agent.until_is("app", "killing:livenessProbe");
        let runs: Vec<_> = of(&agent.seen, "app", "probe")
            .map(|line| line["run"].as_u64().unwrap())
            .collect();
        assert_eq!(runs, [1, 2, 3]);
        agent.interrupt();
    }
);

e2e!(
    a_sub_second_period_lasts_until_the_first_success,
    [Process],
    |world| {
        let port = port();
        let app = with(
            world.demo("app", &["--port", &port.to_string(), "--start-after", "2s"]),
            json!({"readinessProbe": http(port, json!({"periodSeconds": 1, "periodMilliseconds": -800}))}),
        );
        let mut agent = world.run(&json!({"containers": [app]}));
        agent.until_is("app", "ready");
        let tries = of(&agent.seen, "app", "probe:readiness:failure").filter(|line| line["counted"] == true);
        // Two seconds have nine ticks of 200 ms; even a slow machine takes more than two of them.
        assert!(tries.count() > 2, "{}", agent.story());
        let from = agent.seen.len();
        for _ in 0..3 {
            agent.until_is("app", "probe:readiness:success");
        }
        let later: Vec<f64> = of(&agent.seen[from..], "app", "probe").map(Line::t).collect();
        assert!(later[2] - later[0] >= 1.5, "a second each from now on: {later:?}");
        agent.interrupt();
    }
);

e2e!(
    post_start_delays_neither_probes_nor_started,
    [Process, Oci],
    |world| {
        let port = port();
        let slow = json!({"postStart": {"exec": {"command": ["sleep", "3"]}}});
        let app = with(
            world.demo("app", &["--port", &port.to_string()]),
            json!({"lifecycle": slow, "readinessProbe": http(port, json!({"periodSeconds": 1}))}),
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
    }
);

e2e!(
    a_failing_post_start_kills_its_container,
    [Process, Oci],
    |world| {
        let failing = json!({"postStart": {"exec": {"command": ["sh", "-c", "sleep 1; exit 1"]}}});
        let app = with(world.demo("app", &[]), json!({"lifecycle": failing}));
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
    }
);

e2e!(
    a_new_life_is_never_shown_ready_from_the_old_ones_results,
    [Process],
    |world| {
        let port = port();
        let app = with(
            world.demo(
                "app",
                &[
                    "--port",
                    &port.to_string(),
                    "--start-after",
                    "500ms",
                    "--fail-at",
                    "2500ms",
                ],
            ),
            json!({
                "startupProbe": http(port, json!({"periodSeconds": 1, "failureThreshold": 60})),
                "livenessProbe": http(port, json!({"periodSeconds": 1, "failureThreshold": 1})),
                "readinessProbe": http(port, json!({"periodSeconds": 1})),
            }),
        );
        let mut agent = world.run(&json!({"containers": [app]}));
        agent.until_is("app", "running:1");
        agent.until_is("app", "ready");
        let ended = agent.interrupt();
        in_order(
            &ended.seen,
            &[
                ("app", "ready"),
                ("app", "killing:livenessProbe"),
                ("app", "exited:0"),
                ("app", "unready"),
                ("", "unready"),
                ("app", "running:1"),
                ("app", "probe:startup:success"),
                ("app", "started"),
                ("app", "probe:readiness:success"),
                ("app", "ready"),
            ],
        );
        let exited = ended
            .seen
            .iter()
            .position(|line| line.is("app", "exited:0"))
            .expect("seen");
        let again = ended.seen[exited..]
            .iter()
            .position(|line| line.is("app", "started"))
            .expect("seen");
        assert_eq!(of(&ended.seen[exited..exited + again], "app", "ready").count(), 0);
    }
);
