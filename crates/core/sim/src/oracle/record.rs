//! What event lines have told about one container.

use std::sync::Arc;

use pulselet_engine::line::{KillReason, Line, LineBody};
use pulselet_engine::plan::{ContainerPlan, ProbeKind};
use pulselet_engine::time::{Span, Time};
use pulselet_plan::timing;
use pulselet_vocabulary::Signal;

#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a record of separate facts, not a state"
)]
pub(super) struct Record {
    /// What the life was made from.
    pub(super) plan: Arc<ContainerPlan>,
    /// What the next one is made from, if that is another.
    next_plan: Option<Arc<ContainerPlan>>,
    /// How many were created.
    pub(super) lives: u32,
    pub(super) exists: bool,
    pub(super) running: bool,
    /// The runtime's moment of the start.
    pub(super) running_since: Option<Time>,
    pub(super) started: bool,
    started_since: Option<Time>,
    pub(super) ready: bool,
    pub(super) kill: Option<Kill>,
    pub(super) signal: Option<Signal>,
    pub(super) stop_asked: bool,
    /// No new life before this.
    pub(super) not_before: Option<Time>,
    pub(super) probes: [Seen; 3],
    /// Starts that the runtime reported, before the engine told of them.
    reported: Option<(u32, Time)>,
}

/// A decision to stop a container.
#[derive(Debug)]
pub(super) struct Kill {
    pub(super) deadline: Time,
    pub(super) at_once: bool,
    /// The probe that decided it.
    pub(super) by: Option<ProbeKind>,
}

/// What one probe has shown in this life.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Counted failures in a row.
    pub(super) failures: u32,
    /// When the first of them was asked.
    pub(super) failing_since: Option<Time>,
    /// When the last good probe was asked.
    pub(super) last_success: Option<Time>,
    pub(super) under_way: bool,
    pub(super) look: LookSeen,
}

/// What became of the looks of one probe in this life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LookSeen {
    #[default]
    ByNobody,
    UnderWay,
    /// The program has seen it, or may have.
    ByTheProgram,
}

impl Record {
    pub(super) fn new(plan: Arc<ContainerPlan>) -> Self {
        Self {
            plan,
            next_plan: None,
            lives: 0,
            exists: false,
            running: false,
            running_since: None,
            started: false,
            started_since: None,
            ready: false,
            kill: None,
            signal: None,
            stop_asked: false,
            not_before: None,
            probes: Default::default(),
            reported: None,
        }
    }

    pub(super) fn seen_running(&mut self, attempt: u32, at: Time) {
        self.reported = Some((attempt, at));
    }

    /// When a probe's clock started in this life; none while its gate is closed.
    pub(super) fn clock_start(&self, kind: ProbeKind) -> Option<Time> {
        let since = self.running_since?;
        let gate = match kind {
            ProbeKind::Startup => since,
            ProbeKind::Liveness | ProbeKind::Readiness => self.started_since?,
        };
        Some(timing::clock_start(self.plan.probe(kind)?, since, gate))
    }

    pub(super) fn follow(&mut self, line: &Line) {
        match &line.body {
            LineBody::Created { restart_count, .. } => self.begin(*restart_count),
            LineBody::Running { .. } => {
                self.running = true;
                let reported = self.reported.filter(|(attempt, _)| *attempt + 1 == self.lives);
                self.running_since = Some(reported.map_or(line.at, |(_, at)| at));
            }
            LineBody::Started => {
                self.started = true;
                self.started_since = match self.plan.startup {
                    None => self.running_since,
                    Some(_) => Some(line.at),
                };
            }
            LineBody::Ready => self.ready = true,
            LineBody::Unready => self.ready = false,
            LineBody::Killing {
                reason,
                grace_period_seconds,
                ..
            } => {
                self.condemn(line.at, *reason, *grace_period_seconds);
            }
            LineBody::Signal { signal } => self.signal = Some(*signal),
            LineBody::Exited { .. } => {
                self.exists = false;
                self.running = false;
                self.started = false;
            }
            LineBody::Backoff { seconds } => self.not_before = Some(line.at + *seconds),
            LineBody::Probe {
                kind,
                outcome,
                latency_ms,
                counted,
                ..
            } => {
                let asked_at = line.at - milliseconds(*latency_ms);
                self.probes[*kind as usize].note(asked_at, super::is_good(*outcome), *counted);
            }
            // The agent that waited for these is gone.
            LineBody::AgentRestarted
            | LineBody::RestartAllContainers { .. }
            | LineBody::GraceExceeded { .. }
            | LineBody::Hook { .. }
            | LineBody::Phase { .. }
            | LineBody::Deleted
            | LineBody::Warning { .. } => {}
        }
    }

    fn begin(&mut self, restart_count: u32) {
        let reported = self.reported.take();
        if let Some(plan) = self.next_plan.take() {
            self.plan = plan;
        }
        *self = Self {
            lives: restart_count + 1,
            exists: true,
            reported,
            ready: self.ready,
            ..Self::new(Arc::clone(&self.plan))
        };
    }

    fn condemn(&mut self, now: Time, reason: KillReason, grace: Span) {
        let deadline = now + grace;
        let earlier = self.kill.as_ref().map(|kill| kill.deadline);
        let by = reason.probe();
        self.kill = Some(Kill {
            deadline: earlier.map_or(deadline, |earlier| earlier.min(deadline)),
            at_once: grace.is_zero() && !self.stop_asked,
            by: by.or(self.kill.as_ref().and_then(|kill| kill.by)),
        });
    }

    pub(super) fn replan(&mut self, plan: &Arc<ContainerPlan>) {
        self.next_plan = Some(Arc::clone(plan));
    }

    /// What others could not see of the pod is not in a spare copy: a wait for an image, a signal that was sent, looks.
    pub(super) fn forget_the_unseen(&mut self) {
        self.not_before = None;
        self.signal = None;
        for seen in &mut self.probes {
            seen.look = LookSeen::ByNobody;
        }
    }

    /// Probes of an agent that is gone are not under way any more.
    pub(super) fn forget_probes_under_way(&mut self) {
        for seen in &mut self.probes {
            seen.under_way = false;
            seen.look_done(true);
        }
    }
}

impl Seen {
    /// A probe has ended; `reached` says whether the program has seen it.
    pub(super) fn look_done(&mut self, reached: bool) {
        self.look = match (self.look, reached) {
            (LookSeen::UnderWay, false) => LookSeen::ByNobody,
            (LookSeen::UnderWay, true) => LookSeen::ByTheProgram,
            (seen @ (LookSeen::ByNobody | LookSeen::ByTheProgram), _) => seen,
        };
    }

    fn note(&mut self, asked_at: Time, good: Option<bool>, counted: bool) {
        self.under_way = false;
        match good {
            Some(true) => {
                self.failures = 0;
                self.failing_since = None;
                self.last_success = Some(asked_at);
            }
            Some(false) if counted => {
                self.failures += 1;
                self.failing_since.get_or_insert(asked_at);
            }
            Some(false) | None => {}
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a latency is a small positive number"
)]
fn milliseconds(millis: f64) -> Span {
    Span::from_micros((millis * 1e3).round() as u64)
}
