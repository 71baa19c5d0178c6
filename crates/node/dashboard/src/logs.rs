//! The log of a container for a browser: the end of it, then what is added, through restarts.
//!
//! The agent says which file it is; the file is read here. The log of a pod at an API is asked for there (`api_logs`). What a container wrote is made text by replacing what is none, and
//! cut where a line is too long for a page.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pulselet_agent::control::ControlClient;
use pulselet_agent::{LogFile, LogPlace};
use pulselet_vocabulary::PodName;
use serde::Serialize;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::api_logs::ApiLogReader;
use crate::source::DashboardSource;
use crate::sse;

/// Logs that are followed at a time; each has a thread.
const MAX_VIEWERS: usize = 16;
/// Lines of the past that are shown.
pub(crate) const TAIL: usize = 500;
/// Lines told at a time.
const BATCH: usize = 200;
/// Events that wait for a slow browser; the reader waits with them.
const BACKLOG: usize = 8;
/// How often a log is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// Looks between two questions whether another life has begun.
const LOOKS_PER_QUESTION: u32 = 5;
/// Characters of a line that are told.
pub(crate) const MAX_TEXT: usize = 8 * 1024;

#[derive(Debug, Error)]
#[error("{MAX_VIEWERS} logs are followed already; close another page")]
pub(crate) struct TooManyViewers;

/// Who follows a log.
#[derive(Debug)]
pub(crate) struct LogViewers(Arc<Semaphore>);

impl Default for LogViewers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_VIEWERS)))
    }
}

/// One line, as the page gets it.
#[derive(Debug, Serialize)]
pub(crate) struct LogLine {
    pub(crate) time: String,
    pub(crate) stream: &'static str,
    pub(crate) text: String,
    /// Which life of the container wrote it.
    pub(crate) life: u32,
    /// It goes on in the next one.
    pub(crate) partial: bool,
}

/// An event for a browser that follows a log.
pub(crate) fn event_of(name: &str, data: &(impl Serialize + ?Sized)) -> Bytes {
    let data = serde_json::to_string(data).expect("lines are plain data");
    sse::event(name, None, &data)
}

impl LogViewers {
    /// Begins to follow. It ends when the receiver is dropped.
    pub(crate) fn follow(
        &self,
        source: DashboardSource,
        pod: PodName,
        container: String,
    ) -> Result<mpsc::Receiver<Bytes>, TooManyViewers> {
        let slot = Arc::clone(&self.0).try_acquire_owned();
        let slot = slot.map_err(|_| TooManyViewers)?;
        let (events, receiver) = mpsc::channel(BACKLOG);
        match source {
            DashboardSource::Agent(client) => {
                let reader = Reader {
                    client,
                    pod,
                    container,
                    events,
                    executor: Handle::current(),
                    _slot: slot,
                };
                tokio::task::spawn_blocking(move || reader.run());
            }
            DashboardSource::Api(observer) => {
                let reader = ApiLogReader {
                    observer,
                    pod,
                    container,
                    events,
                    _slot: slot,
                };
                tokio::spawn(reader.run());
            }
        }
        Ok(receiver)
    }
}

/// The browser has gone away.
struct Left;

struct Reader {
    client: ControlClient,
    pod: PodName,
    container: String,
    events: mpsc::Sender<Bytes>,
    executor: Handle,
    _slot: OwnedSemaphorePermit,
}

impl Reader {
    fn run(self) {
        let mut known: Option<u32> = None;
        let mut told = String::new();
        loop {
            let place = self.place();
            let opened = place.and_then(|place| {
                let log =
                    LogFile::open(&place.path).map_err(|error| format!("cannot read the log: {error}"))?;
                Ok((place.attempt, log))
            });
            let gone_on = match opened {
                // A life that was read to its end is not told again.
                Ok((attempt, _)) if known == Some(attempt) => self.pause(),
                Ok((attempt, mut log)) => {
                    told.clear();
                    let is_first = known.replace(attempt).is_none();
                    self.follow_life(attempt, &mut log, is_first)
                }
                Err(why) if why == told => self.pause(),
                Err(why) => {
                    let said = self.say("trouble", &why);
                    told = why;
                    said.and_then(|()| self.pause())
                }
            };
            if gone_on.is_err() {
                return;
            }
        }
    }

    fn place(&self) -> Result<LogPlace, String> {
        let asked = self.client.log(&self.pod, Some(&self.container), false);
        self.executor.block_on(asked).map_err(|error| error.to_string())
    }

    /// Tells a life's log until another has begun.
    fn follow_life(&self, attempt: u32, log: &mut LogFile, is_first: bool) -> Result<(), Left> {
        let mut lines = VecDeque::new();
        let mut looks = 0;
        let bound = if is_first { TAIL } else { usize::MAX };
        self.read(log, attempt, &mut lines, bound);
        self.tell(&mut lines)?;
        loop {
            self.pause()?;
            looks += 1;
            // Asked before looking: what was written before the end is told.
            let is_over = looks % LOOKS_PER_QUESTION == 0
                && self.place().map_or(true, |place| place.attempt != attempt);
            self.read(log, attempt, &mut lines, TAIL);
            self.tell(&mut lines)?;
            if is_over {
                return Ok(());
            }
        }
    }

    /// Reads what is there, of which the last lines are kept.
    fn read(&self, log: &mut LogFile, life: u32, lines: &mut VecDeque<LogLine>, bound: usize) {
        let read = log.read(&mut |entry| {
            if lines.len() >= bound.min(TAIL) {
                lines.pop_front();
            }
            lines.push_back(LogLine {
                time: entry.at.to_string(),
                stream: entry.stream.name(),
                text: String::from_utf8_lossy(entry.text)
                    .chars()
                    .take(MAX_TEXT)
                    .collect(),
                life,
                partial: entry.partial,
            });
            ControlFlow::Continue(())
        });
        if let Err(error) = read {
            tracing::debug!(pod = %self.pod, %error, "a log cannot be read");
        }
    }

    fn tell(&self, lines: &mut VecDeque<LogLine>) -> Result<(), Left> {
        while !lines.is_empty() {
            let batch: Vec<LogLine> = lines.drain(..lines.len().min(BATCH)).collect();
            self.say("log", &batch)?;
        }
        Ok(())
    }

    fn say(&self, name: &str, data: &(impl Serialize + ?Sized)) -> Result<(), Left> {
        let sent = self.events.blocking_send(event_of(name, data));
        sent.map_err(|_| Left)
    }

    fn pause(&self) -> Result<(), Left> {
        std::thread::sleep(LOOK);
        if self.events.is_closed() {
            Err(Left)
        } else {
            Ok(())
        }
    }
}
