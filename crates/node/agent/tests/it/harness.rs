//! A node in a directory of its own, with a scripted runtime and every line in hand.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pulselet_agent::{
    DataDir, EventRow, FULL_BACKLOG, How, LineHub, Lines, Node, NodeHandle, NodeOptions, Origin, PodLine,
    Shutdown,
};
use pulselet_engine::LineBody;
use pulselet_model::{GateSet, Pod, Profile, admit_create};
use pulselet_runtime_fake::{FakeRuntime, RuntimeFaults};
use pulselet_vocabulary::PodName;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Far longer than anything here takes, also on a loaded machine.
const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) struct Bench {
    pub(crate) directory: TempDir,
    pub(crate) runtime: FakeRuntime,
    pub(crate) node: NodeHandle,
    lines: Lines,
    /// Every line so far.
    pub(crate) seen: Vec<Arc<PodLine>>,
}

pub(crate) fn runtime() -> FakeRuntime {
    FakeRuntime::new(RuntimeFaults::default())
}

/// A pod with one container `app`, whose further fields are given.
pub(crate) fn pod(name: &str, container: &Value) -> Pod {
    let mut app = json!({"name": "app", "image": "app:1"});
    let fields = container.as_object().expect("fields of a container");
    app.as_object_mut().expect("an object").extend(fields.clone());
    pod_of(
        name,
        &json!({"containers": [app], "terminationGracePeriodSeconds": 1}),
    )
}

pub(crate) fn pod_of(name: &str, spec: &Value) -> Pod {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    let pod = serde_json::from_value(pod).expect("a pod");
    admit_create(pod, Profile::Pulselet, GateSet::ALL)
        .expect("the pod is valid")
        .pod
}

impl Bench {
    pub(crate) async fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self::on(directory, runtime(), |_| {}).await
    }

    /// A node on a directory and a runtime that an earlier one may have used.
    pub(crate) async fn on(
        directory: TempDir,
        runtime: FakeRuntime,
        change: impl FnOnce(&mut NodeOptions),
    ) -> Self {
        let data = DataDir::claim(directory.path().join("data")).expect("nobody else has it");
        let mut options = NodeOptions::new(data, Arc::new(runtime.clone()));
        options.lines = LineHub::default();
        let lines = options.lines.subscribe(FULL_BACKLOG);
        change(&mut options);
        let node = Node::start(options).await.expect("the node starts");
        Self {
            directory,
            runtime,
            node,
            lines,
            seen: Vec::new(),
        }
    }

    pub(crate) fn data(&self) -> std::path::PathBuf {
        self.directory.path().join("data")
    }

    pub(crate) async fn add(&self, pod: Pod) -> How {
        let added = self
            .node
            .add_pod(pod, Origin::Run)
            .await
            .expect("the node is there");
        added.expect("the pod is taken").how
    }

    /// Deletes a pod of the default namespace with its own grace period.
    pub(crate) async fn delete(&self, name: &str) {
        let deleted = self.node.delete_pod(&PodName::new("default", name), None).await;
        deleted.expect("the node is there").expect("the pod is there");
    }

    /// Reads lines until one fits.
    pub(crate) async fn until(&mut self, what: &str, fits: impl Fn(&PodLine) -> bool) -> Arc<PodLine> {
        let search = async {
            loop {
                let line = self.lines.next().await.expect("the node is there");
                self.seen.push(Arc::clone(&line));
                if fits(&line) {
                    return line;
                }
            }
        };
        match tokio::time::timeout(PATIENCE, search).await {
            Ok(line) => line,
            Err(elapsed) => panic!(
                "no {what} within {PATIENCE:?} ({elapsed}); seen:\n{}",
                self.transcript()
            ),
        }
    }

    pub(crate) async fn until_ready(&mut self) {
        let ready = |line: &PodLine| line.line.container.is_none() && line.line.body == LineBody::Ready;
        self.until("ready pod", ready).await;
    }

    pub(crate) async fn until_type(&mut self, kind: &str) -> Arc<PodLine> {
        self.until(kind, |line| type_of(line) == kind).await
    }

    /// A pod's events, once those with the given reasons are written down: the node does that after it has acted.
    pub(crate) async fn events(&self, uid: &str, reasons: &[&str]) -> Vec<EventRow> {
        let read = async || self.node.events(uid).await.expect("the node is there");
        let what = format!("{} written down", reasons.join(" and "));
        eventually(&what, async || {
            let events = read().await;
            let has = |reason: &&str| events.iter().any(|event| event.reason == *reason);
            reasons.iter().all(has)
        })
        .await;
        read().await
    }

    /// Lines that are there already.
    pub(crate) fn drain(&mut self) {
        while let Some(line) = self.lines.try_next() {
            self.seen.push(line);
        }
    }

    pub(crate) fn transcript(&self) -> String {
        let lines: Vec<_> = self.seen.iter().map(|line| line.to_json()).collect();
        lines.join("\n")
    }

    /// The types of the lines so far, successful probes left out.
    pub(crate) fn types(&self) -> Vec<String> {
        let all = self.seen.iter().map(|line| type_of(line));
        all.filter(|kind| kind != "probe").collect()
    }

    /// Ends the node with its containers running, and gives back what the next one needs.
    pub(crate) async fn leave(self) -> (TempDir, FakeRuntime) {
        self.node.shutdown(Shutdown::Leave).await;
        (self.directory, self.runtime)
    }
}

pub(crate) fn type_of(line: &PodLine) -> String {
    let value: Value = serde_json::from_str(&line.to_json()).expect("JSON");
    value["type"].as_str().expect("a type").to_owned()
}

/// What a crash at this moment would leave on disk.
pub(crate) fn copy_directory(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        let kind = entry.file_type().expect("a type");
        if kind.is_dir() {
            copy_directory(&entry.path(), &target);
        } else if kind.is_file() {
            std::fs::copy(entry.path(), target).expect("a copy");
        }
    }
}

/// Waits until something holds.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let search = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, search)
        .await
        .unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"));
}
