//! What follows from the results of probes.

use rustix::process::Signal;
use serde_json::json;

use super::harness::{Line, before, in_order, of, since};
use super::world::{e2e, http, port, probe, with};

e2e!(
    a_pod_comes_up_serves_and_goes,
    [Process, Oci, Containerd, OwnCri],
    |world| {
        let app = world.server("app", &["--start-after", "300ms"], |http| {
            json!({
                "startupProbe": http(json!({"periodSeconds": 1, "failureThreshold": 60})),
                "livenessProbe": http(json!({"periodSeconds": 1})),
                "readinessProbe": http(json!({"periodSeconds": 1})),
            })
        });
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
    }
);

e2e!(without_probes_a_running_container_is_started_and_ready, |world| {
    let mut agent = world.run(&json!({"containers": [world.demo("app", &[])]}));
    agent.until_is("", "ready");
    let ended = agent.interrupt();
    in_order(
        &ended.seen,
        &[("app", "running:0"), ("app", "started"), ("app", "ready")],
    );
    assert_eq!(ended.all("app", "probe").count(), 0);
});

e2e!(the_other_probes_wait_for_the_startup_probe, |world| {
    // What the other two look at is well at once.
    let well = || {
        probe(
            json!({"exec": {"command": ["true"]}}),
            json!({"periodSeconds": 1}),
        )
    };
    let app = world.server("app", &["--start-after", "1500ms"], |http| {
        json!({
            "startupProbe": http(json!({"periodSeconds": 1, "failureThreshold": 60})),
            "livenessProbe": well(),
            "readinessProbe": well(),
        })
    });
    let mut agent = world.run(&json!({"containers": [app]}));
    agent.until_is("app", "probe:liveness:success");
    let starting = before(&agent.seen, "app", "started");
    assert!(of(starting, "app", "probe:startup:failure").count() > 0);
    assert_eq!(of(starting, "app", "probe:liveness").count(), 0);
    assert_eq!(of(starting, "app", "probe:readiness").count(), 0);
    agent.interrupt();
});

e2e!(
    with_its_gate_off_a_startup_probe_is_not_there,
    [Process],
    |world| {
        let app = with(
            world.demo("app", &[]),
            json!({"startupProbe": http(port(), json!({"periodSeconds": 1, "failureThreshold": 1}))}),
        );
        let gates = ["--feature-gates", "StartupProbeEnabled=false"];
        let mut agent = world.run_with(&json!({"containers": [app]}), &gates);
        agent.until_is("", "ready");
        let ended = agent.interrupt();
        assert_eq!(ended.all("app", "probe").count(), 0, "{}", ended.transcript());
        assert!(ended.stderr.contains("StartupProbeEnabled"), "{}", ended.stderr);
    }
);

e2e!(thresholds_are_reached_by_equal_results_in_a_row, |world| {
    let app = world.server(
        "app",
        &["--fail-at", "2500ms", "--recover-at", "5500ms"],
        |http| {
            let fields = json!({"periodSeconds": 1, "successThreshold": 2, "failureThreshold": 2});
            json!({"readinessProbe": http(fields)})
        },
    );
    let mut agent = world.run(&json!({"containers": [app]}));
    for change in ["ready", "unready", "ready"] {
        agent.until_is("app", change);
        let last = of(&agent.seen, "app", "probe").last();
        assert_eq!(last.expect("it was probed")["run"], 2, "{}", agent.transcript());
    }
    let ended = agent.interrupt();
    assert_eq!(ended.count("app", "running:1"), 0, "readiness kills nobody");
});

e2e!(an_error_of_the_handler_is_thrown_away, |world| {
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

e2e!(a_setting_makes_such_an_error_a_failure, |world| {
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

e2e!(a_startup_probe_condemns_a_container_that_is_never_up, |world| {
    let app = with(
        world.demo("app", &[]),
        json!({
            "startupProbe": http(port(), json!({"periodSeconds": 1, "failureThreshold": 2})),
            "readinessProbe": http(port(), json!({"periodSeconds": 1})),
        }),
    );
    let mut agent = world.run(&json!({"containers": [app]}));
    agent.until_is("app", "running:1");
    let ended = agent.interrupt();
    let life = before(&ended.seen, "app", "running:1");
    let counted = of(life, "app", "probe:startup:failure").filter(|line| line["counted"] == true);
    let runs: Vec<_> = counted.map(|line| line["run"].as_u64()).collect();
    assert_eq!(runs, [Some(1), Some(2)]);
    assert_eq!(
        of(life, "app", "killing").count(),
        1,
        "on hold after the decision"
    );
    let created = of(life, "app", "created").next().expect("seen");
    let kill = of(life, "app", "killing").next().expect("seen");
    assert!(
        kill.t() - created.t() >= 1.999,
        "never less than threshold x period"
    );
    assert_eq!(
        of(&ended.seen, "app", "started").count() + of(&ended.seen, "app", "ready").count(),
        0
    );
});

e2e!(a_container_that_is_up_in_its_last_moment_lives, |world| {
    // The budget is 4 s; it is up in time for the last attempt only.
    let app = world.server(
        "app",
        &["--start-after", "3200ms"],
        |http| json!({"startupProbe": http(json!({"periodSeconds": 1, "failureThreshold": 4}))}),
    );
    let mut agent = world.run(&json!({"containers": [app]}));
    agent.until_is("app", "started");
    let ended = agent.interrupt();
    assert_eq!(ended.count("app", "killing:startupProbe"), 0);
});

e2e!(
    until_the_first_success_the_initialization_threshold_counts,
    |world| {
        // Up within the window, dead before the window is over: the ordinary threshold condemns it.
        let flags = ["--start-after", "1500ms", "--fail-at", "2500ms"];
        let app = world.server("app", &flags, |http| {
            let fields =
                json!({"periodSeconds": 1, "failureThreshold": 1, "initializationFailureThreshold": 4});
            json!({"livenessProbe": http(fields)})
        });
        let mut agent = world.run(&json!({"containers": [app]}));
        agent.until_is("app", "killing:livenessProbe");
        let results: Vec<_> = of(&agent.seen, "app", "probe")
            .map(|line| (line["outcome"].as_str(), line["run"].as_u64()))
            .collect();
        let expected = [("failure", 1), ("success", 1), ("failure", 1)];
        assert_eq!(results, expected.map(|(outcome, run)| (Some(outcome), Some(run))));
        agent.interrupt();
    }
);

e2e!(
    a_container_that_never_initializes_gets_all_of_its_threshold,
    |world| {
        let fields = json!({"periodSeconds": 1, "failureThreshold": 1, "initializationFailureThreshold": 3});
        let app = with(
            world.demo("app", &[]),
            json!({"livenessProbe": http(port(), fields)}),
        );
        let mut agent = world.run(&json!({"containers": [app]}));
        agent.until_is("app", "killing:livenessProbe");
        let runs: Vec<_> = of(&agent.seen, "app", "probe")
            .map(|line| line["run"].as_u64())
            .collect();
        assert_eq!(runs, [Some(1), Some(2), Some(3)]);
        agent.interrupt();
    }
);

e2e!(
    a_new_life_is_never_shown_ready_from_the_old_ones_results,
    |world| {
        let flags = ["--start-after", "500ms", "--fail-at", "2500ms"];
        let app = world.server("app", &flags, |http| {
            json!({
                "startupProbe": http(json!({"periodSeconds": 1, "failureThreshold": 60})),
                "livenessProbe": http(json!({"periodSeconds": 1, "failureThreshold": 1})),
                "readinessProbe": http(json!({"periodSeconds": 1})),
            })
        });
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
        let second = since(&ended.seen, "app", "exited:0");
        assert_eq!(of(before(second, "app", "started"), "app", "ready").count(), 0);
    }
);

e2e!(at_the_end_liveness_is_quiet_and_readiness_goes_on, |world| {
    let app = world.server("app", &["--stop-in", "4s"], |http| {
        let well = || {
            probe(
                json!({"exec": {"command": ["true"]}}),
                json!({"periodSeconds": 1}),
            )
        };
        json!({"livenessProbe": http(json!({"periodSeconds": 1})), "readinessProbe": well()})
    });
    let mut agent = world.run(&json!({"containers": [app], "terminationGracePeriodSeconds": 60}));
    agent.until_is("app", "probe:liveness:success");
    let ended = agent.interrupt();
    let end = since(&ended.seen, "app", "killing:deleted");
    // One may have been under way when the end came.
    assert!(
        of(end, "app", "probe:liveness").count() <= 1,
        "{}",
        ended.transcript()
    );
    assert!(
        of(end, "app", "probe:readiness:success").count() >= 1,
        "{}",
        ended.transcript()
    );
});

e2e!(the_end_makes_nothing_started_or_ready, |world| {
    // It can be told to stop once its port answers, which its startup probe does not ask.
    let app = world.server("app", &["--stop-in", "2500ms"], |http| {
        json!({
            "startupProbe": probe(
                json!({"exec": {"command": ["false"]}}),
                json!({"periodSeconds": 1, "failureThreshold": 60}),
            ),
            "readinessProbe": http(json!({"periodSeconds": 1})),
            "lifecycle": {"postStart": {"exec": {"command": ["sleep", "1"]}}},
        })
    });
    let mut agent = world.run(&json!({"containers": [app], "terminationGracePeriodSeconds": 60}));
    agent.until_is("app", "hook:postStart:success");
    let ended = agent.interrupt();
    let end = since(&ended.seen, "app", "killing:deleted");
    assert!(
        of(end, "app", "probe:startup").count() <= 1,
        "{}",
        ended.transcript()
    );
    let shown = ["started", "ready", "probe:readiness"].map(|what| ended.all("app", what).count());
    assert_eq!(shown, [0, 0, 0], "{}", ended.transcript());
});

e2e!(a_starved_agent_blames_nobody_if_asked_to, [Process], |world| {
    // The first probe is taken and never answered; the agent stands still before that can time out, until later.
    let flags = ["--deadlock-at", "0s", "--recover-at", "5s"];
    let app = world.server("app", &flags, |http| {
        json!({"livenessProbe": http(json!({"periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 4}))})
    });
    let config = world.config("overloadGuard: true\n");
    let mut agent = world.run_with(&json!({"containers": [app]}), &["--config", &config]);
    agent.until_is("app", "running:0");
    // How long it runs and how long it stands still are the test's input.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    agent.signal(Signal::STOP);
    std::thread::sleep(std::time::Duration::from_secs(4));
    agent.signal(Signal::CONT);
    agent.until_is("app", "probe:liveness:success");
    let forgiven: Vec<&Line> = of(&agent.seen, "app", "probe:liveness:failure").collect();
    assert!(
        forgiven.len() == 1 && forgiven[0]["run"] == 0,
        "{}",
        agent.transcript()
    );
    assert!(
        of(&agent.seen, "app", "warning").count() >= 1,
        "{}",
        agent.transcript()
    );
    let ended = agent.interrupt();
    assert_eq!(ended.count("app", "killing:livenessProbe"), 0);
});
