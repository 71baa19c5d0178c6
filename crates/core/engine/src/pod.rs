//! A pod: its sandbox, its containers in their order, its phase and conditions, and its end.
//!
//! It always holds:
//! - init containers run one by one; a sidecar lets the next one begin once it is started; main containers begin last;
//! - once the end has begun nothing is started any more, and it can only come sooner;
//! - all containers restart by a rule only after all of them have ended;
//! - at the end a sidecar gets its stop signal when all main containers and all later sidecars are gone, or when the
//!   grace period is over;
//! - started, ready and phase are reported when they change, in [`PodMachine::refresh`] and nowhere else.

mod ending;
mod inputs;
mod moving;
mod restarting;
mod shutdown;

use std::collections::BTreeSet;
use std::sync::Arc;

use pulselet_vocabulary::{PodName, Severity, Signal};
use serde::{Deserialize, Serialize};

use crate::container::Container;
use crate::event::Event;
use crate::io::{ContainerIx, Input, LifeKey, Outbox};
use crate::line::{KillReason, Line, LineBody, Phase};
use crate::plan::{PodPlan, ProbeKind, ProbePace, Settings};
use crate::pressure::PressureChange;
use crate::scope::Scope;
use crate::status::{EffectiveProbe, PodCondition, PodReport};
use crate::termination::Grace;
use crate::time::Time;
use crate::transition::Transition;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub uid: Arc<str>,
}

impl Identity {
    pub fn pod_name(&self) -> PodName {
        PodName {
            namespace: Arc::clone(&self.namespace),
            name: Arc::clone(&self.name),
        }
    }
}

/// One pod and all that must outlive the agent about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodMachine {
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
    pub(crate) conditions: Vec<PodCondition>,
    #[serde(rename = "told_ready")]
    reported_ready: bool,
    over: bool,
    /// It was stopped because the machine goes down, and begins anew when an agent comes after that.
    #[serde(default)]
    awaits_boot: bool,
    /// The container whose exit restarts all containers, as long as one of them has not ended.
    #[serde(default)]
    pub(crate) restarting_after: Option<ContainerIx>,
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
    /// The node never took the pod: none of its containers has a state.
    #[serde(default)]
    pub(crate) rejected: bool,
}

impl PodMachine {
    pub fn new(
        identity: Identity,
        plan: Arc<PodPlan>,
        settings: Settings,
        seed: u64,
        now: Time,
        out: &mut Outbox,
    ) -> Self {
        let mut pod = Self::accepted(identity, plan, settings, seed, now, out);
        if pod.is_stretched() {
            pod.report_pressure(now, PressureChange::Stretched, out);
        }
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
        push_event(out, Severity::Warning, reason, message.clone());
        push_line(
            now,
            out,
            LineBody::Warning {
                message: message.clone(),
            },
        );
        pod.fail(reason, format!("Pod was rejected: {message}"));
        if let Some(failure) = &mut pod.failure {
            failure.rejected = true;
        }
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
        push_line(
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
            reported_ready: false,
            over: false,
            awaits_boot: false,
            restarting_after: None,
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

    /// When all of it should be gone; `None` if it is not ending.
    pub fn ends_by(&self) -> Option<Time> {
        self.end.map(|end| end.until)
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether a worker of this kind probes, or is to probe, this life, which runs.
    pub fn has_worker(&self, life: LifeKey, kind: ProbeKind) -> bool {
        let container = self.containers.get(life.container);
        container.is_some_and(|container| container.has_worker(life.attempt, kind))
    }

    /// The distinct stop signals that manifests name: of a life that runs the one it was created with, else the next life's.
    pub fn stop_signals(&self) -> BTreeSet<Signal> {
        self.containers
            .iter()
            .filter_map(Container::asked_signal)
            .collect()
    }

    /// How every probe of the pod works now, in the order of its containers.
    pub fn probes(&self) -> impl Iterator<Item = EffectiveProbe> {
        let settings = &self.settings;
        self.containers.iter().flat_map(|it| it.probes(settings))
    }

    /// Whether a probe of the pod has a period below one second, so that the node's pressure concerns it.
    pub fn has_fast_probe(&self) -> bool {
        self.containers.iter().any(Container::has_fast_probe)
    }

    /// Whether its probes with a period below one second go by whole seconds for now.
    pub fn is_stretched(&self) -> bool {
        self.settings.pace == ProbePace::Stretched
    }

    pub fn status(&self) -> PodReport {
        crate::summary::status(self)
    }

    /// Its state is an old copy: results that came after it are lost, so no probe may count on with what it had counted.
    pub fn forget_probe_runs(&mut self) {
        self.containers.iter_mut().for_each(Container::forget_runs);
    }

    /// Takes one observation, answer or request.
    pub fn handle(&mut self, now: Time, input: Input, out: &mut Outbox) {
        if self.over {
            return;
        }
        let waits = !begins_probes(&input);
        if let Input::ProbeDone { life, kind, report } = input {
            if self.probe_done(now, life, kind, report, out) {
                return self.advance_probes(now, out);
            }
        } else {
            self.take(now, input, out);
        }
        self.settle(now, out);
        // After a restart observations come before the probers have resumed: what is overdue must wait for that.
        if waits {
            self.fire_all(now, out);
        } else {
            self.advance(now, out);
        }
    }

    /// Does everything that is due at or before `now`.
    pub fn advance(&mut self, now: Time, out: &mut Outbox) {
        if self.over {
            return;
        }
        self.fire_all(now, out);
        self.advance_probes(now, out);
    }

    fn fire_all(&mut self, now: Time, out: &mut Outbox) {
        while self.fire(now, out) {
            self.settle(now, out);
        }
    }

    /// When [`PodMachine::advance`] must be called next.
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

    fn refresh(&mut self, now: Time, out: &mut Outbox) {
        let phase = crate::summary::phase(self);
        if !phase.is_terminal() {
            self.set_phase(now, phase, out);
        }
        for ix in 0..self.containers.len() {
            self.with(now, ix, out, Container::report_changes);
        }
        let ready = crate::summary::is_ready(self);
        if ready != self.reported_ready {
            self.reported_ready = ready;
            push_line(now, out, if ready { LineBody::Ready } else { LineBody::Unready });
            out.transitions.push(Transition::StatusChanged);
        }
        if phase.is_terminal() {
            self.set_phase(now, phase, out);
        }
        crate::summary::update_conditions(self, now);
    }

    fn set_phase(&mut self, now: Time, phase: Phase, out: &mut Outbox) {
        if phase != self.phase {
            self.phase = phase;
            push_line(now, out, LineBody::Phase { phase });
            out.transitions.push(Transition::StatusChanged);
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

/// Whether probes that are due are begun with this input. Not with what a driver may find in the runtime, at any time and
/// more than once, and not with a new plan or the node's pressure: a pod that it does not concern must not notice it.
const fn begins_probes(input: &Input) -> bool {
    !matches!(
        input,
        Input::Created { .. }
            | Input::Running { .. }
            | Input::Exited { .. }
            | Input::Signalled { .. }
            | Input::Replan { .. }
            | Input::Pressure { .. }
            | Input::StopSignalUnhandled { .. }
    )
}

fn push_line(now: Time, out: &mut Outbox, body: LineBody) {
    out.lines.push(Line {
        at: now,
        container: None,
        body,
    });
}

fn push_event(out: &mut Outbox, severity: Severity, reason: &'static str, message: String) {
    out.events.push(Event {
        container: None,
        severity,
        reason,
        message,
    });
}
