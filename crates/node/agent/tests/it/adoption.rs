//! Agents that die and agents that come after them.

use std::sync::Arc;
use std::time::Duration;

use pulselet_agent::{DataDir, How, Node, NodeOptions, PodLine};
use pulselet_engine::{LineBody, Span};
use pulselet_runtime::{ContainerFilter, Operation, Runtime as _};
use pulselet_runtime_fake::{ExecAnswer, FakeRuntime, LifeScript};
use pulselet_vocabulary::PodName;
use serde_json::json;

use crate::harness::{Bench, copy_directory, eventually, pod, runtime, type_of};

fn is_unready(line: &PodLine) -> bool {
    line.line.body == LineBody::Unready
}

fn probed() -> serde_json::Value {
    let probe = json!({"exec": {"command": ["check"]}, "periodSeconds": 1});
    json!({"startupProbe": probe, "livenessProbe": probe, "readinessProbe": probe})
}

/// Ends the node as it was when `copied` was made, and starts the next one from there.
async fn crash(bench: Bench, copied: tempfile::TempDir) -> Bench {
    let (_old, runtime) = bench.leave().await;
    Bench::on(copied, runtime, |_| {}).await
}

fn snapshot(bench: &Bench) -> tempfile::TempDir {
    let copied = tempfile::tempdir().expect("a directory");
    copy_directory(&bench.data(), &copied.path().join("data"));
    copied
}

/// A data directory as the program left it before its database had a format.
fn first_format() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data");
    std::fs::create_dir(&data).expect("a directory");
    let from = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../testing/data/first-format/node.db"
    );
    std::fs::copy(from, data.join("node.db")).expect("a copy");
    directory
}

fn format_of(data: &std::path::Path) -> i64 {
    let database = rusqlite::Connection::open(data.join("node.db")).expect("a database");
    let format = database.query_row("PRAGMA user_version", [], |row| row.get(0));
    format.expect("a number")
}

/// The user in the status of the pod's container.
async fn user_of(bench: &Bench, name: &str) -> serde_json::Value {
    let view = bench.node.pod(&PodName::new("default", name)).await;
    let status = view.expect("the node is there").expect("the pod is there").status;
    serde_json::to_value(&status.container_statuses[0].user).expect("JSON")
}

#[tokio::test]
async fn the_status_tells_who_a_container_runs_as_before_and_after_a_crash() {
    let mut bench = Bench::new().await;
    let security = json!({"runAsUser": 1000, "runAsGroup": 3000});
    bench.add(pod("web", &json!({"securityContext": security}))).await;
    bench.until_ready().await;
    let user = json!({"linux": {"uid": 1000, "gid": 3000, "supplementalGroups": [3000]}});
    assert_eq!(user_of(&bench, "web").await, user);
    let copied = snapshot(&bench);
    let mut bench = crash(bench, copied).await;
    bench.until_type("agentRestarted").await;
    eventually("the adopted container has its user", || async {
        user_of(&bench, "web").await == user
    })
    .await;
}

#[tokio::test]
async fn a_state_of_the_first_format_is_gone_on_with() {
    let directory = first_format();
    assert_eq!(format_of(&directory.path().join("data")), 0);
    let mut bench = Bench::on(directory, runtime(), |_| {}).await;
    bench.until_type("agentRestarted").await;
    bench.until_ready().await;
    let view = &bench.node.pods().await.unwrap()[0];
    assert_eq!(view.pod_name(), PodName::new("default", "kept-box"));
    // It had been restarted once; its container was not found, so that there is another life.
    assert_eq!(view.status.container_statuses[0].restart_count, 2);
    let history = bench.node.history(None, None).await.unwrap();
    let lines: Vec<&str> = history.lines().collect();
    assert!(
        lines
            .iter()
            .any(|line| line.contains(r#""reason":"livenessProbe""#)),
        "{lines:#?}"
    );
    assert_eq!(format_of(&bench.data()), 1);
}

#[tokio::test]
async fn a_state_of_a_newer_format_is_refused_and_left_alone() {
    let directory = first_format();
    let data = directory.path().join("data");
    let database = rusqlite::Connection::open(data.join("node.db")).expect("a database");
    database.pragma_update(None, "user_version", 7).expect("written");
    drop(database);
    let before = std::fs::read(data.join("node.db")).expect("reads");
    let claimed = DataDir::claim(data.clone()).expect("nobody else has it");
    let refused = Node::start(NodeOptions::new(claimed, Arc::new(runtime()))).await;
    let error = refused.expect_err("it is newer").to_string();
    assert!(
        error.contains("node.db has format 7, this program knows 1"),
        "{error}"
    );
    assert_eq!(std::fs::read(data.join("node.db")).expect("reads"), before);
}

#[tokio::test]
async fn a_ready_container_stays_ready_and_the_time_goes_on() {
    let mut bench = Bench::new().await;
    bench.add(pod("web", &probed())).await;
    bench.until_ready().await;
    let before = bench.seen.last().unwrap().t;
    let copied = snapshot(&bench);
    let mut bench = crash(bench, copied).await;
    let restarted = bench.until_type("agentRestarted").await;
    assert!(restarted.t >= before);
    assert_eq!(bench.add(pod("web", &probed())).await, How::Adopted);
    for _ in 0..4 {
        bench.until_type("probe").await;
    }
    assert!(
        !bench.seen.iter().any(|line| is_unready(line)),
        "{}",
        bench.transcript()
    );
    let view = &bench.node.pods().await.unwrap()[0];
    assert!(view.status.container_statuses[0].ready);
    assert_eq!(view.status.container_statuses[0].restart_count, 0);
}

#[tokio::test]
async fn a_container_that_left_meanwhile_is_seen_with_its_code() {
    let mut bench = Bench::new().await;
    bench.add(pod("web", &json!({}))).await;
    bench.until_ready().await;
    let (directory, runtime) = bench.leave().await;
    let containers = runtime
        .list_containers(&ContainerFilter::default())
        .await
        .unwrap();
    runtime.exit(&containers[0].id, 42);
    while !matches!(
        runtime.container_status(&containers[0].id).await.unwrap().state,
        pulselet_runtime::ContainerState::Exited(_)
    ) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut bench = Bench::on(directory, runtime, |_| {}).await;
    let exited = bench.until_type("exited").await.to_json();
    assert!(exited.contains("\"exitCode\":42"), "{exited}");
    bench.until_type("running").await;
}

#[tokio::test]
async fn a_container_that_vanished_counts_as_255() {
    let mut bench = Bench::new().await;
    bench.add(pod("web", &json!({}))).await;
    bench.until_ready().await;
    let (directory, runtime) = bench.leave().await;
    for sandbox in runtime.list_sandboxes().await.unwrap() {
        runtime.remove_sandbox(&sandbox.id).await.unwrap();
    }
    let mut bench = Bench::on(directory, runtime, |_| {}).await;
    let exited = bench.until_type("exited").await.to_json();
    assert!(exited.contains("\"exitCode\":255"), "{exited}");
    bench.until_ready().await;
}

#[tokio::test]
async fn a_failure_run_goes_on_where_it_was() {
    let mut bench = Bench::new().await;
    let sick = LifeScript {
        exec: vec![(Duration::ZERO, ExecAnswer::Exits(1, Vec::new()))],
        ..LifeScript::default()
    };
    bench.runtime.script("app", [sick]);
    let probe = json!({"exec": {"command": ["check"]}, "periodSeconds": 1, "failureThreshold": 4});
    bench.add(pod("sick", &json!({"livenessProbe": probe}))).await;
    let run_of = |line: &PodLine| match line.line.body {
        LineBody::Probe { run, .. } => Some(run),
        _ => None,
    };
    bench
        .until("second failure", |line| run_of(line) == Some(2))
        .await;
    let copied = snapshot(&bench);
    let mut bench = crash(bench, copied).await;
    bench.until_type("agentRestarted").await;
    bench.until("third failure", |line| run_of(line) == Some(3)).await;
    bench.until_type("killing").await;
    let runs: Vec<_> = bench.seen.iter().filter_map(|line| run_of(line)).collect();
    assert_eq!(runs, [3, 4]);
    bench.until_type("exited").await;
    let history = bench.node.history(None, None).await.unwrap();
    assert_eq!(history.matches("\"type\":\"probe\"").count(), 4, "{history}");
}

#[tokio::test]
async fn a_kill_under_way_keeps_its_deadline() {
    let mut bench = Bench::new().await;
    bench.runtime.script("app", [LifeScript::stubborn()]);
    bench.add(pod("slow", &json!({}))).await;
    bench.until_ready().await;
    bench
        .node
        .delete_pod(&PodName::new("default", "slow"), Some(Duration::from_secs(3)))
        .await
        .unwrap()
        .unwrap();
    let signal = bench.until_type("signal").await;
    let copied = snapshot(&bench);
    let mut bench = crash(bench, copied).await;
    let exceeded = bench.until_type("graceExceeded").await;
    let took = exceeded.t.saturating_sub(signal.t);
    assert!(took.as_secs_f64() >= 2.9, "{took}");
    bench.until_type("deleted").await;
    let signals = bench.seen.iter().filter(|line| type_of(line) == "signal").count();
    assert_eq!(signals, 0, "{}", bench.transcript());
}

#[tokio::test]
async fn a_creation_whose_answer_was_lost_is_found_again() {
    let mut bench = Bench::new().await;
    bench.add(pod("web", &json!({}))).await;
    let created = bench.until_type("phase").await;
    assert!(created.t.as_secs_f64() < 60.0);
    let copied = snapshot(&bench);
    bench.until_ready().await;
    let mut bench = crash(bench, copied).await;
    bench.until_ready().await;
    let calls = bench.runtime.calls();
    let stops = calls.iter().filter(|(verb, _)| *verb == Operation::StopContainer);
    assert_eq!(stops.count(), 0, "{calls:?}");
    let all = bench
        .runtime
        .list_containers(&ContainerFilter::default())
        .await
        .unwrap();
    assert_eq!(all.len(), 1);
}

/// The disk had refused, so the next agent finds a life that is newer than any it could know of, and of those in between
/// nothing.
#[tokio::test]
async fn a_life_that_was_forgotten_is_gone_on_with() {
    let quick = |options: &mut NodeOptions| {
        options.config.settings.backoff_initial = Span::from_millis(10);
        options.config.settings.backoff_max = Span::from_millis(10);
    };
    let mut bench = Bench::on(tempfile::tempdir().expect("a directory"), runtime(), quick).await;
    bench.add(pod("web", &probed())).await;
    bench.until_ready().await;
    let copied = snapshot(&bench);
    for _ in 0..3 {
        let running = running_containers(&bench.runtime).await;
        bench.runtime.exit(&running[0].id, 1);
        bench.until_type("exited").await;
        bench.until_type("running").await;
    }
    let before = running_containers(&bench.runtime).await;
    let (_old, runtime) = bench.leave().await;
    let mut bench = Bench::on(copied, runtime, quick).await;
    bench.until_type("agentRestarted").await;
    eventually("the newest life is ready", || async {
        let view = &bench.node.pods().await.expect("the node is there")[0];
        let status = &view.status.container_statuses[0];
        status.ready && status.restart_count == 3
    })
    .await;
    let after = running_containers(&bench.runtime).await;
    assert_eq!((before.len(), after.len()), (1, 1), "{after:?}");
    assert_eq!(before[0].id, after[0].id, "it was not touched");
}

async fn running_containers(runtime: &FakeRuntime) -> Vec<pulselet_runtime::ContainerStatus> {
    let all = runtime.list_containers(&ContainerFilter::default()).await;
    let is_running = |status: &pulselet_runtime::ContainerStatus| {
        matches!(status.state, pulselet_runtime::ContainerState::Running { .. })
    };
    all.expect("it answers").into_iter().filter(is_running).collect()
}
