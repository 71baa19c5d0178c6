//! Many pods and the one that is due next.
//!
//! A step touches one pod and one entry of a heap, so its cost grows with the logarithm of their number.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::io::{Input, Outbox};
use crate::pod::PodMachine;
use crate::time::Time;

/// A pod's number; numbers are not used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodKey(u64);

#[derive(Debug, Default)]
pub struct Pods {
    entries: BTreeMap<PodKey, Entry>,
    next_key: u64,
    /// Deadlines, the earliest on top. An entry that is not its pod's current deadline is stale and passed over.
    due: BinaryHeap<Reverse<(Time, PodKey)>>,
}

#[derive(Debug)]
struct Entry {
    pod: PodMachine,
    deadline: Option<Time>,
}

impl Pods {
    pub fn insert(&mut self, pod: PodMachine) -> PodKey {
        let key = PodKey(self.next_key);
        self.next_key += 1;
        self.entries.insert(key, Entry { pod, deadline: None });
        self.reschedule(key);
        key
    }

    pub fn remove(&mut self, key: PodKey) -> Option<PodMachine> {
        self.entries.remove(&key).map(|entry| entry.pod)
    }

    pub fn get(&self, key: PodKey) -> Option<&PodMachine> {
        self.entries.get(&key).map(|entry| &entry.pod)
    }

    pub fn iter(&self) -> impl Iterator<Item = (PodKey, &PodMachine)> {
        self.entries.iter().map(|(key, entry)| (*key, &entry.pod))
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Gives an input to a pod; one that is not there any more has nothing to say.
    pub fn handle(&mut self, now: Time, key: PodKey, input: Input, out: &mut Outbox) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.pod.handle(now, input, out);
            self.reschedule(key);
        }
    }

    /// When the earliest pod must be advanced.
    pub fn next_deadline(&mut self) -> Option<Time> {
        self.drop_stale();
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    /// Advances the earliest pod that is due at or before `now`. Call until it returns none.
    pub fn advance_one(&mut self, now: Time, out: &mut Outbox) -> Option<PodKey> {
        self.drop_stale();
        let Reverse((at, key)) = *self.due.peek()?;
        if at > now {
            return None;
        }
        self.due.pop();
        let entry = self.entries.get_mut(&key)?;
        entry.deadline = None;
        entry.pod.advance(now, out);
        self.reschedule(key);
        Some(key)
    }

    fn drop_stale(&mut self) {
        while let Some(Reverse((at, key))) = self.due.peek() {
            if self
                .entries
                .get(key)
                .is_some_and(|entry| entry.deadline == Some(*at))
            {
                return;
            }
            self.due.pop();
        }
    }

    fn reschedule(&mut self, key: PodKey) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        let deadline = entry.pod.next_deadline();
        if deadline != entry.deadline {
            entry.deadline = deadline;
            if let Some(at) = deadline {
                self.due.push(Reverse((at, key)));
            }
        }
    }
}
