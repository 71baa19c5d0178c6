//! A container from its first turn to its last exit: the lives it has and the waits between them.
//!
//! It always holds:
//! - at most one life at a time, and what arrives about another one is dropped here;
//! - a life keeps the plan it was created with, but for the times of its probes;
//! - a container is started and ready only by what its own life has shown.
//!
//! Which container's turn it is, and whether the pod is ending, is [`crate::pod`]'s to say.

mod ending;
mod launch;
mod probing;

use std::sync::Arc;

use pulselet_vocabulary::Signal;
use serde::{Deserialize, Serialize};

use crate::backoff::BackOff;
use crate::hook::HookRun;
use crate::io::{ContainerIx, CreateError, ImageFailure, LifeKey};
use crate::line::{HookOutcome, LineBody};
use crate::plan::{ContainerPlan, ProbeKind, ProbePace, Role, Settings};
use crate::probe_runner::ProbeRunner;
use crate::scope::Scope;
use crate::status::{EffectiveProbe, Terminated};
use crate::termination::Termination;
use crate::time::Time;
use crate::transition::Transition;
use crate::worker::Published;

pub(crate) use ending::EndedBy;
pub(crate) use launch::start;
pub(crate) use probing::Condemned;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Container {
    /// What the next life is made from.
    plan: Arc<ContainerPlan>,
    stage: Stage,
    next_attempt: u32,
    newest: Option<Ended>,
    earlier: Option<Ended>,
    backoff: BackOff,
    pull_backoff: BackOff,
    /// The image that the newest creation was asked for with.
    #[serde(default)]
    asked_image: Option<Arc<str>>,
    probers: Probers,
    /// It has been started in some life: what waited for it may go on.
    pub(crate) was_started: bool,
    /// What was last reported about it.
    #[serde(rename = "told")]
    pub(crate) reported: Reported,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Reported {
    pub(crate) started: bool,
    pub(crate) ready: bool,
    stop_signal_unknown: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Stage {
    /// Its turn has not come.
    Pending,
    Pulling,
    PullBackOff {
        until: Time,
        error: ImageFailure,
        message: String,
    },
    Creating,
    CreateBackOff {
        until: Time,
        error: CreateError,
        message: String,
    },
    Starting(Life),
    Running(Running),
    BackOff {
        until: Time,
        after_failed_hook: bool,
    },
    /// No further life.
    Finished,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Life {
    pub(crate) attempt: u32,
    pub(crate) id: Arc<str>,
    pub(crate) stop_signal: Option<Signal>,
    plan: Arc<ContainerPlan>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Running {
    pub(crate) life: Life,
    pub(crate) started_at: Time,
    /// When it became started.
    started: Option<Time>,
    /// One of its probes has succeeded.
    #[serde(default)]
    succeeded: bool,
    /// Its stop signal was read to end nothing, which was reported.
    #[serde(default)]
    signal_unhandled: bool,
    post_start: Option<HookRun>,
    termination: Option<Termination>,
}

/// A life that is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) terminated: Terminated,
    pub(crate) stop_signal: Option<Signal>,
    /// `None` if an agent wrote this that did not write images.
    #[serde(default)]
    image: Option<Arc<str>>,
    attempt: u32,
}

/// A container's probers, by kind.
type Probers = [Option<ProbeRunner>; 3];

/// What a container needs to know of its pod.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PodView {
    pub(crate) finished: bool,
    pub(crate) ending: bool,
}

impl Container {
    pub(crate) fn new(plan: Arc<ContainerPlan>) -> Self {
        Self {
            plan,
            stage: Stage::Pending,
            next_attempt: 0,
            newest: None,
            earlier: None,
            backoff: BackOff::default(),
            pull_backoff: BackOff::default(),
            asked_image: None,
            probers: [None, None, None],
            was_started: false,
            reported: Reported::default(),
        }
    }

    pub(crate) fn plan(&self) -> &Arc<ContainerPlan> {
        &self.plan
    }

    /// Takes another plan for its next life; the one that there is goes by the times of `running`. One with another image makes it a new container, as far as waiting goes: what it waits for
    /// because of the old image is over.
    pub(crate) fn replan(
        &mut self,
        scope: &mut Scope<'_>,
        plan: &Arc<ContainerPlan>,
        running: Option<&Arc<ContainerPlan>>,
    ) {
        let has_changed = self.plan.image != plan.image;
        self.plan = Arc::clone(plan);
        if let Some(running) = running {
            self.take_times(scope, running);
        }
        if !has_changed {
            return;
        }
        self.backoff = BackOff::default();
        self.pull_backoff = BackOff::default();
        match self.stage {
            Stage::Pulling | Stage::PullBackOff { .. } | Stage::CreateBackOff { .. } => {
                self.ensure_image(scope);
            }
            Stage::BackOff { .. } => self.begin(scope, true),
            Stage::Pending | Stage::Creating | Stage::Starting(_) | Stage::Running(_) | Stage::Finished => {}
        }
    }

    fn take_times(&mut self, scope: &Scope<'_>, running: &ContainerPlan) {
        let (Stage::Starting(life) | Stage::Running(Running { life, .. })) = &mut self.stage else {
            return;
        };
        life.plan = Arc::new(life.plan.with_times_of(running));
        for prober in self.probers.iter_mut().flatten() {
            if let Some(probe) = life.plan.probe(prober.kind()) {
                prober.replan(scope.now, probe, scope.settings);
            }
        }
    }

    /// Whether it runs and goes on with an image that it should not have any more. Init containers run to their end.
    pub(crate) fn has_old_image(&self) -> bool {
        let replaceable = match self.role() {
            Role::Sidecar | Role::Main => true,
            Role::Init | Role::Ephemeral => false,
        };
        let old = |running: &Running| running.life.plan.image != self.plan.image;
        replaceable && !self.is_terminating() && self.running().is_some_and(old)
    }

    /// The image of the life that is there or was there last; the plan's where the next one is being made.
    pub(crate) fn image(&self) -> &Arc<str> {
        let newest = || self.newest.as_ref().and_then(|ended| ended.image.as_ref());
        match &self.stage {
            Stage::Starting(life) => &life.plan.image,
            Stage::Running(running) => &running.life.plan.image,
            Stage::BackOff { .. } | Stage::Finished => newest().unwrap_or(&self.plan.image),
            Stage::Pending
            | Stage::Pulling
            | Stage::PullBackOff { .. }
            | Stage::Creating
            | Stage::CreateBackOff { .. } => &self.plan.image,
        }
    }

    pub(crate) fn role(&self) -> Role {
        self.plan.role
    }

    pub(crate) fn stage(&self) -> &Stage {
        &self.stage
    }

    pub(crate) fn running(&self) -> Option<&Running> {
        if let Stage::Running(running) = &self.stage {
            Some(running)
        } else {
            None
        }
    }

    fn running_mut(&mut self, attempt: u32) -> Option<&mut Running> {
        if let Stage::Running(running) = &mut self.stage {
            Some(running).filter(|running| running.life.attempt == attempt)
        } else {
            None
        }
    }

    /// Something of it is, or may be, in the runtime.
    pub(crate) fn is_alive(&self) -> bool {
        matches!(
            self.stage,
            Stage::Creating | Stage::Starting(_) | Stage::Running(_)
        )
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.stage == Stage::Finished
    }

    /// It has run to its end and left well.
    pub(crate) fn has_succeeded(&self) -> bool {
        self.is_finished()
            && self
                .newest
                .as_ref()
                .is_some_and(|ended| ended.terminated.exit_code == 0)
    }

    pub(crate) fn newest(&self) -> Option<&Ended> {
        self.newest.as_ref()
    }

    pub(crate) fn earlier(&self) -> Option<&Ended> {
        self.earlier.as_ref()
    }

    pub(crate) fn restart_count(&self) -> u32 {
        self.next_attempt.saturating_sub(1)
    }

    pub(crate) fn attempt_in_stage(&self) -> u32 {
        match &self.stage {
            Stage::Starting(life) => life.attempt,
            Stage::Running(running) => running.life.attempt,
            Stage::Pending
            | Stage::Pulling
            | Stage::PullBackOff { .. }
            | Stage::Creating
            | Stage::CreateBackOff { .. }
            | Stage::BackOff { .. }
            | Stage::Finished => self.next_attempt,
        }
    }

    pub(crate) fn is_started(&self) -> bool {
        self.running().is_some_and(|running| running.started.is_some())
    }

    pub(crate) fn is_ready(&self) -> bool {
        let Some(running) = self.running() else {
            return false;
        };
        let passed = match &running.life.plan.readiness {
            None => true,
            Some(_) => self.published(ProbeKind::Readiness, running.life.attempt) == Some(Published::Success),
        };
        running.started.is_some() && passed
    }

    /// The signal that the manifest of its life, or of the next one, names.
    pub(crate) fn asked_signal(&self) -> Option<Signal> {
        let plan = self.running().map_or(&self.plan, |running| &running.life.plan);
        plan.stop_signal
    }

    /// How its probes work now, or will.
    pub(crate) fn probes(&self, settings: &Settings) -> impl Iterator<Item = EffectiveProbe> {
        ProbeKind::ALL.into_iter().filter_map(|kind| {
            let plan = self.running().map_or(&self.plan, |running| &running.life.plan);
            let probe = plan.probe(kind)?;
            let prober = self.probers[kind as usize].as_ref();
            let first = match settings.pace {
                ProbePace::Planned => probe.period,
                ProbePace::Stretched => probe.period_after,
            };
            Some(EffectiveProbe {
                container: Arc::clone(&plan.name),
                kind,
                period: prober.map_or(first, |prober| prober.period(settings)),
                timeout: probe.timeout,
            })
        })
    }

    /// Whether a probe of its life, or of the next one, has a period below one second.
    pub(crate) fn has_fast_probe(&self) -> bool {
        let life = self.running().map(|running| &running.life.plan);
        let plans = [Some(&self.plan), life].into_iter().flatten();
        let mut probes = plans.flat_map(|plan| ProbeKind::ALL.map(|kind| plan.probe(kind)));
        probes.any(|probe| probe.is_some_and(|probe| probe.is_fast()))
    }

    pub(crate) fn forget_runs(&mut self) {
        for prober in self.probers.iter_mut().flatten() {
            prober.forget_run();
        }
    }

    /// Its probers go by the periods that are wanted now.
    pub(crate) fn pace(&mut self, scope: &Scope<'_>) {
        for prober in self.probers.iter_mut().flatten() {
            prober.pace(scope.now, scope.settings);
        }
    }

    /// Whether a worker of this kind probes, or is to probe, this life.
    pub(crate) fn has_worker(&self, attempt: u32, kind: ProbeKind) -> bool {
        let runs = self
            .running()
            .is_some_and(|running| running.life.attempt == attempt);
        runs && self.probers[kind as usize].is_some()
    }

    /// Whether the pod is ready only if this container is.
    pub(crate) fn counts_for_readiness(&self) -> bool {
        match self.role() {
            Role::Sidecar | Role::Main => true,
            Role::Init | Role::Ephemeral => false,
        }
    }

    fn published(&self, kind: ProbeKind, attempt: u32) -> Option<Published> {
        self.probers[kind as usize].as_ref()?.published_for(attempt)
    }

    pub(crate) fn is_terminating(&self) -> bool {
        self.running()
            .is_some_and(|running| running.termination.is_some())
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        match &self.stage {
            Stage::PullBackOff { until, .. }
            | Stage::CreateBackOff { until, .. }
            | Stage::BackOff { until, .. } => Some(*until),
            Stage::Running(running) => {
                let hook = running.post_start.as_ref().and_then(HookRun::wakes_at);
                let end = running.termination.as_ref().map(Termination::next_deadline);
                let probes = self.probers.iter().flatten().filter_map(ProbeRunner::due_at);
                probes.chain(hook).chain(end).min()
            }
            Stage::Pending | Stage::Pulling | Stage::Creating | Stage::Starting(_) | Stage::Finished => None,
        }
    }

    /// Does what else is due; true if something was.
    pub(crate) fn advance(&mut self, scope: &mut Scope<'_>, turn: bool) -> bool {
        let now = scope.now;
        match &mut self.stage {
            Stage::PullBackOff { until, .. } if *until <= now => self.ensure_image(scope),
            Stage::CreateBackOff { until, .. } if *until <= now => self.create(scope),
            Stage::BackOff { until, .. } if *until <= now => self.begin(scope, true),
            Stage::Running(running) => {
                let mut advanced = false;
                if let Some(run) = running.post_start.take_if(|run| run.has_slept(now)) {
                    run.end(scope, HookOutcome::Success);
                    advanced = true;
                }
                if let Some(termination) = &mut running.termination {
                    advanced |= termination.next_deadline() <= now;
                    termination.advance(scope, turn);
                }
                return advanced;
            }
            Stage::PullBackOff { .. }
            | Stage::CreateBackOff { .. }
            | Stage::BackOff { .. }
            | Stage::Pending
            | Stage::Pulling
            | Stage::Creating
            | Stage::Starting(_)
            | Stage::Finished => return false,
        }
        true
    }

    /// Nothing is left that must stop before it; true if it had waited for that.
    pub(crate) fn take_turn(&mut self, scope: &mut Scope<'_>) -> bool {
        let Stage::Running(Running {
            termination: Some(termination),
            ..
        }) = &mut self.stage
        else {
            return false;
        };
        termination.take_turn(scope)
    }

    /// Reports whether it became started, ready or unready since the last report.
    pub(crate) fn report_changes(&mut self, scope: &mut Scope<'_>) {
        let (started, ready) = (self.is_started(), self.is_ready() && self.counts_for_readiness());
        if started && !self.reported.started {
            scope.line(LineBody::Started);
            scope.transition(Transition::StatusChanged);
        }
        if ready != self.reported.ready {
            scope.line(if ready { LineBody::Ready } else { LineBody::Unready });
            scope.transition(Transition::StatusChanged);
        }
        self.reported.started = started;
        self.reported.ready = ready;
    }

    /// The agent was away: asks again for what has no answer, and lets probers go on with their grids.
    pub(crate) fn resume(&mut self, scope: &mut Scope<'_>, mut fraction: impl FnMut() -> f64) {
        match &mut self.stage {
            Stage::Pulling => self.ensure_image(scope),
            Stage::Creating => self.create(scope),
            Stage::Starting(_) => start(scope),
            Stage::Running(running) => {
                if let Some(run) = &running.post_start {
                    run.resume(scope, None);
                }
                if let Some(termination) = &mut running.termination {
                    termination.resume(scope);
                }
            }
            Stage::Pending
            | Stage::PullBackOff { .. }
            | Stage::CreateBackOff { .. }
            | Stage::BackOff { .. }
            | Stage::Finished => {}
        }
        for prober in self.probers.iter_mut().flatten() {
            prober.resume(scope.now, fraction());
        }
    }

    pub(crate) fn life_key(&self, container: ContainerIx) -> LifeKey {
        LifeKey {
            container,
            attempt: self.attempt_in_stage(),
        }
    }
}
