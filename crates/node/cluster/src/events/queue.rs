//! Events that wait to be posted, and those that were.
//!
//! Equal ones are one object that counts. It always holds: what waits and what is remembered is bounded, and nothing is
//! remembered of pods that are gone; who may be posted first is next; the count of an object is sent once in [`COUNT_INTERVAL`]
//! at most, however fast its events come. No step takes longer because many wait.

use std::collections::BTreeMap;
use std::ops::Bound;
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

/// Whose turn it is: not before this moment, and of equal ones in the order in which they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    due: Instant,
    number: u64,
}

/// Equal events that wait to be posted.
#[derive(Debug)]
pub(super) struct Waiting {
    turn: Turn,
    /// The pod is gone: no more will come that are equal.
    is_last: bool,
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

/// One that is remembered.
#[derive(Debug)]
struct Remembered {
    posted: Posted,
    sent: Instant,
    /// Its key in `ages`.
    age: u64,
}

#[derive(Debug, Default)]
pub(super) struct EventQueue {
    waiting: BTreeMap<Arc<Key>, Waiting>,
    /// The keys of `waiting`, the next first.
    turns: BTreeMap<Turn, Arc<Key>>,
    arrived: u64,
    posted: BTreeMap<Arc<Key>, Remembered>,
    /// The keys of `posted`, oldest first.
    ages: BTreeMap<u64, Arc<Key>>,
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
        let sent = self.posted.get(&key).map(|known| known.sent);
        let turn = Turn {
            due: sent.map_or(now, |sent| sent + COUNT_INTERVAL),
            number: self.next_number(),
        };
        let key = Arc::new(key);
        self.turns.insert(turn, Arc::clone(&key));
        let waiting = Waiting {
            turn,
            is_last: false,
            severity,
            count: 1,
            first: at,
            last: at,
        };
        self.waiting.insert(key, waiting);
    }

    fn next_number(&mut self) -> u64 {
        self.arrived += 1;
        self.arrived
    }

    /// When the next one may be posted; `None` if none waits.
    pub(super) fn due(&self) -> Option<Instant> {
        self.turns.first_key_value().map(|(turn, _)| turn.due)
    }

    /// Whose turn it is; `None` if none may be posted.
    pub(super) fn next(&self, now: Instant) -> Option<(&Arc<Key>, &Waiting)> {
        let (turn, key) = self.turns.first_key_value()?;
        let waiting = self.waiting.get(key)?;
        (turn.due <= now).then_some((key, waiting))
    }

    /// The object that counts these events, if the API has one.
    pub(super) fn posted(&self, key: &Key) -> Option<&Posted> {
        self.posted.get(key).map(|known| &known.posted)
    }

    /// It waits no longer.
    pub(super) fn drop_waiting(&mut self, key: &Key) {
        if let Some(waiting) = self.waiting.remove(key) {
            self.turns.remove(&waiting.turn);
        }
    }

    /// The API has it since `now`. It still waits.
    pub(super) fn remember(&mut self, key: &Arc<Key>, posted: Posted, now: Instant) {
        if self.waiting.get(key).is_some_and(|waiting| waiting.is_last) {
            self.drop_posted(key);
            return;
        }
        let age = match self.posted.get(key) {
            Some(known) => known.age,
            None => self.next_number(),
        };
        let remembered = Remembered {
            posted,
            sent: now,
            age,
        };
        self.posted.insert(Arc::clone(key), remembered);
        self.ages.insert(age, Arc::clone(key));
        if self.ages.len() > MAX_POSTED
            && let Some((_, oldest)) = self.ages.pop_first()
        {
            self.posted.remove(&oldest);
        }
    }

    fn drop_posted(&mut self, key: &Key) {
        if let Some(known) = self.posted.remove(key) {
            self.ages.remove(&known.age);
        }
    }

    /// The pod is gone. What waits is posted all the same; nothing is remembered for more of the kind.
    pub(super) fn forget(&mut self, pod: &PodName) {
        for key in keys_of(&self.posted, pod) {
            self.drop_posted(&key);
        }
        for key in keys_of(&self.waiting, pod) {
            if let Some(waiting) = self.waiting.get_mut(&key) {
                waiting.is_last = true;
            }
        }
    }
}

/// The keys of events of a pod, whatever its uid: they are neighbours.
fn keys_of<T>(map: &BTreeMap<Arc<Key>, T>, name: &PodName) -> Vec<Arc<Key>> {
    let first = Key {
        regarding: Regarding::Pod {
            pod: name.clone(),
            uid: "".into(),
            container: None,
        },
        reason: "",
        message: String::new(),
    };
    let of_pod = |key: &Arc<Key>| match &key.regarding {
        Regarding::Pod { pod, .. } => pod == name,
        Regarding::Node => false,
    };
    map.range::<Key, _>((Bound::Included(&first), Bound::Unbounded))
        .map(|(key, _)| key)
        .take_while(|key| of_pod(key))
        .cloned()
        .collect()
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
                let (key, count) = (Arc::clone(key), waiting.count);
                requests += 1;
                counted += count;
                let posted = Posted {
                    name: "web.1".to_owned(),
                    count: counted,
                    first: Timestamp::UNIX_EPOCH,
                };
                queue.remember(&key, posted, now);
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

    fn of_pod(name: &str, uid: &str, message: &str) -> Key {
        Key {
            regarding: Regarding::Pod {
                pod: PodName::new("default", name),
                uid: uid.into(),
                container: Some("app".into()),
            },
            ..key(message)
        }
    }

    /// Takes an event and posts it, as far as the queue is concerned.
    fn post(queue: &mut EventQueue, key: Key, meanwhile: impl FnOnce(&mut EventQueue)) {
        let now = Instant::now();
        queue.take(key, Severity::Normal, Timestamp::UNIX_EPOCH, now);
        let key = queue.next(now).map(|(key, _)| Arc::clone(key)).expect("it waits");
        meanwhile(queue);
        let posted = Posted {
            name: "web.1".to_owned(),
            count: 1,
            first: Timestamp::UNIX_EPOCH,
        };
        queue.remember(&key, posted, now);
        queue.drop_waiting(&key);
    }

    #[test]
    fn nothing_is_remembered_of_a_pod_that_is_gone() {
        let mut queue = EventQueue::default();
        let web = PodName::new("default", "web");
        post(&mut queue, of_pod("web", "1", "Started"), |_| {});
        post(&mut queue, of_pod("web", "2", "Started"), |_| {});
        post(&mut queue, of_pod("web-2", "3", "Started"), |_| {});
        post(&mut queue, key("of the node"), |_| {});
        queue.forget(&web);
        // Its last event was still on its way.
        post(&mut queue, of_pod("web", "2", "Killing"), |queue| {
            queue.forget(&web);
        });
        let left: Vec<_> = queue.posted.keys().map(|key| key.regarding.clone()).collect();
        assert_eq!(left, [of_pod("web-2", "3", "").regarding, Regarding::Node]);
        assert_eq!(queue.ages.len(), 2);
        assert!(queue.waiting.is_empty() && queue.turns.is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded_and_the_oldest_goes_first() {
        let mut queue = EventQueue::default();
        for number in 0..=MAX_POSTED {
            post(&mut queue, key(&number.to_string()), |_| {});
        }
        assert_eq!((queue.posted.len(), queue.ages.len()), (MAX_POSTED, MAX_POSTED));
        assert!(queue.posted(&key("0")).is_none() && queue.posted(&key("1")).is_some());
    }
}
