//! The newest changes, in memory, shared by all watches.
//!
//! Between its floor and its newest revision the window has every change there was. A watch that is further back than the
//! floor reads the rest from the store. What every watch has had the time to read is let go of, see [`Window::let_go`]: a
//! server that had much to do and is idle now keeps none of it.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::{Change, Revision};

/// Changes kept: what a watch may lag before it costs a query.
const MAX_CHANGES: usize = 4096;
/// Bytes of values kept, so that a few large objects do not fill the memory of an idle server.
const MAX_BYTES: usize = 4 * 1024 * 1024;
/// Changes given to a watch at once, so that one reader does not hold the lock for long.
const MAX_BATCH: usize = 256;

#[derive(Debug)]
pub(super) struct Window {
    /// Changes after this one are in `changes`.
    floor: Revision,
    /// There are no further changes up to here. It may be later than the last of `changes`: a store that others write to as well
    /// counts their changes, too.
    newest: Revision,
    changes: VecDeque<Arc<Change>>,
    bytes: usize,
    /// The newest change at the last [`Window::let_go`].
    seen: Revision,
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
            floor: latest,
            newest: latest,
            changes: VecDeque::new(),
            bytes: 0,
            seen: latest,
        }
    }

    /// Changes after this one are in the window.
    pub(super) const fn floor(&self) -> Revision {
        self.floor
    }

    pub(super) fn push(&mut self, mut change: Change) {
        debug_assert!(change.revision >= self.newest, "changes come in order");
        self.newest = change.revision;
        self.share_previous(&mut change);
        self.bytes += change.bytes();
        self.changes.push_back(Arc::new(change));
        while self.changes.len() > MAX_CHANGES || self.bytes > MAX_BYTES {
            if !self.drop_oldest() {
                break;
            }
        }
    }

    /// There was no further change up to this revision.
    pub(super) fn advance(&mut self, newest: Revision) {
        self.newest = self.newest.max(newest);
    }

    fn drop_oldest(&mut self) -> bool {
        let Some(oldest) = self.changes.pop_front() else {
            return false;
        };
        self.bytes -= oldest.bytes();
        self.floor = oldest.revision;
        true
    }

    /// What a key held before is mostly what an earlier change in the window gave it: the two need the memory of one.
    fn share_previous(&self, change: &mut Change) {
        let Some(previous) = &mut change.previous else {
            return;
        };
        let place = self
            .changes
            .binary_search_by_key(&previous.revision, |change| change.revision);
        let earlier = place.ok().and_then(|place| self.changes.get(place));
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
        while self
            .changes
            .front()
            .is_some_and(|oldest| oldest.revision <= self.seen)
        {
            self.drop_oldest();
        }
        self.seen = self.newest;
        self.changes.shrink_to_fit();
        !self.changes.is_empty()
    }

    /// Matching changes after a position.
    pub(super) fn after(&self, position: Revision, prefix: &str) -> Lookup {
        if position < self.floor {
            return Lookup::TooOld;
        }
        let skip = self.changes.partition_point(|change| change.revision <= position);
        let mut found: Vec<Arc<Change>> = Vec::new();
        let mut reached = position;
        for change in self.changes.iter().skip(skip) {
            // Changes that were made at once are given at once.
            if found.len() >= MAX_BATCH && change.revision > reached {
                return Lookup::Found(found, reached);
            }
            reached = change.revision;
            if change.key.starts_with(prefix) {
                found.push(Arc::clone(change));
            }
        }
        Lookup::Found(found, reached.max(self.newest))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{Integrity, StoredObject};

    fn change(revision: u64, key: &str, bytes: usize) -> Change {
        Change {
            key: key.to_owned(),
            revision: Revision(revision),
            value: Some(Bytes::from(vec![b'x'; bytes])),
            integrity: Integrity::Intact,
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
    fn revisions_of_others_leave_gaps_and_move_readers_on() {
        let mut window = Window::new(Revision(10));
        window.push(change(14, "/a", 1));
        window.push(change(20, "/b", 1));
        window.advance(Revision(25));
        for (position, expected) in [(10, 2), (13, 2), (14, 1), (19, 1), (20, 0), (25, 0)] {
            let Lookup::Found(found, reached) = window.after(Revision(position), "/") else {
                panic!("the window covers revision {position}");
            };
            assert_eq!((found.len(), reached), (expected, Revision(25)), "{position}");
        }
        assert_eq!(window.after(Revision(9), "/"), Lookup::TooOld);
        assert!(window.let_go());
        assert!(!window.let_go());
        assert_eq!(
            (window.floor(), window.after(Revision(19), "/")),
            (Revision(20), Lookup::TooOld)
        );
        // One who has seen more than the window is not moved back.
        assert_eq!(
            window.after(Revision(30), "/"),
            Lookup::Found(Vec::new(), Revision(30))
        );
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
            integrity: Integrity::Intact,
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
