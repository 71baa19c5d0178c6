//! The newest changes, in memory, shared by all watches.
//!
//! Revisions in the window have no gaps. A watch that falls behind its start reads the rest from the database. What every
//! watch has had the time to read is let go of, see [`Window::let_go`]: a server that had much to do and is idle now keeps
//! none of it.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Change, Revision};

/// Changes kept: what a watch may lag before it costs a query.
const MAX_CHANGES: usize = 4096;
/// Bytes of values kept, so that a few large objects do not fill the memory of an idle server.
const MAX_BYTES: usize = 4 * 1024 * 1024;
/// Changes given to a watch at once, so that one reader does not hold the lock for long.
const MAX_BATCH: usize = 256;

#[derive(Debug)]
pub(super) struct Window {
    /// The revision of the first change in `changes`, or of the next one to come.
    first: u64,
    changes: VecDeque<Arc<Change>>,
    bytes: usize,
    /// The newest change at the last [`Window::let_go`].
    seen: u64,
}

/// What a window has for a reader.
#[derive(Debug, PartialEq)]
pub(super) enum Lookup {
    /// The matching changes, and the position after them.
    Found(Vec<Arc<Change>>, Revision),
    /// The reader is further back than the window.
    TooOld,
}

impl Window {
    /// An empty window after `latest`.
    pub(super) const fn new(latest: Revision) -> Self {
        Self {
            first: latest.0 + 1,
            changes: VecDeque::new(),
            bytes: 0,
            seen: latest.0,
        }
    }

    pub(super) fn push(&mut self, mut change: Change) {
        debug_assert_eq!(change.revision.0, self.first + self.changes.len() as u64);
        self.share_previous(&mut change);
        self.bytes += change.bytes();
        self.changes.push_back(Arc::new(change));
        while self.changes.len() > MAX_CHANGES || self.bytes > MAX_BYTES {
            if !self.drop_oldest() {
                break;
            }
        }
    }

    fn drop_oldest(&mut self) -> bool {
        let Some(oldest) = self.changes.pop_front() else {
            return false;
        };
        self.bytes -= oldest.bytes();
        self.first += 1;
        true
    }

    /// What a key held before is mostly what an earlier change in the window gave it: the two need the memory of one.
    fn share_previous(&self, change: &mut Change) {
        let Some(previous) = &mut change.previous else {
            return;
        };
        let place = previous.revision.0.checked_sub(self.first);
        let earlier = place
            .and_then(|place| usize::try_from(place).ok())
            .and_then(|place| self.changes.get(place));
        if let Some(value) = earlier.and_then(|earlier| earlier.value.as_ref())
            && *value == previous.value
        {
            previous.value = value.clone();
        }
    }

    /// Bytes of keys and values, shared ones counted twice.
    #[cfg(test)]
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Lets go of the changes that were there at the last call already. Returns whether some are left.
    pub(super) fn let_go(&mut self) -> bool {
        while self.first <= self.seen && self.drop_oldest() {}
        self.seen = (self.first + self.changes.len() as u64).saturating_sub(1);
        self.changes.shrink_to_fit();
        !self.changes.is_empty()
    }

    /// Matching changes after a position.
    pub(super) fn after(&self, position: Revision, prefix: &str) -> Lookup {
        let Some(skip) = (position.0 + 1).checked_sub(self.first) else {
            return Lookup::TooOld;
        };
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let mut found = Vec::new();
        let mut reached = position;
        for change in self.changes.iter().skip(skip) {
            reached = change.revision;
            if change.key.starts_with(prefix) {
                found.push(Arc::clone(change));
                if found.len() == MAX_BATCH {
                    break;
                }
            }
        }
        Lookup::Found(found, reached)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::StoredObject;
    use super::*;

    fn change(revision: u64, key: &str, bytes: usize) -> Change {
        Change {
            key: key.to_owned(),
            revision: Revision(revision),
            value: Some(Bytes::from(vec![b'x'; bytes])),
            previous: None,
        }
    }

    #[test]
    fn a_reader_gets_what_matches_and_moves_past_what_does_not() {
        let mut window = Window::new(Revision(10));
        window.push(change(11, "/a/1", 1));
        window.push(change(12, "/b/1", 1));
        window.push(change(13, "/b/2", 1));
        let Lookup::Found(found, position) = window.after(Revision(11), "/a/") else {
            panic!("the window covers revision 12");
        };
        assert!(found.is_empty());
        assert_eq!(position, Revision(13));
        let Lookup::Found(found, _) = window.after(Revision(11), "/b/") else {
            panic!("the window covers revision 12");
        };
        assert_eq!(
            found.iter().map(|change| change.revision.0).collect::<Vec<_>>(),
            [12, 13]
        );
        assert_eq!(window.after(Revision(9), "/a/"), Lookup::TooOld);
    }

    #[test]
    fn large_values_push_old_ones_out() {
        let mut window = Window::new(Revision(0));
        for revision in 1..=10 {
            window.push(change(revision, "/a", MAX_BYTES / 4));
        }
        assert!(window.bytes <= MAX_BYTES);
        assert_eq!(window.after(Revision(5), "/"), Lookup::TooOld);
        let Lookup::Found(found, _) = window.after(Revision(8), "/") else {
            panic!("the newest are kept");
        };
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn what_is_old_is_let_go_of_and_what_is_new_stays() {
        let mut window = Window::new(Revision(4));
        for revision in 5..=8 {
            window.push(change(revision, "/a", 100));
        }
        assert!(window.let_go(), "a watch may not have read them yet");
        window.push(change(9, "/a", 100));
        assert!(window.let_go());
        assert_eq!(window.after(Revision(7), "/"), Lookup::TooOld);
        let Lookup::Found(found, position) = window.after(Revision(8), "/") else {
            panic!("the newest is kept");
        };
        assert_eq!((found.len(), position), (1, Revision(9)));
        assert!(!window.let_go(), "nothing has come since");
        assert_eq!((window.changes.capacity(), window.bytes), (0, 0));
        assert_eq!(
            window.after(Revision(9), "/"),
            Lookup::Found(Vec::new(), Revision(9))
        );
        window.push(change(10, "/a", 100));
        assert!(matches!(window.after(Revision(9), "/"), Lookup::Found(found, _) if found.len() == 1));
    }

    #[test]
    fn what_a_key_held_before_is_in_memory_once() {
        let mut window = Window::new(Revision(0));
        let first = change(1, "/a", 100);
        let mut second = change(2, "/a", 100);
        second.previous = Some(StoredObject {
            key: "/a".to_owned(),
            // As the database gives it: another copy.
            value: Bytes::from(vec![b'x'; 100]),
            revision: Revision(1),
        });
        let place = |value: Option<&Bytes>| value.map(|value| value.as_ptr());
        let of_first = place(first.value.as_ref());
        window.push(first);
        window.push(second);
        let Lookup::Found(found, _) = window.after(Revision(0), "/") else {
            panic!("both are there");
        };
        let previous = found[1].previous.as_ref().map(|previous| &previous.value);
        assert_eq!(place(previous), of_first);
    }
}
