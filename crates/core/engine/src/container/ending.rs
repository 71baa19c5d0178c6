//! From the decision to end a life to what follows it: another life, now or later, or none.

use std::sync::Arc;

use pulselet_vocabulary::Signal;

use super::{Container, Running, Stage};
use crate::backoff::{Decided, Ends};
use crate::io::{Action, Exit};
use crate::line::{ExitReason, KillReason, LineBody};
use crate::plan::{ProbeKind, RestartAction, RestartPolicy, Role};
use crate::scope::Scope;
use crate::status::Terminated;
use crate::termination::{KillOrder, MINIMUM_GRACE, Termination};
use crate::time::{Span, Time};
use crate::transition::Transition;

impl Container {
    /// Begins to end the life, or makes an end under way shorter. False if there is no running life.
    pub(crate) fn kill(&mut self, scope: &mut Scope<'_>, order: KillOrder) -> bool {
        let Stage::Running(running) = &mut self.stage else {
            return false;
        };
        scope.life.attempt = running.life.attempt;
        if let Some(termination) = &mut running.termination {
            termination.join(scope, &order);
        } else {
            let has_time = order.reason != KillReason::AllContainersRestarting;
            let pre_stop = running.life.plan.pre_stop.filter(|_| has_time);
            let mut termination = Termination::begin(scope, order, pre_stop);
            if running.signal_unhandled {
                termination.expect_nothing_of_signal();
            }
            running.termination = Some(termination);
        }
        true
    }

    /// The grace period that the life's own probe sets.
    pub(crate) fn probe_grace(&self, kind: ProbeKind) -> Option<Span> {
        self.running()?.life.plan.probe(kind)?.grace
    }

    pub(crate) fn signalled(&mut self, scope: &mut Scope<'_>, signal: Signal, at: Time) {
        let attempt = scope.life.attempt;
        if let Some(Running {
            termination: Some(termination),
            ..
        }) = self.running_mut(attempt)
        {
            termination.signalled(scope, signal, at);
        }
    }

    /// Says once per life that a stop will take the whole grace period. A pod without one has nothing to wait for.
    pub(crate) fn stop_signal_unhandled(
        &mut self,
        scope: &mut Scope<'_>,
        signal: Signal,
        grace: Option<Span>,
    ) {
        let Some(running) = self.running_mut(scope.life.attempt) else {
            return;
        };
        if let Some(termination) = &mut running.termination {
            termination.expect_nothing_of_signal();
        }
        let grace = grace.unwrap_or(MINIMUM_GRACE);
        let was_reported = std::mem::replace(&mut running.signal_unhandled, true);
        if was_reported || grace.is_zero() {
            return;
        }
        let message = format!(
            "Container {} does not handle its stop signal {signal}: every stop takes the whole grace period of {grace} \
             and ends with SIGKILL",
            scope.name
        );
        if running.life.plan.stop_signal.is_some() {
            scope.warning("StopSignalNotHandled", message.clone());
            scope.line(LineBody::Warning { message });
        } else {
            scope.normal("StopSignalNotHandled", message);
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
        let stopped = termination.map(|termination| termination.exited(scope, exit));
        let reason = match exit.code {
            _ if exit.oom_killed => ExitReason::OOMKilled,
            _ if cause == Some(KillReason::AllContainersRestarting) => ExitReason::RestartingAllContainers,
            0 => ExitReason::Completed,
            _ => ExitReason::Error,
        };
        let signalled_at = stopped.and_then(|(_, signalled_at)| signalled_at);
        scope.line(LineBody::Exited {
            exit_code: exit.code,
            reason,
            seconds: signalled_at.map(|at| exit.at.since(at)),
        });
        scope.transition(Transition::Ended {
            life: scope.life,
            stop: stopped.map(|(stop, _)| stop),
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
        self.record_end(terminated, &life);
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
        if matches!(
            ended.cause,
            Some(KillReason::Restarted | KillReason::NodeShutdown)
        ) {
            // Whoever asks for another life does not want to wait for it; a shutdown that was cancelled is nobody's fault.
            return self.begin(scope, false);
        }
        let decided_on = match ended.cause {
            Some(KillReason::LivenessProbe | KillReason::StartupProbe | KillReason::ImageChanged) => self
                .earlier
                .as_ref()
                .map(|earlier| Decided::OnEarlier(earlier.terminated.finished_at)),
            Some(
                KillReason::Deleted
                | KillReason::Stopped
                | KillReason::Evicted
                | KillReason::NodeShutdown
                | KillReason::Deadline
                | KillReason::SandboxChanged
                | KillReason::Restarted
                | KillReason::AllContainersRestarting
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

    /// Whether this end of a life restarts all containers of the pod.
    pub(crate) fn restarts_all_after(&self, ended: EndedBy) -> bool {
        self.plan.action_after(ended.code) == Some(RestartAction::RestartAllContainers)
    }

    pub(super) fn restarts_after(&self, ended: EndedBy) -> bool {
        // Whoever changes an image or asks for a restart wants it to run, whatever the policy says about exits; and so does
        // who started a pod whose machine went down under it.
        if matches!(
            ended.cause,
            Some(KillReason::ImageChanged | KillReason::Restarted | KillReason::NodeShutdown)
        ) {
            return true;
        }
        // Either action restarts this container.
        if self.plan.action_after(ended.code).is_some() {
            return true;
        }
        let condemned = matches!(
            ended.cause,
            Some(KillReason::LivenessProbe | KillReason::StartupProbe)
        );
        match (self.plan.role, self.plan.restart) {
            (Role::Sidecar, _) | (Role::Main, RestartPolicy::Always) => true,
            (Role::Ephemeral, _) | (Role::Init | Role::Main, RestartPolicy::Never) => false,
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
            Role::Ephemeral => false,
            Role::Init | Role::Main => self.plan.restart != RestartPolicy::Never,
        }
    }

    /// Ends the wait for the next life, if there is one.
    pub(crate) fn start_without_waiting(&mut self, scope: &mut Scope<'_>) {
        if matches!(self.stage, Stage::BackOff { .. }) {
            self.begin(scope, false);
        }
    }

    /// No further life, whatever it was waiting for.
    pub(crate) fn give_up(&mut self) {
        if !self.is_alive() {
            self.stage = Stage::Finished;
        }
    }

    /// Ends the wait for whatever it waits for, until its turn in the pod comes again.
    pub(crate) fn wait_for_turn(&mut self) {
        if !self.is_alive() && !self.is_finished() {
            self.stage = Stage::Pending;
        }
    }

    /// Takes a life that was created but must not start any more.
    pub(crate) fn abandon(&mut self, scope: &mut Scope<'_>) {
        let life = scope.life;
        scope.act(Action::Remove { life });
        self.stage = Stage::Finished;
    }

    /// Takes a life that was created but must not start before its turn comes again.
    pub(crate) fn put_off(&mut self, scope: &mut Scope<'_>) {
        let life = scope.life;
        scope.act(Action::Remove { life });
        self.stage = Stage::Pending;
    }

    /// Back to its first turn.
    pub(crate) fn reset(&mut self) {
        self.stage = Stage::Pending;
        self.was_started = false;
    }
}

/// How a life came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndedBy {
    /// Why it was killed; none if it left by itself.
    pub(crate) cause: Option<KillReason>,
    pub(crate) code: i32,
}
