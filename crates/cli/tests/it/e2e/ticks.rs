//! When probes run.

use serde_json::json;

use super::harness::{Line, of, since};
use super::world::{e2e, probe, with};

/// Counted failures of the readiness probe.
fn failed_ticks(lines: &[Line]) -> usize {
    of(lines, "app", "probe:readiness:failure")
        .filter(|line| line["counted"] == true)
        .count()
}

/// Whether the machine was so busy that the node went over to whole seconds: then there are no fast ticks to count.
fn are_stretched(lines: &[Line]) -> bool {
    let mut warnings = of(lines, "", "warning");
    warnings.any(|line| {
        line["message"]
            .as_str()
            .is_some_and(|it| it.starts_with("ProbesStretched"))
    })
}

/// When the container was made. Its clock counts from its start, which comes before anybody sees it run.
fn created(lines: &[Line]) -> f64 {
    of(lines, "app", "created").next().expect("it is made").t()
}

e2e!(readiness_looks_as_soon_as_startup_has_succeeded, |world| {
    let app = world.server("app", &[], |http| {
        json!({
            "startupProbe": http(json!({"periodSeconds": 1, "failureThreshold": 60})),
            // A period nobody would wait for.
            "readinessProbe": http(json!({"periodSeconds": 3600})),
        })
    });
    let mut agent = world.run(&json!({"containers": [app]}));
    agent.until_is("app", "ready");
    agent.interrupt();
});

e2e!(a_look_sees_a_program_long_before_its_first_tick, |world| {
    let app = world.server(
        "app",
        &["--start-after", "60ms"],
        |http| json!({"readinessProbe": http(json!({"periodSeconds": 3600}))}),
    );
    let mut agent = world.run(&json!({"containers": [app]}));
    agent.until_is("app", "ready");
    let ended = agent.interrupt();
    let no_look = |line: &&Line| line["counted"] == true || line["run"] != 0;
    let mut failures = ended.all("app", "probe:readiness:failure");
    assert!(failures.find(no_look).is_none(), "{}", ended.transcript());
});

e2e!(without_looks_the_first_tick_decides, |world| {
    let app = world.server(
        "app",
        &["--start-after", "100ms"],
        |http| json!({"readinessProbe": http(json!({"periodSeconds": 1}))}),
    );
    let config = world.config("looks: false\n");
    let mut agent = world.run_with(&json!({"containers": [app]}), &["--config", &config]);
    let ready = agent.until_is("app", "ready");
    assert!(
        ready.t() - created(&agent.seen) >= 0.999,
        "{}",
        agent.transcript()
    );
    agent.interrupt();
});

e2e!(the_first_probe_waits_for_the_initial_delay, |world| {
    let app = world.server("app", &[], |http| {
        let delay = json!({"initialDelaySeconds": 1, "initialDelayMilliseconds": 250, "periodSeconds": 1});
        json!({"readinessProbe": http(delay)})
    });
    let mut agent = world.run(&json!({"containers": [app]}));
    agent.until_is("app", "ready");
    let first = of(&agent.seen, "app", "probe").next().expect("it is probed");
    assert!(
        first.began() - created(&agent.seen) >= 1.249,
        "{}",
        agent.transcript()
    );
    agent.interrupt();
});

e2e!(
    an_overrun_is_followed_by_one_tick_at_once_and_the_grid_is_kept,
    |world| {
        // The look fails at once, the first tick takes a period and a half, later ones no time.
        let mark = world.shared().join("tried");
        let script = format!(
            "[ -e {0}2 ] && exit; [ -e {0} ] || {{ touch {0}; exit 1; }}; touch {0}2; sleep 3; exit 1",
            mark.display()
        );
        let slow = probe(
            json!({"exec": {"command": ["sh", "-c", script]}}),
            json!({"periodSeconds": 2, "timeoutSeconds": 60}),
        );
        let app = world.sharing(with(world.demo("app", &[]), json!({"readinessProbe": slow})));
        let mut agent = world.run(&json!({"containers": [app]}));
        agent.until_is("app", "probe:readiness:failure");
        for _ in 0..2 {
            agent.until_is("app", "probe:readiness:success");
        }
        let [_look, slow, owed, next] = &of(&agent.seen, "app", "probe").collect::<Vec<_>>()[..] else {
            panic!("four attempts: {}", agent.transcript());
        };
        // The grid has points after 2 s, 4 s, which the tick overran, and 6 s.
        assert!(
            owed.began() - slow.t() < 0.9,
            "at once, not at the next point: {}",
            agent.transcript()
        );
        assert!(
            next.began() - created(&agent.seen) >= 5.999,
            "{}",
            agent.transcript()
        );
        assert!(
            next.began() - owed.began() < 1.9,
            "a new grid would take a period: {}",
            agent.transcript()
        );
        agent.interrupt();
    }
);

e2e!(a_sub_second_period_lasts_until_the_first_success, |world| {
    let app = world.server(
        "app",
        &["--start-after", "2s", "--exit-at", "5s"],
        |http| json!({"readinessProbe": http(json!({"periodSeconds": 1, "periodMilliseconds": -800}))}),
    );
    let mut agent = world.run(&json!({"containers": [app]}));
    agent.until_is("app", "ready");
    // Two seconds have nine ticks of 200 ms; even a slow machine takes more than two of them.
    assert!(
        failed_ticks(&agent.seen) > 2 || are_stretched(&agent.seen),
        "{}",
        agent.transcript()
    );
    let from = agent.seen.len();
    for _ in 0..2 {
        agent.until_is("app", "probe:readiness:success");
    }
    let later: Vec<f64> = of(&agent.seen[from..], "app", "probe").map(Line::began).collect();
    assert!(later[1] - later[0] >= 0.5, "a second each from now on: {later:?}");
    // The next life is in a hurry again.
    agent.until_is("app", "running:1");
    agent.until_is("app", "ready");
    let second = since(&agent.seen, "app", "running:1");
    assert!(
        failed_ticks(second) > 2 || are_stretched(&agent.seen),
        "{}",
        agent.transcript()
    );
    agent.interrupt();
});

e2e!(a_period_of_a_second_and_a_half_stays, |world| {
    let app = world.server(
        "app",
        &[],
        |http| json!({"readinessProbe": http(json!({"periodSeconds": 1, "periodMilliseconds": 500}))}),
    );
    let mut agent = world.run(&json!({"containers": [app]}));
    agent.until_is("app", "ready");
    let from = agent.seen.len();
    for _ in 0..3 {
        agent.until_is("app", "probe:readiness:success");
    }
    let later: Vec<f64> = of(&agent.seen[from..], "app", "probe").map(Line::began).collect();
    assert!(later[2] - later[0] >= 2.5, "{later:?}");
    agent.interrupt();
});

e2e!(a_setting_brings_the_short_period_back_after_a_failure, |world| {
    let app = world.server(
        "app",
        &["--fail-at", "1500ms", "--recover-at", "4500ms"],
        |http| {
            let fields = json!({"periodSeconds": 1, "periodMilliseconds": -800, "failureThreshold": 1});
            json!({"readinessProbe": http(fields)})
        },
    );
    let config = world.config("subSecondPolicy: alwaysWhenWaitingForSuccess\n");
    let mut agent = world.run_with(&json!({"containers": [app]}), &["--config", &config]);
    for change in ["ready", "unready", "ready"] {
        agent.until_is("app", change);
    }
    // The three seconds would have three ticks of the long period and have more than ten of the short one.
    assert!(
        failed_ticks(&agent.seen) > 4 || are_stretched(&agent.seen),
        "{}",
        agent.transcript()
    );
    agent.interrupt();
});

e2e!(a_setting_keeps_the_short_period_for_good, |world| {
    let ready = |name: &str, milliseconds: i32| {
        let fields = json!({"periodSeconds": 1, "periodMilliseconds": milliseconds});
        world.server(name, &[], |http| json!({"readinessProbe": http(fields)}))
    };
    let containers = [ready("quick", -800), ready("slow", 0)];
    let config = world.config("subSecondPolicy: always\n");
    let mut agent = world.run_with(&json!({"containers": containers}), &["--config", &config]);
    agent.until_is("", "ready");
    let from = agent.seen.len();
    for _ in 0..3 {
        agent.until_is("slow", "probe:readiness:success");
    }
    let quick = of(&agent.seen[from..], "quick", "probe:readiness:success").count();
    assert!(
        quick > 5 || are_stretched(&agent.seen),
        "five for each of the other's: {}",
        agent.transcript()
    );
    agent.interrupt();
});
