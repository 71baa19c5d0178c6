//! The machine goes down, or seems to.

use std::sync::Arc;
use std::time::Duration;

use pulselet_agent::{DataDir, Node, NodeHandle, NodeOptions, Origin, ShutdownPeriods};
use pulselet_logind::ShutdownWatch;
use pulselet_model::{GateSet, Profile, admit_create};
use pulselet_runtime_fake::{FakeRuntime, RuntimeFaults};
use pulselet_vocabulary::PodName;
use serde_json::json;
use tempfile::TempDir;

use crate::bus::{FakeLogind, PATIENCE};

pub(crate) struct World {
    pub(crate) directory: TempDir,
    node: NodeHandle,
    logind: FakeLogind,
}

impl World {
    /// A node with a pod of an API that runs, and nobody who watches over it yet.
    pub(crate) async fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let runtime = FakeRuntime::new(RuntimeFaults::default());
        let data = DataDir::claim(directory.path().join("data")).expect("nobody else has it");
        let node = Node::start(NodeOptions::new(data, Arc::new(runtime)))
            .await
            .expect("the node starts");
        let logind = FakeLogind::new(directory.path());
        let world = Self {
            directory,
            node,
            logind,
        };
        world.add("web").await;
        world.until("web", "it runs", |phase, _| phase == "Running").await;
        world
    }

    async fn add(&self, name: &str) {
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "uid": format!("u-{name}")},
            "spec": {"containers": [{"name": "app", "image": "app:1"}], "terminationGracePeriodSeconds": 1},
        });
        let pod = serde_json::from_value(pod).expect("a pod");
        let pod = admit_create(pod, Profile::Pulselet, GateSet::ALL)
            .expect("a valid pod")
            .pod;
        let added = self
            .node
            .add_pod(pod, Origin::Api)
            .await
            .expect("the node is there");
        added.expect("it is taken");
    }

    fn watch(&self) {
        self.watch_on(self.logind.address());
    }

    /// Watches over the node by what a bus says.
    pub(crate) fn watch_on(&self, bus: String) {
        let periods = ShutdownPeriods {
            total: Duration::from_secs(20).into(),
            critical: Duration::from_secs(5).into(),
        };
        let watch = ShutdownWatch {
            periods,
            bus: Some(bus),
            config_directory: self.directory.path().join("logind.conf.d"),
        };
        tokio::spawn(watch.run(self.node.clone()));
    }

    pub(crate) async fn until(&self, pod: &str, what: &str, fits: impl Fn(&str, &str) -> bool) -> String {
        let search = async {
            loop {
                let pod = self.node.pod(&PodName::new("default", pod)).await;
                let status = pod.expect("the node is there").expect("the pod is there").status;
                if fits(&status.phase, &status.reason) {
                    return status.message;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, search)
            .await
            .unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
    }
}

#[tokio::test]
async fn a_shutdown_waits_for_the_pods_and_no_other_is_taken() {
    let mut world = World::new().await;
    world.watch();
    world.logind.accept().await;
    let lock = world.logind.lock().await;
    assert!(lock.is_held());
    world.logind.signal(true).await;
    lock.until_released().await;
    let failed = |phase: &str, reason: &str| (phase, reason) == ("Failed", "Terminated");
    let message = world.until("web", "it has failed", failed).await;
    assert_eq!(
        message,
        "Pod was terminated in response to imminent node shutdown."
    );
    world.add("late").await;
    let refused = |phase: &str, reason: &str| (phase, reason) == ("Failed", "NodeShutdown");
    let message = world.until("late", "it is refused", refused).await;
    assert_eq!(
        message,
        "Pod was rejected: Pod was rejected as the node is shutting down."
    );
    // The machine stays after all.
    world.logind.signal(false).await;
    assert!(world.logind.lock().await.is_held());
    world.add("later").await;
    world
        .until("later", "it runs", |phase, _| phase == "Running")
        .await;
}

#[tokio::test]
async fn logind_is_made_to_wait_as_long_as_the_pods_have() {
    let mut world = World::new().await;
    world.watch();
    world.logind.accept().await;
    world.logind.lock().await;
    let file = world.directory.path().join("logind.conf.d/99-pulselet.conf");
    let text = std::fs::read_to_string(file).expect("a file");
    assert!(text.ends_with("[Login]\nInhibitDelayMaxSec=20\n"), "{text}");
    assert!(world.logind.calls().contains(&"KillUnit".to_owned()));
}

#[tokio::test]
async fn nobody_but_logind_is_believed() {
    let mut world = World::new().await;
    world.watch();
    world.logind.accept().await;
    let lock = world.logind.lock().await;
    world.logind.signal_from(":1.9", true).await;
    // The answer to this one shows that the one before it was seen.
    world.logind.signal(false).await;
    world.logind.lock().await;
    lock.until_released().await;
    assert!(!*world.node.machine_goes_down().borrow());
    world.until("web", "it runs", |phase, _| phase == "Running").await;
}

#[tokio::test]
async fn a_bus_that_comes_back_is_used_again() {
    let mut world = World::new().await;
    world.watch();
    world.logind.accept().await;
    let lock = world.logind.lock().await;
    world.logind.accept().await;
    lock.until_released().await;
    let lock = world.logind.lock().await;
    world.logind.signal(true).await;
    lock.until_released().await;
    world
        .until("web", "it has failed", |phase, _| phase == "Failed")
        .await;
}

#[tokio::test]
async fn a_shutdown_that_had_begun_before_anybody_watched_is_found() {
    let mut world = World::new().await;
    world.logind.prepare();
    world.watch();
    world.logind.accept().await;
    world
        .until("web", "it has failed", |phase, _| phase == "Failed")
        .await;
    assert!(!world.logind.calls().contains(&"Inhibit".to_owned()));
}
