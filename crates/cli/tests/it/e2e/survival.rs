//! What an agent was in the middle of, the next one goes on with.

use serde_json::json;

use super::harness::{in_order, of};
use super::world::{e2e, http, port, with};

e2e!(a_failure_run_goes_on_where_it_was, |world| {
    let fields = json!({"periodSeconds": 1, "failureThreshold": 4});
    let app = with(
        world.demo("app", &[]),
        json!({"livenessProbe": http(port(), fields)}),
    );
    let spec = json!({"containers": [app]});
    let mut agent = world.run(&spec);
    agent.until("two failures in a row", |line| line["run"] == 2);
    agent.kill();
    let mut agent = world.run(&spec);
    agent.until_is("app", "killing:livenessProbe");
    in_order(
        &agent.seen,
        &[("", "agentRestarted"), ("app", "killing:livenessProbe")],
    );
    let runs: Vec<_> = of(&agent.seen, "app", "probe")
        .filter_map(|line| line["run"].as_u64())
        .collect();
    // One that was under way may have been answered and not published.
    assert!(runs == [3, 4] || runs == [4], "{}", agent.transcript());
    assert_eq!(
        of(&agent.seen, "app", "created").count(),
        0,
        "it was not made anew"
    );
    agent.interrupt();
});

e2e!(
    started_and_ready_stay_as_they_were,
    [Process, Oci, Containerd, OwnCri],
    |world| {
        // Up for a second: nothing but what is remembered can make it started and ready later.
        let app = world.server("app", &["--fail-at", "1s"], |http| {
            json!({
                "startupProbe": http(json!({"periodSeconds": 3600, "failureThreshold": 3})),
                "readinessProbe": http(json!({"periodSeconds": 3600, "failureThreshold": 3})),
            })
        });
        let spec = json!({"containers": [app]});
        let mut agent = world.run(&spec);
        agent.until_is("", "ready");
        agent.kill();
        let mut agent = world.run(&spec);
        agent.until_is("", "agentRestarted");
        let status = world.app_status();
        assert_eq!(
            (&status["started"], &status["ready"]),
            (&json!(true), &json!(true))
        );
        let ended = agent.interrupt();
        assert_eq!(ended.all("app", "probe").count(), 0, "{}", ended.transcript());
    }
);

e2e!(a_kill_under_way_keeps_its_deadline, |world| {
    let grace = json!({"terminationGracePeriodSeconds": 4});
    let app = world.condemned(&["--ignore", "SIGTERM"], grace);
    let spec = json!({"containers": [app], "terminationGracePeriodSeconds": 3600});
    let mut agent = world.run(&spec);
    agent.until_is("app", "signal:SIGTERM");
    agent.kill();
    let mut agent = world.run(&spec);
    let exit = agent.until_is("app", "exited:137");
    let took = exit["seconds"].as_f64().expect("it had a signal");
    assert!((3.999..3600.0).contains(&took), "{}", agent.transcript());
    agent.until_is("app", "running:1");
    let logs = world.command("logs").args(["web", "--previous"]).output();
    let logs = String::from_utf8(logs.expect("pulselet runs").stdout).expect("UTF-8");
    assert_eq!(logs.matches("ignored SIGTERM").count(), 1, "logged once: {logs}");
    let stop = world
        .command("stop")
        .args(["web", "--grace-period", "0"])
        .status();
    assert!(stop.expect("pulselet runs").success());
    agent.finish();
});

e2e!(a_pause_before_a_restart_is_not_shortened, |world| {
    let app = world.demo("app", &["--exit-at", "0s", "--exit-code", "1"]);
    let spec = json!({"containers": [app]});
    let config = world.config("crashLoopBackOff: {initial: 4s, max: 4s}\n");
    let mut agent = world.run_with(&spec, &["--config", &config]);
    let pause = agent.until_is("app", "backoff");
    agent.kill();
    let mut agent = world.run_with(&spec, &["--config", &config]);
    let start = agent.until_is("app", "running:2");
    let left = pause["seconds"].as_f64().expect("a number");
    assert!(
        start.t() - pause.t() >= left - 0.001,
        "{pause:?} {}",
        agent.transcript()
    );
    agent.interrupt();
});

e2e!(all_containers_restart_though_the_agent_is_killed, |world| {
    let app = with(
        world.demo("app", &["--exit-at", "2s", "--exit-code", "42"]),
        json!({"restartPolicy": "Never", "restartPolicyRules": [
            {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}},
        ]}),
    );
    let sidecar = with(world.demo("sidecar", &[]), json!({"restartPolicy": "Always"}));
    let spec = json!({
        "initContainers": [world.demo("setup", &["--exit-at", "0s"]), sidecar],
        "containers": [app, world.demo("other", &["--ignore", "SIGTERM"])],
        "terminationGracePeriodSeconds": 3600,
    });
    let mut agent = world.run(&spec);
    agent.until_is("other", "signal:SIGTERM");
    let restarting = |status: &serde_json::Value| {
        let conditions = status["conditions"].as_array().expect("conditions").iter();
        let mut ours = conditions.filter(|it| it["type"] == "AllContainersRestarting");
        ours.next().expect("it has a rule")["status"].clone()
    };
    let before = world.pods().expect("the agent answers").remove(0)["status"].take();
    agent.kill();
    let mut agent = world.run(&spec);
    agent.until_is("other", "exited:137");
    agent.until_is("setup", "running:1");
    agent.until_is("app", "running:1");
    let after = world.pods().expect("the agent answers").remove(0)["status"].take();
    assert_eq!(
        (restarting(&before), restarting(&after)),
        (json!("True"), json!("False"))
    );
    assert_eq!(before["podIP"], after["podIP"], "the sandbox stays");
    in_order(
        &agent.seen,
        &[
            ("", "agentRestarted"),
            ("other", "exited:137"),
            ("setup", "running:1"),
            ("setup", "exited:0"),
            ("sidecar", "running:1"),
            ("app", "running:1"),
        ],
    );
    let stop = world
        .command("stop")
        .args(["web", "--grace-period", "0"])
        .status();
    assert!(stop.expect("pulselet runs").success());
    agent.finish();
});
