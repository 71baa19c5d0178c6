//! The unix socket and the monitoring endpoint.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use pulselet_agent::control::{ControlClient, ControlClientError};
use pulselet_runtime_fake::LifeScript;
use pulselet_vocabulary::PodName;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{Bench, pod, runtime};

fn client(bench: &Bench) -> ControlClient {
    ControlClient::new(bench.data().join("pulselet.sock"))
}

#[tokio::test]
async fn the_socket_is_its_owners_and_does_what_the_commands_need() {
    let mut bench = Bench::new().await;
    let client = client(&bench);
    let mode = std::fs::metadata(client.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut lines = client.lines().await.unwrap();
    let added = client.add(&pod("web", &json!({}))).await.unwrap();
    assert_eq!(added.pod, PodName::new("default", "web"));
    let first = lines.next().await.unwrap().unwrap();
    assert!(first.contains("\"phase\":\"Pending\""), "{first}");
    bench.until_ready().await;
    let pods = client.pods().await.unwrap();
    assert_eq!((pods.len(), pods[0].uid.as_str()), (1, added.uid.as_str()));
    let log = client
        .log(&PodName::new("default", "web"), None, false)
        .await
        .unwrap();
    assert!(log.running && log.path.ends_with(format!("default_web_{}/app/0.log", added.uid)));
    let events = client.events(&added.uid).await.unwrap();
    assert!(events.iter().any(|event| event.reason == "Started"));
    client
        .stop(&PodName::new("default", "web"), Some(Duration::ZERO), true)
        .await
        .unwrap();
    bench.until_type("deleted").await;
    let history = client
        .history(Some(&PodName::new("default", "web")), Some("app"))
        .await
        .unwrap();
    assert!(history.contains("\"reason\":\"deleted\""), "{history}");
    assert_eq!(
        client
            .history(Some(&PodName::new("default", "other")), None)
            .await
            .unwrap(),
        ""
    );
}

#[tokio::test]
async fn refusals_say_why() {
    let bench = Bench::new().await;
    let client = client(&bench);
    let refused = |result: Result<(), ControlClientError>| match result.unwrap_err() {
        ControlClientError::Refused { status, error } => (status, error),
        other => panic!("{other}"),
    };
    let (status, error) = refused(client.stop(&PodName::new("default", "none"), None, false).await);
    assert_eq!(
        (status, error.as_str()),
        (404, "there is no pod default/none on this node")
    );
    client.add(&pod("web", &json!({}))).await.unwrap();
    let (status, error) = refused(
        client
            .log(&PodName::new("default", "web"), Some("x"), false)
            .await
            .map(drop),
    );
    assert_eq!(status, 400);
    assert!(error.ends_with("it has app"), "{error}");
    let nobody = ControlClient::new(bench.data().join("none.sock"));
    let error = nobody.pods().await.unwrap_err().to_string();
    assert!(error.contains("pulselet node"), "{error}");
}

pub(crate) async fn get(address: std::net::SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer
}

#[tokio::test]
async fn metrics_and_health_are_served() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut bench = Bench::on(directory, runtime(), |options| options.metrics = Some(listener)).await;
    bench.runtime.script("app", [LifeScript::stubborn()]);
    let probe = json!({"exec": {"command": ["check"]}, "periodSeconds": 1});
    let lifecycle = json!({"stopSignal": "SIGUSR1"});
    bench
        .add(pod(
            "web",
            &json!({"readinessProbe": probe, "lifecycle": lifecycle}),
        ))
        .await;
    bench.until_ready().await;
    let metrics = get(address, "/metrics").await;
    for line in [
        r#"prober_probe_total{probe_type="Readiness",result="successful",container="app",pod="web",namespace="default""#,
        r#"kubelet_pod_stop_signals_count{signal="SIGUSR1"} 1"#,
        "pulselet_container_time_to_first_success_seconds_count 1",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    assert!(
        get(address, "/metrics/probes")
            .await
            .contains("prober_probe_duration_seconds_bucket")
    );
    for (path, series) in [
        (
            "/metrics/cadvisor",
            "container_cpu_usage_seconds_total{container=\"app\",cpu=\"total\"",
        ),
        (
            "/metrics/resource",
            "container_memory_working_set_bytes{container=\"app\",namespace=\"default\",pod=\"web\"} 0 ",
        ),
        (
            "/stats/summary",
            "\"podRef\":{\"name\":\"web\",\"namespace\":\"default\"",
        ),
    ] {
        let page = get(address, path).await;
        assert!(page.contains(series), "{series} in {page}");
    }
    assert!(get(address, "/healthz").await.ends_with("ok"));
    assert!(get(address, "/readyz").await.ends_with("ok"));
    assert!(get(address, "/nothing").await.starts_with("HTTP/1.1 404"));
    bench
        .node
        .delete_pod(&PodName::new("default", "web"), None)
        .await
        .unwrap()
        .unwrap();
    bench.until_type("deleted").await;
    let node = bench.node.clone();
    crate::harness::eventually("the pod is forgotten", || async {
        node.pods().await.unwrap().is_empty()
    })
    .await;
    crate::harness::eventually("its series are gone", || async {
        !get(address, "/metrics").await.contains("pod=\"web\"")
    })
    .await;
    crate::harness::eventually("its containers are gone", || async {
        !get(address, "/metrics/resource").await.contains("pod=\"web\"")
    })
    .await;
    let metrics = get(address, "/metrics").await;
    assert!(
        metrics.contains("kubelet_pod_termination_grace_period_exceeded_total 1"),
        "{metrics}"
    );
    assert!(
        metrics.contains(r#"stop_duration_seconds_count{reason="deleted",outcome="killed"} 1"#),
        "{metrics}"
    );
}
