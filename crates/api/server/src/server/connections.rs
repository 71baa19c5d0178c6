//! Which connections are open, and which must go when there are too many.
//!
//! A connection is anonymous until its client has proved who it is, by its certificate or by a request with a token.
//! Anonymous connections have room of their own, so that no number of them keeps a known client out: when it is full,
//! the one that has been quiet for longest makes way for the new one. Known clients keep idle connections for use
//! later; of those, too, the one that has been idle for longest goes first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How many connections of known clients there may be.
const MAX_KNOWN: usize = 3072;
/// How many anonymous connections there may be, those in the middle of their handshake included.
const MAX_ANONYMOUS: usize = 1024;
/// How long an anonymous connection may be without a new request: the head of a request takes no longer to send.
const ANONYMOUS_IDLE: Duration = Duration::from_secs(30);
/// How long a known client may keep a connection idle. Clients keep theirs for 90 s; a server that gives up earlier
/// breaks the request that comes at that moment.
const KNOWN_IDLE: Duration = Duration::from_mins(3);

/// How many connections there may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionLimits {
    known: usize,
    anonymous: usize,
}

impl ConnectionLimits {
    /// Half of the files that this process may open, in the proportion of the constants, and no more than these.
    pub(super) fn of_process() -> Self {
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let files = open_files(&limits).unwrap_or(usize::MAX);
        let total = MAX_KNOWN + MAX_ANONYMOUS;
        let allowed = (files / 2).clamp(8, total);
        Self {
            known: MAX_KNOWN * allowed / total,
            anonymous: MAX_ANONYMOUS * allowed / total,
        }
    }
}

/// The soft limit of open files; `None` if there is none.
fn open_files(limits: &str) -> Option<usize> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The table of open connections.
#[derive(Debug)]
pub(super) struct Connections {
    limits: ConnectionLimits,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    open: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    is_known: bool,
    /// Requests under way, those whose answers are still being sent included.
    requests: usize,
    /// When the connection was opened, or a request last began or ended.
    since: Instant,
    close: CancellationToken,
}

/// One open connection. It leaves the table when this is dropped.
#[derive(Debug)]
pub(super) struct Tracked {
    connections: Arc<Connections>,
    id: u64,
    close: CancellationToken,
}

/// A request under way on a connection.
#[derive(Debug)]
pub(super) struct RequestGuard(Arc<Tracked>);

impl Connections {
    pub(super) fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            table: Mutex::default(),
        })
    }

    /// Takes a new connection into the table. If there are too many, another one is closed.
    pub(super) fn open(self: &Arc<Self>) -> Arc<Tracked> {
        let mut table = self.lock();
        if table.count(false) >= self.limits.anonymous {
            table.close_quietest_anonymous();
        }
        let id = table.next;
        table.next += 1;
        let close = CancellationToken::new();
        let entry = Entry {
            is_known: false,
            requests: 0,
            since: Instant::now(),
            close: close.clone(),
        };
        table.open.insert(id, entry);
        Arc::new(Tracked {
            connections: Arc::clone(self),
            id,
            close,
        })
    }

    /// Closes an anonymous connection because the process has no files left.
    pub(super) fn relieve(&self) {
        self.lock().close_quietest_anonymous();
    }

    /// The table is whole between any two statements, so a panic elsewhere does not spoil it.
    fn lock(&self) -> std::sync::MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn count(&self, is_known: bool) -> usize {
        let same = |entry: &&Entry| entry.is_known == is_known;
        self.open.values().filter(same).count()
    }

    /// Closes the connection that has been quiet for longest among those that `may_go` names; false if there is none.
    fn close_quietest(&mut self, may_go: impl Fn(u64, &Entry) -> bool) -> bool {
        let candidates = self.open.iter().filter(|(id, entry)| may_go(**id, entry));
        let quietest = candidates.min_by_key(|(_, entry)| entry.since).map(|(id, _)| *id);
        let Some(entry) = quietest.and_then(|id| self.open.remove(&id)) else {
            return false;
        };
        entry.close.cancel();
        true
    }

    fn close_quietest_anonymous(&mut self) {
        // An anonymous request takes no time, unless its client does not take the answer.
        let _ = self.close_quietest(|_, entry| !entry.is_known && entry.requests == 0)
            || self.close_quietest(|_, entry| !entry.is_known);
    }
}

impl Tracked {
    /// The client has proved who it is.
    pub(super) fn identify(&self) {
        let mut table = self.connections.lock();
        match table.open.get_mut(&self.id) {
            Some(entry) if !entry.is_known => entry.is_known = true,
            Some(_) | None => return,
        }
        if table.count(true) > self.connections.limits.known {
            let idle =
                table.close_quietest(|id, entry| id != self.id && entry.is_known && entry.requests == 0);
            if !idle {
                table.close_quietest(|id, _| id == self.id);
            }
        }
    }

    /// A request begins; it ends when the guard is dropped.
    pub(super) fn begin_request(self: &Arc<Self>) -> RequestGuard {
        self.change(|entry| entry.requests += 1);
        RequestGuard(Arc::clone(self))
    }

    fn change(&self, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.connections.lock().open.get_mut(&self.id) {
            change(entry);
            entry.since = Instant::now();
        }
    }

    /// Is done when another connection needs the room.
    pub(super) async fn closed(&self) {
        self.close.cancelled().await;
    }

    pub(super) fn is_known(&self) -> bool {
        let table = self.connections.lock();
        table.open.get(&self.id).is_some_and(|entry| entry.is_known)
    }

    /// When the connection has been idle for too long, as it looks now.
    pub(super) fn idle_deadline(&self) -> Instant {
        match self.connections.lock().open.get(&self.id) {
            Some(entry) if !entry.is_known => entry.since + ANONYMOUS_IDLE,
            Some(entry) if entry.requests == 0 => entry.since + KNOWN_IDLE,
            // The earliest moment at which it could be, if the requests ended now.
            Some(_) => Instant::now() + KNOWN_IDLE,
            None => Instant::now(),
        }
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.connections.lock().open.remove(&self.id);
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0
            .change(|entry| entry.requests = entry.requests.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections() -> Arc<Connections> {
        Connections::new(ConnectionLimits {
            known: 2,
            anonymous: 2,
        })
    }

    fn is_open(connection: &Tracked) -> bool {
        !connection.close.is_cancelled()
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_of_anonymous_connections_closes_its_own_only() {
        let connections = connections();
        let known = connections.open();
        known.identify();
        let mut crowd = Vec::new();
        for _ in 0..10 {
            tokio::time::advance(Duration::from_millis(1)).await;
            crowd.push(connections.open());
        }
        let left: Vec<bool> = crowd.iter().map(|connection| is_open(connection)).collect();
        assert_eq!(left[8..], [true, true]);
        assert!(!left[..8].contains(&true), "{left:?}");
        assert!(is_open(&known));
        assert_eq!(connections.lock().open.len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn the_idle_go_before_the_busy_and_a_stuck_answer_keeps_no_room() {
        let connections = connections();
        let busy = connections.open();
        let stuck = busy.begin_request();
        tokio::time::advance(Duration::from_millis(1)).await;
        let idle = connections.open();
        let new = connections.open();
        assert_eq!((is_open(&busy), is_open(&idle)), (true, false));
        let _stuck_too = new.begin_request();
        let _newest = connections.open();
        assert!(!is_open(&busy), "nobody is idle, and the oldest goes");
        drop(stuck);
    }

    #[tokio::test(start_paused = true)]
    async fn of_too_many_known_clients_the_longest_idle_goes() {
        let connections = connections();
        let open_known = || {
            let connection = connections.open();
            connection.identify();
            connection
        };
        let first = open_known();
        tokio::time::advance(Duration::from_millis(1)).await;
        let second = open_known();
        let request = first.begin_request();
        let third = open_known();
        assert_eq!(
            (is_open(&first), is_open(&second), is_open(&third)),
            (true, false, true)
        );
        let _busy = third.begin_request();
        let late = open_known();
        assert!(!is_open(&late), "the others are all at work");
        drop(request);
    }

    #[test]
    fn the_limit_of_open_files_is_read() {
        let text = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 524288    files\n";
        assert_eq!(open_files(text), Some(1024));
        assert_eq!(open_files("Max open files unlimited unlimited files"), None);
        assert_eq!(open_files(""), None);
    }
}
