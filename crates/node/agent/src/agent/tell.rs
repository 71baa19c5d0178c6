//! What a step tells: lines, events, history and metrics.

use std::sync::Arc;
use std::time::Duration;

use pulselet_engine::event::{Event, Severity};
use pulselet_engine::line::{KillReason, LineBody, LineOutcome};
use pulselet_engine::plan::Kind;
use pulselet_engine::status::ContainerState;
use pulselet_engine::{Line, PodKey};

use super::Agent;
use super::entry::{Entry, Life, LifeStage, Stopping};
use crate::endpoints::metrics::{Metrics, ProbeName, StopOutcome};
use crate::publish::feed::PodEvent;
use crate::publish::lines::PodLine;
use crate::state::clock::Clock;
use crate::state::store::{EventRow, KillRow};

/// Bytes of an event's message that are kept, as the API allows.
const MAX_EVENT_MESSAGE: usize = 1024;

impl Agent {
    /// Writes history, events and metrics of a step. Its lines are published later.
    pub(super) fn take_note(&mut self, key: PodKey, lines: &[Line], events: &[Event]) {
        let clock = self.tools.clock;
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        for line in lines {
            let pod = (
                Arc::clone(&entry.label),
                Arc::clone(&entry.identity.uid),
                entry.accepted_at,
            );
            let to_json = |line: &Line| pod_line(pod.clone(), line.clone(), clock).to_json();
            if let Some(story) = entry.history.note(line, &to_json) {
                self.journal.kill(KillRow {
                    uid: entry.identity.uid.to_string(),
                    pod: entry.label.to_string(),
                    container: story.container.to_string(),
                    attempt: story.attempt,
                    at: story.at,
                    lines: story.lines,
                });
            }
            measure(entry, line, &self.metrics);
            log(entry, line);
        }
        for event in events {
            let at = clock.wall(clock.now());
            if let Some(told) = &self.told {
                told.event(pod_event(entry, event, at));
            }
            self.journal
                .event(event_row(&entry.identity.uid, event, at.as_second()));
        }
        if lines.iter().any(|line| ends_a_worker(&line.body)) {
            self.forget_finished_workers(key);
        }
    }

    /// Removes the series of workers that have no further life to probe.
    fn forget_finished_workers(&self, key: PodKey) {
        let (Some(entry), Some(pod)) = (self.entries.get(&key), self.pods.get(key)) else {
            return;
        };
        let status = pod.status();
        for container in &status.containers {
            let finished = matches!(container.state, ContainerState::Terminated(_));
            for kind in Kind::ALL {
                let quiet = pod.is_deleting() && kind != Kind::Readiness;
                if status.phase.is_terminal() || finished || quiet {
                    self.metrics
                        .forget_probe(&probe_name(entry, &container.name, kind));
                }
            }
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
                Arc::clone(&entry.label),
                Arc::clone(&entry.identity.uid),
                entry.accepted_at,
            );
            self.hub.publish(&Arc::new(pod_line(pod, line, self.tools.clock)));
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
        self.take_note(key, &[], &[event]);
    }

    /// Volumes that cannot be written: an event every time, a line when it is news.
    pub(super) fn failed_mount(&mut self, key: PodKey, messages: Vec<String>, is_news: bool) {
        for message in messages {
            if is_news {
                let message = message.clone();
                self.publish(key, [self.line(None, LineBody::Warning { message })]);
            }
            let event = Event {
                container: None,
                severity: Severity::Warning,
                reason: "FailedMount",
                message,
            };
            self.take_note(key, &[], &[event]);
        }
    }

    fn line(&self, container: Option<Arc<str>>, body: LineBody) -> Line {
        Line {
            at: self.tools.clock.now(),
            container,
            body,
        }
    }
}

fn pod_line(pod: (Arc<str>, Arc<str>, pulselet_engine::Time), line: Line, clock: Clock) -> PodLine {
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

fn pod_event(entry: &Entry, event: &Event, at: jiff::Timestamp) -> PodEvent {
    PodEvent {
        namespace: Arc::clone(&entry.identity.namespace),
        name: Arc::clone(&entry.identity.name),
        uid: Arc::clone(&entry.identity.uid),
        origin: entry.origin.clone(),
        container: event.container.clone(),
        severity: event.severity.as_str(),
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

fn ends_a_worker(body: &LineBody) -> bool {
    match body {
        LineBody::Exited { .. } | LineBody::Deleted | LineBody::Killing { .. } => true,
        LineBody::Phase { phase } => phase.is_terminal(),
        LineBody::Created { .. }
        | LineBody::Running { .. }
        | LineBody::Probe { .. }
        | LineBody::Started
        | LineBody::Ready
        | LineBody::Unready
        | LineBody::Hook { .. }
        | LineBody::Signal { .. }
        | LineBody::GraceExceeded { .. }
        | LineBody::Backoff { .. }
        | LineBody::AgentRestarted
        | LineBody::Warning { .. } => false,
    }
}

pub(super) fn probe_name(entry: &Entry, container: &Arc<str>, kind: Kind) -> ProbeName {
    ProbeName {
        kind,
        container: Arc::clone(container),
        pod: Arc::clone(&entry.identity.name),
        namespace: Arc::clone(&entry.identity.namespace),
        uid: Arc::clone(&entry.identity.uid),
    }
}

/// Keeps the facts that metrics are made of, and those that the spare copy must show.
fn measure(entry: &mut Entry, line: &Line, metrics: &Metrics) {
    let at = line.at;
    match &line.body {
        LineBody::Probe { outcome, .. } => {
            let good = matches!(outcome, LineOutcome::Success | LineOutcome::Warning);
            if let Some(life) = life_of(entry, line).filter(|life| good && !life.succeeded) {
                life.succeeded = true;
                if let Some(since) = life.running_since() {
                    metrics.first_success(at.since(since).into());
                }
            }
            return;
        }
        LineBody::Running { .. } => {
            if let Some(life) = life_of(entry, line) {
                life.stage = LifeStage::Running { since: at };
            }
        }
        LineBody::Killing { reason, .. } => {
            if let Some(life) = life_of(entry, line) {
                let since = life.stopping.map_or(at, |stopping| stopping.since);
                life.stopping = Some(Stopping {
                    reason: *reason,
                    since,
                    forced: false,
                });
            }
        }
        LineBody::GraceExceeded { .. } => grace_exceeded(entry, line, metrics),
        LineBody::Signal { signal } if &**signal == "SIGKILL" => {
            if let Some(stopping) = life_of(entry, line).and_then(|life| life.stopping.as_mut()) {
                stopping.forced = true;
            }
        }
        LineBody::Exited { .. } => {
            if let Some(life) = life_of(entry, line) {
                exited(life, at, metrics);
            }
        }
        LineBody::Created { id, .. } => {
            let mut lives = entry.lives.iter_mut();
            if let Some(life) = lives.find(|life| life.id.as_str() == &**id) {
                life.stage = LifeStage::Created;
            }
        }
        LineBody::Started
        | LineBody::Ready
        | LineBody::Unready
        | LineBody::Phase { .. }
        | LineBody::Deleted => {}
        LineBody::Signal { .. }
        | LineBody::Hook { .. }
        | LineBody::Backoff { .. }
        | LineBody::AgentRestarted
        | LineBody::Warning { .. } => return,
    }
    entry.changed_visibly = true;
}

fn life_of<'e>(entry: &'e mut Entry, line: &Line) -> Option<&'e mut Life> {
    entry.newest(line.container.as_deref()?)
}

fn grace_exceeded(entry: &mut Entry, line: &Line, metrics: &Metrics) {
    let Some(stopping) = life_of(entry, line).and_then(|life| life.stopping.as_mut()) else {
        return;
    };
    stopping.forced = true;
    let of_the_pod = match stopping.reason {
        KillReason::Deleted | KillReason::Evicted | KillReason::Deadline | KillReason::Completed => true,
        KillReason::StartupProbe
        | KillReason::LivenessProbe
        | KillReason::SandboxChanged
        | KillReason::PostStartHook => false,
    };
    if of_the_pod && !entry.grace_exceeded {
        entry.grace_exceeded = true;
        metrics.grace_exceeded();
    }
}

fn exited(life: &mut Life, at: pulselet_engine::Time, metrics: &Metrics) {
    life.stage = LifeStage::Ended;
    if let Some(stopping) = life.stopping.take() {
        let outcome = match (life.unseen_end, stopping.forced) {
            (true, _) => StopOutcome::Error,
            (false, true) => StopOutcome::Killed,
            (false, false) => StopOutcome::Graceful,
        };
        let took: Duration = at.since(stopping.since).into();
        metrics.stopped(stopping.reason, outcome, took);
    }
}

/// What an operator wants in the log without asking for more.
fn log(entry: &Entry, line: &Line) {
    let pod = &*entry.label;
    let container = line.container.as_deref().unwrap_or_default();
    match &line.body {
        LineBody::Killing {
            reason,
            grace_period_seconds,
            grace_from,
        } => {
            tracing::info!(pod, container, ?reason, grace = %grace_period_seconds, from = ?grace_from, "killing");
        }
        LineBody::Exited {
            exit_code, reason, ..
        } => tracing::info!(pod, container, exit_code, reason = reason.as_str(), "exited"),
        LineBody::GraceExceeded { .. } => tracing::warn!(pod, container, "grace period exceeded, killed"),
        LineBody::Warning { message } => tracing::warn!(pod, container, "{message}"),
        LineBody::Phase { phase } => tracing::info!(pod, phase = phase.as_str(), "phase"),
        LineBody::Deleted => tracing::info!(pod, "deleted"),
        LineBody::Running { restart_count, .. } => tracing::info!(pod, container, restart_count, "running"),
        LineBody::Backoff { seconds } => {
            tracing::info!(pod, container, %seconds, "waiting before the next start");
        }
        LineBody::Created { .. }
        | LineBody::Probe { .. }
        | LineBody::Started
        | LineBody::Ready
        | LineBody::Unready
        | LineBody::Hook { .. }
        | LineBody::Signal { .. }
        | LineBody::AgentRestarted => tracing::debug!(pod, container, line = ?line.body),
    }
}
