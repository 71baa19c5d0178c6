//! What waits to be written, and what waits for the writing.
//!
//! One batch is under way at a time. Pods that change meanwhile are remembered by their key and written down as they
//! are when the next batch is made, so the journal never holds more than one state per pod, however long the disk
//! is full. Actions and lines follow once their pod's state is on disk. While the disk refuses, or takes longer than
//! [`PATIENCE`], they go ahead without it: a container that failed its probes is not kept alive by a full disk. Only new
//! sandboxes wait, because a pod that nobody would remember is better not begun.

use std::collections::{BTreeMap, BTreeSet};

use pulselet_engine::{PodKey, Span, Time};

use super::entry::{DueAction, Manifest, PendingOutput, PodEntry};
use crate::state::store::{Batch, EventRow, KillRow, Note, Spare, Write, Writer};

/// Events and kills that wait while nothing can be written; beyond it events are dropped. Some megabytes.
const MAX_ROWS: usize = 10_000;
/// Rows looked at for an equal one that still waits. It saves room, the store counts equal ones anyway.
const LOOK_BACK: usize = 64;
/// How long a batch may take before what follows from it goes ahead. A commit takes milliseconds.
const PATIENCE: Span = Span::from_secs(2);

#[derive(Debug)]
pub(super) struct Journal {
    writer: Writer,
    number: u64,
    marked: BTreeSet<PodKey>,
    rows: Vec<Write>,
    flight: Option<Flight>,
    trouble: Trouble,
}

/// Whether writing keeps up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    /// The batch under way takes too long.
    Late,
    /// The disk refuses.
    Refused,
}

/// A batch under way and what follows it.
#[derive(Debug)]
struct Flight {
    number: u64,
    since: Time,
    /// In the order of their keys.
    pods: Vec<(PodKey, PendingOutput)>,
}

/// What a note of the writer means for the agent.
#[derive(Debug)]
pub(super) enum Verdict {
    /// These may go on.
    Saved(Vec<(PodKey, PendingOutput)>),
    /// The first of a row of failures.
    Refused {
        error: String,
    },
    Nothing,
}

impl Journal {
    pub(super) fn new(writer: Writer) -> Self {
        Self {
            writer,
            number: 0,
            marked: BTreeSet::new(),
            rows: Vec::new(),
            flight: None,
            trouble: Trouble::None,
        }
    }

    /// The pod's state must be written.
    pub(super) fn mark(&mut self, key: PodKey) {
        self.marked.insert(key);
    }

    /// Whether the pod has changed since the batch under way was made.
    pub(super) fn is_marked(&self, key: PodKey) -> bool {
        self.marked.contains(&key)
    }

    /// Puts lines behind those of the pod that wait for the batch under way, where there are any.
    pub(super) fn follow(&mut self, key: PodKey, lines: &mut Vec<pulselet_engine::Line>) {
        let Some(flight) = &mut self.flight else { return };
        if let Ok(index) = flight.pods.binary_search_by_key(&key, |(other, _)| *other) {
            let (_, pending) = &mut flight.pods[index];
            if !pending.lines.is_empty() {
                pending.lines.append(lines);
            }
        }
    }

    /// Nothing waits for the disk now: it refuses, or takes too long.
    pub(super) fn is_behind(&self) -> bool {
        match self.trouble {
            Trouble::None => false,
            Trouble::Late | Trouble::Refused => true,
        }
    }

    /// Whether the batch under way has just turned out to take too long.
    pub(super) fn falls_behind(&mut self, now: Time) -> bool {
        let is_late = |flight: &Flight| now > flight.since + PATIENCE;
        let falls = self.trouble == Trouble::None && self.flight.as_ref().is_some_and(is_late);
        if falls {
            self.trouble = Trouble::Late;
        }
        falls
    }

    /// The pod is over and its entry is about to go: it is forgotten with the next batch.
    pub(super) fn forget(&mut self, key: PodKey, uid: &str) {
        self.marked.remove(&key);
        self.rows.push(Write::Forget { uid: uid.to_owned() });
    }

    /// Nothing waits and nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.flight.is_none() && self.marked.is_empty() && self.rows.is_empty()
    }

    pub(super) fn spec(&mut self, uid: &str, generation: u32, spec: &Manifest) {
        let body = spec.text().into();
        let uid = uid.to_owned();
        self.rows.push(Write::Spec {
            uid,
            generation,
            body,
        });
    }

    pub(super) fn forget_spec(&mut self, uid: &str, generation: u32) {
        let uid = uid.to_owned();
        self.rows.push(Write::ForgetSpec { uid, generation });
    }

    /// Counts an event, on top of an equal one that still waits.
    pub(super) fn event(&mut self, event: EventRow) {
        let same = |row: &mut Write| match row {
            Write::Event(waiting) if is_same(waiting, &event) => {
                waiting.count += event.count;
                waiting.last = event.last;
                true
            }
            _ => false,
        };
        if self.rows.iter_mut().rev().take(LOOK_BACK).any(same) {
            return;
        }
        if self.rows.len() < MAX_ROWS {
            self.rows.push(Write::Event(event));
        }
    }

    /// Saves a kill, in the place of an earlier state of it that still waits.
    pub(super) fn kill(&mut self, kill: KillRow) {
        let same = |row: &&mut Write| match row {
            Write::Kill(waiting) => {
                (&waiting.uid, &waiting.container, waiting.attempt, waiting.at)
                    == (&kill.uid, &kill.container, kill.attempt, kill.at)
            }
            _ => false,
        };
        match self.rows.iter_mut().rev().take(LOOK_BACK).find(same) {
            Some(row) => *row = Write::Kill(kill),
            None => self.rows.push(Write::Kill(kill)),
        }
    }

    /// Begins a batch if there is something to write and none is under way.
    pub(super) fn flush(
        &mut self,
        now: Time,
        pods: &pulselet_engine::Pods,
        entries: &mut BTreeMap<PodKey, PodEntry>,
    ) {
        if self.flight.is_some() || (self.marked.is_empty() && self.rows.is_empty()) {
            return;
        }
        let mut writes = std::mem::take(&mut self.rows);
        let mut outputs = Vec::with_capacity(self.marked.len());
        for key in std::mem::take(&mut self.marked) {
            if let Some(entry) = entries.get_mut(&key) {
                write_pod(entry, pods.get(key), &mut writes);
                outputs.push((key, std::mem::take(&mut entry.pending)));
            }
        }
        self.number += 1;
        let number = self.number;
        self.flight = Some(Flight {
            number,
            since: now,
            pods: outputs,
        });
        self.writer.submit(Batch { number, now, writes });
    }

    /// Waits for the writer. Dropping the future loses nothing.
    pub(super) async fn note(&mut self) -> Note {
        self.writer.note().await
    }

    pub(super) fn judge(&mut self, note: Note) -> Verdict {
        match note {
            Note::Committed { number } => {
                let flight = self.flight.take_if(|flight| flight.number == number);
                self.trouble = Trouble::None;
                flight.map_or(Verdict::Nothing, |flight| Verdict::Saved(flight.pods))
            }
            Note::Failed { error } => match self.trouble {
                Trouble::Refused => Verdict::Nothing,
                Trouble::None | Trouble::Late => {
                    self.trouble = Trouble::Refused;
                    Verdict::Refused { error }
                }
            },
        }
    }

    /// What waits for a batch that cannot be written.
    pub(super) fn waiting(&mut self) -> Vec<(PodKey, PendingOutput)> {
        let flight = self.flight.iter_mut().flat_map(|flight| &mut flight.pods);
        flight
            .map(|(key, pending)| (*key, std::mem::take(pending)))
            .collect()
    }

    /// Puts back actions that wait for the batch under way after all.
    pub(super) fn keep_waiting(&mut self, key: PodKey, mut actions: Vec<DueAction>) -> Vec<DueAction> {
        let Some(flight) = &mut self.flight else {
            return actions;
        };
        if let Ok(index) = flight.pods.binary_search_by_key(&key, |(other, _)| *other) {
            let (_, pending) = &mut flight.pods[index];
            pending.actions.append(&mut actions);
        }
        actions
    }
}

fn is_same(a: &EventRow, b: &EventRow) -> bool {
    (&a.uid, &a.container, &a.reason, &a.message) == (&b.uid, &b.container, &b.reason, &b.message)
}

fn write_pod(entry: &mut PodEntry, engine: Option<&pulselet_engine::PodMachine>, writes: &mut Vec<Write>) {
    let uid = entry.identity.uid.to_string();
    let Some(engine) = engine.filter(|engine| !engine.is_over()) else {
        writes.push(Write::Forget { uid });
        return;
    };
    let record = serde_json::to_string(&entry.record(engine)).expect("a record is plain data");
    entry.changed_lightly = false;
    if std::mem::take(&mut entry.changed_visibly) {
        writes.push(spare(entry, uid.clone(), &record));
    }
    let body = record.into_bytes();
    writes.push(Write::Record { uid, body });
}

fn spare(entry: &PodEntry, uid: String, record: &str) -> Write {
    let raw = |text: String| serde_json::value::RawValue::from_string(text).expect("it was just made");
    let spec = |spec: &Manifest| raw(spec.text().to_owned());
    let mut specs = vec![(entry.generation, spec(&entry.spec))];
    for life in &entry.lives {
        if specs.iter().all(|(generation, _)| *generation != life.generation) {
            specs.push((life.generation, spec(&life.spec)));
        }
    }
    let file = Spare {
        uid: uid.clone(),
        record: raw(record.to_owned()),
        specs,
    };
    let body = serde_json::to_vec(&file).expect("a spare is plain data");
    Write::Spare { uid, body }
}
