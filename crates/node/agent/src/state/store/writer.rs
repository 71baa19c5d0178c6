//! The thread that writes.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pulselet_durable::Reserve;
use rusqlite::Connection;
use tokio::sync::mpsc;

use super::{Batch, Write, is_corrupt, keep_aside, schema, spare};
use crate::state::clock::Base;
use crate::state::layout::Layout;

/// First wait before a failed commit is tried again; it doubles up to [`MAX_RETRY`].
const MIN_RETRY: Duration = Duration::from_millis(100);
/// Longest wait: how long a freed disk may go unnoticed.
const MAX_RETRY: Duration = Duration::from_secs(5);
/// The agent hands over one batch at a time; the second place is never used but keeps the sender from blocking.
const BATCHES: usize = 2;
/// Notes the agent has not read: one per batch and one per failed try.
const NOTES: usize = 16;

/// What became of a batch.
#[derive(Debug)]
pub(crate) enum Note {
    Committed {
        number: u64,
    },
    /// It will be tried again.
    Failed {
        error: String,
    },
}

/// The agent's end of the writing thread.
#[derive(Debug)]
pub(crate) struct Writer {
    batches: Option<SyncSender<Batch>>,
    notes: mpsc::Receiver<Note>,
    closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(database: Database, layout: Layout) -> io::Result<Self> {
        let (batches, receiver) = sync_channel(BATCHES);
        let (sender, notes) = mpsc::channel(NOTES);
        let closing = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&closing);
        let thread = thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || write_all(database, &layout, &receiver, &sender, &flag))?;
        Ok(Self {
            batches: Some(batches),
            notes,
            closing,
            thread: Some(thread),
        })
    }

    /// Hands over a batch. The one before must be committed.
    pub(crate) fn submit(&self, batch: Batch) {
        if let Some(batches) = &self.batches {
            batches
                .send(batch)
                .expect("the store's thread lives as long as its writer");
        }
    }

    /// What became of the batch. Dropping the future loses nothing.
    pub(crate) async fn note(&mut self) -> Note {
        self.notes
            .recv()
            .await
            .expect("the store's thread lives as long as its writer")
    }
}

/// Waits for the batch under way, unless it fails.
impl Drop for Writer {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        self.batches = None;
        self.notes.close();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the thread that writes the state panicked");
            }
        }
    }
}

/// The file that is written, and the room that is kept for it.
#[derive(Debug)]
pub(super) struct Database {
    pub(super) path: PathBuf,
    /// `None` as long as the disk is too full to open it.
    pub(super) connection: Option<Connection>,
    pub(super) reserve: Reserve,
    /// Where the time line begins.
    pub(super) base: Base,
    /// What the file does not have yet.
    pub(super) lacks: Lacks,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lacks {
    Nothing,
    /// Where the time line begins.
    Base,
    /// That, and every pod: the file is new, in the place of one that turned out to be damaged.
    Everything,
}

impl Database {
    pub(super) fn commit(&mut self, layout: &Layout, batch: &Batch) -> rusqlite::Result<()> {
        let mut result = self.try_commit(layout, batch);
        if result.as_ref().is_err_and(is_corrupt) && self.begin_anew() {
            result = self.try_commit(layout, batch);
        }
        if result.is_err() && self.reserve.give_up() {
            result = self.try_commit(layout, batch);
        }
        if result.is_ok() {
            self.reserve.refill();
        }
        result
    }

    fn try_commit(&mut self, layout: &Layout, batch: &Batch) -> rusqlite::Result<()> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(schema::open(&self.path)?),
        };
        match self.lacks {
            Lacks::Nothing => schema::commit(connection, batch, None)?,
            Lacks::Base => schema::commit(connection, batch, Some(&self.base))?,
            Lacks::Everything => {
                let spares = Batch {
                    number: batch.number,
                    now: batch.now,
                    writes: spare::writes(layout),
                };
                schema::commit(connection, &spares, Some(&self.base))?;
                schema::commit(connection, batch, None)?;
            }
        }
        self.lacks = Lacks::Nothing;
        Ok(())
    }

    /// Damage that shows only when the file is written: it is kept aside, and the spare copies go into a new one. Pods that
    /// change are written as they are, as always.
    fn begin_anew(&mut self) -> bool {
        self.connection = None;
        match keep_aside(&self.path) {
            Ok(aside) => {
                let aside = aside.display();
                tracing::error!(%aside, "the node's state is damaged and was kept aside; a new one is begun");
                self.lacks = Lacks::Everything;
                true
            }
            Err(error) => {
                tracing::error!(%error, "the node's state is damaged");
                false
            }
        }
    }
}

fn write_all(
    mut database: Database,
    layout: &Layout,
    batches: &Receiver<Batch>,
    notes: &mpsc::Sender<Note>,
    closing: &AtomicBool,
) {
    while let Ok(batch) = batches.recv() {
        let mut wait = MIN_RETRY;
        while let Err(error) = database.commit(layout, &batch) {
            tracing::error!(
                %error,
                "cannot write the node's state; everything keeps running, but no pod is begun until it can be written: \
                 make room on the disk"
            );
            if closing.load(Ordering::Relaxed) {
                return;
            }
            // The agent being gone is noticed at the next turn.
            let _ = notes.try_send(Note::Failed {
                error: error.to_string(),
            });
            thread::park_timeout(wait);
            wait = (wait * 2).min(MAX_RETRY);
        }
        write_spares(layout, &batch);
        let number = batch.number;
        let _ = notes.blocking_send(Note::Committed { number });
    }
}

/// In the order of the batch: a pod may be forgotten and another of the same uid taken.
fn write_spares(layout: &Layout, batch: &Batch) {
    for write in &batch.writes {
        let (uid, done) = match write {
            Write::Spare { uid, body } => (uid, spare::write(layout, uid, body)),
            // What was written late, after a disk had refused, may have come after the pod's files were removed.
            Write::Forget { uid } => (uid, spare::remove(layout, uid)),
            Write::Record { .. }
            | Write::Spec { .. }
            | Write::ForgetSpec { .. }
            | Write::Event(_)
            | Write::Kill(_) => continue,
        };
        if let Err(error) = done {
            tracing::warn!(uid, %error, "cannot change the spare copy of a pod's state");
        }
    }
}
