//! Events of pods, posted to the API.
//!
//! Best effort: events explain, nothing depends on them. Equal ones are one object that counts, as on the node. What
//! waits while the API is away is bounded, equal events waiting together; beyond that, new ones are left out.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use pulselet_agent::{PodEvent, spans};
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

/// What makes two events equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    uid: Arc<str>,
    container: Option<Arc<str>>,
    reason: &'static str,
    message: String,
}

/// Equal events that wait to be posted.
#[derive(Debug)]
struct Waiting {
    /// In the order in which they came.
    number: u64,
    event: PodEvent,
    count: u32,
    first: Timestamp,
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
    pub(crate) async fn run(mut self, mut events: mpsc::Receiver<PodEvent>) {
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

    fn take(&mut self, event: PodEvent) {
        let key = Key {
            uid: Arc::clone(&event.uid),
            container: event.container.clone(),
            reason: event.reason,
            message: event.message.clone(),
        };
        if let Some(waiting) = self.waiting.get_mut(&key) {
            waiting.count += 1;
            waiting.event.at = event.at;
            return;
        }
        if self.waiting.len() == MAX_WAITING {
            return;
        }
        self.arrived += 1;
        let waiting = Waiting {
            number: self.arrived,
            first: event.at,
            event,
            count: 1,
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
                .map_or_else(|| name(&waiting.event), |known| known.name.clone()),
            count: waiting.count + known.as_ref().map_or(0, |known| known.count),
            first: known.as_ref().map_or(waiting.first, |known| known.first),
        };
        let answer = match known {
            Some(_) => match self.client.send(counted(waiting, &now)).await {
                // Events are forgotten after a while.
                Err(error) if error.is_not_found() => self.client.send(self.created(waiting, &now)).await,
                other => other,
            },
            None => self.client.send(self.created(waiting, &now)).await,
        };
        match answer {
            Ok(()) => self.remember(key.clone(), now),
            // A refusal stays one: a namespace that is gone, a message that is not liked.
            Err(error @ ApiClientError::Refused { .. }) => {
                spans::pod(&waiting.event.pod)
                    .in_scope(|| tracing::debug!(%error, "the API refused an event of the pod"));
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

    fn created(&self, waiting: &Waiting, now: &Posted) -> Call {
        let event = &waiting.event;
        let field_path = event
            .container
            .as_ref()
            .map(|container| format!("spec.containers{{{container}}}"));
        let object: Value = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": now.name, "namespace": event.pod.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": event.pod.namespace,
                "name": event.pod.name,
                "uid": event.uid,
                "fieldPath": field_path,
            },
            "type": event.severity,
            "reason": event.reason,
            "message": event.message,
            "source": {"component": COMPONENT, "host": self.node},
            "reportingComponent": COMPONENT,
            "reportingInstance": self.node,
            "firstTimestamp": whole_seconds(now.first),
            "lastTimestamp": whole_seconds(event.at),
            "count": now.count,
        });
        Call::create(paths::events(&event.pod.namespace), &object)
    }
}

fn counted(waiting: &Waiting, now: &Posted) -> Call {
    let event = &waiting.event;
    let path = paths::named(&event.pod.namespace, "events", &now.name);
    let changes = json!({"count": now.count, "lastTimestamp": whole_seconds(event.at)});
    Call::merge(path, &changes)
}

fn name(event: &PodEvent) -> String {
    // As upstream names them; two of a pod in the same nanosecond would be refused, and are not missed.
    format!("{}.{:x}", event.pod.name, event.at.as_nanosecond())
}

fn whole_seconds(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}
