//! Replays traces recorded from the upstream worker, step by step, through the real worker.

use std::sync::Arc;

use pulselet_engine::io::ProbeOutcome;
use pulselet_engine::plan::{Handler, ProbeKind, ProbePlan};
use pulselet_engine::time::Span;
use pulselet_engine::worker::{LifeState, LifeView, Next, Published, View, Worker};
use serde_json::Value;

/// Reads the traces from another file.
const VECTORS_VARIABLE: &str = "PULSELET_WORKER_VECTORS";

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the test, not the engine, reads its environment"
)]
fn worker_vectors() {
    let path = std::env::var(VECTORS_VARIABLE)
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/probe-worker.jsonl").to_owned());
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let traces: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a trace"))
        .collect();
    let failures: Vec<String> = traces.iter().filter_map(|trace| replay(trace).err()).collect();
    println!(
        "{} of {} traces agree",
        traces.len() - failures.len(),
        traces.len()
    );
    assert!(!traces.is_empty(), "{path} has no traces");
    assert!(
        failures.is_empty(),
        "{}",
        failures[..failures.len().min(20)].join("\n")
    );
}

fn replay(trace: &Value) -> Result<(), String> {
    let kind = match text(trace, "probeType") {
        "Startup" => ProbeKind::Startup,
        "Liveness" => ProbeKind::Liveness,
        "Readiness" => ProbeKind::Readiness,
        other => panic!("probe type {other}"),
    };
    let plan = ProbePlan {
        handler: Handler::Http,
        initial_delay: Span::from_secs(number(trace, "initialDelaySeconds")),
        period: Span::from_secs(1),
        period_after: Span::from_secs(1),
        timeout: Span::from_secs(1),
        success_threshold: u32::try_from(number(trace, "successThreshold")).expect("a threshold"),
        failure_threshold: u32::try_from(number(trace, "failureThreshold")).expect("a threshold"),
        initial_failure_threshold: 0,
        grace: None,
    };
    let mut worker = Worker::new(kind, Arc::new(plan));
    let mut lives = Vec::new();
    for (index, step) in trace["steps"].as_array().expect("steps").iter().enumerate() {
        let view = view(step, text(trace, "restartPolicy"), &mut lives);
        let next = worker.tick(&view);
        if next == Next::Probe {
            worker.record(outcome(text(step, "outcome")));
        }
        let got = (
            next == Next::Probe,
            next != Next::Stop,
            published(&worker, &view),
            worker.is_on_hold(),
        );
        let want = (
            flag(step, "probed"),
            flag(step, "keepGoing"),
            text(step, "published"),
            flag(step, "onHold"),
        );
        if got != want {
            return Err(format!(
                "trace {} step {index}: (probed, keepGoing, published, onHold) is {got:?}, recorded {want:?}: {step}",
                trace["id"]
            ));
        }
        if next == Next::Stop {
            break;
        }
    }
    Ok(())
}

fn view(step: &Value, restart_policy: &str, lives: &mut Vec<String>) -> View {
    let id = text(step, "container");
    let life = (!id.is_empty()).then(|| {
        let attempt = lives.iter().position(|life| life == id).unwrap_or_else(|| {
            lives.push(id.to_owned());
            lives.len() - 1
        });
        let restarts = match restart_policy {
            "Always" => true,
            "OnFailure" => step["exitCode"] != 0,
            "Never" => false,
            other => panic!("restart policy {other}"),
        };
        LifeView {
            attempt: u32::try_from(attempt).expect("few lives"),
            state: match text(step, "state") {
                "running" => LifeState::Running,
                "waiting" => LifeState::Waiting,
                "terminated" => LifeState::Ended { restarts },
                other => panic!("state {other}"),
            },
            age: Span::from_secs(number(step, "ageSeconds")),
            started: flag(step, "started"),
        }
    });
    View {
        pod_finished: matches!(text(step, "phase"), "Failed" | "Succeeded"),
        pod_ending: flag(step, "deleting"),
        life,
    }
}

fn outcome(name: &str) -> ProbeOutcome {
    match name {
        "success" => ProbeOutcome::Success,
        "warning" => ProbeOutcome::Warning,
        "failure" => ProbeOutcome::Failure,
        "unknown" => ProbeOutcome::Unknown,
        "error" => ProbeOutcome::Error,
        other => panic!("outcome {other}"),
    }
}

fn published(worker: &Worker, view: &View) -> &'static str {
    match view.life.and_then(|life| worker.published_for(life.attempt)) {
        None => "",
        Some(Published::Unknown) => "unknown",
        Some(Published::Success) => "success",
        Some(Published::Failure) => "failure",
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} in {value}"))
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} in {value}"))
}

fn flag(value: &Value, key: &str) -> bool {
    value[key].as_bool().unwrap_or_else(|| panic!("{key} in {value}"))
}
