//! A container from its first turn to its last exit: the lives it has and the waits between them.
//!
//! It always holds:
//! - at most one life at a time, and what arrives about another one is dropped here;
//! - a life keeps the plan it was created with;
//! - a container is started and ready only by what its own life has shown.
//!
//! Which container's turn it is, and whether the pod is ending, is [`crate::pod`]'s to say.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::backoff::{BackOff, Decided, Ends};
use crate::hook::HookRun;
use crate::io::{Action, ContainerIx, CreateError, Exit, ImageError, LifeKey, Outcome, ProbeReport, Pulled};
use crate::line::{ExitReason, HookOutcome, KillReason, LineBody};
use crate::plan::{ContainerPlan, Hook, Kind, RestartPolicy, Role};
use crate::prober::{Finding, Prober};
use crate::scope::Scope;
use crate::status::Terminated;
use crate::termination::{KillOrder, Termination};
use crate::time::{Span, Time};
use crate::worker::{LifeState, LifeView, Next, Published, View};

/// A creation that failed is tried again after this long.
const CREATE_AGAIN_AFTER: Span = Span::from_secs(10);
/// A pull that failed is tried again after this long, then after twice as long, and so on up to the greatest.
const PULL_AGAIN_AFTER: Span = Span::from_secs(10);
const PULL_AGAIN_AT_MOST: Span = Span::from_secs(300);
/// What a life that the runtime could not start counts as.
const START_ERROR_CODE: i32 = 128;

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
    probers: Probers,
    /// It has been started in some life: what waited for it may go on.
    pub(crate) was_started: bool,
    /// What was last told about it.
    pub(crate) told: Told,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Told {
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
        error: ImageError,
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
    pub(crate) stop_signal: Option<Arc<str>>,
    plan: Arc<ContainerPlan>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Running {
    pub(crate) life: Life,
    pub(crate) started_at: Time,
    /// When it became started.
    started: Option<Time>,
    post_start: Option<HookRun>,
    termination: Option<Termination>,
}

/// A life that is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) terminated: Terminated,
    pub(crate) stop_signal: Option<Arc<str>>,
    attempt: u32,
}

/// A container's probers, by kind.
type Probers = [Option<Prober>; 3];

/// What a container needs to know of its pod.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PodView {
    pub(crate) finished: bool,
    pub(crate) ending: bool,
}

/// What a published probe result asks the pod to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condemned {
    By(Kind),
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
            probers: [None, None, None],
            was_started: false,
            told: Told::default(),
        }
    }

    pub(crate) fn plan(&self) -> &Arc<ContainerPlan> {
        &self.plan
    }

    pub(crate) fn replan(&mut self, plan: &Arc<ContainerPlan>) {
        self.plan = Arc::clone(plan);
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
            Some(_) => self.published(Kind::Readiness, running.life.attempt) == Some(Published::Success),
        };
        running.started.is_some() && passed
    }

    fn published(&self, kind: Kind, attempt: u32) -> Option<Published> {
        self.probers[kind as usize].as_ref()?.published_for(attempt)
    }

    pub(crate) fn is_terminating(&self) -> bool {
        self.running()
            .is_some_and(|running| running.termination.is_some())
    }

    // Towards a life

    /// Begins the next life.
    pub(crate) fn begin(&mut self, scope: &mut Scope<'_>, after_ended_life: bool) {
        if after_ended_life {
            self.backoff.advance(
                scope.now,
                scope.settings.backoff_initial,
                scope.settings.backoff_max,
            );
        }
        self.ensure_image(scope);
    }

    fn ensure_image(&mut self, scope: &mut Scope<'_>) {
        self.stage = Stage::Pulling;
        let container = scope.life.container;
        scope.act(Action::EnsureImage { container });
    }

    pub(crate) fn image_ready(&mut self, scope: &mut Scope<'_>, pulled: &Pulled) {
        if self.stage != Stage::Pulling {
            return;
        }
        self.pull_backoff = BackOff::default();
        let image = &self.plan.image;
        match pulled {
            Pulled::NotNeeded => {}
            Pulled::AlreadyPresent => scope.normal(
                "Pulled",
                format!(
                    "Container image \"{image}\" already present on machine and can be accessed by the pod"
                ),
            ),
            Pulled::Fetched { took, bytes } => scope.normal(
                "Pulled",
                format!(
                    "Successfully pulled image \"{image}\" in {took} ({took} including waiting). \
                     Image size: {bytes} bytes."
                ),
            ),
        }
        self.create(scope);
    }

    pub(crate) fn image_failed(&mut self, scope: &mut Scope<'_>, error: ImageError, message: String) {
        if self.stage != Stage::Pulling {
            return;
        }
        let image = &self.plan.image;
        match error {
            ImageError::ErrImagePull => {
                scope.warning("Failed", format!("Failed to pull image \"{image}\": {message}"));
                scope.warning("Failed", "Error: ErrImagePull");
            }
            ImageError::ErrImageNeverPull => scope.warning("ErrImageNeverPull", message.clone()),
            ImageError::InvalidImageName => scope.warning("InspectFailed", message.clone()),
        }
        self.pull_backoff
            .advance(scope.now, PULL_AGAIN_AFTER, PULL_AGAIN_AT_MOST);
        let ends = Ends {
            newest: scope.now,
            decided_on: Some(Decided::OnNewest),
        };
        let until = self.pull_backoff.wait_until(ends, scope.now).unwrap_or(scope.now);
        scope.line(LineBody::Warning {
            message: format!("{}: {message}", error.as_str()),
        });
        scope.line(LineBody::Backoff {
            seconds: until.since(scope.now),
        });
        scope.normal("BackOff", format!("Back-off pulling image \"{image}\""));
        self.stage = Stage::PullBackOff {
            until,
            error,
            message,
        };
    }

    fn create(&mut self, scope: &mut Scope<'_>) {
        self.stage = Stage::Creating;
        let life = LifeKey {
            container: scope.life.container,
            attempt: self.next_attempt,
        };
        scope.act(Action::Create { life });
    }

    pub(crate) fn create_failed(&mut self, scope: &mut Scope<'_>, error: CreateError, message: String) {
        if self.stage != Stage::Creating || scope.life.attempt != self.next_attempt {
            return;
        }
        scope.warning("Failed", format!("Error: {message}"));
        scope.line(LineBody::Warning {
            message: format!("{}: {message}", error.as_str()),
        });
        self.stage = Stage::CreateBackOff {
            until: scope.now + CREATE_AGAIN_AFTER,
            error,
            message,
        };
    }

    /// The container is there. A creation that was given up, or lost with an agent, may turn up late.
    pub(crate) fn created(&mut self, scope: &mut Scope<'_>, id: Arc<str>, stop_signal: Option<Arc<str>>) {
        let attempt = scope.life.attempt;
        let awaited = matches!(self.stage, Stage::Creating | Stage::CreateBackOff { .. });
        if !awaited || attempt != self.next_attempt {
            return;
        }
        self.next_attempt = attempt + 1;
        scope.normal("Created", "Container created");
        scope.line(LineBody::Created {
            id: Arc::clone(&id),
            restart_count: attempt,
        });
        self.warn_of_unknown_signal(scope, stop_signal.as_ref());
        forget_old_life(scope);
        let plan = Arc::clone(&self.plan);
        self.probers =
            Kind::ALL.map(|kind| plan.probe(kind).map(|probe| Prober::new(kind, Arc::clone(probe))));
        self.stage = Stage::Starting(Life {
            attempt,
            id,
            stop_signal,
            plan,
        });
    }

    fn warn_of_unknown_signal(&mut self, scope: &mut Scope<'_>, effective: Option<&Arc<str>>) {
        let Some(wanted) = &self.plan.stop_signal else {
            return;
        };
        if effective.is_some() || self.told.stop_signal_unknown {
            return;
        }
        self.told.stop_signal_unknown = true;
        let message = format!(
            "The runtime does not know stop signals: container {} asks for {wanted} and is stopped by its image's \
             signal or the runtime's default",
            scope.name
        );
        scope.line(LineBody::Warning {
            message: message.clone(),
        });
        scope.warning("StopSignalNotSupported", message);
    }

    /// The life that is about to run, if it is this attempt.
    fn starting(&self, attempt: u32) -> Option<Life> {
        if let Stage::Starting(life) = &self.stage {
            Some(life.clone()).filter(|life| life.attempt == attempt)
        } else {
            None
        }
    }

    pub(crate) fn started_running(&mut self, scope: &mut Scope<'_>, at: Time) {
        let Some(life) = self.starting(scope.life.attempt) else {
            return;
        };
        scope.normal("Started", "Container started");
        scope.line(LineBody::Running {
            id: Arc::clone(&life.id),
            restart_count: life.attempt,
        });
        let started = life.plan.startup.is_none().then_some(at);
        let post_start = life
            .plan
            .post_start
            .map(|plan| HookRun::begin(scope, Hook::PostStart, plan, None));
        self.was_started |= started.is_some();
        self.stage = Stage::Running(Running {
            life,
            started_at: at,
            started,
            post_start,
            termination: None,
        });
    }

    pub(crate) fn start_failed(&mut self, scope: &mut Scope<'_>, message: String) -> bool {
        let Some(life) = self.starting(scope.life.attempt) else {
            return false;
        };
        scope.warning("Failed", format!("Error: {message}"));
        scope.line(LineBody::Warning {
            message: message.clone(),
        });
        scope.line(LineBody::Exited {
            exit_code: START_ERROR_CODE,
            reason: ExitReason::StartError,
            seconds: None,
        });
        let terminated = Terminated {
            id: Arc::clone(&life.id),
            exit_code: START_ERROR_CODE,
            reason: ExitReason::StartError,
            message: Some(message),
            started_at: None,
            finished_at: scope.now,
        };
        self.bury(terminated, &life);
        true
    }

    fn bury(&mut self, terminated: Terminated, life: &Life) {
        let ended = Ended {
            terminated,
            stop_signal: life.stop_signal.clone(),
            attempt: life.attempt,
        };
        self.earlier = self.newest.replace(ended);
        self.stage = Stage::Pending;
    }

    // The end of a life

    /// Begins to end the life, or makes an end under way shorter. False if there is no running life.
    pub(crate) fn kill(&mut self, scope: &mut Scope<'_>, order: KillOrder) -> bool {
        let Stage::Running(running) = &mut self.stage else {
            return false;
        };
        scope.life.attempt = running.life.attempt;
        if let Some(termination) = &mut running.termination {
            termination.join(scope, &order);
        } else {
            let pre_stop = running.life.plan.pre_stop;
            running.termination = Some(Termination::begin(scope, order, pre_stop));
        }
        true
    }

    /// The grace period that the life's own probe sets.
    pub(crate) fn probe_grace(&self, kind: Kind) -> Option<Span> {
        self.running()?.life.plan.probe(kind)?.grace
    }

    pub(crate) fn signalled(&mut self, scope: &mut Scope<'_>, signal: &Arc<str>, at: Time) {
        let attempt = scope.life.attempt;
        if let Some(Running {
            termination: Some(termination),
            ..
        }) = self.running_mut(attempt)
        {
            termination.signalled(scope, signal, at);
        }
    }

    /// Records the end of the life. What the container does next is decided by [`Self::after_end`].
    pub(crate) fn exited(&mut self, scope: &mut Scope<'_>, exit: &Exit) -> Option<EndedBy> {
        let attempt = scope.life.attempt;
        if self.starting(attempt).is_some() {
            // It ran and left before its start was seen.
            self.started_running(scope, exit.at);
        }
        let running = self.running_mut(attempt)?;
        if let Some(run) = running.post_start.take() {
            run.cancel(scope);
        }
        let termination = running.termination.take();
        let cause = termination.as_ref().map(Termination::reason);
        let signalled_at = termination.and_then(|termination| termination.exited(scope, exit));
        let reason = match exit.code {
            _ if exit.oom_killed => ExitReason::OOMKilled,
            0 => ExitReason::Completed,
            _ => ExitReason::Error,
        };
        let seconds = signalled_at.map(|at| exit.at.since(at));
        scope.line(LineBody::Exited {
            exit_code: exit.code,
            reason,
            seconds,
        });
        let terminated = Terminated {
            id: Arc::clone(&running.life.id),
            exit_code: exit.code,
            reason,
            message: exit.message.clone(),
            started_at: Some(running.started_at),
            finished_at: exit.at,
        };
        let life = running.life.clone();
        self.bury(terminated, &life);
        Some(EndedBy {
            cause,
            code: exit.code,
        })
    }

    /// Finishes for good, or prepares the next life: at once or after a wait.
    pub(crate) fn after_end(&mut self, scope: &mut Scope<'_>, ended: EndedBy, pod: &str) {
        if !self.restarts_after(ended) {
            self.stage = Stage::Finished;
            return;
        }
        let Some(newest) = self.newest.as_ref().map(|ended| ended.terminated.finished_at) else {
            return;
        };
        let decided_on = match ended.cause {
            Some(KillReason::LivenessProbe | KillReason::StartupProbe) => self
                .earlier
                .as_ref()
                .map(|earlier| Decided::OnEarlier(earlier.terminated.finished_at)),
            Some(
                KillReason::Deleted
                | KillReason::Evicted
                | KillReason::Deadline
                | KillReason::SandboxChanged
                | KillReason::PostStartHook
                | KillReason::Completed,
            )
            | None => Some(Decided::OnNewest),
        };
        let ends = Ends { newest, decided_on };
        match self.backoff.wait_until(ends, scope.now) {
            None => self.begin(scope, decided_on.is_some()),
            Some(until) => {
                let after_failed_hook = ended.cause == Some(KillReason::PostStartHook);
                self.stage = Stage::BackOff {
                    until,
                    after_failed_hook,
                };
                scope.line(LineBody::Backoff {
                    seconds: until.since(scope.now),
                });
                let name = &self.plan.name;
                scope.warning(
                    "BackOff",
                    format!("Back-off restarting failed container {name} in pod {pod}"),
                );
            }
        }
    }

    fn restarts_after(&self, ended: EndedBy) -> bool {
        if self
            .plan
            .restart_rules
            .iter()
            .any(|rule| rule.applies_to(ended.code))
        {
            return true;
        }
        let condemned = matches!(
            ended.cause,
            Some(KillReason::LivenessProbe | KillReason::StartupProbe)
        );
        match (self.plan.role, self.plan.restart) {
            (Role::Sidecar, _) | (Role::Main, RestartPolicy::Always) => true,
            (Role::Init | Role::Main, RestartPolicy::Never) => false,
            (Role::Init, RestartPolicy::Always | RestartPolicy::OnFailure) => ended.code != 0,
            (Role::Main, RestartPolicy::OnFailure) => ended.code != 0 || condemned,
        }
    }

    /// The sandbox is gone too: another life waits for a new one, and for its turn in it.
    pub(crate) fn after_end_without_sandbox(&mut self, ended: EndedBy) {
        self.stage = if self.restarts_after(ended) {
            Stage::Pending
        } else {
            Stage::Finished
        };
    }

    /// Whether a probe's kill is followed by another life.
    pub(crate) fn restarts_when_condemned(&self) -> bool {
        match self.plan.role {
            Role::Sidecar => true,
            Role::Init | Role::Main => self.plan.restart != RestartPolicy::Never,
        }
    }

    /// No further life, whatever it was waiting for.
    pub(crate) fn give_up(&mut self) {
        if !self.is_alive() {
            self.stage = Stage::Finished;
        }
    }

    /// Takes a life that was created but must not start any more.
    pub(crate) fn abandon(&mut self, scope: &mut Scope<'_>) {
        let life = scope.life;
        scope.act(Action::Remove { life });
        self.stage = Stage::Finished;
    }

    /// Back to its first turn, for a new sandbox.
    pub(crate) fn reset(&mut self) {
        self.stage = Stage::Pending;
        self.was_started = false;
    }

    // Hooks and probes

    pub(crate) fn hook_done(
        &mut self,
        scope: &mut Scope<'_>,
        hook: Hook,
        result: Result<(), String>,
        turn: bool,
    ) -> Option<FailedPostStart> {
        let running = self.running_mut(scope.life.attempt)?;
        match hook {
            Hook::PreStop => {
                running.termination.as_mut()?.hook_done(scope, result, turn);
                None
            }
            Hook::PostStart => {
                let run = running.post_start.take()?;
                match result {
                    Ok(()) => {
                        run.end(scope, HookOutcome::Success);
                        None
                    }
                    Err(message) => {
                        run.end(scope, HookOutcome::Failure);
                        let message = format!("postStart hook failed: {message}");
                        scope.line(LineBody::Warning { message });
                        scope.warning("FailedPostStartHook", "PostStartHook failed");
                        Some(FailedPostStart)
                    }
                }
            }
        }
    }

    pub(crate) fn view(&self, now: Time, pod: PodView) -> View {
        let life = match &self.stage {
            Stage::Running(running) => Some(LifeView {
                attempt: running.life.attempt,
                state: LifeState::Running,
                age: now.since(running.started_at),
                started: running.started.is_some(),
            }),
            Stage::Starting(life) => Some(LifeView {
                attempt: life.attempt,
                state: LifeState::Waiting,
                age: Span::ZERO,
                started: false,
            }),
            Stage::Pending
            | Stage::Pulling
            | Stage::PullBackOff { .. }
            | Stage::Creating
            | Stage::CreateBackOff { .. }
            | Stage::BackOff { .. }
            | Stage::Finished => self.newest.as_ref().map(|ended| LifeView {
                attempt: ended.attempt,
                state: LifeState::Ended {
                    restarts: !self.is_finished(),
                },
                age: Span::ZERO,
                started: false,
            }),
        };
        View {
            pod_finished: pod.finished,
            pod_ending: pod.ending,
            life,
        }
    }

    /// Lets the probers follow what has changed; those with nothing left to do retire.
    pub(crate) fn sync_probers(&mut self, scope: &mut Scope<'_>, pod: PodView) {
        let view = self.view(scope.now, pod);
        let (started_at, started) = self.running().map_or((Time::ZERO, None), |running| {
            (running.started_at, running.started)
        });
        for slot in &mut self.probers {
            let Some(prober) = slot else { continue };
            let gate = match prober.kind() {
                Kind::Startup => started.is_none().then_some(started_at),
                Kind::Liveness | Kind::Readiness => started,
            };
            if prober.sync(&view, started_at, gate, scope.settings) == Next::Stop {
                scope.out.retired.push((scope.life.container, prober.kind()));
                *slot = None;
            }
        }
    }

    /// Takes a probe's report: what to tell about it, and whether it condemns the container.
    pub(crate) fn probe_done(
        &mut self,
        scope: &mut Scope<'_>,
        kind: Kind,
        report: ProbeReport,
    ) -> Option<(Finding, Option<Condemned>)> {
        let now = scope.now;
        let attempt = scope.life.attempt;
        let running = self.running_mut(attempt)?;
        let already_ending = running.termination.is_some();
        let prober = self.probers[kind as usize].as_mut()?;
        let finding = prober.complete(now, &report, scope.settings)?;
        tell_probe(scope, kind, report, &finding);
        let condemned = match (kind, finding.published) {
            (Kind::Startup, Some(Published::Success)) => {
                self.running_mut(attempt)?.started = Some(now);
                self.was_started = true;
                None
            }
            (Kind::Startup | Kind::Liveness, Some(Published::Failure)) if !already_ending => {
                Some(Condemned::By(kind))
            }
            (Kind::Startup | Kind::Liveness | Kind::Readiness, _) => None,
        };
        Some((finding, condemned))
    }

    // Time

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        match &self.stage {
            Stage::PullBackOff { until, .. }
            | Stage::CreateBackOff { until, .. }
            | Stage::BackOff { until, .. } => Some(*until),
            Stage::Running(running) => {
                let hook = running.post_start.as_ref().and_then(HookRun::wakes_at);
                let end = running.termination.as_ref().map(Termination::next_deadline);
                let probes = self.probers.iter().flatten().filter_map(Prober::due_at);
                probes.chain(hook).chain(end).min()
            }
            Stage::Pending | Stage::Pulling | Stage::Creating | Stage::Starting(_) | Stage::Finished => None,
        }
    }

    /// Begins the probes that are due. They change nothing but their own clock.
    pub(crate) fn advance_probes(&mut self, scope: &mut Scope<'_>, pod: PodView) {
        let view = self.view(scope.now, pod);
        let life = scope.life;
        for prober in self.probers.iter_mut().flatten() {
            if prober.begin(scope.now, &view) {
                let (kind, timeout) = (prober.kind(), prober.plan().timeout);
                scope.act(Action::Probe { life, kind, timeout });
            }
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

    /// Tells whether it became started, ready or unready since it was last told.
    pub(crate) fn tell(&mut self, scope: &mut Scope<'_>) {
        let (started, ready) = (self.is_started(), self.is_ready() && self.role() != Role::Init);
        if started && !self.told.started {
            scope.line(LineBody::Started);
        }
        if ready != self.told.ready {
            scope.line(if ready { LineBody::Ready } else { LineBody::Unready });
        }
        self.told.started = started;
        self.told.ready = ready;
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

/// How a life came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndedBy {
    /// Why it was killed; none if it left by itself.
    pub(crate) cause: Option<KillReason>,
    pub(crate) code: i32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedPostStart;

/// Keeps the records of the new life and the one before, for their logs; older ones go.
fn forget_old_life(scope: &mut Scope<'_>) {
    if let Some(attempt) = scope.life.attempt.checked_sub(2) {
        let life = LifeKey {
            container: scope.life.container,
            attempt,
        };
        scope.act(Action::Remove { life });
    }
}

pub(crate) fn start(scope: &mut Scope<'_>) {
    let life = scope.life;
    scope.act(Action::Start { life });
}

fn tell_probe(scope: &mut Scope<'_>, kind: Kind, report: ProbeReport, finding: &Finding) {
    let title = kind.title();
    if finding.counted {
        let detail = &report.detail;
        match finding.outcome {
            Outcome::Success => {}
            Outcome::Warning => scope.warning("ProbeWarning", format!("{title} probe warning: {detail}")),
            Outcome::Failure | Outcome::Unknown => {
                scope.warning("Unhealthy", format!("{title} probe failed: {detail}"));
            }
            Outcome::Error => scope.warning("Unhealthy", format!("{title} probe errored: {detail}")),
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a probe's latency is small")]
    let latency_ms = report.latency.as_micros() as f64 / 1e3;
    scope.line(LineBody::Probe {
        kind,
        outcome: finding.outcome.into(),
        detail: report.detail,
        latency_ms,
        run: finding.run,
        counted: finding.counted,
    });
    if finding.forgiven {
        let message =
            format!("{title} time-out not counted: the agent itself was late, so it may be to blame");
        scope.line(LineBody::Warning { message });
    }
}
