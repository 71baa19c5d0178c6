//! What goes wrong around a node, and what it says then.

use std::fs;
use std::sync::Arc;

use pulselet_node::{How, Node, NodeOptions, StartError};
use pulselet_runtime::{ContainerFilter, Runtime as _};
use serde_json::json;

use crate::harness::{Bench, pod};

#[tokio::test]
async fn a_second_agent_is_refused_and_changes_nothing() {
    let bench = Bench::new().await;
    let options = NodeOptions::new(bench.data(), Arc::new(bench.runtime.clone()));
    let error = Node::start(options).await.unwrap_err();
    assert!(matches!(error, StartError::Layout(_)));
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
