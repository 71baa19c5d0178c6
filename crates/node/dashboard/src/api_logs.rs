//! The log of a container at an API: the end of it, then what is added, through restarts.

use std::time::Duration;

use bytes::Bytes;
use pulselet_cluster::{ObservedLog, PodObserver};
use pulselet_vocabulary::PodName;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::logs::{LogLine, MAX_TEXT, TAIL, event_of};

/// How long to wait for another life, or for an API that is away.
const PAUSE: Duration = Duration::from_secs(1);
/// How long lines are collected before they are told: a burst is one event.
const SETTLE: Duration = Duration::from_millis(50);
/// Lines told at a time.
const BATCH: usize = 200;

/// One browser that follows one log.
pub(crate) struct ApiLogReader {
    pub(crate) observer: PodObserver,
    pub(crate) pod: PodName,
    pub(crate) container: String,
    pub(crate) events: mpsc::Sender<Bytes>,
    pub(crate) _slot: OwnedSemaphorePermit,
}

/// The browser has gone away.
struct Left;

impl ApiLogReader {
    pub(crate) async fn run(self) {
        let browser = self.events.clone();
        tokio::select! {
            _ = self.follow() => {}
            () = browser.closed() => {}
        }
    }

    async fn follow(&self) -> Result<std::convert::Infallible, Left> {
        let mut known: Option<u32> = None;
        let mut last = String::new();
        let mut told = String::new();
        loop {
            match self.open().await {
                // What was read to its end is not told again, unless the server had ended it and there is more.
                Ok((life, log)) => {
                    told.clear();
                    if known != Some(life) {
                        last.clear();
                    }
                    known = Some(life);
                    self.tell(life, log, &mut last).await?;
                }
                Err(why) if why == told => {}
                Err(why) => {
                    self.say("trouble", &why).await?;
                    told = why;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The log of the life that is there, and its number.
    async fn open(&self) -> Result<(u32, ObservedLog), String> {
        let pod = self
            .observer
            .pod(&self.pod)
            .await
            .map_err(|error| error.to_string())?;
        let status = &pod.status;
        let all = status
            .init_container_statuses
            .iter()
            .chain(&status.container_statuses);
        let mut all = all.chain(&status.ephemeral_container_statuses);
        let life = all.find(|status| status.name == self.container);
        let life = life.map_or(0, |status| status.restart_count.max(0).unsigned_abs());
        let log = self.observer.log(&self.pod, &self.container, TAIL).await;
        Ok((life, log.map_err(|error| error.to_string())?))
    }

    /// Tells what comes after the time that was told last, until the log ends.
    async fn tell(&self, life: u32, mut log: ObservedLog, last: &mut String) -> Result<(), Left> {
        let mut lines = Vec::new();
        loop {
            let next = if lines.is_empty() {
                Ok(log.next().await)
            } else {
                tokio::time::timeout(SETTLE, log.next()).await
            };
            let is_over = matches!(next, Ok(None));
            let is_pause = next.is_err();
            if let Ok(Some(line)) = next
                && (line.time.is_empty() || line.time > *last)
            {
                last.clone_from(&line.time);
                lines.push(LogLine {
                    time: line.time,
                    stream: "stdout",
                    text: line.text.chars().take(MAX_TEXT).collect(),
                    life,
                    partial: false,
                });
            }
            if !lines.is_empty() && (is_over || is_pause || lines.len() >= BATCH) {
                self.say("log", &lines).await?;
                lines.clear();
            }
            if is_over {
                return Ok(());
            }
        }
    }

    async fn say(&self, name: &str, data: &(impl serde::Serialize + ?Sized + Sync)) -> Result<(), Left> {
        let sent = self.events.send(event_of(name, data)).await;
        sent.map_err(|_| Left)
    }
}
