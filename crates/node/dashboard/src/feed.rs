//! What browsers are told: event lines and the state of the node, as the agent has them.
//!
//! One task follows the agent. What it learns is kept in bounded memory, so that a browser that comes, or comes again, has the
//! history, too. Lines are numbered; a browser that says the number it has seen goes on from there.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pulselet_agent::PodView;
use pulselet_agent::control::{ControlClient, ControlClientError, LineStream, NodeView};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use crate::end_story::{EndStory, EndTracker, StoryLine};

/// Lines kept: hours of a quiet node, minutes of one with a hundred probes a second.
const MAX_LINES: usize = 20_000;
/// Bytes of all lines kept, since details of probes may be long.
const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;
/// Lines told at a time.
const BATCH: usize = 1_000;
/// How soon a change of a pod is looked at: a burst of them is one look.
const SETTLE: Duration = Duration::from_millis(250);
/// How often the agent is asked though nothing seems to have changed.
const REFRESH: Duration = Duration::from_secs(3);
/// How long to wait before an agent is looked for again that is not there.
const RECONNECT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct NodeFeed {
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
struct NodeState<'a> {
    /// Why the agent does not answer; `None` if it does.
    trouble: Option<String>,
    node: Option<&'a NodeView>,
    pods: &'a [PodView],
    /// Per `namespace/pod/container`, how it ended last.
    ends: BTreeMap<&'a str, &'a EndStory>,
    usage: BTreeMap<String, Usage>,
    /// Per resource, the share of the last ten seconds in which something waited for it, in percent.
    pressure: BTreeMap<&'static str, f64>,
}

/// What a container uses.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Usage {
    cpu_nano_cores: Option<u64>,
    memory_bytes: Option<u64>,
}

impl Default for NodeFeed {
    fn default() -> Self {
        let now = jiff::Timestamp::now().as_nanosecond();
        Self {
            epoch: format!("{now:x}"),
            kept: Mutex::default(),
            changes: watch::Sender::new(0),
        }
    }
}

impl NodeFeed {
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

    /// Follows the agent, and the one after it, for ever.
    pub(crate) async fn follow(self: Arc<Self>, client: ControlClient) {
        loop {
            let Err(error) = self.follow_one(&client).await;
            self.set_state(&NodeState {
                trouble: Some(error.to_string()),
                node: None,
                pods: &[],
                ends: BTreeMap::new(),
                usage: BTreeMap::new(),
                pressure: pressure(),
            });
            tokio::time::sleep(RECONNECT).await;
        }
    }

    async fn follow_one(
        &self,
        client: &ControlClient,
    ) -> Result<std::convert::Infallible, ControlClientError> {
        // Listening first: nothing falls between history and what is told live.
        let mut stream: LineStream = client.lines().await?;
        for line in client.history(None, None).await?.lines() {
            self.keep(line);
        }
        self.refresh(client).await?;
        let mut settled = tokio::time::interval(SETTLE);
        settled.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut changed, mut refreshed) = (false, Instant::now());
        loop {
            tokio::select! {
                line = stream.next() => {
                    let gone = || ControlClientError::Receive("the agent has ended".into());
                    changed |= self.keep(&line?.ok_or_else(gone)?);
                }
                _ = settled.tick() => {
                    if changed || refreshed.elapsed() > REFRESH {
                        self.refresh(client).await?;
                        (changed, refreshed) = (false, Instant::now());
                    }
                }
            }
        }
    }

    /// Keeps a line; true if it may have changed the state of a pod.
    fn keep(&self, line: &str) -> bool {
        let Ok(value) = serde_json::from_str::<Value>(line) else {
            return false;
        };
        let is_new = self.lock().push(line, &value);
        if is_new {
            self.changes.send_modify(|count| *count += 1);
        }
        is_new && value["type"] != "probe"
    }

    async fn refresh(&self, client: &ControlClient) -> Result<(), ControlClientError> {
        let (pods, node) = (client.pods().await?, client.node().await?);
        let usage = if self.changes.receiver_count() > 0 {
            usage(&client.usage::<Value>().await?)
        } else {
            BTreeMap::new()
        };
        let ends = self.ends(&pods);
        self.set_state(&NodeState {
            trouble: node.trouble.clone(),
            node: Some(&node),
            pods: &pods,
            ends: ends.iter().map(|(name, end)| (name.as_str(), end)).collect(),
            usage,
            pressure: pressure(),
        });
        Ok(())
    }

    /// How the containers of these pods ended last.
    fn ends(&self, pods: &[PodView]) -> BTreeMap<String, EndStory> {
        let mut kept = self.lock();
        let names: HashSet<String> = pods.iter().map(|pod| pod.pod_name().to_string()).collect();
        kept.ends
            .retain(|key, _| key.rsplit_once('/').is_some_and(|(pod, _)| names.contains(pod)));
        let told = kept.ends.iter();
        told.filter_map(|(key, tracker)| Some((key.clone(), tracker.last()?.clone())))
            .collect()
    }

    fn set_state(&self, state: &NodeState<'_>) {
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
            if let Ok(line) = serde_json::from_value::<StoryLine>(value.clone()) {
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

/// Per `namespace/pod/container`, from a kubelet's summary.
fn usage(summary: &Value) -> BTreeMap<String, Usage> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut all = BTreeMap::new();
    for pod in list(&summary["pods"]) {
        let name = |key: &str| pod["podRef"][key].as_str().unwrap_or_default().to_owned();
        for container in list(&pod["containers"]) {
            let key = format!(
                "{}/{}/{}",
                name("namespace"),
                name("name"),
                container["name"].as_str().unwrap_or_default()
            );
            let used = Usage {
                cpu_nano_cores: container["cpu"]["usageNanoCores"].as_u64(),
                memory_bytes: container["memory"]["workingSetBytes"].as_u64(),
            };
            all.insert(key, used);
        }
    }
    all
}

/// What the kernel says about waiting, where it says it.
fn pressure() -> BTreeMap<&'static str, f64> {
    let of = |resource: &str| {
        let text = std::fs::read_to_string(format!("/proc/pressure/{resource}")).ok()?;
        average(&text)
    };
    let resources = ["cpu", "memory", "io"];
    resources
        .into_iter()
        .filter_map(|resource| Some((resource, of(resource)?)))
        .collect()
}

/// `avg10` of the line `some`.
fn average(text: &str) -> Option<f64> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let field = some.split(' ').find_map(|field| field.strip_prefix("avg10="))?;
    field.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(number: usize) -> String {
        format!(r#"{{"t":{number}.0,"pod":"default/web","container":"app","type":"started"}}"#)
    }

    #[test]
    fn lines_are_kept_once_in_order_and_bounded() {
        let feed = NodeFeed::default();
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
        let feed = NodeFeed::default();
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

    #[test]
    fn pressure_is_read_as_the_kernel_writes_it() {
        let text = "some avg10=1.53 avg60=0.87 avg300=0.20 total=1\nfull avg10=0.10 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!(average(text), Some(1.53));
        assert_eq!(average("nonsense"), None);
    }
}
