//! What a node does for its machine: evicts, refuses, bounds logs, removes images. Tests say what the machine has left.

use std::fs;
use std::sync::{Arc, Mutex};

use pulselet_agent::{Level, Origin, PressureReadings, PressureSignals};
use pulselet_engine::time::Span;
use pulselet_model::Pod;
use pulselet_plan::NodeDuties;
use pulselet_runtime::{ContainerFilter, Features, Operation, Runtime as _, SecurityFeatures};
use pulselet_runtime_fake::{FakeRuntime, RuntimeFaults};
use pulselet_vocabulary::PodName;
use serde_json::json;

use crate::harness::{Bench, eventually, pod};

const MIB: u64 = 1 << 20;

/// A machine whose levels a test sets.
#[derive(Clone, Debug, Default)]
struct Machine(Arc<Mutex<PressureReadings>>);

impl Machine {
    fn set(&self, change: impl FnOnce(&mut PressureReadings)) {
        change(&mut self.0.lock().expect("no test panics with it"));
    }

    fn memory(&self, available: u64) {
        self.set(|readings| {
            readings.memory = Some(Level {
                available,
                capacity: 1024 * MIB,
            });
        });
    }
}

impl PressureSignals for Machine {
    fn read(&self) -> PressureReadings {
        *self.0.lock().expect("no test panics with it")
    }
}

/// A node that looks at its machine every second, because its runtime reports no events.
async fn bench(machine: &Machine, runtime: FakeRuntime, change: impl FnOnce(&mut NodeDuties)) -> Bench {
    let directory = tempfile::tempdir().expect("a directory");
    let signals = machine.clone();
    Bench::on(directory, runtime, |options| {
        options.signals = Some(Arc::new(signals));
        let duties = &mut options.config.duties;
        duties.eviction.is_explicit = true;
        duties.eviction.transition_period = Span::ZERO;
        change(duties);
    })
    .await
}

fn polled_runtime() -> FakeRuntime {
    let features = Features {
        stop_signal: true,
        events: false,
        images: true,
        kill_reporting: true,
        security: SecurityFeatures::ALL,
    };
    FakeRuntime::with_features(RuntimeFaults::default(), features)
}

fn with_priority(name: &str, priority: i32) -> Pod {
    let mut pod = pod(name, &json!({}));
    pod.spec.priority = Some(priority);
    pod
}

async fn reason_of(bench: &Bench, name: &str) -> String {
    let view = bench
        .node
        .pod(&PodName::new("default", name))
        .await
        .expect("the node is there");
    view.map(|view| view.status.reason).unwrap_or_default()
}

#[tokio::test]
async fn the_pod_that_matters_least_goes_when_memory_runs_out_and_critical_ones_stay() {
    let machine = Machine::default();
    machine.memory(500 * MIB);
    let mut bench = bench(&machine, polled_runtime(), |_| {}).await;
    for (name, priority) in [("modest", 5), ("least", 1), ("critical", 2_000_000_000)] {
        bench.add(with_priority(name, priority)).await;
        bench.until_ready().await;
    }
    machine.memory(50 * MIB);
    eventually("the least one is evicted", || async {
        reason_of(&bench, "least").await == "Evicted"
    })
    .await;
    // Before the next one goes, the machine has enough again.
    machine.memory(500 * MIB);
    let view = bench
        .node
        .pod(&PodName::new("default", "least"))
        .await
        .expect("the node is there");
    let status = view.expect("it is kept").status;
    assert_eq!(status.phase, "Failed");
    assert_eq!(
        status.message,
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. "
    );
    eventually("the condition is gone", || async {
        !bench.node.pressure().memory
    })
    .await;
    assert_eq!(reason_of(&bench, "modest").await, "");
    // Then the modest one, and never the critical one.
    machine.memory(50 * MIB);
    eventually("the modest one is evicted", || async {
        reason_of(&bench, "modest").await == "Evicted"
    })
    .await;
    eventually("it is all over", || async {
        let pods = bench
            .runtime
            .list_containers(&ContainerFilter::default())
            .await
            .expect("a list");
        let running = |name: &str| {
            pods.iter().any(|it| {
                it.pod.name == name && matches!(it.state, pulselet_runtime::ContainerState::Running { .. })
            })
        };
        !running("modest") && running("critical")
    })
    .await;
    assert_eq!(reason_of(&bench, "critical").await, "");
    bench.leave().await;
}

#[tokio::test]
async fn a_node_that_runs_out_of_something_takes_no_more_pods_that_ask_for_nothing() {
    let machine = Machine::default();
    machine.memory(50 * MIB);
    let bench = bench(&machine, polled_runtime(), |_| {}).await;
    eventually("the condition", || async { bench.node.pressure().memory }).await;
    let asks = json!({"resources": {"requests": {"memory": "1Mi"}}});
    let mut tolerant = pod("tolerant", &json!({}));
    tolerant.spec.tolerations = serde_json::from_value(json!([{"operator": "Exists"}])).expect("tolerations");
    for (pod, reason) in [
        (pod("best-effort", &json!({})), "Evicted"),
        (pod("burstable", &asks), ""),
        (tolerant, ""),
        (with_priority("critical", 2_000_000_000), ""),
    ] {
        let name = pod.name().to_owned();
        let added = bench
            .node
            .add_pod(pod, Origin::Api)
            .await
            .expect("the node is there");
        added.expect("the pod is taken");
        let view = bench
            .node
            .pod(&PodName::new("default", name.as_str()))
            .await
            .expect("the node is there");
        let status = view.expect("the pod is there").status;
        // A pod that was taken may have been evicted since.
        if reason.is_empty() {
            assert!(!status.message.contains("rejected"), "{name}: {}", status.message);
        } else {
            assert_eq!(status.reason, reason, "{name}");
            assert_eq!(
                status.message,
                "Pod was rejected: The node had condition: [MemoryPressure]. "
            );
        }
    }
    bench.leave().await;
}

#[tokio::test]
async fn a_full_log_is_moved_aside_where_the_runtime_leaves_that_to_the_node() {
    let machine = Machine::default();
    let mut bench = bench(&machine, polled_runtime(), |duties| {
        duties.logs.max_size = 1024;
        duties.logs.max_files = 2;
    })
    .await;
    bench.add(pod("chatty", &json!({}))).await;
    bench.until_ready().await;
    let uid = bench.node.pods().await.expect("the node is there")[0].uid.clone();
    let logs = bench.data().join(format!("logs/default_chatty_{uid}/app"));
    fs::create_dir_all(&logs).expect("a directory");
    fs::write(logs.join("0.log"), vec![b'x'; 2048]).expect("a log");
    eventually("the runtime begins a new log", || async {
        let calls = bench.runtime.calls();
        calls
            .iter()
            .any(|(operation, _)| *operation == Operation::ReopenLog)
    })
    .await;
    assert_eq!(
        fs::metadata(logs.join("0.log.1")).expect("the old log").len(),
        2048
    );
    bench.leave().await;
}

#[tokio::test]
async fn images_that_nobody_uses_go_when_the_disk_fills_up() {
    let machine = Machine::default();
    machine.set(|readings| {
        readings.disk = Some(Level {
            available: 200,
            capacity: 1000,
        });
    });
    let runtime = polled_runtime();
    for image in ["old:1", "app:1"] {
        runtime.pull_image(image, None).await.expect("an image");
    }
    let mut bench = bench(&machine, runtime.clone(), |duties| {
        duties.eviction.thresholds.clear();
        duties.images.high_percent = 80;
        duties.images.low_percent = 10;
        duties.images.minimum_age = Span::ZERO;
    })
    .await;
    bench.add(pod("web", &json!({}))).await;
    bench.until_ready().await;
    let is_there = |name: &'static str| async {
        let image = runtime.image_status(name).await;
        image.expect("an answer").is_some()
    };
    eventually("the old image is gone", || async { !is_there("old:1").await }).await;
    assert!(is_there("app:1").await, "a pod uses it");
    bench.leave().await;
}
