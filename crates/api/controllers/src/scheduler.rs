//! Binding Pods to nodes.
//!
//! The scheduler holds what a decision needs of every Pod and node. Two watches keep that up to date, so that a new Pod
//! costs one decision and not a look at all others. If no node fits, the Pod says why, and it is tried again when nodes
//! or Pods change. What must always hold: a Pod is bound once; a scheduler that loses track (its watch is too slow for
//! the history) begins anew.

mod placement;

use std::collections::{BTreeMap, HashMap};

use pulselet_apiserver::{ApiError, LocalClient, Object, ResourceKind, StatusReason};
use pulselet_model::ResourceTotals;
use serde_json::Value;

use crate::RETRY_PAUSE;
use crate::events::{ControllerEvent, record_event};
use placement::{Candidate, Taken, choose, has_ended, requests, wants_node};

/// Who reports the events, as upstream's scheduler calls itself.
const COMPONENT: &str = "default-scheduler";

/// Runs until it is dropped.
pub(crate) async fn run(client: LocalClient) {
    loop {
        if let Err(error) = follow(&client).await {
            tracing::warn!(%error, "the scheduler lost track of Pods and nodes and reads them again");
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Binds Pods until a watch cannot go on.
async fn follow(client: &LocalClient) -> Result<(), ApiError> {
    let (nodes, node_revision) = client.list(ResourceKind::Node, None).await?;
    let (pods, pod_revision) = client.list(ResourceKind::Pod, None).await?;
    let mut scheduler = Scheduler::new(client, nodes);
    for pod in pods {
        let key = ResourceKind::Pod.key(Some(pod.namespace()), pod.name());
        scheduler.note_pod(key, Some(pod));
    }
    let mut node_changes = client.watch(ResourceKind::Node, node_revision).await?;
    let mut pod_changes = client.watch(ResourceKind::Pod, pod_revision).await?;
    loop {
        scheduler.place_all().await?;
        tokio::select! {
            changes = node_changes.next() => for change in changes? {
                scheduler.note_node(change.key, change.object);
            },
            changes = pod_changes.next() => for change in changes? {
                scheduler.note_pod(change.key, change.object);
            },
        }
    }
}

struct Scheduler<'a> {
    client: &'a LocalClient,
    /// All nodes, by key.
    nodes: BTreeMap<String, Object>,
    /// Pods that wait for a node, by key.
    waiting: BTreeMap<String, Object>,
    /// Where the other Pods are, by the Pod's key.
    bound: HashMap<String, Bound>,
    /// What the Pods on each node take, by its name.
    taken: HashMap<String, Taken>,
    /// Whether something has changed since all waiting Pods were tried.
    changed: bool,
}

/// A Pod that is on a node.
struct Bound {
    node: String,
    /// Of the spec that the requests were read from.
    generation: Option<i64>,
    requests: ResourceTotals,
}

impl<'a> Scheduler<'a> {
    fn new(client: &'a LocalClient, nodes: Vec<Object>) -> Self {
        let nodes = nodes
            .into_iter()
            .map(|node| (ResourceKind::Node.key(None, node.name()), node));
        Self {
            client,
            nodes: nodes.collect(),
            waiting: BTreeMap::new(),
            bound: HashMap::new(),
            taken: HashMap::new(),
            changed: true,
        }
    }

    fn note_node(&mut self, key: String, node: Option<Object>) {
        // A heartbeat changes nothing; deciding again costs little.
        self.changed = true;
        match node {
            Some(node) => self.nodes.insert(key, node),
            None => self.nodes.remove(&key),
        };
    }

    fn note_pod(&mut self, key: String, pod: Option<Object>) {
        let is_on_node = |pod: &&Object| !has_ended(pod) && !pod.text("/spec/nodeName").is_empty();
        let bound = pod.as_ref().filter(is_on_node);
        self.note_node_of_pod(&key, bound.map(|pod| (pod, pod.text("/spec/nodeName"))));
        match pod.filter(wants_node) {
            Some(pod) => {
                let before = self.waiting.insert(key, pod);
                self.changed |= before.is_none();
            }
            None => drop(self.waiting.remove(&key)),
        }
    }

    /// Notes that a Pod is on this node, or on none.
    fn note_node_of_pod(&mut self, key: &str, pod: Option<(&Object, &str)>) {
        let now = pod.map(|(pod, node)| (node, generation(pod)));
        let before = self.bound.get(key);
        if before.map(|before| (before.node.as_str(), before.generation)) == now {
            return;
        }
        if let Some(before) = self.bound.remove(key) {
            self.changed = true;
            if let Some(taken) = self.taken.get_mut(&before.node) {
                taken.pods = taken.pods.saturating_sub(1);
                taken.resources.subtract(&before.requests);
            }
        }
        if let Some((pod, node)) = pod {
            let requests = requests(pod);
            let taken = self.taken.entry(node.to_owned()).or_default();
            taken.pods += 1;
            taken.resources.add(&requests);
            let bound = Bound {
                node: node.to_owned(),
                generation: generation(pod),
                requests,
            };
            self.bound.insert(key.to_owned(), bound);
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
        let nothing = Taken::default();
        let candidates: Vec<_> = self
            .nodes
            .values()
            .map(|node| Candidate {
                node,
                taken: self.taken.get(node.name()).unwrap_or(&nothing),
            })
            .collect();
        let done = match choose(pod, &candidates) {
            Ok(node) => {
                let bound = self.client.bind_pod(pod, &node).await;
                if bound.is_ok() {
                    self.note_node_of_pod(key, Some((pod, &node)));
                    self.waiting.remove(key);
                    let message = format!(
                        "Successfully assigned {}/{} to {node}",
                        pod.namespace(),
                        pod.name()
                    );
                    self.record_event(pod, "Normal", "Scheduled", &message).await;
                }
                bound
            }
            Err(why) => match self.client.mark_unschedulable(pod, &why).await {
                Ok(true) => {
                    self.record_event(pod, "Warning", "FailedScheduling", &why).await;
                    Ok(())
                }
                other => other.map(drop),
            },
        };
        match done {
            // Somebody else was faster, or the Pod is gone; the watch says so.
            Err(error) if matches!(error.reason, StatusReason::NotFound | StatusReason::Conflict) => Ok(()),
            other => other,
        }
    }

    async fn record_event(&self, pod: &Object, kind: &'static str, reason: &'static str, message: &str) {
        let event = ControllerEvent {
            component: COMPONENT,
            kind,
            reason,
            message,
        };
        record_event(self.client, pod, &event).await;
    }
}

/// Which version of the Pod's spec this is.
fn generation(pod: &Object) -> Option<i64> {
    pod.value()
        .pointer("/metadata/generation")
        .and_then(Value::as_i64)
}
