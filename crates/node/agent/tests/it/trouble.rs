//! What goes wrong around a node, and what it says then.

use std::fs;

use pulselet_agent::{DataDir, How, LayoutError};
use pulselet_runtime::{ContainerFilter, Features, PodIdentity, Runtime as _, SandboxConfig};
use pulselet_runtime_fake::{FakeRuntime, RuntimeFaults};
use serde_json::json;

use crate::harness::{Bench, eventually, pod, pod_of, runtime};

#[tokio::test]
async fn a_second_agent_is_refused_and_changes_nothing() {
    let bench = Bench::new().await;
    let error = DataDir::claim(bench.data()).unwrap_err();
    assert!(matches!(error, LayoutError::Held { .. }));
    assert!(
        error.to_string().contains(&format!("pid {}", std::process::id())),
        "{error}"
    );
    assert!(bench.node.pods().await.is_ok());
}

#[tokio::test]
async fn an_unreadable_state_is_kept_aside_and_the_containers_are_adopted() {
    let mut bench = Bench::new().await;
    let probe = json!({"exec": {"command": ["check"]}, "periodSeconds": 1});
    bench
        .add(pod(
            "web",
            &json!({"readinessProbe": probe, "startupProbe": probe}),
        ))
        .await;
    bench.until_ready().await;
    let (directory, runtime) = bench.leave().await;
    let data = directory.path().join("data");
    fs::write(
        data.join("node.db"),
        b"this is not a database, it only has its name",
    )
    .unwrap();
    let _ = fs::remove_file(data.join("node.db-wal"));
    let mut bench = Bench::on(directory, runtime, |_| {}).await;
    let warning = bench.until_type("warning").await.to_json();
    assert!(warning.contains("kept aside"), "{warning}");
    let view = &bench.node.pods().await.unwrap()[0];
    assert!(view.status.container_statuses[0].ready);
    assert_eq!(
        bench
            .runtime
            .list_containers(&ContainerFilter::default())
            .await
            .unwrap()
            .len(),
        1
    );
    let kept = fs::read_dir(&data).unwrap().flatten();
    let kept = kept.filter(|entry| entry.file_name().to_string_lossy().contains(".corrupt-"));
    assert_eq!(kept.count(), 1);
    let probe = json!({"exec": {"command": ["check"]}, "periodSeconds": 1});
    let same = pod("web", &json!({"readinessProbe": probe, "startupProbe": probe}));
    assert_eq!(bench.add(same).await, How::Adopted);
}

#[tokio::test]
async fn a_pod_whose_volume_outgrows_its_limit_is_evicted() {
    let features = Features {
        // Without them the node looks for itself, and more often.
        events: false,
        ..runtime().version().await.unwrap().features
    };
    let runtime = FakeRuntime::with_features(RuntimeFaults::default(), features);
    let mut bench = Bench::on(tempfile::tempdir().unwrap(), runtime, |_| {}).await;
    let volumes = json!([{"name": "cache", "emptyDir": {"sizeLimit": "1Mi"}}]);
    let mounts = json!([{"name": "cache", "mountPath": "/cache"}]);
    let app = json!({"name": "app", "image": "app:1", "volumeMounts": mounts});
    bench
        .add(pod_of("web", &json!({"containers": [app], "volumes": volumes})))
        .await;
    bench.until_ready().await;
    let uid = bench.node.pods().await.unwrap()[0].uid.clone();
    let volume = format!("pods/{uid}/volumes/kubernetes.io~empty-dir/cache");
    fs::write(bench.data().join(volume).join("file"), vec![1; 2 << 20]).unwrap();
    bench.until_type("exited").await;
    let node = bench.node.clone();
    eventually("the pod has failed", || async {
        let status = &node.pods().await.unwrap()[0].status;
        status.phase == "Failed"
    })
    .await;
    let status = &bench.node.pods().await.unwrap()[0].status;
    assert_eq!(status.reason, "Evicted");
    assert_eq!(
        status.message,
        "Usage of EmptyDir volume \"cache\" exceeds the limit \"1Mi\". "
    );
}

#[tokio::test]
async fn a_sandbox_that_an_agent_left_half_made_is_made_again_at_once() {
    let runtime = runtime();
    let config = SandboxConfig {
        pod: PodIdentity {
            uid: "u-1".into(),
            namespace: "default".into(),
            name: "web".into(),
        },
        ..SandboxConfig::default()
    };
    let half_made = runtime.run_sandbox(&config).await.unwrap();
    runtime.stop_sandbox(&half_made).await.unwrap();
    let mut bench = Bench::on(tempfile::tempdir().unwrap(), runtime, |_| {}).await;
    let mut pod = pod("web", &json!({}));
    pod.metadata.uid = Some("u-1".into());
    bench.add(pod).await;
    bench.until_ready().await;
    let warnings = bench
        .seen
        .iter()
        .filter(|line| line.to_json().contains("sandbox"));
    assert_eq!(warnings.count(), 0);
    let sandboxes = bench.runtime.list_sandboxes().await.unwrap();
    assert!(
        sandboxes.len() == 1 && sandboxes[0].id != half_made,
        "{sandboxes:?}"
    );
}

/// The runtime was killed after it had made the sandbox, and before it could say so.
#[tokio::test]
async fn a_sandbox_that_nobody_was_told_of_goes_with_its_pod() {
    let mut bench = Bench::new().await;
    bench.runtime.set_faults(RuntimeFaults {
        loses_answer: 1.0,
        ..RuntimeFaults::default()
    });
    bench.add(pod("web", &json!({}))).await;
    bench
        .until("failed sandbox", |line| {
            line.to_json().contains("Failed to create pod sandbox")
        })
        .await;
    bench.runtime.set_faults(RuntimeFaults::default());
    assert_eq!(bench.runtime.list_sandboxes().await.unwrap().len(), 1);
    bench.delete("web").await;
    bench.until_type("deleted").await;
    let runtime = bench.runtime.clone();
    eventually("the sandbox is gone", || async {
        runtime.list_sandboxes().await.unwrap().is_empty()
    })
    .await;
}
