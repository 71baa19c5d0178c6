//! What an operator sees of pods: metrics that follow what runs, effective settings of probes, lines of the log.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pulselet_agent::Origin;
use pulselet_engine::LineBody;
use pulselet_engine::line::{GraceFrom, KillReason};
use pulselet_runtime::Runtime as _;
use pulselet_runtime_fake::{ExecAnswer, FakeRuntime, LifeScript, RuntimeFaults};
use pulselet_vocabulary::PodName;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::harness::{Bench, eventually, pod, pod_of, runtime};
use crate::socket::get;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("nobody panicked").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Everything that this thread logs from now on, as long as the guard lives.
    fn listen() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let own = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::INFO)
            .with_writer(move || own.clone())
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("nobody panicked").clone()).expect("UTF-8")
    }
}

async fn node_with_metrics() -> (Bench, std::net::SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let directory = tempfile::tempdir().expect("a directory");
    let bench = Bench::on(directory, runtime(), |options| options.metrics = Some(listener)).await;
    (bench, address)
}

fn in_use(metrics: &str, gate: &str) -> i64 {
    let name = format!("pulselet_feature_in_use{{name=\"{gate}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
    line.expect("every gate has its series")
        .parse()
        .expect("a number")
}

fn failing() -> Value {
    json!({"exec": {"command": ["check"]}, "periodSeconds": 1, "failureThreshold": 1})
}

#[tokio::test]
async fn metrics_follow_what_pods_use() {
    let (mut bench, address) = node_with_metrics().await;
    let readiness = json!({"exec": {"command": ["check"]}, "periodSeconds": 1, "periodMilliseconds": -500});
    let fields = json!({"readinessProbe": readiness, "lifecycle": {"stopSignal": "SIGUSR1"}});
    bench.add(pod("one", &fields)).await;
    bench.add(pod("two", &json!({}))).await;
    for _ in 0..2 {
        bench.until_ready().await;
    }
    let metrics = get(address, "/metrics").await;
    assert_eq!(in_use(&metrics, "SubSecondProbes"), 1);
    assert_eq!(in_use(&metrics, "ContainerStopSignals"), 1);
    assert_eq!(in_use(&metrics, "StartupProbeEnabled"), 0);
    assert!(metrics.contains(r#"kubelet_pod_stop_signals_count{signal="SIGUSR1"} 1"#));
    let first = "pulselet_container_time_to_first_success_seconds_count 1\n";
    assert!(metrics.contains(first), "of the one that is probed: {metrics}");
    bench.delete("one").await;
    eventually("its numbers go with the pod", || async {
        let metrics = get(address, "/metrics").await;
        in_use(&metrics, "SubSecondProbes") == 0 && !metrics.contains("SIGUSR1")
    })
    .await;
}

#[tokio::test]
async fn a_pod_whose_end_needs_sigkill_is_counted_once() {
    let (mut bench, address) = node_with_metrics().await;
    for name in ["one", "two"] {
        bench.runtime.script(name, [LifeScript::stubborn()]);
    }
    let container = |name: &str| json!({"name": name, "image": "app:1"});
    let containers = json!([container("one"), container("two")]);
    let spec = json!({"containers": containers, "terminationGracePeriodSeconds": 1});
    bench.add(pod_of("web", &spec)).await;
    bench.until_ready().await;
    bench.delete("web").await;
    bench.until_type("deleted").await;
    assert_eq!(
        bench
            .types()
            .iter()
            .filter(|kind| *kind == "graceExceeded")
            .count(),
        2
    );
    let metrics = get(address, "/metrics").await;
    for line in [
        "kubelet_pod_termination_grace_period_exceeded_total 1\n",
        "kubelet_started_pods_total 1\n",
        "kubelet_started_containers_total{container_type=\"container\"} 2\n",
        "kubelet_terminated_containers_total{container_type=\"container\",exit_code=\"137\",reason=\"Error\"} 2\n",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[tokio::test]
async fn what_runs_and_what_is_refused_is_counted() {
    let (mut bench, address) = node_with_metrics().await;
    bench.add(pod("web", &json!({}))).await;
    bench.until_ready().await;
    let refused = json!({"os": {"name": "windows"}, "containers": [{"name": "app", "image": "app:1"}]});
    bench.add(pod_of("refused", &refused)).await;
    eventually("the numbers", || async {
        let metrics = get(address, "/metrics").await;
        [
            "kubelet_running_pods 1\n",
            "kubelet_running_containers{container_state=\"running\"} 1\n",
            "kubelet_running_containers{container_state=\"exited\"} 0\n",
            "kubelet_admission_rejections_total{reason=\"PodOSNotSupported\"} 1\n",
        ]
        .iter()
        .all(|line| metrics.contains(line))
    })
    .await;
}

#[tokio::test]
async fn the_effective_period_of_a_probe_is_shown() {
    let mut bench = Bench::new().await;
    let late = LifeScript {
        exec: vec![
            (Duration::ZERO, ExecAnswer::Exits(1, Vec::new())),
            (Duration::from_secs(2), ExecAnswer::Exits(0, Vec::new())),
        ],
        ..LifeScript::default()
    };
    bench.runtime.script("app", [late]);
    let readiness = json!({"exec": {"command": ["check"]}, "periodSeconds": 1, "periodMilliseconds": -500,
        "timeoutSeconds": 3});
    bench.add(pod("web", &json!({"readinessProbe": readiness}))).await;
    bench.until_type("running").await;
    let probe = |view: &pulselet_agent::PodView| {
        let probe = &view.probes[0];
        (probe.container.clone(), probe.period_ms, probe.timeout_ms)
    };
    let view = &bench.node.pods().await.unwrap()[0];
    let first = probe(view);
    bench.until_ready().await;
    if !bench.transcript().contains("ProbesStretched") {
        assert_eq!(first, ("app".to_owned(), 500, 3_000));
    }
    let view = &bench.node.pods().await.unwrap()[0];
    assert_eq!(
        probe(view),
        ("app".to_owned(), 1_000, 3_000),
        "the first success slows it down"
    );
}

#[tokio::test]
async fn every_stop_is_logged_with_its_grace_period() {
    let (log, _guard) = Log::listen();
    let mut bench = Bench::new().await;
    let fails = LifeScript {
        exec: vec![(Duration::ZERO, ExecAnswer::Exits(1, Vec::new()))],
        ..LifeScript::default()
    };
    bench.runtime.script("app", [fails, LifeScript::default()]);
    let mut liveness = failing();
    liveness["terminationGracePeriodSeconds"] = json!(7);
    bench.add(pod("web", &json!({"livenessProbe": liveness}))).await;
    bench.until_type("killing").await;
    bench.until_type("running").await;
    bench.delete("web").await;
    bench.until_type("deleted").await;
    let text = log.text();
    for expected in [
        "the container is stopped reason=LivenessProbe grace=7s from=Probe",
        "the container is stopped reason=Deleted grace=1s from=Deletion",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
}

#[tokio::test]
async fn a_longer_probe_grace_than_the_pods_is_logged_for_pods_of_the_api() {
    let (log, _guard) = Log::listen();
    let bench = Bench::new().await;
    let mut liveness = failing();
    liveness["terminationGracePeriodSeconds"] = json!(7);
    let added = bench
        .node
        .add_pod(pod("web", &json!({"livenessProbe": liveness})), Origin::Api)
        .await;
    added.expect("the node is there").expect("the pod is taken");
    let expected =
        "the probe's grace period is longer than the pod's probe=\"liveness\" grace=7s pod_grace=1s";
    assert!(log.text().contains(expected), "{}", log.text());
}

#[tokio::test]
async fn an_eviction_leaves_the_grace_of_other_pods_alone() {
    let features = pulselet_runtime::Features {
        // Without them the node looks for itself, and more often.
        events: false,
        ..runtime().version().await.unwrap().features
    };
    let runtime = FakeRuntime::with_features(RuntimeFaults::default(), features);
    let mut bench = Bench::on(tempfile::tempdir().unwrap(), runtime, |_| {}).await;
    let fails_late = LifeScript {
        exec: vec![(Duration::from_secs(3), ExecAnswer::Exits(1, Vec::new()))],
        ..LifeScript::default()
    };
    bench.runtime.script("sick", [fails_late]);
    let mut liveness = failing();
    liveness["terminationGracePeriodSeconds"] = json!(9);
    let sick = json!({"name": "sick", "image": "app:1", "livenessProbe": liveness});
    let spec = json!({"containers": [sick], "terminationGracePeriodSeconds": 600});
    bench.add(pod_of("stays", &spec)).await;
    let volumes = json!([{"name": "cache", "emptyDir": {"sizeLimit": "1Mi"}}]);
    let app = json!({"name": "full", "image": "app:1", "livenessProbe": liveness,
        "volumeMounts": [{"name": "cache", "mountPath": "/cache"}]});
    let spec = json!({"containers": [app], "volumes": volumes, "terminationGracePeriodSeconds": 600});
    bench.add(pod_of("goes", &spec)).await;
    for _ in 0..2 {
        bench.until_ready().await;
    }
    let pods = bench.node.pods().await.unwrap();
    let goes = PodName::new("default", "goes");
    let uid = &pods.iter().find(|view| view.pod_name() == goes).unwrap().uid;
    let volume = format!("pods/{uid}/volumes/kubernetes.io~empty-dir/cache/file");
    std::fs::write(bench.data().join(volume), vec![1; 2 << 20]).unwrap();
    let mut graces = std::collections::BTreeMap::new();
    while graces.len() < 2 {
        let line = bench.until_type("killing").await;
        if let LineBody::Killing {
            reason, grace_from, ..
        } = &line.line.body
        {
            graces.insert(line.pod.to_string(), (*reason, *grace_from));
        }
    }
    assert_eq!(
        graces["default/stays"],
        (KillReason::LivenessProbe, GraceFrom::Probe),
        "an eviction beside it changes nothing"
    );
    let (reason, from) = graces["default/goes"];
    assert_eq!(reason, KillReason::Evicted);
    assert_ne!(from, GraceFrom::Probe, "the probe's grace is not for evictions");
}
