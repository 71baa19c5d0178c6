//! The thread that writes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::mpsc;

use super::{Batch, Write, schema, spare};
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
    pub(super) fn start(connection: Connection, layout: Layout) -> io::Result<Self> {
        let (batches, receiver) = sync_channel(BATCHES);
        let (sender, notes) = mpsc::channel(NOTES);
        let closing = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&closing);
        let thread = thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || write_all(connection, &layout, &receiver, &sender, &flag))?;
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

fn write_all(
    mut connection: Connection,
    layout: &Layout,
    batches: &Receiver<Batch>,
    notes: &mpsc::Sender<Note>,
    closing: &AtomicBool,
) {
    while let Ok(batch) = batches.recv() {
        let mut wait = MIN_RETRY;
        while let Err(error) = schema::commit(&mut connection, &batch) {
            tracing::error!(
                %error,
                "cannot write the node's state; everything keeps running, but nothing new is started or stopped \
                 until it can be written: make room on the disk"
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

fn write_spares(layout: &Layout, batch: &Batch) {
    for write in &batch.writes {
        if let Write::Spare { uid, body } = write
            && let Err(error) = spare::write(layout, uid, body)
        {
            tracing::warn!(uid, %error, "cannot write the spare copy of a pod's state");
        }
    }
}
