//! The newest changes, in memory, shared by all watches.
//!
//! Revisions in the window have no gaps. A watch that falls behind its start reads the rest from the database.

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
        }
    }

    pub(super) fn push(&mut self, change: Arc<Change>) {
        debug_assert_eq!(change.revision.0, self.first + self.changes.len() as u64);
        self.bytes += change.bytes();
        self.changes.push_back(change);
        while self.changes.len() > MAX_CHANGES || self.bytes > MAX_BYTES {
            let Some(oldest) = self.changes.pop_front() else {
                break;
            };
            self.bytes -= oldest.bytes();
            self.first += 1;
        }
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

    use super::*;

    fn change(revision: u64, key: &str, bytes: usize) -> Arc<Change> {
        Arc::new(Change {
            key: key.to_owned(),
            revision: Revision(revision),
            value: Some(Bytes::from(vec![b'x'; bytes])),
            previous: None,
        })
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
}
