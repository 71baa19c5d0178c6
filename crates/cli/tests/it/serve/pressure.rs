//! A node on a processor that is busy: fast probes give way, the others keep their counts, nothing healthy dies.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::TcpListener;

use pulselet_testing::busy_cpu::BusyCpu;
use serde_json::{Value, json};

use super::cluster::{Cluster, pod};

/// Liveness probes that are waited for, while the processor is busy and probes are stretched.
const TICKS: u64 = 5;

/// Accepts connections and closes them, as long as the test lasts; its port.
fn healthy_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // The other side closes: its port is not ours to keep.
            let _ = { stream }.read(&mut [0]);
        }
    });
    port
}

/// A port where nobody listens.
fn silent_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Counted probes, by kind and result.
fn counts(metrics: &str) -> BTreeMap<(String, String), u64> {
    let mut counts = BTreeMap::new();
    for line in metrics
        .lines()
        .filter(|line| line.starts_with("prober_probe_total{"))
    {
        let label = |name: &str| {
            let (_, rest) = line.split_once(&format!("{name}=\""))?;
            Some(rest.split_once('"')?.0.to_owned())
        };
        let value = line.rsplit(' ').next().and_then(|it| it.parse().ok());
        if let (Some(kind), Some(result), Some(value)) = (label("probe_type"), label("result"), value) {
            counts.insert((kind, result), value);
        }
    }
    counts
}

fn count(metrics: &str, kind: &str, result: &str) -> u64 {
    let key = (kind.to_owned(), result.to_owned());
    counts(metrics).get(&key).copied().unwrap_or_default()
}

#[test]
fn fast_probes_give_way_under_a_busy_processor_and_nothing_healthy_dies() {
    if !pulselet_testing::requires("root", pulselet_testing::is_root()) {
        return;
    }
    let busy = BusyCpu::new();
    if !pulselet_testing::requires("a control group for the processor", busy.is_some()) {
        return;
    }
    let (Some(mut busy), Some(cluster)) = (busy, Cluster::measured()) else {
        return;
    };
    let node = cluster.until_node_ready();
    let liveness = json!({"tcpSocket": {"port": healthy_server()}, "periodSeconds": 1, "failureThreshold": 1,
        "timeoutSeconds": 30});
    let readiness = json!({"tcpSocket": {"port": silent_port()}, "periodSeconds": 1, "periodMilliseconds": -500,
        "timeoutSeconds": 30, "failureThreshold": 1000});
    cluster.apply(&pod(
        "web",
        &json!({"livenessProbe": liveness, "readinessProbe": readiness}),
    ));
    cluster.until_pod("web", |pod| {
        pod["status"]["containerStatuses"][0]["started"] == true
    });
    busy.take(cluster.node_pid()).expect("the node runs");
    busy.begin().expect("a process");
    cluster.until("the event of the node", || {
        let events = cluster.kubectl(&["get", "events", "-o", "json"]);
        let events: Value = serde_json::from_str(&events).expect("JSON");
        let mut events = events["items"].as_array().expect("a list").iter();
        let said = |event: &&Value| event["reason"] == "ProbesStretched";
        let event = events.find(said)?;
        assert_eq!(event["involvedObject"]["kind"], "Node");
        assert_eq!(event["involvedObject"]["name"], *node);
        Some(())
    });
    let before = cluster.metrics();
    assert!(before.contains("pulselet_probes_stretched 1\n"), "{before}");
    let after = cluster.until("further ticks", || {
        let now = cluster.metrics();
        let ticks = |text: &str| count(text, "Liveness", "successful");
        (ticks(&now) >= ticks(&before) + TICKS).then_some(now)
    });
    let wide = cluster.pulselet(&["ps", "-o", "wide"]);
    assert!(
        !wide.contains("500ms/30s"),
        "the period it goes by is shown: {wide}"
    );
    let grown = |kind: &str, result: &str| count(&after, kind, result) - count(&before, kind, result);
    let (slow, fast) = (grown("Liveness", "successful"), grown("Readiness", "failed"));
    // Both come once a second now; half a second would give twice as many.
    assert!(fast <= slow + 2, "{fast} of the fast beside {slow} of the slow");
    assert_eq!(count(&after, "Liveness", "failed"), 0, "{after}");
    let web = cluster.get_pod("web");
    let status = &web["status"]["containerStatuses"][0];
    assert_eq!(
        (&status["restartCount"], &status["started"]),
        (&json!(0), &json!(true))
    );
}
