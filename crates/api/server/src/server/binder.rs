//! Binding Pods to nodes.
//!
//! It holds what a decision needs of every Pod and node, kept true by two watches, so that a new Pod costs one decision
//! and not a look at all others. Where none fits, the Pod says why, and it is tried again when nodes or Pods change.
//! What must always hold: a Pod is bound once; losing track (a watch too slow for the history) begins anew.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::placement::{Candidate, choose, has_ended, wants_node};
use crate::registry::Registry;
use crate::registry::object::{self, Object};
use crate::registry::resource::{ObjectPath, ResourceKind};
use crate::rest::status::{ApiError, StatusReason};
use crate::store::Change;

/// After a failure of the store.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const COMPONENT: &str = "default-scheduler";

/// Runs until it is dropped.
pub(super) async fn run(registry: Registry) {
    loop {
        if let Err(error) = follow(&registry).await {
            tracing::warn!(%error, "binding Pods begins anew");
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Binds until a watch cannot go on.
async fn follow(registry: &Registry) -> Result<(), ApiError> {
    let (nodes, node_revision) = registry.all(ResourceKind::Node, None).await?;
    let (pods, pod_revision) = registry.all(ResourceKind::Pod, None).await?;
    let mut binder = Binder::new(registry, nodes);
    for pod in pods {
        let key = ResourceKind::Pod.key(Some(pod.namespace()), pod.name());
        binder.note_pod(key, Some(pod));
    }
    let mut node_changes = registry.watch(ResourceKind::Node, None, node_revision).await?;
    let mut pod_changes = registry.watch(ResourceKind::Pod, None, pod_revision).await?;
    loop {
        binder.place_all().await?;
        tokio::select! {
            changes = node_changes.next() => for change in changes? {
                binder.note_node(decode(&change)?, &change.key);
            },
            changes = pod_changes.next() => for change in changes? {
                binder.note_pod(change.key.clone(), decode(&change)?);
            },
        }
    }
}

fn decode(change: &Change) -> Result<Option<Object>, ApiError> {
    let value = change.value.as_ref();
    let object = value.map(|value| Object::decode(&change.key, value, change.revision));
    Ok(object.transpose()?)
}

struct Binder<'a> {
    registry: &'a Registry,
    /// By the key in the store.
    nodes: BTreeMap<String, Object>,
    /// Pods that wait for a node, by key.
    waiting: BTreeMap<String, Object>,
    /// Where the other Pods are, by key, and how many are on each node.
    homes: HashMap<String, String>,
    loads: HashMap<String, usize>,
    /// Something has changed since all that wait were tried.
    changed: bool,
}

impl<'a> Binder<'a> {
    fn new(registry: &'a Registry, nodes: Vec<Object>) -> Self {
        let nodes = nodes
            .into_iter()
            .map(|node| (ResourceKind::Node.key(None, node.name()), node));
        Self {
            registry,
            nodes: nodes.collect(),
            waiting: BTreeMap::new(),
            homes: HashMap::new(),
            loads: HashMap::new(),
            changed: true,
        }
    }

    fn note_node(&mut self, node: Option<Object>, key: &str) {
        // A heartbeat changes nothing; deciding again costs little.
        self.changed = true;
        match node {
            Some(node) => self.nodes.insert(key.to_owned(), node),
            None => self.nodes.remove(key),
        };
    }

    fn note_pod(&mut self, key: String, pod: Option<Object>) {
        let home = pod
            .as_ref()
            .filter(|pod| !has_ended(pod))
            .map(|pod| pod.text("/spec/nodeName"))
            .filter(|node| !node.is_empty())
            .map(str::to_owned);
        self.settle(&key, home);
        match pod.filter(wants_node) {
            Some(pod) => {
                let before = self.waiting.insert(key, pod);
                self.changed |= before.is_none();
            }
            None => drop(self.waiting.remove(&key)),
        }
    }

    /// A Pod is on this node, or on none.
    fn settle(&mut self, key: &str, home: Option<String>) {
        if self.homes.get(key) == home.as_ref() {
            return;
        }
        if let Some(before) = self.homes.remove(key) {
            self.changed = true;
            if let Some(load) = self.loads.get_mut(&before) {
                *load = load.saturating_sub(1);
            }
        }
        if let Some(home) = home {
            *self.loads.entry(home.clone()).or_default() += 1;
            self.homes.insert(key.to_owned(), home);
        }
    }

    async fn place_all(&mut self) -> Result<(), ApiError> {
        if !std::mem::take(&mut self.changed) {
            return Ok(());
        }
        for key in self.waiting.keys().cloned().collect::<Vec<_>>() {
            if let Some(pod) = self.waiting.get(&key).cloned() {
                self.place(&key, &pod).await?;
            }
        }
        Ok(())
    }

    async fn place(&mut self, key: &str, pod: &Object) -> Result<(), ApiError> {
        let candidates: Vec<_> = self
            .nodes
            .values()
            .map(|node| Candidate {
                node,
                pods: self.loads.get(node.name()).copied().unwrap_or(0),
            })
            .collect();
        let path = ObjectPath::stored(ResourceKind::Pod, Some(pod.namespace()), pod.name());
        let done = match choose(pod, &candidates) {
            Ok(node) => {
                let binding = json!({
                    "metadata": {"uid": pod.uid()},
                    "target": {"kind": "Node", "name": node},
                });
                let bound = self.registry.bind(&path, &binding, false).await.map(drop);
                if bound.is_ok() {
                    self.settle(key, Some(node.clone()));
                    self.waiting.remove(key);
                    let message = format!(
                        "Successfully assigned {}/{} to {node}",
                        pod.namespace(),
                        pod.name()
                    );
                    self.tell(pod, "Normal", "Scheduled", &message).await;
                }
                bound
            }
            Err(why) => match self.registry.mark_unschedulable(&path, pod.uid(), &why).await {
                Ok(true) => {
                    self.tell(pod, "Warning", "FailedScheduling", &why).await;
                    Ok(())
                }
                other => other.map(drop),
            },
        };
        match done {
            // Somebody else was faster, or it is gone; the watch says so.
            Err(error) if matches!(error.reason, StatusReason::NotFound | StatusReason::Conflict) => Ok(()),
            other => other,
        }
    }

    /// An event about a Pod. Without it nothing is lost.
    async fn tell(&self, pod: &Object, kind: &str, reason: &str, message: &str) {
        let now = Timestamp::now();
        let event: Value = json!({
            "metadata": {
                "name": format!("{}.{:x}", pod.name(), now.as_nanosecond()),
                "namespace": pod.namespace(),
            },
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": pod.namespace(),
                "name": pod.name(),
                "uid": pod.uid(),
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": "",
            "firstTimestamp": object::timestamp(now),
            "lastTimestamp": object::timestamp(now),
            "count": 1,
        });
        let event = Object::new(event).expect("a literal object");
        if let Err(error) = self.registry.ensure(ResourceKind::Event, event).await {
            tracing::debug!(%error, reason, "an event could not be stored");
        }
    }
}
