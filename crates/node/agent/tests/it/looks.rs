//! What a program and an operator notice of the attempts before the first counted one.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pulselet_agent::PodLine;
use pulselet_engine::LineBody;
use pulselet_engine::line::LineOutcome;
use serde_json::json;

use crate::harness::{Bench, pod};

/// A web server that is never ready, and counts.
fn serve_busy(listener: TcpListener, requests: Arc<AtomicUsize>) {
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut request = [0; 1024];
            if stream.read(&mut request).is_ok_and(|read| read > 0) {
                requests.fetch_add(1, Ordering::SeqCst);
                // A client that is gone is not our concern.
                let _ =
                    stream.write_all(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            }
        }
    });
}

/// A port on which nobody listens yet.
fn free_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    listener.local_addr().expect("address")
}

fn failed(line: &PodLine, counted: bool) -> bool {
    matches!(
        line.line.body,
        LineBody::Probe { outcome: LineOutcome::Failure, counted: told, look, .. } if told == counted && look != counted
    )
}

/// Connections are made by the kernel and never answered.
#[tokio::test]
async fn a_short_timeout_ends_a_probe_that_hangs() {
    let mut bench = Bench::new().await;
    let silent = TcpListener::bind("127.0.0.1:0").expect("bind");
    let port = silent.local_addr().expect("address").port();
    let http = json!({"host": "127.0.0.1", "port": port, "path": "/"});
    let readiness = json!({"httpGet": http, "periodSeconds": 1, "timeoutMilliseconds": -900});
    bench.add(pod("web", &json!({"readinessProbe": readiness}))).await;
    for _ in 0..5 {
        let line = bench.until("counted failure", |line| failed(line, true)).await;
        if matches!(line.line.body, LineBody::Probe { latency_ms, .. } if latency_ms < 900.0) {
            return;
        }
    }
    panic!("none took less than its second: {}", bench.transcript());
}

#[tokio::test]
async fn a_program_sees_one_request_that_does_not_count_and_nobody_counts_it() {
    let mut bench = Bench::new().await;
    let address = free_port();
    let http = json!({"host": "127.0.0.1", "port": address.port(), "path": "/"});
    let readiness = json!({"httpGet": http, "periodSeconds": 2, "failureThreshold": 1});
    bench.add(pod("web", &json!({"readinessProbe": readiness}))).await;
    // Nobody listens when it first looks.
    bench.until("refused look", |line| failed(line, false)).await;
    let requests = Arc::new(AtomicUsize::new(0));
    serve_busy(TcpListener::bind(address).expect("bind"), Arc::clone(&requests));
    bench.until("counted failure", |line| failed(line, true)).await;
    assert!(
        requests.load(Ordering::SeqCst) <= 2,
        "one look and one tick: {}",
        bench.transcript()
    );
    let uid = bench.node.pods().await.expect("the node is there")[0].uid.clone();
    let events = bench.events(&uid, &["Unhealthy"]).await;
    let unhealthy: Vec<_> = events
        .iter()
        .filter(|event| event.reason == "Unhealthy")
        .collect();
    assert_eq!(unhealthy.len(), 1, "{unhealthy:?}");
    assert_eq!(unhealthy[0].count, 1);
    let metrics = bench.node.page("/metrics").await.text;
    let total = |text: &str| {
        metrics
            .lines()
            .find(|line| line.contains(text))
            .map(str::to_owned)
    };
    let failures = total(r#"prober_probe_total{probe_type="Readiness",result="failed""#);
    assert!(failures.is_some_and(|line| line.ends_with(" 1")), "{metrics}");
    assert!(
        total(r#"pulselet_probe_looks_total{result="refused"}"#).is_some(),
        "{metrics}"
    );
}
