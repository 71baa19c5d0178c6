//! The simulator and real processes do the same.
//!
//! Compared per container: what happened to it, in order, and for each probe its counted results with equal neighbours
//! folded. Scenarios leave more room between two things than a loaded machine takes.

use serde_json::{Value, json};

use super::harness::{Agent, Ended, Line};
use super::world::{World, e2e, http, port, with};

/// What is compared of one container.
#[derive(Debug, PartialEq, Eq)]
struct Behaviour {
    events: Vec<String>,
    probes: Vec<(String, Vec<String>)>,
}

fn behaviour(lines: &[Line]) -> Behaviour {
    let container = |line: &&Line| line["container"] == "app" || line["container"].is_null();
    let events = lines
        .iter()
        .filter(container)
        .filter(|line| !matches!(line["type"].as_str(), Some("probe" | "warning")))
        .map(|line| format!("{}{}", line["container"].as_str().unwrap_or("pod "), line.brief()))
        .collect();
    let folded = |kind: &str| {
        let results = lines
            .iter()
            .filter(|line| line["kind"] == kind && line["counted"] == true);
        let mut results: Vec<String> = results
            .map(|line| line["outcome"].as_str().unwrap().to_owned())
            .collect();
        results.dedup();
        (kind.to_owned(), results)
    };
    Behaviour {
        events,
        probes: ["startup", "liveness", "readiness"].map(folded).into(),
    }
}

fn simulate(world: &World, spec: &Value, scenario: &Value, flags: &[&str]) -> Vec<Line> {
    let manifest = world.manifest("web", spec);
    let file = world.path("scenario.yaml");
    std::fs::write(&file, scenario.to_string()).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_pulselet"))
        .arg("simulate")
        .arg(manifest)
        .arg("--scenario")
        .arg(file)
        .args(["-o", "json"])
        .args(flags)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| Line(serde_json::from_str(line).unwrap()))
        .collect()
}

/// Plays a life in both worlds. `end` says when the real pod is deleted.
fn compare(world: &World, spec: &Value, life: &Value, delete_at: &str, end: impl FnOnce(Agent) -> Ended) {
    let config = world.config("crashLoopBackOff: {initial: 1s, max: 300s}\n");
    let flags = ["--config", config.as_str()];
    let mut scenario = json!({"containers": {"app": {"lives": [life]}}});
    if !delete_at.is_empty() {
        scenario["deleteAt"] = json!(delete_at);
    }
    let simulated = behaviour(&simulate(world, spec, &scenario, &flags));
    let real = end(world.run_with(spec, &flags));
    let real_behaviour = behaviour(&real.seen);
    assert_eq!(
        real_behaviour,
        simulated,
        "left: real, right: simulated\n{}",
        real.transcript()
    );
}

fn probes(port: u16) -> Value {
    json!({
        "startupProbe": http(port, json!({"periodSeconds": 1, "failureThreshold": 30})),
        "readinessProbe": http(port, json!({"periodSeconds": 1, "failureThreshold": 1})),
        "livenessProbe": http(port, json!({"periodSeconds": 1, "failureThreshold": 3})),
    })
}

e2e!(a_slow_start_a_deadlock_and_a_restart, |world| {
    let port = port();
    let flags = [
        "--port",
        &port.to_string(),
        "--start-after",
        "1500ms",
        "--fail-at",
        "4500ms",
    ];
    let app = with(world.demo("app", &flags), probes(port));
    let life = json!({"startsAfter": "1500ms", "failsAt": "4500ms"});
    compare(
        world,
        &json!({"containers": [app]}),
        &life,
        "9500ms",
        |mut agent| {
            agent.until_is("app", "running:1");
            agent.until_is("app", "ready");
            agent.interrupt()
        },
    );
});

e2e!(a_container_that_is_never_up, |world| {
    let port = port();
    let app = with(
        world.demo("app", &[]),
        json!({"startupProbe": http(port, json!({"periodSeconds": 1, "failureThreshold": 3}))}),
    );
    let spec = json!({"containers": [app], "restartPolicy": "Never"});
    compare(world, &spec, &json!({"startsAfter": "1h"}), "", |agent| {
        let mut ended = agent.finish();
        // A run deletes its pods at its end; the simulated pod stays as it is.
        ended.seen.retain(|line| !line.is("", "deleted"));
        ended
    });
});

e2e!(a_deaf_container_that_exceeds_its_probes_grace, |world| {
    let port = port();
    let fields = json!({"periodSeconds": 1, "failureThreshold": 1, "terminationGracePeriodSeconds": 1});
    let app = with(
        world.demo(
            "app",
            &[
                "--port",
                &port.to_string(),
                "--fail-at",
                "1500ms",
                "--ignore",
                "SIGTERM",
            ],
        ),
        json!({"livenessProbe": http(port, fields)}),
    );
    let spec = json!({"containers": [app], "restartPolicy": "Never"});
    let life = json!({"failsAt": "1500ms", "handles": []});
    compare(world, &spec, &life, "", |agent| {
        let mut ended = agent.finish();
        ended.seen.retain(|line| !line.is("", "deleted"));
        ended
    });
});

e2e!(a_readiness_that_comes_and_goes, |world| {
    let port = port();
    let app = with(
        world.demo(
            "app",
            &[
                "--port",
                &port.to_string(),
                "--fail-at",
                "2500ms",
                "--recover-at",
                "5500ms",
            ],
        ),
        json!({"readinessProbe": http(port, json!({"periodSeconds": 1, "failureThreshold": 2}))}),
    );
    let life = json!({"failsAt": "2500ms", "recoversAt": "5500ms"});
    compare(
        world,
        &json!({"containers": [app]}),
        &life,
        "6500ms",
        |mut agent| {
            agent.until_is("app", "unready");
            agent.until_is("app", "ready");
            agent.interrupt()
        },
    );
});

e2e!(a_program_that_leaves_again_and_again, |world| {
    let app = world.demo("app", &["--exit-at", "500ms", "--exit-code", "1"]);
    let life = json!({"exitsAt": "500ms", "exitCode": 1});
    // It leaves after 0.5, 1.0, 2.5 and 5.0 s; the next pause lasts four seconds, and is when it is deleted: then there is
    // no program that might not get it.
    compare(world, &json!({"containers": [app]}), &life, "7s", |mut agent| {
        agent.until("a pause of four seconds", |line| {
            line["type"] == "backoff" && line["seconds"].as_f64().is_some_and(|left| left > 2.5)
        });
        agent.interrupt()
    });
});

e2e!(a_hook_and_a_program_that_takes_its_time_to_stop, |world| {
    let app = world.server("app", &["--stop-in", "1500ms"], |http| {
        json!({"readinessProbe": http(json!({"periodSeconds": 1})), "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}})
    });
    let life = json!({"stopsIn": "1500ms"});
    let spec = json!({"containers": [app], "terminationGracePeriodSeconds": 60});
    compare(world, &spec, &life, "500ms", |mut agent| {
        agent.until_is("", "ready");
        agent.interrupt()
    });
});
