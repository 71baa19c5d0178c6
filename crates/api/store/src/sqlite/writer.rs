//! The one thread that writes: many swaps, one transaction, one `fsync`. After work it gives back memory, too.

use std::sync::Arc;
use std::time::Duration;

use pulselet_durable::Reserve;
use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::reader::{self, to_sql};
use super::{Shared, schema};
use crate::{Change, Integrity, Revision, StoreError, StoreIdentity, Swap, Swapped};

/// Swaps in one transaction. Enough to share an `fsync`, few enough to answer soon.
const MAX_BATCH: usize = 256;

/// How much of the past is kept for watches and paged lists.
#[derive(Debug, Clone, Copy)]
pub struct HistoryLimits {
    /// Changes: at a busy hundred writes a second, some minutes, as upstream keeps.
    pub changes: u64,
    /// Bytes of their values, so that large objects do not fill the disk.
    pub bytes: u64,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self {
            changes: 20_000,
            bytes: 128 * 1024 * 1024,
        }
    }
}

#[derive(Debug)]
pub(super) enum Request {
    Swap {
        swap: Swap,
        answer: oneshot::Sender<Result<Swapped, StoreError>>,
    },
    /// Bring everything into the one file.
    Settle {
        answer: oneshot::Sender<Result<(), StoreError>>,
    },
}

/// Requests that are answered together.
#[derive(Debug, Default)]
struct Batch {
    swaps: Vec<Swap>,
    answers: Vec<oneshot::Sender<Result<Swapped, StoreError>>>,
    settlers: Vec<oneshot::Sender<Result<(), StoreError>>>,
}

impl Batch {
    fn add(&mut self, request: Request) {
        match request {
            Request::Swap { swap, answer } => {
                self.swaps.push(swap);
                self.answers.push(answer);
            }
            Request::Settle { answer } => self.settlers.push(answer),
        }
    }
}

#[derive(Debug)]
pub(super) struct Writer {
    connection: Connection,
    shared: Arc<Shared>,
    latest: Revision,
    limits: HistoryLimits,
    /// What `history` holds now.
    changes: u64,
    bytes: u64,
    /// Given up when the disk is full.
    reserve: Reserve,
    rest_interval: Duration,
    /// When memory is given back; `None` if there is none to give.
    rest_at: Option<Instant>,
}

impl Writer {
    pub(super) fn new(
        connection: Connection,
        shared: Arc<Shared>,
        latest: Revision,
        limits: HistoryLimits,
        reserve: Reserve,
    ) -> rusqlite::Result<Self> {
        let (changes, bytes) = connection.query_row(
            "SELECT COUNT(*), COALESCE(SUM(COALESCE(length(value), 0) + COALESCE(length(previous), 0)), 0) \
             FROM history",
            [],
            |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)),
        )?;
        Ok(Self {
            connection,
            shared,
            latest,
            limits,
            changes: changes.unsigned_abs(),
            bytes: bytes.unsigned_abs(),
            reserve,
            rest_interval: super::REST_INTERVAL,
            rest_at: None,
        })
    }

    pub(super) fn resting_every(self, rest_interval: Duration) -> Self {
        Self {
            rest_interval,
            ..self
        }
    }

    /// Serves the queue until every sender is gone. `clock` is for waiting.
    pub(super) fn run(mut self, mut queue: mpsc::Receiver<Request>, clock: &Runtime) {
        loop {
            let first = match self.rest_at {
                Some(at) => clock.block_on(async { timeout_at(at, queue.recv()).await }),
                None => Ok(queue.blocking_recv()),
            };
            match first {
                Ok(Some(first)) => self.serve_with(first, &mut queue),
                Ok(None) => return,
                Err(_) => {}
            }
            if self.rest_at.is_some_and(|at| at <= Instant::now()) {
                self.rest();
            }
        }
    }

    /// Serves a request and what waits behind it.
    fn serve_with(&mut self, first: Request, queue: &mut mpsc::Receiver<Request>) {
        let mut batch = Batch::default();
        batch.add(first);
        while batch.swaps.len() < MAX_BATCH {
            match queue.try_recv() {
                Ok(request) => batch.add(request),
                Err(_) => break,
            }
        }
        self.serve(batch.swaps, batch.answers);
        for answer in batch.settlers {
            // Whoever asked may have stopped waiting.
            let _ = answer.send(self.settle());
        }
        if let Err(error) = self.compact() {
            tracing::warn!(%error, "the store could not shorten its history");
        }
        self.rest_at
            .get_or_insert_with(|| Instant::now() + self.rest_interval);
    }

    fn rest(&mut self) {
        schema::forget_pages(&self.connection);
        let more = self.shared.rest();
        self.rest_at = more.then(|| Instant::now() + self.rest_interval);
    }

    fn serve(&mut self, swaps: Vec<Swap>, answers: Vec<oneshot::Sender<Result<Swapped, StoreError>>>) {
        if swaps.is_empty() {
            return;
        }
        let mut result = self.commit(swaps.clone());
        if result.is_err() && self.reserve.give_up() {
            tracing::error!(
                "the disk is full; the store takes the room that was kept for it: make room on the disk"
            );
            result = self.commit(swaps);
        }
        let trouble = result.as_ref().err().map(ToString::to_string);
        *super::lock(&self.shared.trouble) = trouble;
        match result {
            Ok((outcomes, changes)) => {
                self.reserve.refill();
                for change in &changes {
                    self.changes += 1;
                    self.bytes += stored_bytes(change);
                }
                self.latest = changes.last().map_or(self.latest, |change| change.revision);
                self.shared.publish(changes);
                for (answer, outcome) in answers.into_iter().zip(outcomes) {
                    // A caller that went away needs no answer; its change stands.
                    let _ = answer.send(Ok(outcome));
                }
            }
            Err(error) => {
                tracing::error!(%error, "the store could not commit a transaction");
                let message = format!("{error}; make room on the disk of the API server");
                for answer in answers {
                    let _ = answer.send(Err(StoreError::Write {
                        message: message.clone(),
                    }));
                }
            }
        }
    }

    /// Empties the log into the file. From then on the file alone is the store, until the next change.
    fn settle(&mut self) -> Result<(), StoreError> {
        let settled = StoreIdentity {
            identity: self.shared.identity.clone(),
            open: false,
            revision: self.latest.0,
        };
        // First: a log that is there although it need not be is no harm.
        settled.write(&self.shared.path)?;
        let failed = |message: String| StoreError::Write { message };
        let busy: i64 = self
            .connection
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
            .map_err(|source| failed(source.to_string()))?;
        if busy == 0 {
            Ok(())
        } else {
            Err(failed("the log is still being read".to_owned()))
        }
    }

    fn commit(&mut self, swaps: Vec<Swap>) -> rusqlite::Result<(Vec<Swapped>, Vec<Change>)> {
        let transaction = begin(&mut self.connection)?;
        let (mut outcomes, mut changes) = (Vec::with_capacity(swaps.len()), Vec::new());
        let mut latest = self.latest;
        for swap in swaps {
            let next = Revision(latest.0 + 1);
            let (outcome, change) = apply(&transaction, swap, next)?;
            if change.is_some() {
                latest = next;
            }
            outcomes.push(outcome);
            changes.extend(change);
        }
        if latest == self.latest {
            // Nothing was changed: there is nothing to wait for.
            return Ok((outcomes, changes));
        }
        transaction
            .prepare_cached("UPDATE counters SET value = ?1 WHERE name = 'revision'")?
            .execute([to_sql(latest)])?;
        transaction.commit()?;
        Ok((outcomes, changes))
    }

    /// Removes the oldest changes once there are a quarter more than the limits allow.
    fn compact(&mut self) -> rusqlite::Result<()> {
        let over = |value: u64, limit: u64| value > limit + limit / 4;
        if !over(self.changes, self.limits.changes) && !over(self.bytes, self.limits.bytes) {
            return Ok(());
        }
        let (mut changes, mut bytes, mut upto) = (self.changes, self.bytes, 0);
        {
            let mut statement = self.connection.prepare_cached(
                "SELECT revision, COALESCE(length(value), 0) + COALESCE(length(previous), 0) FROM history \
                 ORDER BY revision",
            )?;
            let mut rows = statement.query([])?;
            // The newest change always stays.
            while (changes > self.limits.changes || bytes > self.limits.bytes) && changes > 1 {
                let Some(row) = rows.next()? else { break };
                upto = row.get::<_, i64>(0)?;
                bytes = bytes.saturating_sub(row.get::<_, i64>(1)?.unsigned_abs());
                changes -= 1;
            }
        }
        let transaction = begin(&mut self.connection)?;
        transaction.execute("DELETE FROM history WHERE revision <= ?1", [upto])?;
        transaction.execute("UPDATE counters SET value = ?1 WHERE name = 'compacted'", [upto])?;
        transaction.commit()?;
        (self.changes, self.bytes) = (changes, bytes);
        Ok(())
    }
}

/// Takes the lock for writing at once. A reader that looks into the log while it changes holds that lock for a moment:
/// a transaction that begins with it waits, but one that has read already and asks for it then is refused.
fn begin(connection: &mut Connection) -> rusqlite::Result<Transaction<'_>> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate)
}

fn stored_bytes(change: &Change) -> u64 {
    let value = change.value.as_ref().map_or(0, bytes::Bytes::len);
    let previous = change.previous.as_ref().map_or(0, |entry| entry.value.len());
    (value + previous) as u64
}

fn apply(connection: &Connection, swap: Swap, next: Revision) -> rusqlite::Result<(Swapped, Option<Change>)> {
    for (key, expect) in &swap.guards {
        if !expect.holds(reader::current_revision(connection, key)?) {
            return Ok((Swapped::GuardFailed { key: key.clone() }, None));
        }
    }
    let previous = reader::current(connection, &swap.key)?;
    let found = previous.as_ref().map(|entry| entry.revision);
    if !swap.expect.holds(found) {
        return Ok((Swapped::Conflict(previous), None));
    }
    match &swap.value {
        Some(value) => {
            connection
                .prepare_cached(
                    "INSERT OR REPLACE INTO current (key, revision, value, checksum) VALUES (?1, ?2, ?3, ?4)",
                )?
                .execute(params![
                    swap.key,
                    to_sql(next),
                    value.as_ref(),
                    reader::checksum(value)
                ])?;
        }
        None => {
            connection
                .prepare_cached("DELETE FROM current WHERE key = ?1")?
                .execute([&swap.key])?;
        }
    }
    connection
        .prepare_cached(
            "INSERT INTO history (revision, key, value, previous_revision, previous) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![
            to_sql(next),
            swap.key,
            swap.value.as_deref(),
            previous.as_ref().map(|entry| to_sql(entry.revision)),
            previous.as_ref().map(|entry| entry.value.as_ref()),
        ])?;
    let change = Change {
        key: swap.key,
        revision: next,
        value: swap.value,
        integrity: Integrity::Intact,
        previous,
    };
    Ok((Swapped::Done(next), Some(change)))
}
