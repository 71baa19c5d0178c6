//! Power cuts: a node, started from what every one of them would leave.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use pulselet_agent::{DataDir, Node, NodeHandle, NodeOptions, Origin, Shutdown};
use pulselet_testing::file_trace::{self, Loss};
use pulselet_vocabulary::PodName;
use serde_json::json;

use crate::harness::{eventually, pod, runtime};

/// Set for the process that is recorded: the directory it works in.
const HOME_VARIABLE: &str = "PULSELET_TEST_HOME";
/// Of the cuts that lose nothing every so many are tried: they differ little from those that do.
const EVERY: usize = 5;

async fn start(directory: &Path) -> NodeHandle {
    let data = DataDir::claim(directory).expect("nobody else has it");
    let options = NodeOptions::new(data, Arc::new(runtime()));
    Node::start(options).await.expect("the node starts")
}

/// Not a test of its own: what a node does until the power is cut.
#[tokio::test]
async fn recorded_work() {
    let Some(home) = std::env::var_os(HOME_VARIABLE).map(PathBuf::from) else {
        return;
    };
    let node = start(&home).await;
    for name in ["kept", "deleted"] {
        let added = node.add_pod(pod(name, &json!({})), Origin::Run).await;
        added.expect("the node is there").expect("the pod is taken");
    }
    eventually("both are ready", || async {
        let pods = node.pods().await.expect("the node is there");
        pods.len() == 2 && pods.iter().all(|pod| pod.status.phase == "Running")
    })
    .await;
    let deleted = node.delete_pod(&PodName::new("default", "deleted"), None).await;
    deleted.expect("the node is there").expect("the pod is there");
    eventually("one is left", || async {
        node.pods().await.expect("the node is there").len() == 1
    })
    .await;
    node.shutdown(Shutdown::Leave).await;
}

#[test]
fn a_node_starts_after_every_power_cut() {
    let home = tempfile::tempdir().expect("a directory");
    let mut work = Command::new(std::env::current_exe().expect("is known"));
    work.args(["--exact", "power_cut::recorded_work"])
        .env(HOME_VARIABLE, home.path());
    let Some(trace) = file_trace::record(&mut work, home.path()) else {
        return;
    };
    assert!(trace.len() > 50, "{} changes", trace.len());
    let executor = tokio::runtime::Runtime::new().expect("a runtime");
    trace.images(|directory, changes, loss| {
        if loss == Loss::Nothing && changes % EVERY != 0 {
            return;
        }
        executor.block_on(async {
            let node = start(directory).await;
            let pods = node.pods().await.expect("the node is there");
            assert!(pods.len() <= 2, "after {changes} changes ({loss:?}): {pods:?}");
            node.shutdown(Shutdown::Leave).await;
        });
        let names = std::fs::read_dir(directory).expect("lists").flatten();
        for name in names.map(|entry| entry.file_name().to_string_lossy().into_owned()) {
            assert!(
                !name.contains(".corrupt-"),
                "the state is unreadable after {changes} changes ({loss:?})"
            );
        }
    });
}
