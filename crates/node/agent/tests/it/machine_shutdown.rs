//! The machine goes down under a node.

use std::time::Duration;

use pulselet_agent::{Origin, PodLine, ShutdownPeriods};
use pulselet_engine::LineBody;
use pulselet_engine::line::KillReason;
use pulselet_runtime_fake::LifeScript;
use pulselet_vocabulary::PodName;
use serde_json::json;

use crate::harness::{Bench, eventually, pod, runtime, type_of};

fn periods(total: u64, critical: u64) -> ShutdownPeriods {
    ShutdownPeriods {
        total: Duration::from_secs(total).into(),
        critical: Duration::from_secs(critical).into(),
    }
}

fn is_of(line: &PodLine, pod: &str, kind: &str) -> bool {
    line.pod.name.as_ref() == pod && type_of(line) == kind
}

#[tokio::test]
async fn critical_pods_go_when_the_others_are_gone() {
    let mut bench = Bench::new().await;
    let mut critical = pod("critical", &json!({}));
    critical.spec.priority = Some(2_000_000_000);
    bench.add(critical).await;
    bench.until_ready().await;
    bench.add(pod("ordinary", &json!({}))).await;
    bench.until_ready().await;
    let stopped = bench.node.stop_for_shutdown(periods(60, 30)).await;
    stopped.expect("the node is there");
    bench
        .until("the end of the critical pod", |line| {
            is_of(line, "critical", "exited")
        })
        .await;
    let place = |pod: &str, kind: &str| bench.seen.iter().position(|line| is_of(line, pod, kind));
    let (ordinary, critical) = (place("ordinary", "exited"), place("critical", "killing"));
    assert!(
        ordinary.is_some() && ordinary < critical,
        "{}",
        bench.transcript()
    );
    let reasons = bench.seen.iter().filter_map(|line| match line.line.body {
        LineBody::Killing { reason, .. } => Some(reason),
        _ => None,
    });
    assert!(reasons.clone().count() == 2 && reasons.clone().all(|it| it == KillReason::NodeShutdown));
}

#[tokio::test]
async fn a_pod_of_the_machine_waits_for_the_next_agent_and_begins_anew() {
    let mut bench = Bench::new().await;
    bench.add(pod("web", &json!({}))).await;
    bench.until_ready().await;
    let stopped = bench.node.stop_for_shutdown(periods(60, 0)).await;
    stopped.expect("the node is there");
    // It comes too late, and waits too.
    bench.add(pod("late", &json!({}))).await;
    let name = PodName::new("default", "web");
    let view = bench.node.pod(&name).await.expect("the node is there");
    assert_eq!(view.expect("the pod is there").status.phase, "Running");
    let (directory, runtime) = bench.leave().await;
    let bench = Bench::on(directory, runtime, |_| {}).await;
    for (name, restarts) in [("web", 1), ("late", 0)] {
        let name = PodName::new("default", name);
        eventually("the pod runs again", || async {
            let view = bench.node.pod(&name).await.expect("the node is there");
            let status = view.expect("the pod is there").status;
            let container = status.container_statuses.first();
            container.is_some_and(|it| it.ready && it.restart_count == restarts)
        })
        .await;
    }
}

#[tokio::test]
async fn pods_of_an_api_that_goes_down_with_the_machine_belong_to_the_machine() {
    let name = PodName::new("default", "web");
    for (keeps_api_pods, phase) in [(true, "Running"), (false, "Failed")] {
        let directory = tempfile::tempdir().expect("a directory");
        let mut bench = Bench::on(directory, runtime(), |options| {
            options.keeps_api_pods = keeps_api_pods;
        })
        .await;
        let added = bench.node.add_pod(pod("web", &json!({})), Origin::Api).await;
        added.expect("the node is there").expect("the pod is taken");
        bench.until_ready().await;
        let stopped = bench.node.stop_for_shutdown(periods(60, 0)).await;
        stopped.expect("the node is there");
        let view = bench.node.pod(&name).await.expect("the node is there");
        assert_eq!(view.expect("the pod is there").status.phase, phase);
    }
}

#[tokio::test]
async fn a_pod_that_does_not_end_holds_up_nothing_when_its_time_is_over() {
    let mut bench = Bench::new().await;
    bench.runtime.script("app", [LifeScript::stubborn()]);
    bench.add(pod("web", &json!({}))).await;
    bench.until_ready().await;
    // Its own grace period is a second, too, and what follows SIGKILL takes no time.
    let stopped = bench.node.stop_for_shutdown(periods(1, 0)).await;
    stopped.expect("the node is there");
    bench.until_type("graceExceeded").await;
}

#[tokio::test]
async fn a_shutdown_that_is_cancelled_leaves_the_pods_of_the_machine_running() {
    let mut bench = Bench::new().await;
    bench.add(pod("web", &json!({}))).await;
    bench.until_ready().await;
    let stopped = bench.node.stop_for_shutdown(periods(60, 0)).await;
    stopped.expect("the node is there");
    assert!(*bench.node.machine_goes_down().borrow());
    bench.node.cancel_shutdown().await.expect("the node is there");
    bench.until_ready().await;
    assert!(!*bench.node.machine_goes_down().borrow());
}
