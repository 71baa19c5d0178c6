//! What is going to happen, in order.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use pulselet_engine::time::Time;

/// The order of things that happen at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// What the world does is there before the agent looks.
    World,
    /// The agent's own deadlines.
    Agent,
    /// What happens only if the agent did not do it.
    Backstop,
}

#[derive(Debug)]
pub(crate) struct Queue<T> {
    heap: BinaryHeap<Reverse<Entry<T>>>,
    pushed: u64,
}

#[derive(Debug)]
struct Entry<T> {
    at: Time,
    rank: Rank,
    number: u64,
    item: T,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            heap: BinaryHeap::new(),
            pushed: 0,
        }
    }
}

impl<T> Queue<T> {
    pub(crate) fn push(&mut self, at: Time, rank: Rank, item: T) {
        self.pushed += 1;
        self.heap.push(Reverse(Entry {
            at,
            rank,
            number: self.pushed,
            item,
        }));
    }

    pub(crate) fn peek(&self) -> Option<(Time, Rank)> {
        self.heap.peek().map(|Reverse(entry)| (entry.at, entry.rank))
    }

    pub(crate) fn pop(&mut self) -> Option<(Time, T)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.item))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.heap.iter().map(|Reverse(entry)| &entry.item)
    }
}

impl<T> Entry<T> {
    fn key(&self) -> (Time, Rank, u64) {
        (self.at, self.rank, self.number)
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_before_rank_and_rank_before_the_order_of_setting_up() {
        let mut queue = Queue::default();
        let at = Time::from_micros;
        for (time, rank, item) in [
            (2, Rank::World, 'd'),
            (1, Rank::Backstop, 'c'),
            (1, Rank::World, 'a'),
            (1, Rank::World, 'b'),
        ] {
            queue.push(at(time), rank, item);
        }
        let order: String = std::iter::from_fn(|| queue.pop()).map(|(_, item)| item).collect();
        assert_eq!(order, "abcd");
    }
}
