//! A pod: its sandbox, its containers in their order, its phase and conditions, and its end.
//!
//! It always holds:
//! - init containers run one by one; a sidecar lets the next one begin once it is started; main containers begin last;
//! - once the end has begun nothing is started any more, and it can only come sooner;
//! - at the end a sidecar gets its stop signal when all main containers and all later sidecars are gone, or when the
//!   grace period is over;
//! - started, ready and phase are told when they change, in [`Pod::refresh`] and nowhere else.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::container::{Condemned, Container, EndedBy, PodView, Stage, start};
use crate::event::{Event, Severity};
use crate::io::{Action, ContainerIx, Exit, Input, LifeKey, Outbox, ProbeReport};
use crate::line::{KillReason, Line, LineBody, Phase};
use crate::plan::{Kind, PodPlan, Role, Settings};
use crate::scope::Scope;
use crate::status::{Condition, PodStatus};
use crate::termination::{Grace, GraceSources, KillOrder};
use crate::time::{Span, Time};

/// A sandbox that could not be made is tried again after this long.
const SANDBOX_AGAIN_AFTER: Span = Span::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub uid: Arc<str>,
}

/// One pod and all that must outlive the agent about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pod {
    identity: Identity,
    plan: Arc<PodPlan>,
    settings: Settings,
    random: u64,
    pub(crate) accepted_at: Time,
    pub(crate) sandbox: Sandbox,
    sandbox_attempts: u32,
    pub(crate) containers: Vec<Container>,
    pub(crate) end: Option<End>,
    pub(crate) phase: Phase,
    pub(crate) failure: Option<Failure>,
    pub(crate) conditions: Vec<Condition>,
    told_ready: bool,
    over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Sandbox {
    Absent,
    Starting,
    Failed {
        retry_at: Time,
    },
    Ready,
    /// Gone under its containers; made anew once they have ended.
    Lost,
    Stopping,
    Stopped,
}

/// The pod is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    reason: KillReason,
    grace: Grace,
    /// When all of it should be gone.
    until: Time,
    /// It will be forgotten once everything is gone.
    deleted: bool,
}

/// Why the pod as a whole has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Pod {
    pub fn new(
        identity: Identity,
        plan: Arc<PodPlan>,
        settings: Settings,
        seed: u64,
        now: Time,
        out: &mut Outbox,
    ) -> Self {
        let mut pod = Self::accepted(identity, plan, settings, seed, now, out);
        pod.settle(now, out);
        pod
    }

    /// A pod that this node cannot run: it fails at once and nothing of it is started.
    pub fn rejected(
        identity: Identity,
        plan: Arc<PodPlan>,
        settings: Settings,
        (reason, message): (&'static str, String),
        now: Time,
        out: &mut Outbox,
    ) -> Self {
        let mut pod = Self::accepted(identity, plan, settings, 0, now, out);
        tell_event(out, Severity::Warning, reason, message.clone());
        tell(
            now,
            out,
            LineBody::Warning {
                message: message.clone(),
            },
        );
        pod.fail(reason, message);
        pod.complete(now, out);
        pod.settle(now, out);
        pod
    }

    fn accepted(
        identity: Identity,
        plan: Arc<PodPlan>,
        settings: Settings,
        seed: u64,
        now: Time,
        out: &mut Outbox,
    ) -> Self {
        tell(
            now,
            out,
            LineBody::Phase {
                phase: Phase::Pending,
            },
        );
        let containers = plan
            .containers
            .iter()
            .map(|plan| Container::new(Arc::clone(plan)))
            .collect();
        Self {
            identity,
            plan,
            settings,
            random: seed,
            accepted_at: now,
            sandbox: Sandbox::Absent,
            sandbox_attempts: 0,
            containers,
            end: None,
            phase: Phase::Pending,
            failure: None,
            conditions: Vec::new(),
            told_ready: false,
            over: false,
        }
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    pub fn accepted_at(&self) -> Time {
        self.accepted_at
    }

    /// It was deleted and nothing of it is left.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// It is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.end.is_some_and(|end| end.deleted)
    }

    pub fn status(&self) -> PodStatus {
        crate::summary::status(self)
    }

    /// Takes one observation, answer or request.
    pub fn handle(&mut self, now: Time, input: Input, out: &mut Outbox) {
        if self.over {
            return;
        }
        if let Input::ProbeDone { life, kind, report } = input {
            if self.probe_done(now, life, kind, report, out) {
                return self.advance_probes(now, out);
            }
        } else {
            self.take(now, input, out);
        }
        self.settle(now, out);
        self.advance(now, out);
    }

    /// Does everything that is due at or before `now`.
    pub fn advance(&mut self, now: Time, out: &mut Outbox) {
        if self.over {
            return;
        }
        while self.fire(now, out) {
            self.settle(now, out);
        }
        self.advance_probes(now, out);
    }

    /// When [`Pod::advance`] must be called next.
    pub fn next_deadline(&self) -> Option<Time> {
        if self.over {
            return None;
        }
        let containers = self.containers.iter().filter_map(Container::next_deadline);
        containers
            .chain(self.sandbox_retry())
            .chain(self.active_until())
            .min()
    }

    fn sandbox_retry(&self) -> Option<Time> {
        if let Sandbox::Failed { retry_at } = self.sandbox {
            Some(retry_at)
        } else {
            None
        }
    }

    /// When the pod's active deadline is over; none once it is ending anyway.
    fn active_until(&self) -> Option<Time> {
        let span = self.plan.active_deadline?;
        (self.end.is_none() && !self.phase.is_terminal()).then(|| self.accepted_at + span)
    }

    // Inputs

    fn take(&mut self, now: Time, input: Input, out: &mut Outbox) {
        match input {
            Input::SandboxReady => self.sandbox_ready(),
            Input::SandboxFailed { message } => self.sandbox_failed(now, &message, out),
            Input::SandboxLost => self.sandbox_lost(now, out),
            Input::SandboxStopped => {
                if self.sandbox == Sandbox::Stopping {
                    self.sandbox = Sandbox::Stopped;
                }
            }
            Input::ImagePulling { container } => {
                if let Some(image) = self
                    .containers
                    .get(container)
                    .map(|it| Arc::clone(&it.plan().image))
                {
                    self.with(now, container, out, |_, scope| {
                        scope.normal("Pulling", format!("Pulling image \"{image}\""));
                    });
                }
            }
            Input::ImageReady { container, pulled } => {
                self.with(now, container, out, |it, scope| it.image_ready(scope, &pulled));
            }
            Input::ImageFailed {
                container,
                error,
                message,
            } => {
                self.with(now, container, out, |it, scope| {
                    it.image_failed(scope, error, message);
                });
            }
            Input::Created {
                life,
                id,
                stop_signal,
            } => self.created(now, life, &id, stop_signal, out),
            Input::CreateFailed {
                life,
                reason,
                message,
            } => {
                self.with_life(now, life, out, |it, scope| {
                    it.create_failed(scope, reason, message);
                });
            }
            Input::Running { life, at } => {
                self.with_life(now, life, out, |it, scope| it.started_running(scope, at));
            }
            Input::StartFailed { life, message } => self.start_failed(now, life, message, out),
            Input::Exited { life, exit } => self.exited(now, life, &exit, out),
            Input::ProbeDone { life, kind, report } => {
                self.probe_done(now, life, kind, report, out);
            }
            Input::HookDone { life, hook, result } => {
                let turn = self.is_turn_of(life.container);
                let failed = self
                    .with_life(now, life, out, |it, scope| {
                        it.hook_done(scope, hook, result, turn)
                    })
                    .flatten();
                if failed.is_some() {
                    self.kill_after_post_start(now, life.container, out);
                }
            }
            Input::Signalled { life, signal, at } => {
                self.with_life(now, life, out, |it, scope| it.signalled(scope, &signal, at));
            }
            Input::Delete { grace } => self.delete(now, grace, out),
            Input::Evict { grace, message } => self.evict(now, grace, message, out),
            Input::AgentRestarted => self.resume(now, out),
            Input::Replan { plan, settings } => self.replan(plan, settings),
        }
    }

    fn sandbox_ready(&mut self) {
        if self.sandbox == Sandbox::Starting {
            self.sandbox = Sandbox::Ready;
        }
    }

    fn sandbox_failed(&mut self, now: Time, message: &str, out: &mut Outbox) {
        if self.sandbox != Sandbox::Starting {
            return;
        }
        self.sandbox = Sandbox::Failed {
            retry_at: now + SANDBOX_AGAIN_AFTER,
        };
        let message = format!("Failed to create pod sandbox: {message}");
        tell(
            now,
            out,
            LineBody::Warning {
                message: message.clone(),
            },
        );
        tell_event(out, Severity::Warning, "FailedCreatePodSandBox", message);
    }

    /// Ends what still runs, and goes back to the beginning once all of it is gone.
    fn sandbox_lost(&mut self, now: Time, out: &mut Outbox) {
        match self.sandbox {
            Sandbox::Ready => {}
            Sandbox::Stopping => {
                self.sandbox = Sandbox::Stopped;
                return;
            }
            Sandbox::Absent
            | Sandbox::Starting
            | Sandbox::Failed { .. }
            | Sandbox::Lost
            | Sandbox::Stopped => return,
        }
        self.sandbox = Sandbox::Lost;
        let message = "Pod sandbox changed, it will be killed and re-created.";
        tell_event(out, Severity::Normal, "SandboxChanged", message.to_owned());
        if self.end.is_some() {
            return;
        }
        let grace = GraceSources {
            pod: self.plan.grace,
            ..GraceSources::default()
        }
        .choose();
        for ix in 0..self.containers.len() {
            let message = format!("Stopping container {}", self.containers[ix].plan().name);
            let order = KillOrder {
                reason: KillReason::SandboxChanged,
                grace,
                message,
                in_turn: false,
            };
            self.with(now, ix, out, |it, scope| it.kill(scope, order));
        }
    }

    fn created(
        &mut self,
        now: Time,
        life: LifeKey,
        id: &Arc<str>,
        stop_signal: Option<Arc<str>>,
        out: &mut Outbox,
    ) {
        let ending = self.end.is_some();
        self.with_life(now, life, out, |it, scope| {
            it.created(scope, Arc::clone(id), stop_signal);
            if matches!(it.stage(), Stage::Starting(created) if created.attempt == scope.life.attempt) {
                if ending { it.abandon(scope) } else { start(scope) }
            }
        });
    }

    fn start_failed(&mut self, now: Time, life: LifeKey, message: String, out: &mut Outbox) {
        let failed = self.with_life(now, life, out, |it, scope| {
            it.start_failed(scope, message)
                .then(|| it.newest().map_or(0, |ended| ended.terminated.exit_code))
        });
        if let Some(code) = failed.flatten() {
            self.after_end(now, life, EndedBy { cause: None, code }, out);
        }
    }

    fn exited(&mut self, now: Time, life: LifeKey, exit: &Exit, out: &mut Outbox) {
        let ended = self
            .with_life(now, life, out, |it, scope| it.exited(scope, exit))
            .flatten();
        if let Some(ended) = ended {
            self.after_end(now, life, ended, out);
        }
    }

    fn after_end(&mut self, now: Time, life: LifeKey, ended: EndedBy, out: &mut Outbox) {
        if self.end.is_some() {
            self.containers[life.container].give_up();
            return;
        }
        if self.sandbox == Sandbox::Lost {
            self.containers[life.container].after_end_without_sandbox(ended);
            return;
        }
        let Identity { namespace, name, uid } = &self.identity;
        let pod = format!("{name}_{namespace}({uid})");
        self.with_life(now, life, out, |it, scope| it.after_end(scope, ended, &pod));
    }

    /// Returns true if the report changed nothing but the probe's own clock.
    fn probe_done(
        &mut self,
        now: Time,
        life: LifeKey,
        kind: Kind,
        report: ProbeReport,
        out: &mut Outbox,
    ) -> bool {
        let found = self.with_life(now, life, out, |it, scope| it.probe_done(scope, kind, report));
        let Some((finding, condemned)) = found.flatten() else {
            return true;
        };
        out.dirty |= !finding.routine;
        if let Some(Condemned::By(kind)) = condemned {
            self.condemn(now, life.container, kind, out);
        }
        finding.published.is_none() || finding.routine
    }

    fn condemn(&mut self, now: Time, ix: ContainerIx, kind: Kind, out: &mut Outbox) {
        let container = &self.containers[ix];
        let reason = match kind {
            Kind::Startup => KillReason::StartupProbe,
            Kind::Liveness | Kind::Readiness => KillReason::LivenessProbe,
        };
        let sources = GraceSources {
            probe: container.probe_grace(kind),
            pod: self.plan.grace,
            ..GraceSources::default()
        };
        let message = self.condemned_message(ix, kind);
        let order = KillOrder {
            reason,
            grace: sources.choose(),
            message,
            in_turn: false,
        };
        self.with(now, ix, out, |it, scope| it.kill(scope, order));
    }

    fn condemned_message(&self, ix: ContainerIx, kind: Kind) -> String {
        let container = &self.containers[ix];
        let (name, probe) = (&container.plan().name, kind.as_str());
        if container.role() != Role::Main {
            return format!("Init container {name} failed {probe} probe");
        }
        if container.restarts_when_condemned() {
            return format!("Container {name} failed {probe} probe, will be restarted");
        }
        let others_stay = self
            .containers
            .iter()
            .enumerate()
            .any(|(other, it)| other != ix && it.role() == Role::Main && !it.is_finished());
        if others_stay {
            format!("Container {name} failed {probe} probe")
        } else {
            format!("Stopping container {name}")
        }
    }

    fn kill_after_post_start(&mut self, now: Time, ix: ContainerIx, out: &mut Outbox) {
        if self.containers[ix].is_terminating() {
            return;
        }
        let grace = GraceSources {
            pod: self.plan.grace,
            ..GraceSources::default()
        }
        .choose();
        let message = "FailedPostStartHook".to_owned();
        let order = KillOrder {
            reason: KillReason::PostStartHook,
            grace,
            message,
            in_turn: false,
        };
        self.with(now, ix, out, |it, scope| it.kill(scope, order));
    }

    fn delete(&mut self, now: Time, grace: Option<Span>, out: &mut Outbox) {
        let sources = GraceSources {
            deletion: grace.or(self.plan.grace),
            ..GraceSources::default()
        };
        self.begin_end(now, KillReason::Deleted, sources.choose(), out);
        if let Some(end) = &mut self.end {
            end.deleted = true;
        }
    }

    fn evict(&mut self, now: Time, grace: Option<Span>, message: String, out: &mut Outbox) {
        if self.phase.is_terminal() {
            return;
        }
        let sources = GraceSources {
            forced: grace,
            pod: self.plan.grace,
            ..GraceSources::default()
        };
        tell_event(out, Severity::Warning, "Evicted", message.clone());
        self.fail("Evicted", message);
        self.begin_end(now, KillReason::Evicted, sources.choose(), out);
    }

    fn exceed_deadline(&mut self, now: Time, out: &mut Outbox) {
        let message = "Pod was active on the node longer than the specified deadline".to_owned();
        tell_event(out, Severity::Normal, "DeadlineExceeded", message.clone());
        self.fail("DeadlineExceeded", message);
        let sources = GraceSources {
            pod: self.plan.grace,
            ..GraceSources::default()
        };
        self.begin_end(now, KillReason::Deadline, sources.choose(), out);
    }

    fn fail(&mut self, reason: &str, message: String) {
        if self.failure.is_none() && self.end.is_none_or(|end| !end.deleted) {
            self.failure = Some(Failure {
                reason: reason.to_owned(),
                message,
            });
        }
    }

    // The end

    /// Begins the end of the pod, or brings it nearer.
    fn begin_end(&mut self, now: Time, reason: KillReason, grace: Grace, out: &mut Outbox) {
        let until = now + grace.span;
        match &mut self.end {
            None => {
                self.end = Some(End {
                    reason,
                    grace,
                    until,
                    deleted: false,
                });
            }
            Some(end) if until < end.until || end.reason == KillReason::Completed => {
                *end = End {
                    reason,
                    grace,
                    until,
                    ..*end
                };
            }
            Some(_) => {}
        }
        for ix in 0..self.containers.len() {
            self.end_container(now, ix, out);
        }
    }

    fn end_container(&mut self, now: Time, ix: ContainerIx, out: &mut Outbox) {
        let Some(End { reason, grace, .. }) = self.end else {
            return;
        };
        let name = Arc::clone(&self.containers[ix].plan().name);
        let in_turn = self.containers[ix].role() == Role::Sidecar;
        let message = format!("Stopping container {name}");
        let order = KillOrder {
            reason,
            grace,
            message,
            in_turn,
        };
        self.with(now, ix, out, |it, scope| {
            if !it.kill(scope, order) {
                it.give_up();
            }
        });
    }

    /// Nothing is left that must stop before this container.
    fn is_turn_of(&self, ix: ContainerIx) -> bool {
        let is_before = |other: ContainerIx| match self.containers[other].role() {
            Role::Main | Role::Init => true,
            Role::Sidecar => other > ix,
        };
        match self.containers[ix].role() {
            Role::Main | Role::Init => true,
            Role::Sidecar => (0..self.containers.len())
                .all(|it| it == ix || !is_before(it) || !self.containers[it].is_alive()),
        }
    }

    // Moving on

    /// Takes every step that the state allows, then tells what has changed.
    fn settle(&mut self, now: Time, out: &mut Outbox) {
        out.dirty = true;
        while self.step(now, out) {}
        self.refresh(now, out);
        let view = self.view();
        for ix in 0..self.containers.len() {
            self.with(now, ix, out, |it, scope| it.sync_probers(scope, view));
        }
        self.close(now, out);
    }

    fn view(&self) -> PodView {
        PodView {
            finished: self.phase.is_terminal(),
            ending: self.end.is_some_and(|end| end.reason != KillReason::Completed),
        }
    }

    /// One step towards what the pod should be; false when there is none.
    fn step(&mut self, now: Time, out: &mut Outbox) -> bool {
        if self.end.is_some() {
            return self.step_end(now, out);
        }
        match self.sandbox {
            Sandbox::Absent => self.run_sandbox(out),
            Sandbox::Lost => self.recover_sandbox(out),
            Sandbox::Ready => self.step_containers(now, out),
            Sandbox::Starting | Sandbox::Failed { .. } | Sandbox::Stopping | Sandbox::Stopped => false,
        }
    }

    fn run_sandbox(&mut self, out: &mut Outbox) -> bool {
        out.actions.push(Action::RunSandbox {
            attempt: self.sandbox_attempts,
        });
        self.sandbox_attempts += 1;
        self.sandbox = Sandbox::Starting;
        true
    }

    fn recover_sandbox(&mut self, out: &mut Outbox) -> bool {
        if self.containers.iter().any(Container::is_alive) {
            return false;
        }
        let redo = self
            .containers
            .iter()
            .any(|it| it.role() == Role::Main && !it.is_finished());
        for container in &mut self.containers {
            if !container.is_finished() || (redo && container.role() == Role::Init) {
                container.reset();
            }
        }
        self.run_sandbox(out)
    }

    fn step_containers(&mut self, now: Time, out: &mut Outbox) -> bool {
        for ix in 0..self.containers.len() {
            let container = &self.containers[ix];
            if *container.stage() == Stage::Pending {
                self.with(now, ix, out, |it, scope| it.begin(scope, false));
                return true;
            }
            match container.role() {
                Role::Init if container.has_succeeded() => {}
                Role::Init if container.is_finished() => return self.complete(now, out),
                Role::Sidecar if container.was_started => {}
                Role::Init | Role::Sidecar => return false,
                Role::Main => {}
            }
        }
        let all_done = self.mains().all(Container::is_finished);
        all_done && self.complete(now, out)
    }

    fn mains(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(|it| it.role() == Role::Main)
    }

    /// The pod has done what it is for, or cannot: what is left of it ends.
    fn complete(&mut self, now: Time, out: &mut Outbox) -> bool {
        let grace = GraceSources {
            pod: self.plan.grace,
            ..GraceSources::default()
        }
        .choose();
        self.begin_end(now, KillReason::Completed, grace, out);
        true
    }

    fn step_end(&mut self, now: Time, out: &mut Outbox) -> bool {
        for ix in 0..self.containers.len() {
            let running = self.containers[ix].running().is_some();
            if running && !self.containers[ix].is_terminating() {
                self.end_container(now, ix, out);
                return true;
            }
            self.containers[ix].give_up();
        }
        let mut advanced = false;
        for ix in 0..self.containers.len() {
            if self.containers[ix].role() == Role::Sidecar && self.is_turn_of(ix) {
                advanced |= self.with(now, ix, out, Container::take_turn).unwrap_or(false);
            }
        }
        advanced
    }

    /// Stops the sandbox once all containers are gone, and ends a deleted pod once the sandbox is.
    fn close(&mut self, now: Time, out: &mut Outbox) {
        let Some(end) = self.end else { return };
        if self.containers.iter().any(Container::is_alive) {
            return;
        }
        match self.sandbox {
            Sandbox::Ready => {
                self.sandbox = Sandbox::Stopping;
                out.actions.push(Action::StopSandbox);
                return;
            }
            Sandbox::Starting | Sandbox::Stopping => return,
            Sandbox::Absent | Sandbox::Failed { .. } | Sandbox::Lost => self.sandbox = Sandbox::Stopped,
            Sandbox::Stopped => {}
        }
        if end.deleted {
            self.over = true;
            tell(now, out, LineBody::Deleted);
        }
    }

    /// Does one thing that is due, other than a probe; false when there is none.
    fn fire(&mut self, now: Time, out: &mut Outbox) -> bool {
        if self.sandbox_retry().is_some_and(|at| at <= now) {
            self.sandbox = Sandbox::Absent;
            return true;
        }
        if self.active_until().is_some_and(|at| at <= now) {
            self.exceed_deadline(now, out);
            return true;
        }
        for ix in 0..self.containers.len() {
            let turn = self.is_turn_of(ix);
            if self.with(now, ix, out, |it, scope| it.advance(scope, turn)) == Some(true) {
                return true;
            }
        }
        false
    }

    fn advance_probes(&mut self, now: Time, out: &mut Outbox) {
        let view = self.view();
        for ix in 0..self.containers.len() {
            if self.containers[ix].next_deadline().is_some_and(|at| at <= now) {
                self.with(now, ix, out, |it, scope| it.advance_probes(scope, view));
            }
        }
    }

    fn resume(&mut self, now: Time, out: &mut Outbox) {
        tell(now, out, LineBody::AgentRestarted);
        match self.sandbox {
            Sandbox::Starting => {
                let attempt = self.sandbox_attempts.saturating_sub(1);
                out.actions.push(Action::RunSandbox { attempt });
            }
            Sandbox::Stopping => out.actions.push(Action::StopSandbox),
            Sandbox::Absent | Sandbox::Failed { .. } | Sandbox::Ready | Sandbox::Lost | Sandbox::Stopped => {}
        }
        let mut random = self.random;
        for ix in 0..self.containers.len() {
            self.with(now, ix, out, |it, scope| it.resume(scope, || draw(&mut random)));
        }
        self.random = random;
    }

    fn replan(&mut self, plan: Arc<PodPlan>, settings: Settings) {
        for (container, plan) in self.containers.iter_mut().zip(&plan.containers) {
            container.replan(plan);
        }
        self.plan = plan;
        self.settings = settings;
    }

    // Telling

    fn refresh(&mut self, now: Time, out: &mut Outbox) {
        let phase = crate::summary::phase(self);
        if !phase.is_terminal() {
            self.tell_phase(now, phase, out);
        }
        for ix in 0..self.containers.len() {
            self.with(now, ix, out, Container::tell);
        }
        let ready = crate::summary::is_ready(self);
        if ready != self.told_ready {
            self.told_ready = ready;
            tell(now, out, if ready { LineBody::Ready } else { LineBody::Unready });
        }
        if phase.is_terminal() {
            self.tell_phase(now, phase, out);
        }
        crate::summary::update_conditions(self, now);
    }

    fn tell_phase(&mut self, now: Time, phase: Phase, out: &mut Outbox) {
        if phase != self.phase {
            self.phase = phase;
            tell(now, out, LineBody::Phase { phase });
        }
    }

    /// Runs a step of a container's current life; none if there is no such container.
    fn with<R>(
        &mut self,
        now: Time,
        ix: ContainerIx,
        out: &mut Outbox,
        step: impl FnOnce(&mut Container, &mut Scope<'_>) -> R,
    ) -> Option<R> {
        let life = self.containers.get(ix)?.life_key(ix);
        self.with_life(now, life, out, step)
    }

    /// Runs a step of one life of a container; none if there is no such container.
    fn with_life<R>(
        &mut self,
        now: Time,
        life: LifeKey,
        out: &mut Outbox,
        step: impl FnOnce(&mut Container, &mut Scope<'_>) -> R,
    ) -> Option<R> {
        let container = self.containers.get_mut(life.container)?;
        let name = Arc::clone(&container.plan().name);
        let mut scope = Scope {
            now,
            life,
            name,
            settings: &self.settings,
            out,
        };
        Some(step(container, &mut scope))
    }
}

fn tell(now: Time, out: &mut Outbox, body: LineBody) {
    out.lines.push(Line {
        at: now,
        container: None,
        body,
    });
}

fn tell_event(out: &mut Outbox, severity: Severity, reason: &'static str, message: String) {
    out.events.push(Event {
        container: None,
        severity,
        reason,
        message,
    });
}

/// The next number of a splitmix64 generator, as a fraction below one.
#[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
fn draw(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}
