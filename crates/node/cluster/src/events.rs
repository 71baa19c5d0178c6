//! Events of pods and of the node, posted to the API.
//!
//! Best effort: events explain, nothing depends on them. Equal ones are one object that counts, as on the node. What
//! waits while the API is away is bounded, equal events waiting together; beyond that, new ones are left out.

mod queue;

use std::sync::Arc;

use jiff::Timestamp;
use pulselet_agent::{NodeEvent, PodEvent};
use pulselet_vocabulary::{PodName, Severity};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use self::queue::{EventQueue, Key, Posted, Regarding, Waiting};
use crate::backoff::Backoff;
use crate::client::{ApiClient, ApiClientError, Call};
use crate::paths;

/// Events between the node and this task.
pub(crate) const QUEUE: usize = 256;
/// What says it: the part that a node has in a cluster, by which tools select events.
const SOURCE: &str = "kubelet";
/// Who says it.
const REPORTER: &str = "pulselet";
/// Events of nodes, which are in no namespace, are in this one, as a kubelet's are.
const NODE_NAMESPACE: &str = "default";

/// What is to be posted, or not to be kept any longer.
#[derive(Debug)]
pub(crate) enum NewEvent {
    Pod(PodEvent),
    Node(NodeEvent),
    /// Neither the node nor the API has a pod of that name any more, and no more events come.
    Gone(PodName),
}

#[derive(Debug)]
pub(crate) struct Poster {
    client: ApiClient,
    node: String,
    queue: EventQueue,
}

impl Poster {
    pub(crate) fn new(client: ApiClient, node: String) -> Self {
        Self {
            client,
            node,
            queue: EventQueue::default(),
        }
    }

    /// Posts what comes until nothing more can come.
    pub(crate) async fn run(mut self, mut events: mpsc::Receiver<NewEvent>) {
        let mut backoff = Backoff::default();
        let mut pause = Instant::now();
        loop {
            let due = self.queue.due();
            let wake = due.unwrap_or(pause).max(pause);
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.take(event),
                    None => return,
                },
                () = tokio::time::sleep_until(wake), if due.is_some() => {
                    match self.post_next().await {
                        Ok(()) => backoff.reset(),
                        Err(error) => {
                            let wait = backoff.next();
                            tracing::debug!(%error, ?wait, "an event was not posted");
                            pause = Instant::now() + wait;
                        }
                    }
                }
            }
        }
    }

    fn take(&mut self, event: NewEvent) {
        let (key, severity, at) = match event {
            NewEvent::Pod(event) => of_pod(event),
            NewEvent::Node(event) => of_node(event),
            NewEvent::Gone(pod) => return self.queue.forget(&pod),
        };
        self.queue.take(key, severity, at, Instant::now());
    }

    /// Posts the event whose turn it is. It goes on waiting if the API cannot be asked.
    async fn post_next(&mut self) -> Result<(), ApiClientError> {
        let Some((key, waiting)) = self.queue.next(Instant::now()) else {
            return Ok(());
        };
        let key = Arc::clone(key);
        let known = self.queue.posted(&key).cloned();
        let now = Posted {
            name: known
                .as_ref()
                .map_or_else(|| self.name(&key, waiting), |known| known.name.clone()),
            count: waiting.count + known.as_ref().map_or(0, |known| known.count),
            first: known.as_ref().map_or(waiting.first, |known| known.first),
        };
        let answer = match known {
            Some(_) => match self.client.send(counted(&key, waiting, &now)).await {
                // Events are forgotten after a while.
                Err(error) if error.is_not_found() => {
                    self.client.send(self.created(&key, waiting, &now)).await
                }
                other => other,
            },
            None => self.client.send(self.created(&key, waiting, &now)).await,
        };
        match answer {
            Ok(()) => self.queue.remember(&key, now, Instant::now()),
            // A refusal stays one: a namespace that is gone, a message that is not liked.
            Err(error @ ApiClientError::Refused { .. }) => {
                tracing::debug!(%error, regarding = ?key.regarding, "the API refused an event");
            }
            Err(error) => return Err(error),
        }
        self.queue.drop_waiting(&key);
        Ok(())
    }

    fn created(&self, key: &Key, waiting: &Waiting, now: &Posted) -> Call {
        let namespace = key.regarding.namespace();
        let object: Value = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": now.name, "namespace": namespace},
            "involvedObject": self.reference(&key.regarding),
            "type": waiting.severity,
            "reason": key.reason,
            "message": key.message,
            "source": {"component": SOURCE, "host": self.node},
            "reportingComponent": REPORTER,
            "reportingInstance": self.node,
            "firstTimestamp": whole_seconds(now.first),
            "lastTimestamp": whole_seconds(waiting.last),
            "count": now.count,
        });
        Call::create(paths::events(namespace), &object)
    }

    fn reference(&self, regarding: &Regarding) -> Value {
        match regarding {
            Regarding::Pod { pod, uid, container } => {
                let field_path = container
                    .as_ref()
                    .map(|container| format!("spec.containers{{{container}}}"));
                json!({
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "namespace": pod.namespace,
                    "name": pod.name,
                    "uid": uid,
                    "fieldPath": field_path,
                })
            }
            // A kubelet gives the name as the uid, and `kubectl describe node` looks for that.
            Regarding::Node => {
                json!({"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": self.node})
            }
        }
    }

    fn name(&self, key: &Key, waiting: &Waiting) -> String {
        let about = match &key.regarding {
            Regarding::Pod { pod, .. } => &*pod.name,
            Regarding::Node => &self.node,
        };
        // As upstream names them; two of a pod in the same nanosecond would be refused, and are not missed.
        format!("{about}.{:x}", waiting.last.as_nanosecond())
    }
}

impl Regarding {
    fn namespace(&self) -> &str {
        match self {
            Self::Pod { pod, .. } => &pod.namespace,
            Self::Node => NODE_NAMESPACE,
        }
    }
}

fn of_pod(event: PodEvent) -> (Key, Severity, Timestamp) {
    let key = Key {
        regarding: Regarding::Pod {
            pod: event.pod,
            uid: event.uid,
            container: event.container,
        },
        reason: event.reason,
        message: event.message,
    };
    (key, event.severity, event.at)
}

fn of_node(event: NodeEvent) -> (Key, Severity, Timestamp) {
    let key = Key {
        regarding: Regarding::Node,
        reason: event.reason,
        message: event.message,
    };
    (key, event.severity, event.at)
}

fn counted(key: &Key, waiting: &Waiting, now: &Posted) -> Call {
    let path = paths::named(key.regarding.namespace(), "events", &now.name);
    let changes = json!({"count": now.count, "lastTimestamp": whole_seconds(waiting.last)});
    Call::merge(path, &changes)
}

fn whole_seconds(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}
