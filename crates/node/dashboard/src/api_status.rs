//! What a change of a pod's status at an API means, as event lines.
//!
//! Pure: the status before, the status now and the time go in, lines come out. A pod that is seen for the first time tells
//! what its status still knows: its containers' lives and how the last ones ended.

use jiff::Timestamp;
use pulselet_engine::line::{ExitReason, GraceFrom, KillReason, LineBody, Phase};
use pulselet_engine::time::Span;
use pulselet_model::openapi::api::core::v1::ContainerStateTerminated;
use pulselet_model::openapi::apimachinery::pkg::apis::meta::v1::Time;
use pulselet_model::{ContainerStatusFields, Pod, PodStatus};
use pulselet_plan::duration::parse_duration;

use crate::api_lines::ApiLine;

/// Lines of what is another now than before; `before` is `None` for a pod that was not known.
pub(crate) fn lines(before: Option<&Pod>, pod: &Pod, now: Timestamp) -> Vec<ApiLine> {
    let mut lines = Vec::new();
    phase(before, pod, now, &mut lines);
    for status in statuses(&pod.status) {
        let known = before.and_then(|before| status_of(&before.status, &status.name));
        let change = ContainerChange {
            before: known,
            status,
            ready_at: ready_at(before, pod, now),
            now,
        };
        change.tell(&mut lines);
    }
    deletion(before, pod, &mut lines);
    readiness(before, pod, now, &mut lines);
    lines
}

/// When the life of a container began in which it was at a time; `None` if the status does not know it.
pub(crate) fn life_began(pod: &Pod, container: &str, at: Timestamp) -> Option<Timestamp> {
    let status = status_of(&pod.status, container)?;
    let running = status
        .state
        .running
        .as_ref()
        .and_then(|state| state.started_at.as_ref());
    let ended = [&status.state.terminated, &status.last_state.terminated];
    let ended = ended
        .into_iter()
        .flatten()
        .filter_map(|state| state.started_at.as_ref());
    let began = running.into_iter().chain(ended).map(|time| time.0);
    began.filter(|began| *began <= at).max()
}

fn moment(time: Option<&Time>) -> Option<Timestamp> {
    time.map(|time| time.0)
}

fn statuses(status: &PodStatus) -> impl Iterator<Item = &ContainerStatusFields> {
    let init = status.init_container_statuses.iter();
    init.chain(&status.container_statuses)
        .chain(&status.ephemeral_container_statuses)
}

fn status_of<'s>(status: &'s PodStatus, container: &str) -> Option<&'s ContainerStatusFields> {
    statuses(status).find(|status| status.name == container)
}

fn phase(before: Option<&Pod>, pod: &Pod, now: Timestamp, lines: &mut Vec<ApiLine>) {
    let phases = [Phase::Pending, Phase::Running, Phase::Succeeded, Phase::Failed];
    let is_other = before.is_none_or(|before| before.status.phase != pod.status.phase);
    let phase = phases
        .into_iter()
        .find(|phase| phase.as_str() == pod.status.phase);
    if let Some(phase) = phase.filter(|_| is_other) {
        let begun = || moment(pod.metadata.creation_timestamp.as_ref());
        let at = before.map_or_else(|| begun().unwrap_or(now), |_| now);
        lines.push(ApiLine::of_pod(at, LineBody::Phase { phase }));
    }
}

/// Whether a condition holds, and since when.
fn condition(pod: &Pod, name: &str) -> Option<(bool, Option<Timestamp>)> {
    let condition = pod
        .status
        .conditions
        .iter()
        .find(|condition| condition.type_ == name)?;
    Some((
        condition.status == "True",
        moment(condition.last_transition_time.as_ref()),
    ))
}

/// The pod's own Ready condition.
fn readiness(before: Option<&Pod>, pod: &Pod, now: Timestamp, lines: &mut Vec<ApiLine>) {
    let was_ready = before.and_then(|before| condition(before, "Ready"));
    let was_ready = was_ready.is_some_and(|(is_ready, _)| is_ready);
    if let Some((is_ready, since)) = condition(pod, "Ready")
        && is_ready != was_ready
    {
        let body = if is_ready {
            LineBody::Ready
        } else {
            LineBody::Unready
        };
        lines.push(ApiLine::of_pod(since.unwrap_or(now), body));
    }
}

/// When the readiness of containers changed: what the condition says if it is another now, else this moment.
fn ready_at(before: Option<&Pod>, pod: &Pod, now: Timestamp) -> Timestamp {
    let since = |pod: &Pod| condition(pod, "ContainersReady").and_then(|(_, since)| since);
    let is_other = before.is_none_or(|before| since(before) != since(pod));
    since(pod).filter(|_| is_other).unwrap_or(now)
}

/// A deletion is a kill of what runs; the time of a deletion is that of its end.
fn deletion(before: Option<&Pod>, pod: &Pod, lines: &mut Vec<ApiLine>) {
    let Some(end) = moment(pod.metadata.deletion_timestamp.as_ref()) else {
        return;
    };
    if before.is_some_and(|before| before.metadata.deletion_timestamp == pod.metadata.deletion_timestamp) {
        return;
    }
    let seconds = pod.metadata.deletion_grace_period_seconds.unwrap_or(0).max(0);
    let at = Timestamp::from_second(end.as_second() - seconds).unwrap_or(end);
    for status in statuses(&pod.status).filter(|status| status.state.running.is_some()) {
        let body = LineBody::Killing {
            reason: KillReason::Deleted,
            grace_period_seconds: Span::from_secs(seconds.unsigned_abs()),
            grace_from: GraceFrom::Deletion,
        };
        lines.push(ApiLine::of_container(at, &status.name, body));
    }
}

/// One container, before and now.
struct ContainerChange<'s> {
    /// `None` if it was not known.
    before: Option<&'s ContainerStatusFields>,
    status: &'s ContainerStatusFields,
    ready_at: Timestamp,
    now: Timestamp,
}

impl ContainerChange<'_> {
    fn tell(&self, lines: &mut Vec<ApiLine>) {
        let status = self.status;
        let restarts = status.restart_count.max(0).unsigned_abs();
        if let Some(ended) = &status.last_state.terminated {
            self.end(ended, restarts.saturating_sub(1), lines);
        }
        if let Some(ended) = &status.state.terminated {
            self.end(ended, restarts, lines);
        }
        let began = moment(
            status
                .state
                .running
                .as_ref()
                .and_then(|state| state.started_at.as_ref()),
        );
        if let Some(began) = began {
            self.life(began, restarts, lines);
        }
        self.backoff(lines);
    }

    fn push(&self, at: Timestamp, body: LineBody, lines: &mut Vec<ApiLine>) {
        lines.push(ApiLine::of_container(at, &self.status.name, body));
    }

    /// The beginning of the life that was told before.
    fn told_life(&self) -> Option<Timestamp> {
        let state = self.before?.state.running.as_ref()?;
        moment(state.started_at.as_ref())
    }

    fn running(&self, at: Timestamp, restart_count: u32, lines: &mut Vec<ApiLine>) {
        let id = self.status.container_id.as_str().into();
        self.push(at, LineBody::Running { id, restart_count }, lines);
    }

    /// An end, once, after the beginning of that life if nobody has told it.
    fn end(&self, ended: &ContainerStateTerminated, restarts: u32, lines: &mut Vec<ApiLine>) {
        let is_told = self.before.is_some_and(|before| {
            let told = [&before.state.terminated, &before.last_state.terminated];
            told.into_iter().flatten().any(|told| {
                (&told.container_id, &told.finished_at) == (&ended.container_id, &ended.finished_at)
            })
        });
        if is_told {
            return;
        }
        let began = moment(ended.started_at.as_ref());
        let finished = moment(ended.finished_at.as_ref()).unwrap_or(self.now);
        if let Some(began) = began.filter(|began| Some(*began) != self.told_life() && *began <= finished) {
            self.running(began, restarts, lines);
        }
        let body = LineBody::Exited {
            exit_code: ended.exit_code,
            reason: exit_reason(ended),
            seconds: None,
        };
        self.push(finished, body, lines);
    }

    fn life(&self, began: Timestamp, restarts: u32, lines: &mut Vec<ApiLine>) {
        let status = self.status;
        let same = self.before.filter(|_| self.told_life() == Some(began));
        if same.is_none() {
            self.running(began, restarts, lines);
        }
        let was_started = same.is_some_and(|before| before.started == Some(true));
        let was_ready = same.is_some_and(|before| before.ready);
        if status.started == Some(true) && !was_started {
            // When it started is known only to those who watched.
            let at = self.before.map_or(began, |_| self.now);
            self.push(at, LineBody::Started, lines);
        }
        if status.ready != was_ready {
            let body = if status.ready {
                LineBody::Ready
            } else {
                LineBody::Unready
            };
            self.push(self.ready_at.max(began), body, lines);
        }
    }

    fn backoff(&self, lines: &mut Vec<ApiLine>) {
        let waits = |status: &ContainerStatusFields| {
            let waiting = status.state.waiting.as_ref()?;
            let is_crash = waiting.reason.as_deref() == Some("CrashLoopBackOff");
            is_crash.then(|| {
                (
                    status.restart_count,
                    backoff_span(waiting.message.as_deref().unwrap_or_default()),
                )
            })
        };
        let Some((life, seconds)) = waits(self.status) else {
            return;
        };
        if self
            .before
            .and_then(waits)
            .is_some_and(|(before, _)| before == life)
        {
            return;
        }
        let ended = self.status.last_state.terminated.as_ref();
        let at = moment(ended.and_then(|ended| ended.finished_at.as_ref())).unwrap_or(self.now);
        self.push(at, LineBody::Backoff { seconds }, lines);
    }
}

/// Upstream has more reasons than a node of ours; all of them are errors.
fn exit_reason(ended: &ContainerStateTerminated) -> ExitReason {
    let reasons = [
        ExitReason::Completed,
        ExitReason::OOMKilled,
        ExitReason::StartError,
        ExitReason::RestartingAllContainers,
    ];
    let told = ended.reason.as_deref().unwrap_or_default();
    let known = reasons.into_iter().find(|reason| reason.as_str() == told);
    known.unwrap_or(ExitReason::Error)
}

/// From `back-off 2m40s restarting failed container=app ...`; nothing if it is worded otherwise.
fn backoff_span(message: &str) -> Span {
    let words = message
        .strip_prefix("back-off ")
        .and_then(|rest| rest.split(' ').next());
    words
        .and_then(|text| parse_duration(text).ok())
        .unwrap_or(Span::ZERO)
}
