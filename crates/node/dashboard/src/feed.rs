//! What browsers are told: event lines and the state of all pods.
//!
//! One task follows the agent or the API (`agent_source`, `api_source`). What it learns is kept in bounded memory, so that a
//! browser that comes, or comes again, has the history, too. Lines are numbered; a browser that says the number it has seen
//! goes on from there.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pulselet_agent::PodView;
use pulselet_agent::control::NodeView;
use pulselet_sim::timeline::RecordedLine;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;

use crate::end_story::{EndStory, EndTracker};

/// Lines kept: hours of a quiet node, minutes of one with a hundred probes a second.
const MAX_LINES: usize = 20_000;
/// Bytes of all lines kept, since details of probes may be long.
const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;
/// Lines told at a time.
const BATCH: usize = 1_000;
/// How soon a change of a pod is looked at: a burst of them is one look.
pub(crate) const SETTLE: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(crate) struct PageFeed {
    /// Tells the lines of this process from those of an earlier one.
    epoch: String,
    kept: Mutex<Kept>,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    lines: VecDeque<Arc<str>>,
    /// The number of the first line that is kept.
    first: u64,
    bytes: usize,
    /// Hashes of the lines that are kept: history and what is told live overlap.
    known: HashSet<u64>,
    ends: BTreeMap<String, EndTracker>,
    state: Arc<str>,
    version: u64,
}

/// Lines that follow each other.
#[derive(Debug)]
pub(crate) struct LineBatch {
    pub(crate) lines: Vec<Arc<str>>,
    /// The number of the line after them.
    pub(crate) next: u64,
    /// What a browser says to go on after them.
    pub(crate) id: String,
}

/// The state as the page gets it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PageState<'a> {
    /// Why the agent or the API does not answer; `None` if it does.
    pub(crate) trouble: Option<String>,
    /// The local node; `None` for an API, or while its agent does not answer.
    pub(crate) node: Option<&'a NodeView>,
    /// The API; `None` for the local node.
    pub(crate) api: Option<&'a ApiView>,
    pub(crate) pods: &'a [PodView],
    /// Per `namespace/pod/container`, how it ended last.
    pub(crate) ends: BTreeMap<String, EndStory>,
    pub(crate) usage: BTreeMap<String, Usage>,
    /// Per resource, the share of the last ten seconds in which something waited for it, in percent.
    pub(crate) pressure: BTreeMap<&'static str, f64>,
}

/// An API and what is looked at there.
#[derive(Debug, Serialize)]
pub(crate) struct ApiView {
    pub(crate) server: String,
    pub(crate) namespace: String,
    /// Why its events are not told; `None` if they are.
    pub(crate) silence: Option<String>,
}

/// What a container uses.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Usage {
    pub(crate) cpu_nano_cores: Option<u64>,
    pub(crate) memory_bytes: Option<u64>,
}

impl Default for PageFeed {
    fn default() -> Self {
        let now = jiff::Timestamp::now().as_nanosecond();
        Self {
            epoch: format!("{now:x}"),
            kept: Mutex::default(),
            changes: watch::Sender::new(0),
        }
    }
}

impl PageFeed {
    /// Whether a browser listens.
    pub(crate) fn is_watched(&self) -> bool {
        self.changes.receiver_count() > 0
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The number of the line after the one that an id names; `None` if that is of another process or too long ago.
    pub(crate) fn position(&self, id: &str) -> Option<u64> {
        let (epoch, next) = id.split_once('.')?;
        let next = next.parse().ok().filter(|_| epoch == self.epoch)?;
        let kept = self.lock();
        (kept.first..=kept.end()).contains(&next).then_some(next)
    }

    /// The lines from a number on, as many as are told at a time; `None` if there are none.
    pub(crate) fn lines_from(&self, number: u64) -> Option<LineBatch> {
        let kept = self.lock();
        let number = number.max(kept.first);
        let skipped = usize::try_from(number - kept.first).unwrap_or(usize::MAX);
        let lines: Vec<_> = kept.lines.iter().skip(skipped).take(BATCH).cloned().collect();
        if lines.is_empty() {
            return None;
        }
        let next = number + lines.len() as u64;
        let id = format!("{}.{next}", self.epoch);
        Some(LineBatch { lines, next, id })
    }

    /// The state and its version, if it is newer than one that is known.
    pub(crate) fn state_after(&self, version: u64) -> Option<(u64, Arc<str>)> {
        let kept = self.lock();
        (kept.version > version).then(|| (kept.version, Arc::clone(&kept.state)))
    }

    /// Keeps a line; true if it may have changed the state of a pod.
    pub(crate) fn keep(&self, line: &str) -> bool {
        let Ok(value) = serde_json::from_str::<Value>(line) else {
            return false;
        };
        let is_new = self.lock().push(line, &value);
        if is_new {
            self.changes.send_modify(|count| *count += 1);
        }
        is_new && value["type"] != "probe"
    }

    /// How the containers of these pods ended last.
    pub(crate) fn ends(&self, pods: &[PodView]) -> BTreeMap<String, EndStory> {
        let mut kept = self.lock();
        let names: HashSet<String> = pods.iter().map(|pod| pod.pod_name().to_string()).collect();
        kept.ends
            .retain(|key, _| key.rsplit_once('/').is_some_and(|(pod, _)| names.contains(pod)));
        let told = kept.ends.iter();
        told.filter_map(|(key, tracker)| Some((key.clone(), tracker.last()?.clone())))
            .collect()
    }

    pub(crate) fn set_state(&self, state: &PageState<'_>) {
        let text = serde_json::to_string(state).expect("a state is plain data");
        let mut kept = self.lock();
        if *kept.state == *text {
            return;
        }
        kept.state = text.into();
        kept.version += 1;
        drop(kept);
        self.changes.send_modify(|count| *count += 1);
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Nothing is left half changed by a panic.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// The number of the next line.
    fn end(&self) -> u64 {
        self.first + self.lines.len() as u64
    }

    /// Keeps a line, as the last one; false if it is there already.
    fn push(&mut self, line: &str, value: &Value) -> bool {
        if !self.known.insert(hash(line)) {
            return false;
        }
        if let (Some(pod), Some(container)) = (value["pod"].as_str(), value["container"].as_str()) {
            let tracker = self.ends.entry(format!("{pod}/{container}")).or_default();
            if let Ok(line) = serde_json::from_value::<RecordedLine>(value.clone()) {
                tracker.push(&line);
            }
        }
        self.bytes += line.len();
        self.lines.push_back(line.into());
        while self.lines.len() > MAX_LINES || self.bytes > MAX_LINE_BYTES {
            let Some(oldest) = self.lines.pop_front() else {
                break;
            };
            self.bytes -= oldest.len();
            self.known.remove(&hash(&oldest));
            self.first += 1;
        }
        true
    }
}

fn hash(line: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    line.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(number: usize) -> String {
        format!(r#"{{"t":{number}.0,"pod":"default/web","container":"app","type":"started"}}"#)
    }

    #[test]
    fn lines_are_kept_once_in_order_and_bounded() {
        let feed = PageFeed::default();
        for number in 0..MAX_LINES + 10 {
            feed.keep(&line(number));
            feed.keep(&line(number));
        }
        let first = feed.lines_from(0).unwrap();
        assert_eq!(&*first.lines[0], line(10));
        assert_eq!(first.lines.len(), BATCH);
        assert_eq!(first.next, 10 + BATCH as u64);
        let second = feed.lines_from(first.next).unwrap();
        assert_eq!(&*second.lines[0], line(10 + BATCH));
        assert!(feed.lines_from(MAX_LINES as u64 + 10).is_none());
        assert!(!feed.keep("no JSON"));
    }

    #[test]
    fn a_browser_goes_on_where_it_was_unless_that_is_gone() {
        let feed = PageFeed::default();
        feed.keep(&line(0));
        feed.keep(&line(1));
        let id = feed.lines_from(0).unwrap().id;
        assert_eq!(feed.position(&id), Some(2));
        let ahead = id.replace(".2", ".3");
        for unknown in ["", "x", "0.2", &ahead] {
            assert_eq!(feed.position(unknown), None, "{unknown}");
        }
        for number in 2..MAX_LINES + 10 {
            feed.keep(&line(number));
        }
        assert_eq!(feed.position(&id), None);
    }
}
