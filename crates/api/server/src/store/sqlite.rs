//! The store in one `SQLite` file: write-ahead log, full synchronisation, one writer.
//!
//! All writes go through one thread, which takes whatever waits in its queue, makes it one transaction, commits, and
//! only then answers: many writers share one `fsync`. Reads use their own connections and see committed data only.
//!
//! `current` holds the newest value of every key, `history` the changes that watches and reads of the past may still
//! ask for. A row of `history` carries the value before the change, so a past state is the present one with newer
//! changes undone.

mod reader;
mod schema;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use rusqlite::Connection;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use super::window::{Lookup, Window};
use super::{Change, ListPage, Range, Revision, Store, StoreError, StoredObject, Swap, Swapped, Watch};
pub use writer::HistoryLimits;
use writer::{Request, Writer};

/// Swaps that wait for the writer. A full queue holds the requests back.
const WRITE_QUEUE: usize = 1024;
/// Reads at a time; more would only compete for two or four cores.
const MAX_READERS: usize = 4;
/// Changes read from the database at once for a watch that lags.
const HISTORY_BATCH: usize = 256;

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
}

impl SqliteStore {
    /// Opens the file, creating it when there is none, and starts the writer.
    pub fn open(path: &Path, limits: HistoryLimits) -> Result<Self, StoreError> {
        let connection = schema::open_writer(path)?;
        let latest = reader::latest(&connection).map_err(|source| StoreError::Read { source })?;
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            readers: Mutex::new(Vec::new()),
            reading: Semaphore::new(MAX_READERS),
            window: Mutex::new(Window::new(latest)),
            latest: watch::Sender::new(latest),
        });
        let (requests, queue) = mpsc::channel(WRITE_QUEUE);
        let writer = Writer::new(connection, Arc::clone(&shared), latest, limits)
            .map_err(|source| StoreError::Read { source })?;
        std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run(queue))
            .map_err(|source| StoreError::StartWriter { source })?;
        Ok(Self { requests, shared })
    }
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

    /// Makes committed changes visible to watches.
    fn publish(&self, changes: Vec<Change>) {
        let Some(latest) = changes.last().map(|change| change.revision) else {
            return;
        };
        let mut window = lock(&self.window);
        for change in changes {
            window.push(Arc::new(change));
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
            .send(Request { swap, answer })
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
                        .read(move |connection| reader::history(connection, &prefix, after, HISTORY_BATCH))
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
