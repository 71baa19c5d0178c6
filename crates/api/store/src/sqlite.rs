//! The store in one `SQLite` file: write-ahead log, full synchronisation, one writer.
//!
//! All writes go through one thread, which takes whatever waits in its queue, makes it one transaction, commits, and
//! only then answers: many writers share one `fsync`. Reads use their own connections and see committed data only.
//!
//! `current` holds the newest value of every key, `history` the changes that watches and reads of the past may still
//! ask for. A row of `history` carries the value before the change, so a past state is the present one with newer
//! changes undone.

mod copies;
mod reader;
mod schema;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use pulselet_durable::Reserve;
use rusqlite::Connection;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::window::{Lookup, Window};
use crate::{
    Change, ListPage, Range, Revision, Store, StoreError, StoreIdentity, StoredObject, Swap, Swapped, Watch,
};
pub use copies::{CheckReport, backup, check, restore};
pub use writer::HistoryLimits;
use writer::{Request, Writer};

/// Swaps that wait for the writer. A full queue holds the requests back.
const WRITE_QUEUE: usize = 1024;
/// Reads at a time; more would only compete for two or four cores.
const MAX_READERS: usize = 4;
/// How often memory is given back that only saves time. Watches read within milliseconds what is then one to two of these old.
const REST_INTERVAL: Duration = Duration::from_secs(10);
/// Changes read from the database at once for a watch that lags.
const HISTORY_BATCH: usize = 256;
/// Bytes of values read at once for it: what a watch that lags costs, and one object more.
const HISTORY_BYTES: usize = 1 << 20;

/// See the module. Clones share one store.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    requests: mpsc::Sender<Request>,
    shared: Arc<Shared>,
}

/// What readers, watches and the writer share.
#[derive(Debug)]
struct Shared {
    path: PathBuf,
    /// Idle connections for reading.
    readers: Mutex<Vec<Connection>>,
    reading: Semaphore,
    window: Mutex<Window>,
    latest: watch::Sender<Revision>,
    identity: String,
    /// Why the last commit failed; `None` if it did not.
    trouble: Mutex<Option<String>>,
}

impl SqliteStore {
    /// Opens the file, creating it when there is none, and starts the writer. A file that is not what was there before is
    /// refused.
    pub fn open(path: &Path, limits: HistoryLimits) -> Result<Self, StoreError> {
        Self::open_resting(path, limits, REST_INTERVAL)
    }

    /// As [`Self::open`]; memory is given back so often.
    fn open_resting(path: &Path, limits: HistoryLimits, rest: Duration) -> Result<Self, StoreError> {
        let mut reserve = Reserve::found(path.with_extension("reserve"));
        let known = StoreIdentity::read(path)?;
        let log_bytes = log_bytes(path);
        if known.is_some() && is_missing(path) {
            return Err(forgetful(path, "there is no file".to_owned()));
        }
        let connection = match schema::open_writer(path) {
            // On a full disk there is room for a log now.
            Err(StoreError::Open { .. }) if reserve.give_up() => schema::open_writer(path)?,
            opened => opened?,
        };
        let identity = identify(path, &connection, known.as_ref(), log_bytes)?;
        reserve.refill();
        let latest = reader::latest(&connection).map_err(|source| StoreError::Read { source })?;
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            readers: Mutex::new(Vec::new()),
            reading: Semaphore::new(MAX_READERS),
            window: Mutex::new(Window::new(latest)),
            latest: watch::Sender::new(latest),
            identity,
            trouble: Mutex::default(),
        });
        let (requests, queue) = mpsc::channel(WRITE_QUEUE);
        let writer = Writer::new(connection, Arc::clone(&shared), latest, limits, reserve)
            .map_err(|source| StoreError::Read { source })?
            .resting_every(rest);
        let clock = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(|source| StoreError::StartWriter { source })?;
        std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run(queue, &clock))
            .map_err(|source| StoreError::StartWriter { source })?;
        Ok(Self { requests, shared })
    }
}

/// Bytes of the log beside a file.
fn log_bytes(path: &Path) -> u64 {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    std::fs::metadata(log).map_or(0, |metadata| metadata.len())
}

fn is_missing(path: &Path) -> bool {
    std::fs::metadata(path).map_or(true, |metadata| metadata.len() == 0)
}

fn forgetful(path: &Path, why: String) -> StoreError {
    StoreError::Forgetful {
        path: path.display().to_string(),
        why,
    }
}

/// Compares the file with what is known of it, and marks it as in use.
fn identify(
    path: &Path,
    connection: &Connection,
    known: Option<&StoreIdentity>,
    log_bytes: u64,
) -> Result<String, StoreError> {
    let failed = |source| StoreError::Read { source };
    let found = schema::identity(connection).map_err(failed)?;
    let revision = reader::latest(connection).map_err(failed)?.0;
    if let Some(known) = known {
        known
            .check(found.as_deref(), revision, log_bytes)
            .map_err(|why| forgetful(path, why))?;
    }
    let identity = match found {
        Some(identity) => identity,
        None => schema::new_identity(connection).map_err(failed)?,
    };
    // Written in any case: from now on there is a log.
    let marked = schema::set_identity(connection, &identity).map_err(|source| StoreError::Write {
        message: source.to_string(),
    });
    let in_use = StoreIdentity {
        identity: identity.clone(),
        open: true,
        revision,
    };
    // On a full disk a store that is known is used as it is.
    match marked.and_then(|()| in_use.write(path)) {
        Err(error) if known.is_some() => {
            tracing::error!(%error, "the store cannot be marked as in use: make room on the disk");
        }
        marked => marked?,
    }
    Ok(identity)
}

impl Shared {
    /// Runs a read on a thread that may block.
    async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        job: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let _permit = self.reading.acquire().await.map_err(|_| StoreError::Closed)?;
        let shared = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            let idle = lock(&shared.readers).pop();
            let mut connection = match idle {
                Some(connection) => connection,
                None => schema::open_reader(&shared.path)?,
            };
            let answer = job(&mut connection)?;
            // A connection whose read failed is not used again.
            lock(&shared.readers).push(connection);
            Ok(answer)
        })
        .await
        .map_err(|_| StoreError::Closed)?
    }

    /// Gives back memory that only saves time: changes that watches have had the time to read, and what connections that do
    /// not read now remember of the file. Returns whether there will be more to give back.
    fn rest(&self) -> bool {
        for connection in &*lock(&self.readers) {
            schema::forget_pages(connection);
        }
        lock(&self.window).let_go()
    }

    /// Makes committed changes visible to watches.
    fn publish(&self, changes: Vec<Change>) {
        let Some(latest) = changes.last().map(|change| change.revision) else {
            return;
        };
        let mut window = lock(&self.window);
        for change in changes {
            window.push(change);
        }
        drop(window);
        self.latest.send_replace(latest);
    }
}

/// The data under these locks is whole between any two statements, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Store for SqliteStore {
    async fn get(&self, key: &str) -> Result<(Option<StoredObject>, Revision), StoreError> {
        let key = key.to_owned();
        self.shared
            .read(move |connection| reader::get(connection, &key))
            .await
    }

    async fn range(&self, range: Range) -> Result<ListPage, StoreError> {
        self.shared
            .read(move |connection| reader::range(connection, &range))
            .await
    }

    async fn swap(&self, swap: Swap) -> Result<Swapped, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.requests
            .send(Request::Swap { swap, answer })
            .await
            .map_err(|_| StoreError::Closed)?;
        answered.await.map_err(|_| StoreError::Closed)?
    }

    fn identity(&self) -> &str {
        &self.shared.identity
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn trouble(&self) -> Option<String> {
        lock(&self.shared.trouble).clone()
    }

    async fn settle(&self) -> Result<(), StoreError> {
        // Connections that only read keep the log in use.
        lock(&self.shared.readers).clear();
        let (answer, answered) = oneshot::channel();
        self.requests
            .send(Request::Settle { answer })
            .await
            .map_err(|_| StoreError::Closed)?;
        answered.await.map_err(|_| StoreError::Closed)?
    }

    async fn watch(&self, prefix: String, after: Revision) -> Result<Box<dyn Watch>, StoreError> {
        let newest = *self.shared.latest.borrow();
        self.shared
            .read(move |connection| reader::check_readable(connection, after, newest))
            .await?;
        Ok(Box::new(Cursor {
            shared: Arc::clone(&self.shared),
            latest: self.shared.latest.subscribe(),
            prefix,
            position: after,
        }))
    }
}

/// A watch: a position in the order of changes.
#[derive(Debug)]
struct Cursor {
    shared: Arc<Shared>,
    latest: watch::Receiver<Revision>,
    prefix: String,
    position: Revision,
}

#[async_trait]
impl Watch for Cursor {
    async fn next(&mut self) -> Result<Vec<Arc<Change>>, StoreError> {
        loop {
            if *self.latest.borrow_and_update() <= self.position {
                self.latest.changed().await.map_err(|_| StoreError::Closed)?;
                continue;
            }
            let lookup = lock(&self.shared.window).after(self.position, &self.prefix);
            let (changes, position) = match lookup {
                Lookup::Found(changes, position) => (changes, position),
                Lookup::TooOld => {
                    let (prefix, after) = (self.prefix.clone(), self.position);
                    self.shared
                        .read(move |connection| {
                            reader::history(connection, &prefix, after, HISTORY_BATCH, HISTORY_BYTES)
                        })
                        .await?
                }
            };
            self.position = position;
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }

    fn position(&self) -> Revision {
        self.position
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Expect;

    const CHANGES: usize = 100;

    fn bytes_in_window(store: &SqliteStore) -> usize {
        lock(&store.shared.window).bytes()
    }

    #[tokio::test]
    async fn a_store_that_rests_keeps_no_changes_in_memory_and_watches_miss_none() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, limits) = (directory.path().join("store"), HistoryLimits::default());
        let store = SqliteStore::open_resting(&path, limits, Duration::from_millis(5)).expect("opens");
        let mut watch = store.watch("/".to_owned(), Revision(0)).await.expect("watches");
        for number in 0..CHANGES {
            let swap = Swap {
                key: format!("/{number}"),
                expect: Expect::Absent,
                value: Some(vec![b'x'; 10_000].into()),
                guards: Vec::new(),
            };
            store.swap(swap).await.expect("writes");
        }
        let emptied = async {
            while bytes_in_window(&store) > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(20), emptied).await;
        assert!(in_time.is_ok(), "{} bytes are kept", bytes_in_window(&store));
        let mut seen = 0;
        while seen < CHANGES {
            seen += watch.next().await.expect("the history has them").len();
        }
        assert_eq!((seen, watch.position()), (CHANGES, Revision(CHANGES as u64)));
    }
}
