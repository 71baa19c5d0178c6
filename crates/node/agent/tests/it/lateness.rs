//! A node that is late: it says so, and its pods' probes below one second give way.

use std::time::Duration;

use pulselet_agent::{Feed, NodeEvent, PodView};
use pulselet_engine::plan::ProbeKind;
use pulselet_runtime_fake::{ExecAnswer, LifeScript};
use serde_json::json;
use tokio::net::TcpListener;

use crate::harness::{Bench, pod, runtime};
use crate::socket::get;

/// Above what a node may be late, and below the whole second of a probe that must not suffer.
const STALL: Duration = Duration::from_millis(300);

/// Keeps the node, which runs on this thread, from running, as a busy machine does, until its probes are stretched.
async fn hog(bench: &mut Bench) {
    for _ in 0..100 {
        std::thread::sleep(STALL);
        tokio::time::sleep(Duration::from_millis(50)).await;
        bench.drain();
        if bench.transcript().contains("ProbesStretched: ") {
            return;
        }
    }
    panic!("nothing was stretched:\n{}", bench.transcript());
}

/// The period of each kind of probe, in milliseconds.
fn periods(view: &PodView) -> Vec<(ProbeKind, u64)> {
    let probes = view.probes.iter();
    probes.map(|it| (it.kind, it.period_ms)).collect()
}

async fn node_events(feed: &Feed) -> Vec<NodeEvent> {
    let next = tokio::time::timeout(Duration::from_secs(1), feed.next()).await;
    next.map(|changes| changes.node_events.into()).unwrap_or_default()
}

#[tokio::test]
async fn fast_probes_give_way_when_the_node_is_late() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let metrics = listener.local_addr().expect("an address");
    let feed = Feed::default();
    let own = feed.clone();
    let mut bench = Bench::on(tempfile::tempdir().expect("a directory"), runtime(), |options| {
        options.metrics = Some(listener);
        options.feed = Some(own);
    })
    .await;
    let never = LifeScript {
        exec: vec![(Duration::ZERO, ExecAnswer::Exits(1, Vec::new()))],
        ..LifeScript::default()
    };
    bench.runtime.script("app", [never]);
    let readiness = json!({"exec": {"command": ["check"]}, "periodSeconds": 1, "periodMilliseconds": -500});
    let liveness = json!({"exec": {"command": ["check"]}, "periodSeconds": 1, "failureThreshold": 1000});
    let fields = json!({"readinessProbe": readiness, "livenessProbe": liveness});
    bench.add(pod("web", &fields)).await;
    bench.add(pod("calm", &json!({}))).await;
    bench.until_type("running").await;
    hog(&mut bench).await;
    let seen = bench
        .seen
        .iter()
        .filter(|line| line.to_json().contains("ProbesStretched"));
    let pods: Vec<_> = seen.map(|line| line.pod.to_string()).collect();
    assert_eq!(pods, ["default/web"], "others are told nothing");
    let views = bench.node.pods().await.expect("the node is there");
    let web = views.iter().find(|view| view.name == "web").expect("it is there");
    let whole = [(ProbeKind::Liveness, 1_000), (ProbeKind::Readiness, 1_000)];
    assert_eq!(periods(web), whole);
    let text = get(metrics, "/metrics").await;
    assert!(text.contains("pulselet_probes_stretched 1\n"), "{text}");
    let events = node_events(&feed).await;
    let reasons: Vec<_> = events.iter().map(|event| event.reason).collect();
    assert_eq!(reasons, ["ProbesStretched"]);
    // Another agent goes on with it, and does not announce it again.
    let (directory, runtime) = bench.leave().await;
    let feed = Feed::default();
    let own = feed.clone();
    let next = Bench::on(directory, runtime, |options| options.feed = Some(own)).await;
    let views = next.node.pods().await.expect("the node is there");
    let web = views.iter().find(|view| view.name == "web").expect("it is there");
    assert_eq!(periods(web), whole);
    assert_eq!(node_events(&feed).await, []);
}
