//! Event lines on their way to those who read them.
//!
//! The agent never waits for a reader. Each subscriber has a bounded queue; one that falls behind loses lines, and
//! is given the number of them as soon as there is room again.

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use pulselet_engine::line::{Line, LineBody, LineRecord};
use pulselet_engine::time::Span;
use pulselet_vocabulary::PodName;
use tokio::sync::mpsc;

/// Lines kept for a reader such as `run`, which shows everything: minutes of a busy node, some megabytes.
pub const FULL_BACKLOG: usize = 65_536;
/// Lines kept for a reader that looks in from outside.
pub const GUEST_BACKLOG: usize = 4_096;

/// A line, the pod it belongs to, and when it was.
#[derive(Clone, Debug)]
pub struct PodLine {
    pub pod: PodName,
    pub uid: Arc<str>,
    /// Since the pod was accepted.
    pub t: Span,
    pub time: Timestamp,
    pub line: Line,
}

impl PodLine {
    /// The line as JSON, without a newline.
    pub fn to_json(&self) -> String {
        let time = format!("{:.6}", self.time);
        let record = LineRecord {
            t: self.t.as_secs_f64(),
            time: Some(&time),
            pod: &self.pod,
            container: self.line.container.as_deref(),
            body: &self.line.body,
        };
        serde_json::to_string(&record).expect("a line is plain data")
    }
}

/// Where lines are published. Clones are the same hub.
#[derive(Clone, Debug, Default)]
pub struct LineHub {
    subscribers: Arc<Mutex<Vec<Subscriber>>>,
}

#[derive(Debug)]
struct Subscriber {
    queue: mpsc::Sender<Arc<PodLine>>,
    lost: u64,
}

impl LineHub {
    /// All lines from now on. A hub that is subscribed to before the node starts gives every line.
    pub fn subscribe(&self, backlog: usize) -> Lines {
        let (queue, receiver) = mpsc::channel(backlog);
        self.lock().push(Subscriber { queue, lost: 0 });
        Lines(receiver)
    }

    /// Whether anybody listens: making a line costs more than asking.
    pub(crate) fn is_silent(&self) -> bool {
        self.lock().is_empty()
    }

    pub(crate) fn publish(&self, line: &Arc<PodLine>) {
        self.lock().retain_mut(|subscriber| subscriber.send(line));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Subscriber>> {
        // A reader's panic cannot leave the list half changed.
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber {
    /// Whether the subscriber is still there.
    fn send(&mut self, line: &Arc<PodLine>) -> bool {
        if self.lost > 0 && self.queue.try_send(self.apology(line)).is_ok() {
            self.lost = 0;
        }
        match self.queue.try_send(Arc::clone(line)) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.lost += 1;
                true
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        }
    }

    fn apology(&self, line: &PodLine) -> Arc<PodLine> {
        let lost = self.lost;
        let message = format!("{lost} lines are missing here: they were not read fast enough");
        let mut apology = line.clone();
        apology.line.container = None;
        apology.line.body = LineBody::Warning { message };
        Arc::new(apology)
    }
}

/// A subscription; dropping it ends it.
#[derive(Debug)]
pub struct Lines(mpsc::Receiver<Arc<PodLine>>);

impl Lines {
    /// The next line; none when the hub is gone. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Arc<PodLine>> {
        self.0.recv().await
    }

    /// A line that is already there.
    pub fn try_next(&mut self) -> Option<Arc<PodLine>> {
        self.0.try_recv().ok()
    }

    /// The next line, from a thread of its own.
    pub fn blocking_next(&mut self) -> Option<Arc<PodLine>> {
        self.0.blocking_recv()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pulselet_engine::time::Time;

    fn line(t: u64) -> Arc<PodLine> {
        Arc::new(PodLine {
            pod: PodName::new("default", "web"),
            uid: "u".into(),
            t: Span::from_secs(t),
            time: Timestamp::UNIX_EPOCH,
            line: Line {
                at: Time::ZERO,
                container: Some("app".into()),
                body: LineBody::Started,
            },
        })
    }

    #[test]
    fn a_line_reads_as_json() {
        let expected = r#"{"t":1.0,"time":"1970-01-01T00:00:00.000000Z","pod":"default/web","container":"app","type":"started"}"#;
        assert_eq!(line(1).to_json(), expected);
    }

    #[test]
    fn a_slow_reader_learns_what_it_missed_and_holds_up_nobody() {
        let hub = LineHub::default();
        let mut slow = hub.subscribe(2);
        let mut fast = hub.subscribe(100);
        for t in 0..5 {
            hub.publish(&line(t));
        }
        let mut seen = Vec::new();
        for t in 5..8 {
            while let Some(line) = slow.try_next() {
                seen.push(line);
            }
            hub.publish(&line(t));
        }
        let warnings: Vec<_> = seen
            .iter()
            .filter_map(|line| match &line.line.body {
                LineBody::Warning { message } => Some(message.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(
            warnings,
            ["3 lines are missing here: they were not read fast enough"]
        );
        assert_eq!(std::iter::from_fn(|| fast.try_next()).count(), 8);
        drop((slow, fast));
        hub.publish(&line(9));
        assert!(hub.is_silent());
    }
}
