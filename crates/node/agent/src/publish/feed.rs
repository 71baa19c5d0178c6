//! What a node reports to whoever joins it to an API: which pods have changed, which have ended and how, events of pods, and events of the
//! node itself.
//!
//! The agent never waits for the reader, and nothing grows without bound: changes are a set of names, so a pod that
//! changes a hundred times before it is looked at is looked at once; the last states of ended pods and events are kept
//! up to a limit. What must always hold: a change is reported after the state behind it is on disk. Who reads late loses
//! old events, never the fact that a pod has changed.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use pulselet_vocabulary::{PodName, Severity};
use tokio::sync::{Notify, watch};

use crate::agent::PodView;
use crate::pod::identity::Origin;

/// Events that wait to be read; the oldest make room. A few megabytes at most.
const MAX_EVENTS: usize = 4_096;
/// Ended pods whose last status waits to be read; the oldest make room.
const MAX_DEPARTED: usize = 1_024;

/// An event of a pod, as it happened once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    pub pod: PodName,
    pub uid: Arc<str>,
    pub origin: Origin,
    /// None where it concerns the pod.
    pub container: Option<Arc<str>>,
    pub severity: Severity,
    pub reason: &'static str,
    pub message: String,
    pub at: Timestamp,
}

/// An event of the node itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEvent {
    pub severity: Severity,
    pub reason: &'static str,
    pub message: String,
    pub at: Timestamp,
}

/// Everything that was reported since the last look.
#[derive(Debug, Default)]
pub struct FeedChange {
    /// Pods that came, changed or went.
    pub changed: BTreeSet<PodName>,
    /// Pods that have ended, as they were last.
    pub departed: Vec<PodView>,
    pub events: VecDeque<PodEvent>,
    pub node_events: VecDeque<NodeEvent>,
}

/// Where the agent reports and a reader looks. Clones are the same feed.
#[derive(Clone, Debug, Default)]
pub struct Feed {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    changes: Mutex<FeedChange>,
    wake: Notify,
    /// Changes with every change of a pod.
    revision: watch::Sender<u64>,
}

impl Feed {
    /// Waits for changes and takes all there is. Dropping the future loses nothing.
    pub async fn next(&self) -> FeedChange {
        loop {
            let woken = self.shared.wake.notified();
            let changes = self.with(std::mem::take);
            if !changes.is_empty() {
                return changes;
            }
            woken.await;
        }
    }

    /// Takes the pods that have ended, and leaves the rest. A pod that the node no longer knows is among
    /// them or was taken before.
    pub fn take_departed(&self) -> Vec<PodView> {
        self.with(|changes| std::mem::take(&mut changes.departed))
    }

    /// Sees that pods have changed, and not which, whoever else reads the feed.
    pub fn revisions(&self) -> watch::Receiver<u64> {
        self.shared.revision.subscribe()
    }

    pub(crate) fn changed(&self, pod: &PodName) {
        self.report(|changes| {
            changes.changed.insert(pod.clone());
        });
        self.shared.revision.send_modify(|revision| *revision += 1);
    }

    pub(crate) fn departed(&self, pod: PodView) {
        self.report(|changes| {
            if changes.departed.len() == MAX_DEPARTED {
                changes.departed.remove(0);
            }
            changes.departed.push(pod);
        });
    }

    pub(crate) fn event(&self, event: PodEvent) {
        self.report(|changes| {
            if changes.events.len() == MAX_EVENTS {
                changes.events.pop_front();
            }
            changes.events.push_back(event);
        });
    }

    pub(crate) fn node_event(&self, event: NodeEvent) {
        self.report(|changes| {
            if changes.node_events.len() == MAX_EVENTS {
                changes.node_events.pop_front();
            }
            changes.node_events.push_back(event);
        });
    }

    fn report(&self, what: impl FnOnce(&mut FeedChange)) {
        self.with(what);
        self.shared.wake.notify_one();
    }

    fn with<T>(&self, what: impl FnOnce(&mut FeedChange) -> T) -> T {
        // No panic can leave the changes half made.
        what(&mut self.shared.changes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl FeedChange {
    fn is_empty(&self) -> bool {
        self.changed.is_empty()
            && self.departed.is_empty()
            && self.events.is_empty()
            && self.node_events.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pod_that_changed_often_is_reported_once_and_events_are_bounded() {
        let feed = Feed::default();
        let revisions = feed.revisions();
        let event = |number: usize| PodEvent {
            pod: PodName::new("default", "web"),
            uid: "u".into(),
            origin: Origin::Api,
            container: None,
            severity: Severity::Normal,
            reason: "Pulled",
            message: number.to_string(),
            at: Timestamp::UNIX_EPOCH,
        };
        for number in 0..MAX_EVENTS + 3 {
            feed.changed(&PodName::new("default", "web"));
            feed.event(event(number));
        }
        assert_eq!(*revisions.borrow(), 4_099);
        let changes = feed.next().await;
        assert_eq!((changes.changed.len(), changes.events.len()), (1, MAX_EVENTS));
        assert_eq!(changes.events[0].message, "3");
        let waiting = tokio::spawn({
            let feed = feed.clone();
            async move { feed.next().await }
        });
        tokio::task::yield_now().await;
        feed.changed(&PodName::new("default", "other"));
        assert_eq!(waiting.await.unwrap().changed.len(), 1);
    }
}
