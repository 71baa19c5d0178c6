//! Events that wait to be posted, and those that were.
//!
//! Equal ones are one object that counts. It always holds: what waits and what is remembered is bounded; who waits longest is
//! next; the count of an object is sent once in [`COUNT_INTERVAL`] at most, however fast its events come.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pulselet_vocabulary::{PodName, Severity};
use tokio::time::Instant;

/// Distinct events that wait to be posted.
const MAX_WAITING: usize = 1_024;
/// Posted events that are remembered, so that equal ones are counted: about what a node of hundreds of pods has.
const MAX_POSTED: usize = 4_096;
/// Probes below one second may fail five times a second: they cost the API no more requests than those of whole seconds.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// What an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Regarding {
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
pub(super) struct Key {
    pub(super) regarding: Regarding,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// Equal events that wait to be posted.
#[derive(Debug)]
pub(super) struct Waiting {
    /// In the order in which they came.
    number: u64,
    /// Not to be posted before this.
    due: Instant,
    pub(super) severity: Severity,
    pub(super) count: u32,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

/// An event the API has.
#[derive(Clone, Debug)]
pub(super) struct Posted {
    pub(super) name: String,
    pub(super) count: u32,
    pub(super) first: Timestamp,
}

#[derive(Debug, Default)]
pub(super) struct EventQueue {
    waiting: BTreeMap<Key, Waiting>,
    arrived: u64,
    posted: HashMap<Key, (Posted, Instant)>,
    /// The keys of `posted`, oldest first.
    order: VecDeque<Key>,
}

impl EventQueue {
    /// An event has come. When too many wait it is left out.
    pub(super) fn take(&mut self, key: Key, severity: Severity, at: Timestamp, now: Instant) {
        if let Some(waiting) = self.waiting.get_mut(&key) {
            waiting.count += 1;
            waiting.last = at;
            return;
        }
        if self.waiting.len() == MAX_WAITING {
            return;
        }
        let due = self.posted.get(&key).map(|(_, sent)| *sent + COUNT_INTERVAL);
        self.arrived += 1;
        let waiting = Waiting {
            number: self.arrived,
            due: due.unwrap_or(now),
            severity,
            count: 1,
            first: at,
            last: at,
        };
        self.waiting.insert(key, waiting);
    }

    /// When the next one may be posted; `None` if none waits.
    pub(super) fn due(&self) -> Option<Instant> {
        self.waiting.values().map(|waiting| waiting.due).min()
    }

    /// Of those that may be posted the one that has waited longest.
    pub(super) fn next(&self, now: Instant) -> Option<(&Key, &Waiting)> {
        let due = self.waiting.iter().filter(|(_, waiting)| waiting.due <= now);
        due.min_by_key(|(_, waiting)| waiting.number)
    }

    /// The object that counts these events, if the API has one.
    pub(super) fn posted(&self, key: &Key) -> Option<&Posted> {
        self.posted.get(key).map(|(posted, _)| posted)
    }

    /// It waits no longer.
    pub(super) fn drop_waiting(&mut self, key: &Key) {
        self.waiting.remove(key);
    }

    /// The API has it since `now`.
    pub(super) fn remember(&mut self, key: Key, posted: Posted, now: Instant) {
        if self.posted.insert(key.clone(), (posted, now)).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > MAX_POSTED
            && let Some(oldest) = self.order.pop_front()
        {
            self.posted.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(message: &str) -> Key {
        Key {
            regarding: Regarding::Node,
            reason: "Unhealthy",
            message: message.to_owned(),
        }
    }

    #[test]
    fn fast_probes_cost_the_api_no_more_than_those_of_whole_seconds() {
        let (mut queue, begin) = (EventQueue::default(), Instant::now());
        let (mut requests, mut counted) = (0, 0);
        // A probe that fails every 200 ms for ten seconds.
        for tick in 0..50 {
            let now = begin + Duration::from_millis(200) * tick;
            queue.take(key("503"), Severity::Warning, Timestamp::UNIX_EPOCH, now);
            while let Some((key, waiting)) = queue.next(now) {
                let (key, count) = (key.clone(), waiting.count);
                requests += 1;
                counted += count;
                let posted = Posted {
                    name: "web.1".to_owned(),
                    count: counted,
                    first: Timestamp::UNIX_EPOCH,
                };
                queue.remember(key.clone(), posted, now);
                queue.drop_waiting(&key);
            }
        }
        assert_eq!(requests, 10);
        let waits = queue.waiting.values().map(|waiting| waiting.count).sum::<u32>();
        assert_eq!(counted + waits, 50, "none is lost");
        assert_eq!(queue.due(), Some(begin + Duration::from_secs(10)));
    }

    #[test]
    fn a_new_event_waits_for_nobody_and_the_first_to_come_goes_first() {
        let (mut queue, now) = (EventQueue::default(), Instant::now());
        for message in ["b", "a"] {
            queue.take(key(message), Severity::Normal, Timestamp::UNIX_EPOCH, now);
        }
        let next = queue.next(now).map(|(key, _)| key.message.clone());
        assert_eq!(next.as_deref(), Some("b"));
        for number in 0..2 * MAX_WAITING {
            let message = number.to_string();
            queue.take(key(&message), Severity::Normal, Timestamp::UNIX_EPOCH, now);
        }
        assert_eq!(queue.waiting.len(), MAX_WAITING);
    }
}
