//! What the containers of a run print, each line with the name of its container before it.
//!
//! The files that shims keep are read, those of every life from its beginning on. Whoever shows lines of a pod looks here
//! first, so that what a container said comes before the news of its end.

use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pulselet_agent::{Layout, LogFile, PodLine, PodView};
use pulselet_engine::line::LineBody;
use pulselet_runtime::log::LogEntry;
use pulselet_vocabulary::PodName;

use super::state::Pods;
use super::text::{printable, subject};
use crate::output::{CYAN, RESET};

/// How often logs are looked at while nothing else happens.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes of a line that are gathered before it is shown in pieces.
const MAX_LINE: usize = 16 * 1024;

/// The logs that are shown.
#[derive(Debug)]
pub(super) struct ContainerLogs {
    layout: Layout,
    /// Several pods: each line names its own.
    several: bool,
    followed: Vec<Followed>,
}

/// One life's log.
#[derive(Debug)]
struct Followed {
    uid: Arc<str>,
    container: Arc<str>,
    attempt: u32,
    prefix: String,
    path: PathBuf,
    /// `None` if its shim has not made it yet.
    file: Option<LogFile>,
    /// A line that has not ended yet.
    unfinished: Vec<u8>,
    /// Its container has ended: what is there now is all.
    ended: bool,
    /// What was printed before this run is not shown again.
    skips: bool,
}

impl ContainerLogs {
    pub(super) fn new(layout: Layout, pods: &Pods) -> Self {
        Self {
            layout,
            several: pods.iter().count() > 1,
            followed: Vec::new(),
        }
    }

    /// Takes note of what happens to a container.
    pub(super) fn note(&mut self, line: &PodLine) {
        let Some(container) = &line.line.container else {
            return;
        };
        match &line.line.body {
            LineBody::Created { restart_count, .. } | LineBody::Running { restart_count, .. } => {
                self.follow(&line.pod, &line.uid, container, *restart_count, false);
            }
            LineBody::Exited { .. } => {
                for log in &mut self.followed {
                    log.ended |= log.uid == line.uid && log.container == *container;
                }
            }
            LineBody::Probe { .. }
            | LineBody::Started
            | LineBody::Ready
            | LineBody::Unready
            | LineBody::Killing { .. }
            | LineBody::Hook { .. }
            | LineBody::Signal { .. }
            | LineBody::GraceExceeded { .. }
            | LineBody::Backoff { .. }
            | LineBody::RestartAllContainers { .. }
            | LineBody::Phase { .. }
            | LineBody::Deleted
            | LineBody::AgentRestarted
            | LineBody::Warning { .. } => {}
        }
    }

    /// Takes note of containers that ran before this run began.
    pub(super) fn recall(&mut self, view: &PodView) {
        let statuses = view.status.init_container_statuses.iter();
        for status in statuses.chain(&view.status.container_statuses) {
            if status.state.running.is_some() {
                let attempt = u32::try_from(status.restart_count).unwrap_or_default();
                let (uid, container) = (view.uid.as_str().into(), status.name.as_str().into());
                self.follow(&view.pod_name(), &uid, &container, attempt, true);
            }
        }
    }

    fn follow(&mut self, pod: &PodName, uid: &Arc<str>, container: &Arc<str>, attempt: u32, skips: bool) {
        let same = |log: &Followed| log.uid == *uid && log.container == *container && log.attempt == attempt;
        if self.followed.iter().any(same) {
            return;
        }
        self.followed.push(Followed {
            uid: Arc::clone(uid),
            container: Arc::clone(container),
            attempt,
            prefix: subject(self.several, pod, Some(container)),
            path: self.layout.container_log(pod, uid, container, attempt),
            file: None,
            unfinished: Vec::new(),
            ended: false,
            skips,
        });
    }

    /// Hands out the lines there are now.
    pub(super) fn read(&mut self, each: &mut dyn FnMut(String)) {
        self.read_if(|_| true, each);
    }

    /// Hands out what the containers of a pod had printed before this happened to it. The logs of all others wait for the
    /// next look: with many pods something happens all the time.
    pub(super) fn read_before(&mut self, line: &PodLine, each: &mut dyn FnMut(String)) {
        self.read_if(|log| log.uid == line.uid, each);
    }

    fn read_if(&mut self, wanted: impl Fn(&Followed) -> bool, each: &mut dyn FnMut(String)) {
        self.followed.retain_mut(|log| {
            if !wanted(log) {
                return true;
            }
            // A log that cannot be read is no reason to end a run; the file stays where it is.
            let _ = log.read(each);
            !log.ended
        });
    }
}

impl Followed {
    fn read(&mut self, each: &mut dyn FnMut(String)) -> io::Result<()> {
        if self.file.is_none() {
            let mut file = LogFile::open(&self.path)?;
            if self.skips {
                file.read(&mut |_| ControlFlow::Continue(()))?;
            }
            self.file = Some(file);
        }
        let Self {
            file: Some(file),
            prefix,
            unfinished,
            ..
        } = self
        else {
            return Ok(());
        };
        let read = file.read(&mut |entry| {
            take(entry, unfinished, &mut |line| each(prefixed(prefix, line)));
            ControlFlow::Continue(())
        });
        if self.ended && !self.unfinished.is_empty() {
            each(prefixed(&self.prefix, &std::mem::take(&mut self.unfinished)));
        }
        read
    }
}

/// Puts the pieces of a line together.
fn take(entry: &LogEntry<'_>, unfinished: &mut Vec<u8>, each: &mut dyn FnMut(&[u8])) {
    if !entry.partial && unfinished.is_empty() {
        return each(entry.text);
    }
    unfinished.extend_from_slice(entry.text);
    if !entry.partial || unfinished.len() >= MAX_LINE {
        each(&std::mem::take(unfinished));
    }
}

fn prefixed(prefix: &str, line: &[u8]) -> String {
    let text = printable(&String::from_utf8_lossy(line));
    format!("{CYAN}{prefix} |{RESET} {text}")
}

/// The last lines of a log; empty where there is none.
pub(super) fn tail(path: &std::path::Path, lines: usize) -> Vec<String> {
    let mut last = std::collections::VecDeque::new();
    let mut unfinished = Vec::new();
    let mut keep = |line: &[u8]| {
        last.push_back(printable(&String::from_utf8_lossy(line)));
        if last.len() > lines {
            last.pop_front();
        }
    };
    if let Ok(mut file) = LogFile::open(path) {
        // What could be read is shown.
        let _ = file.read(&mut |entry| {
            take(entry, &mut unfinished, &mut keep);
            ControlFlow::Continue(())
        });
    }
    if !unfinished.is_empty() {
        keep(&unfinished);
    }
    last.into()
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::{line, pods};
    use super::*;
    use pulselet_engine::line::ExitReason;

    #[test]
    fn lines_are_put_together_and_carry_the_name_of_their_container() {
        let directory = tempfile::tempdir().unwrap();
        let pods = pods();
        let mut logs = ContainerLogs::new(Layout::new(directory.path()), &pods);
        let running = LineBody::Running {
            id: "c".into(),
            restart_count: 0,
        };
        let running = line(&pods, 0, true, running);
        logs.note(&running);
        let mut shown = Vec::new();
        let mut look = |logs: &mut ContainerLogs| {
            logs.read(&mut |line| shown.push(anstream::adapter::strip_str(&line).to_string()));
            std::mem::take(&mut shown)
        };
        assert!(look(&mut logs).is_empty(), "there is no file yet");
        let path = &logs.layout.container_log(&running.pod, &running.uid, "app", 0);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let entry = |tag: &str, text: &str| format!("2026-01-02T03:04:05.000000000Z stdout {tag} {text}\n");
        let text = [
            entry("P", "on"),
            entry("F", "e"),
            entry("F", "\x1b[2Jtwo"),
            entry("P", "three"),
        ];
        std::fs::write(path, text.concat()).unwrap();
        assert_eq!(look(&mut logs), ["app | one", "app |  [2Jtwo"]);
        let exited = LineBody::Exited {
            exit_code: 0,
            reason: ExitReason::Completed,
            seconds: None,
        };
        let exited = line(&pods, 1, true, exited);
        logs.note(&exited);
        let mut other = exited.clone();
        other.uid = "another".into();
        let mut before = |line: &PodLine| {
            let mut shown = Vec::new();
            logs.read_before(line, &mut |line| {
                shown.push(anstream::adapter::strip_str(&line).to_string());
            });
            shown
        };
        assert!(before(&other).is_empty(), "what happens to another pod");
        assert_eq!(before(&exited), ["app | three"]);
        assert!(logs.followed.is_empty());
        assert_eq!(tail(path, 2), [" [2Jtwo", "three"]);
    }
}
