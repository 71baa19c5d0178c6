//! Events of pods and of the node, posted to the API.
//!
//! Best effort: events explain, nothing depends on them. Equal ones are one object that counts, as on the node. What
//! waits while the API is away is bounded, equal events waiting together; beyond that, new ones are left out.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use pulselet_agent::{NodeEvent, PodEvent};
use pulselet_vocabulary::{PodName, Severity};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::client::{ApiClient, ApiClientError, Call};
use crate::paths;

/// Events between the node and this task.
pub(crate) const QUEUE: usize = 256;
/// Distinct events that wait to be posted.
const MAX_WAITING: usize = 1_024;
/// Posted events that are remembered, so that equal ones are counted: about what a node of hundreds of pods has.
const MAX_POSTED: usize = 4_096;
/// Who says it.
const COMPONENT: &str = "pulselet";

/// Events of nodes, which are in no namespace, are in this one, as a kubelet's are.
const NODE_NAMESPACE: &str = "default";

/// What is to be posted.
#[derive(Debug)]
pub(crate) enum NewEvent {
    Pod(PodEvent),
    Node(NodeEvent),
}

/// What an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Regarding {
    Pod {
        pod: PodName,
        uid: Arc<str>,
        container: Option<Arc<str>>,
    },
    /// The node that posts.
    Node,
}

/// What makes two events equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    regarding: Regarding,
    reason: &'static str,
    message: String,
}

/// Equal events that wait to be posted.
#[derive(Debug)]
struct Waiting {
    /// In the order in which they came.
    number: u64,
    severity: Severity,
    count: u32,
    first: Timestamp,
    last: Timestamp,
}

/// An event the API has.
#[derive(Clone, Debug)]
struct Posted {
    name: String,
    count: u32,
    first: Timestamp,
}

#[derive(Debug)]
pub(crate) struct Poster {
    client: ApiClient,
    node: String,
    waiting: BTreeMap<Key, Waiting>,
    arrived: u64,
    posted: HashMap<Key, Posted>,
    /// The keys of `posted`, oldest first.
    order: VecDeque<Key>,
}

impl Poster {
    pub(crate) fn new(client: ApiClient, node: String) -> Self {
        Self {
            client,
            node,
            waiting: BTreeMap::new(),
            arrived: 0,
            posted: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// Posts what comes until nothing more can come.
    pub(crate) async fn run(mut self, mut events: mpsc::Receiver<NewEvent>) {
        let mut backoff = Backoff::default();
        let mut pause = Instant::now();
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.take(event),
                    None => return,
                },
                () = tokio::time::sleep_until(pause), if !self.waiting.is_empty() => {
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
        let (key, severity, at) = sorted(event);
        if let Some(waiting) = self.waiting.get_mut(&key) {
            waiting.count += 1;
            waiting.last = at;
            return;
        }
        if self.waiting.len() == MAX_WAITING {
            return;
        }
        self.arrived += 1;
        let waiting = Waiting {
            number: self.arrived,
            severity,
            count: 1,
            first: at,
            last: at,
        };
        self.waiting.insert(key, waiting);
    }

    /// Posts the event that has waited longest. It goes on waiting if the API cannot be asked.
    async fn post_next(&mut self) -> Result<(), ApiClientError> {
        let oldest = self.waiting.iter().min_by_key(|(_, waiting)| waiting.number);
        let Some((key, waiting)) = oldest else {
            return Ok(());
        };
        let key = key.clone();
        let known = self.posted.get(&key).cloned();
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
            Ok(()) => self.remember(key.clone(), now),
            // A refusal stays one: a namespace that is gone, a message that is not liked.
            Err(error @ ApiClientError::Refused { .. }) => {
                tracing::debug!(%error, regarding = ?key.regarding, "the API refused an event");
            }
            Err(error) => return Err(error),
        }
        self.waiting.remove(&key);
        Ok(())
    }

    fn remember(&mut self, key: Key, posted: Posted) {
        if self.posted.insert(key.clone(), posted).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > MAX_POSTED
            && let Some(oldest) = self.order.pop_front()
        {
            self.posted.remove(&oldest);
        }
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
            "source": {"component": COMPONENT, "host": self.node},
            "reportingComponent": COMPONENT,
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

fn sorted(event: NewEvent) -> (Key, Severity, Timestamp) {
    match event {
        NewEvent::Pod(event) => {
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
        NewEvent::Node(event) => {
            let key = Key {
                regarding: Regarding::Node,
                reason: event.reason,
                message: event.message,
            };
            (key, event.severity, event.at)
        }
    }
}

fn counted(key: &Key, waiting: &Waiting, now: &Posted) -> Call {
    let path = paths::named(key.regarding.namespace(), "events", &now.name);
    let changes = json!({"count": now.count, "lastTimestamp": whole_seconds(waiting.last)});
    Call::merge(path, &changes)
}

fn whole_seconds(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}
