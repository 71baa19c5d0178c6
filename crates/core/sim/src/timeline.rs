//! A pod's story as lanes: one per container, with its states, its probes and what was done to it.
//!
//! A timeline is built from event lines as they come and holds nothing that the lines do not say. Runs of equal probes
//! are kept as one, so a healthy day costs no more than a healthy minute. `svg` and `html` draw it; `text` does not
//! need it and tells the lines one by one.

mod html;
mod recorded;
mod svg;
mod text;
pub mod wording;

use std::sync::Arc;

use pulselet_engine::line::{KillReason, Line, LineBody, LineOutcome};
use pulselet_engine::plan::ProbeKind;
use pulselet_engine::time::{Span, Time};

use pulselet_plan::duration::format_duration;
use pulselet_vocabulary::PodName;

pub use html::html;
pub use recorded::{RecordedBody, RecordedLine, RecordedWord};
pub use svg::svg;
pub use text::TextTimeline;

/// Probes whose exact times are kept, over all lanes; further ones only lengthen their run. At ten thousand marks a
/// browser still zooms without a stutter.
const MAX_EXACT_PROBES: usize = 10_000;
/// Marks kept over all lanes: a container that crashes in a loop for a day makes fewer.
const MAX_MARKS: usize = 10_000;

#[derive(Clone, Debug)]
pub struct Timeline {
    pub pod: PodName,
    pub end: Time,
    pub lanes: Vec<Lane>,
    /// What concerns the pod as a whole.
    pub marks: Vec<Mark>,
    exact_probes: usize,
    kept_marks: usize,
}

#[derive(Clone, Debug)]
pub struct Lane {
    pub container: Arc<str>,
    pub segments: Vec<Segment>,
    pub probes: Vec<ProbeRun>,
    pub marks: Vec<Mark>,
    /// Whether the current life is being stopped: from then on readiness changes no segment.
    stopping: bool,
}

/// A stretch of time in one state.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    pub state: LaneState,
    pub from: Time,
    /// None while it lasts.
    pub until: Option<Time>,
    pub life: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneState {
    Starting,
    Started,
    Ready,
    Terminating,
    /// Between two lives.
    BackingOff,
}

impl LaneState {
    pub const ALL: [Self; 5] = [
        Self::Starting,
        Self::Started,
        Self::Ready,
        Self::Terminating,
        Self::BackingOff,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Started => "started",
            Self::Ready => "ready",
            Self::Terminating => "terminating",
            Self::BackingOff => "back-off",
        }
    }
}

/// Equal probes in a row.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeRun {
    pub kind: ProbeKind,
    pub result: ProbeResult,
    pub detail: String,
    pub from: Time,
    pub until: Time,
    pub count: u64,
    /// When each of them ended; empty if they were too many.
    pub times: Vec<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    Success,
    Warning,
    Failure,
    /// A look that failed: it counts for nothing.
    Look,
    Error,
}

impl ProbeResult {
    pub const ALL: [Self; 5] = [
        Self::Success,
        Self::Failure,
        Self::Look,
        Self::Warning,
        Self::Error,
    ];

    pub const fn of(outcome: LineOutcome, counted: bool) -> Self {
        match outcome {
            LineOutcome::Success => Self::Success,
            LineOutcome::Warning => Self::Warning,
            LineOutcome::Failure if counted => Self::Failure,
            LineOutcome::Failure => Self::Look,
            LineOutcome::Error => Self::Error,
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "ok",
            Self::Warning => "warning",
            Self::Failure => "failed",
            Self::Look => "look failed",
            Self::Error => "error",
        }
    }
}

/// Something done to a container or to the pod, or said about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    pub at: Time,
    pub sort: MarkSort,
    pub label: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkSort {
    Kill,
    Signal,
    ForcedKill,
    Exit,
    Restart,
    Hook,
    Agent,
    Note,
}

impl Timeline {
    /// An empty timeline with a lane for each container, in this order.
    pub fn new(pod: PodName, containers: impl IntoIterator<Item = Arc<str>>) -> Self {
        let empty = |container| Lane {
            container,
            segments: Vec::new(),
            probes: Vec::new(),
            marks: Vec::new(),
            stopping: false,
        };
        let lanes = containers.into_iter().map(empty).collect();
        Self {
            pod,
            end: Time::ZERO,
            lanes,
            marks: Vec::new(),
            exact_probes: 0,
            kept_marks: 0,
        }
    }

    /// Ends the story.
    #[must_use]
    pub fn until(mut self, end: Time) -> Self {
        self.end = self.end.max(end);
        self
    }

    /// Takes the next line.
    pub fn push(&mut self, told: &Line) {
        self.end = self.end.max(told.at);
        let Some(container) = &told.container else {
            self.mark_pod(told);
            return;
        };
        let Some(lane) = self.lanes.iter_mut().find(|lane| lane.container == *container) else {
            return;
        };
        if let LineBody::Probe {
            kind,
            outcome,
            detail,
            counted,
            ..
        } = &told.body
        {
            let exact = self.exact_probes < MAX_EXACT_PROBES;
            self.exact_probes += usize::from(exact);
            lane.probe(told.at, *kind, ProbeResult::of(*outcome, *counted), detail, exact);
            return;
        }
        lane.follow(told);
        if let Some((sort, label)) = lane.mark_of(told)
            && self.kept_marks < MAX_MARKS
        {
            self.kept_marks += 1;
            lane.marks.push(Mark {
                at: told.at,
                sort,
                label,
            });
        }
    }

    fn mark_pod(&mut self, line: &Line) {
        let (sort, label) = match &line.body {
            LineBody::Phase { phase } => (MarkSort::Note, phase.as_str().to_owned()),
            LineBody::Ready => (MarkSort::Note, "pod ready".to_owned()),
            LineBody::Unready => (MarkSort::Note, "pod not ready".to_owned()),
            LineBody::Deleted => (MarkSort::Exit, "deleted".to_owned()),
            LineBody::AgentRestarted => (MarkSort::Agent, "agent restarted".to_owned()),
            other => (MarkSort::Note, wording::describe(other)),
        };
        if self.kept_marks < MAX_MARKS {
            self.kept_marks += 1;
            self.marks.push(Mark {
                at: line.at,
                sort,
                label,
            });
        }
    }
}

impl Lane {
    fn probe(&mut self, at: Time, kind: ProbeKind, result: ProbeResult, detail: &str, exact: bool) {
        let last = self.probes.iter_mut().rev().find(|run| run.kind == kind);
        if let Some(run) = last.filter(|run| run.result == result && run.detail == *detail) {
            run.until = at;
            run.count += 1;
            if exact {
                run.times.push(at);
            }
            return;
        }
        let times = if exact { vec![at] } else { Vec::new() };
        let run = ProbeRun {
            kind,
            result,
            detail: detail.to_owned(),
            from: at,
            until: at,
            count: 1,
            times,
        };
        self.probes.push(run);
    }

    /// Moves from state to state.
    fn follow(&mut self, told: &Line) {
        match &told.body {
            LineBody::Running { restart_count, .. } => {
                self.stopping = false;
                self.enter(told.at, LaneState::Starting, *restart_count);
            }
            LineBody::Started | LineBody::Unready => self.change(told.at, LaneState::Started),
            LineBody::Ready => self.change(told.at, LaneState::Ready),
            LineBody::Killing { .. } => {
                self.change(told.at, LaneState::Terminating);
                self.stopping = true;
            }
            LineBody::Exited { .. } => self.leave(told.at),
            LineBody::Backoff { .. } => {
                let life = self.segments.last().map_or(0, |segment| segment.life);
                self.enter(told.at, LaneState::BackingOff, life);
            }
            LineBody::Created { .. }
            | LineBody::Probe { .. }
            | LineBody::Hook { .. }
            | LineBody::Signal { .. }
            | LineBody::GraceExceeded { .. }
            | LineBody::RestartAllContainers { .. }
            | LineBody::Phase { .. }
            | LineBody::Deleted
            | LineBody::AgentRestarted
            | LineBody::Warning { .. } => {}
        }
    }

    /// The state of a running life changes; a life that is being stopped, or is over, keeps its state.
    fn change(&mut self, at: Time, state: LaneState) {
        let current = self.segments.last().filter(|segment| segment.until.is_none());
        let running = current.filter(|segment| segment.state != LaneState::BackingOff);
        let Some(life) = running.map(|segment| segment.life) else {
            return;
        };
        if !self.stopping {
            self.enter(at, state, life);
        }
    }

    fn enter(&mut self, at: Time, state: LaneState, life: u32) {
        self.leave(at);
        self.segments.push(Segment {
            state,
            from: at,
            until: None,
            life,
        });
    }

    fn leave(&mut self, at: Time) {
        if let Some(segment) = self.segments.last_mut().filter(|segment| segment.until.is_none()) {
            segment.until = Some(at);
        }
    }

    fn mark_of(&self, line: &Line) -> Option<(MarkSort, String)> {
        match &line.body {
            LineBody::Running { restart_count, .. } if *restart_count > 0 => {
                Some((MarkSort::Restart, format!("restart {restart_count}")))
            }
            LineBody::Killing {
                reason,
                grace_period_seconds,
                ..
            } => Some((MarkSort::Kill, self.why(*reason, *grace_period_seconds))),
            LineBody::Signal { signal } => Some((MarkSort::Signal, signal.to_string())),
            LineBody::GraceExceeded { signal } => {
                Some((MarkSort::ForcedKill, format!("{signal}: grace exceeded")))
            }
            LineBody::Exited { exit_code, .. } => Some((MarkSort::Exit, format!("exit {exit_code}"))),
            LineBody::Hook { .. } => Some((MarkSort::Hook, wording::describe(&line.body))),
            LineBody::Warning { message } => Some((MarkSort::Note, message.clone())),
            LineBody::RestartAllContainers { .. } => Some((MarkSort::Note, wording::describe(&line.body))),
            LineBody::Running { .. }
            | LineBody::Created { .. }
            | LineBody::Probe { .. }
            | LineBody::Started
            | LineBody::Ready
            | LineBody::Unready
            | LineBody::Backoff { .. }
            | LineBody::Phase { .. }
            | LineBody::Deleted
            | LineBody::AgentRestarted => None,
        }
    }

    /// What led to a kill, in the fewest words.
    fn why(&self, reason: KillReason, grace: Span) -> String {
        let grace = format_duration(grace);
        let Some(kind) = reason.probe() else {
            return format!("kill: {}, grace {grace}", wording::reason(reason));
        };
        let failed = self.probes.iter().rev().find(|run| run.kind == kind);
        match failed {
            Some(run) => format!("kill: {} failed {}x, grace {grace}", kind.as_str(), run.count),
            None => format!("kill: {} failed, grace {grace}", kind.as_str()),
        }
    }
}
