//! A node that is late: it says so, and its pods' probes below one second give way.

use std::time::Duration;

use pulselet_agent::{Feed, NodeEvent, PodLine, PodView};
use pulselet_engine::LineBody;
use pulselet_engine::line::LineOutcome;
use pulselet_engine::plan::ProbeKind;
use pulselet_runtime_fake::{ExecAnswer, LifeScript};
use pulselet_testing::busy_cpu::BusyCpu;
use pulselet_testing::{is_root, requires};
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

/// Lines of one kind of probe with this outcome.
fn count(bench: &Bench, of: ProbeKind, as_expected: LineOutcome) -> usize {
    let is_one = |line: &&std::sync::Arc<PodLine>| {
        matches!(
            line.line.body,
            LineBody::Probe { kind, outcome, look: false, .. } if kind == of && outcome == as_expected
        )
    };
    bench.seen.iter().filter(is_one).count()
}

/// Liveness probes that are waited for while probes are stretched.
const TICKS: usize = 5;

/// The process of this test, and with it the node, shares a little time of the processor with one that takes all it gets.
#[tokio::test]
async fn fast_probes_give_way_under_a_busy_processor_and_nothing_healthy_dies() {
    if !requires("root", is_root()) {
        return;
    }
    let busy = BusyCpu::new();
    if !requires("a control group for the processor", busy.is_some()) {
        return;
    }
    let Some(mut busy) = busy else { return };
    // The kernel answers for a listener, however busy its process is; where nobody listens it refuses.
    let healthy = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = |listener: &TcpListener| listener.local_addr().expect("an address").port();
    let silent = port(&TcpListener::bind("127.0.0.1:0").await.expect("a port"));
    let probe = |port: u16| json!({"tcpSocket": {"host": "127.0.0.1", "port": port}, "periodSeconds": 1, "timeoutSeconds": 30});
    let mut liveness = probe(port(&healthy));
    liveness["failureThreshold"] = json!(1);
    let mut readiness = probe(silent);
    readiness["periodMilliseconds"] = json!(-500);
    let mut bench = Bench::new().await;
    let fields = json!({"livenessProbe": liveness, "readinessProbe": readiness});
    bench.add(pod("web", &fields)).await;
    bench.until_type("running").await;
    busy.take(std::process::id()).expect("this process runs");
    busy.begin().expect("a process");
    let stretched = |line: &PodLine| line.to_json().contains("ProbesStretched: ");
    bench.until("stretched probes", stretched).await;
    let before = count(&bench, ProbeKind::Readiness, LineOutcome::Failure);
    for _ in 0..TICKS {
        bench
            .until("a liveness probe", |line| {
                matches!(
                    line.line.body,
                    LineBody::Probe {
                        kind: ProbeKind::Liveness,
                        ..
                    }
                )
            })
            .await;
    }
    // Both come once a second now; half a second would give twice as many.
    let fast = count(&bench, ProbeKind::Readiness, LineOutcome::Failure) - before;
    assert!(fast <= TICKS + 2, "{fast} of the fast:\n{}", bench.transcript());
    assert_eq!(count(&bench, ProbeKind::Liveness, LineOutcome::Failure), 0);
    assert!(
        !bench.types().contains(&"killing".to_owned()),
        "{}",
        bench.transcript()
    );
}
