//! What a step makes known: lines to their readers, events, the records of kills, and the node's log.
//!
//! Nothing is decided here: what the agent goes by are the engine's transitions, which `transitions` keeps.

use std::sync::Arc;

use pulselet_engine::event::Event;
use pulselet_engine::line::LineBody;
use pulselet_engine::{Line, PodKey};
use pulselet_vocabulary::{PodName, Severity};

use super::Agent;
use super::entry::PodEntry;
use crate::publish::feed::PodEvent;
use crate::publish::lines::PodLine;
use crate::spans;
use crate::state::clock::Clock;
use crate::state::store::{EventRow, KillRow};

/// Bytes of an event's message that are kept, as the API allows.
const MAX_EVENT_MESSAGE: usize = 1024;

impl Agent {
    /// Records the kills and events of a step. Its lines are published later.
    pub(super) fn record(&mut self, key: PodKey, lines: &[Line], events: &[Event]) {
        let clock = self.jobs.clock;
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        for line in lines {
            let pod = (
                entry.pod_name.clone(),
                Arc::clone(&entry.identity.uid),
                entry.accepted_at,
            );
            let to_json = |line: &Line| pod_line(pod.clone(), line.clone(), clock).to_json();
            if let Some(kill) = entry.history.note(line, &to_json) {
                self.journal.kill(KillRow {
                    uid: entry.identity.uid.to_string(),
                    pod: entry.pod_name.to_string(),
                    container: kill.container.to_string(),
                    attempt: kill.attempt,
                    at: kill.at,
                    lines: kill.lines,
                });
            }
            log(entry, line);
        }
        for event in events {
            let at = clock.wall(clock.now());
            if let Some(feed) = &self.api_feed {
                feed.event(pod_event(entry, event, at));
            }
            self.journal
                .event(event_row(&entry.identity.uid, event, at.as_second()));
        }
    }

    pub(super) fn publish(&self, key: PodKey, lines: impl IntoIterator<Item = Line>) {
        if self.hub.is_silent() {
            return;
        }
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        for line in lines {
            let pod = (
                entry.pod_name.clone(),
                Arc::clone(&entry.identity.uid),
                entry.accepted_at,
            );
            self.hub.publish(&Arc::new(pod_line(pod, line, self.jobs.clock)));
        }
    }

    /// A warning that concerns every pod.
    pub(super) fn warn_all(&self, message: &str) {
        for key in self.entries.keys() {
            let body = LineBody::Warning {
                message: message.to_owned(),
            };
            self.publish(*key, [self.line(None, body)]);
        }
    }

    /// A warning of the node's own about a container, as a line and as an event.
    pub(super) fn warn(&mut self, key: PodKey, container: Arc<str>, reason: &'static str, message: String) {
        let body = LineBody::Warning {
            message: message.clone(),
        };
        self.publish(key, [self.line(Some(Arc::clone(&container)), body)]);
        let event = Event {
            container: Some(container),
            severity: Severity::Warning,
            reason,
            message,
        };
        self.record(key, &[], &[event]);
    }

    /// Something that the pod's owner should know and that concerns no single container.
    pub(super) fn warn_of_pod(&mut self, key: PodKey, reason: &'static str, message: String) {
        let body = LineBody::Warning {
            message: message.clone(),
        };
        self.publish(key, [self.line(None, body)]);
        let event = Event {
            container: None,
            severity: Severity::Warning,
            reason,
            message,
        };
        self.record(key, &[], &[event]);
    }

    /// Volumes that cannot be written: an event every time, a line when it is new.
    pub(super) fn failed_mount(&mut self, key: PodKey, messages: Vec<String>, is_new: bool) {
        for message in messages {
            if is_new {
                let message = message.clone();
                self.publish(key, [self.line(None, LineBody::Warning { message })]);
            }
            let event = Event {
                container: None,
                severity: Severity::Warning,
                reason: "FailedMount",
                message,
            };
            self.record(key, &[], &[event]);
        }
    }

    fn line(&self, container: Option<Arc<str>>, body: LineBody) -> Line {
        Line {
            at: self.jobs.clock.now(),
            container,
            body,
        }
    }
}

fn pod_line(pod: (PodName, Arc<str>, pulselet_engine::Time), line: Line, clock: Clock) -> PodLine {
    let (pod, uid, accepted_at) = pod;
    PodLine {
        pod,
        uid,
        t: line.at.since(accepted_at),
        time: clock.wall(line.at),
        line,
    }
}

fn shortened(message: &str) -> String {
    message[..message.floor_char_boundary(MAX_EVENT_MESSAGE)].to_owned()
}

fn pod_event(entry: &PodEntry, event: &Event, at: jiff::Timestamp) -> PodEvent {
    PodEvent {
        pod: entry.pod_name.clone(),
        uid: Arc::clone(&entry.identity.uid),
        origin: entry.origin.clone(),
        container: event.container.clone(),
        severity: event.severity,
        reason: event.reason,
        message: shortened(&event.message),
        at,
    }
}

fn event_row(uid: &str, event: &Event, at: i64) -> EventRow {
    EventRow {
        uid: uid.to_owned(),
        container: event.container.as_deref().unwrap_or_default().to_owned(),
        severity: event.severity.as_str().to_owned(),
        reason: event.reason.to_owned(),
        message: shortened(&event.message),
        count: 1,
        first: at,
        last: at,
    }
}

/// What an operator wants in the log without asking for more.
fn log(entry: &PodEntry, line: &Line) {
    let span = || match &line.container {
        Some(container) => spans::container(&entry.pod_name, container, None),
        None => entry.span(),
    };
    match &line.body {
        LineBody::Killing {
            reason,
            grace_period_seconds: grace,
            grace_from: from,
        } => span().in_scope(|| tracing::info!(?reason, %grace, ?from, "the container is stopped")),
        LineBody::Exited {
            exit_code, reason, ..
        } => {
            let reason = reason.as_str();
            span().in_scope(|| tracing::info!(exit_code, reason, "the container has exited"));
        }
        LineBody::GraceExceeded { .. } => {
            span().in_scope(|| tracing::warn!("the grace period was exceeded, so SIGKILL is needed"));
        }
        LineBody::Warning { message } => span().in_scope(|| tracing::warn!("{message}")),
        LineBody::Phase { phase } => {
            span().in_scope(|| tracing::info!(phase = phase.as_str(), "the pod's phase has changed"));
        }
        LineBody::Deleted => span().in_scope(|| tracing::info!("the pod is deleted")),
        LineBody::Running { restart_count, .. } => {
            span().in_scope(|| tracing::info!(restart_count, "the container runs"));
        }
        LineBody::Backoff { seconds } => {
            span().in_scope(|| tracing::info!(%seconds, "the container waits before its next start"));
        }
        LineBody::RestartAllContainers { exit_code } => {
            span().in_scope(|| tracing::info!(exit_code, "all containers restart"));
        }
        LineBody::Created { .. }
        | LineBody::Probe { .. }
        | LineBody::Started
        | LineBody::Ready
        | LineBody::Unready
        | LineBody::Hook { .. }
        | LineBody::Signal { .. }
        | LineBody::AgentRestarted => {
            // Attempts of probes are many: no span is made for nobody.
            if tracing::enabled!(tracing::Level::DEBUG) {
                span().in_scope(|| tracing::debug!(line = ?line.body, "a line"));
            }
        }
    }
}
