//! What each input does to a pod, before the pod settles.

use std::sync::Arc;

use pulselet_vocabulary::{Severity, Signal, exit_code};

use super::{Failure, Identity, PodMachine, Sandbox, push_event, push_line};
use crate::container::{Condemned, EndedBy, Stage, start};
use crate::io::{ContainerIx, Exit, Input, LifeKey, Outbox, ProbeReport};
use crate::line::{KillReason, LineBody};
use crate::plan::{ProbeKind, Role};
use crate::termination::{GraceSources, KillOrder};
use crate::time::{Span, Time};

/// A sandbox that could not be made is tried again after this long.
const SANDBOX_AGAIN_AFTER: Span = Span::from_secs(10);
/// Volumes that could not be filled are tried again after this long: somebody is about to make what is missing.
const VOLUMES_AGAIN_AFTER: Span = Span::from_secs(2);

impl PodMachine {
    pub(super) fn take(&mut self, now: Time, input: Input, out: &mut Outbox) {
        match input {
            Input::SandboxReady => self.sandbox_ready(),
            Input::SandboxFailed { message } => self.sandbox_failed(now, &message, out),
            Input::VolumesNotReady => self.volumes_not_ready(now),
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
                self.with_life(now, life, out, |it, scope| it.signalled(scope, signal, at));
            }
            Input::StopSignalUnhandled { life, signal } => {
                let grace = self.plan.grace;
                self.with_life(now, life, out, |it, scope| {
                    it.stop_signal_unhandled(scope, signal, grace);
                });
            }
            Input::Delete { grace } => self.delete(now, KillReason::Deleted, grace, out),
            Input::Stop { grace } => self.delete(now, KillReason::Stopped, grace, out),
            Input::Evict { grace, message } => self.evict(now, grace, message, out),
            Input::NodeShutdown { left, then } => self.shut_down(now, left, then, out),
            Input::ShutdownCancelled => self.awaits_boot = false,
            Input::Restart { container } => self.restart(now, container, out),
            Input::AgentRestarted => self.resume(now, out),
            Input::Replan {
                plan,
                running,
                settings,
            } => self.replan(now, plan, &running, settings, out),
            Input::Pressure { change } => self.pace(now, change, out),
        }
    }

    pub(super) fn sandbox_ready(&mut self) {
        if self.sandbox == Sandbox::Starting {
            self.sandbox = Sandbox::Ready;
        }
    }

    pub(super) fn sandbox_failed(&mut self, now: Time, message: &str, out: &mut Outbox) {
        if self.sandbox != Sandbox::Starting {
            return;
        }
        self.sandbox = Sandbox::Failed {
            retry_at: now + SANDBOX_AGAIN_AFTER,
        };
        let message = format!("Failed to create pod sandbox: {message}");
        push_line(
            now,
            out,
            LineBody::Warning {
                message: message.clone(),
            },
        );
        push_event(out, Severity::Warning, "FailedCreatePodSandBox", message);
    }

    /// What is missing is reported by whoever looked for it.
    fn volumes_not_ready(&mut self, now: Time) {
        if self.sandbox == Sandbox::Starting {
            self.sandbox = Sandbox::Failed {
                retry_at: now + VOLUMES_AGAIN_AFTER,
            };
        }
    }

    /// Ends what still runs, and goes back to the beginning once all of it is gone.
    pub(super) fn sandbox_lost(&mut self, now: Time, out: &mut Outbox) {
        match self.sandbox {
            Sandbox::Ready => {}
            // One that is being stopped is not ready any more, and not gone either: an agent that was killed in between has left
            // all of it.
            Sandbox::Absent
            | Sandbox::Starting
            | Sandbox::Failed { .. }
            | Sandbox::Lost
            | Sandbox::Stopping
            | Sandbox::Stopped => return,
        }
        self.sandbox = Sandbox::Lost;
        let message = "Pod sandbox changed, it will be killed and re-created.";
        push_event(out, Severity::Normal, "SandboxChanged", message.to_owned());
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

    pub(super) fn created(
        &mut self,
        now: Time,
        life: LifeKey,
        id: &Arc<str>,
        stop_signal: Option<Signal>,
        out: &mut Outbox,
    ) {
        // An agent that stood still learns of the container before it sees to the deadline that has passed.
        let is_late = self.active_until().is_some_and(|deadline| deadline <= now);
        let ending = self.end.is_some() || is_late;
        let put_off = self.awaits_boot || self.is_restarting(life.container);
        let older = self.containers.get(life.container);
        if let Some(older) = older.and_then(|it| it.outdated_by(life)) {
            let exit = Exit {
                code: exit_code::UNKNOWN,
                at: now,
                oom_killed: false,
                message: Some("Nobody has seen its end; there was another life after it".to_owned()),
                stop: None,
            };
            self.exited(now, older, &exit, out);
        }
        self.with_life(now, life, out, |it, scope| {
            it.created(scope, Arc::clone(id), stop_signal);
            if matches!(it.stage(), Stage::Starting(created) if created.attempt == scope.life.attempt) {
                if put_off {
                    it.put_off(scope);
                } else if ending {
                    it.abandon(scope);
                } else {
                    start(scope);
                }
            }
        });
    }

    pub(super) fn start_failed(&mut self, now: Time, life: LifeKey, message: String, out: &mut Outbox) {
        let failed = self.with_life(now, life, out, |it, scope| {
            it.start_failed(scope, message)
                .then(|| it.newest().map_or(0, |ended| ended.terminated.exit_code))
        });
        if let Some(code) = failed.flatten() {
            self.after_end(now, life, EndedBy { cause: None, code }, out);
        }
    }

    pub(super) fn exited(&mut self, now: Time, life: LifeKey, exit: &Exit, out: &mut Outbox) {
        let ended = self
            .with_life(now, life, out, |it, scope| it.exited(scope, exit))
            .flatten();
        if let Some(ended) = ended {
            self.after_end(now, life, ended, out);
        }
    }

    pub(super) fn after_end(&mut self, now: Time, life: LifeKey, ended: EndedBy, out: &mut Outbox) {
        if self.end.is_some() {
            self.containers[life.container].give_up();
            return;
        }
        if self.containers[life.container].restarts_all_after(ended) {
            self.restart_all(now, life.container, ended.code, out);
        }
        if self.sandbox == Sandbox::Lost || self.awaits_boot {
            self.containers[life.container].after_end_without_sandbox(ended);
            return;
        }
        if self.is_restarting(life.container) {
            return;
        }
        let Identity { namespace, name, uid } = &self.identity;
        let pod = format!("{name}_{namespace}({uid})");
        self.with_life(now, life, out, |it, scope| it.after_end(scope, ended, &pod));
    }

    /// Returns true if the report changed nothing but the probe's own clock.
    pub(super) fn probe_done(
        &mut self,
        now: Time,
        life: LifeKey,
        kind: ProbeKind,
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

    pub(super) fn condemn(&mut self, now: Time, ix: ContainerIx, kind: ProbeKind, out: &mut Outbox) {
        let container = &self.containers[ix];
        let reason = match kind {
            ProbeKind::Startup => KillReason::StartupProbe,
            ProbeKind::Liveness | ProbeKind::Readiness => KillReason::LivenessProbe,
        };
        let sources = GraceSources {
            probe: container.probe_grace(kind),
            node: self.settings.probe_grace,
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

    pub(super) fn condemned_message(&self, ix: ContainerIx, kind: ProbeKind) -> String {
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

    pub(super) fn kill_after_post_start(&mut self, now: Time, ix: ContainerIx, out: &mut Outbox) {
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

    fn restart(&mut self, now: Time, ix: ContainerIx, out: &mut Outbox) {
        let stays = self.end.is_none() && !self.awaits_boot;
        let Some(container) = self.containers.get(ix).filter(|_| stays) else {
            return;
        };
        let grace = GraceSources {
            pod: self.plan.grace,
            ..GraceSources::default()
        }
        .choose();
        let order = KillOrder {
            reason: KillReason::Restarted,
            grace,
            message: format!("Stopping container {}", container.plan().name),
            in_turn: false,
        };
        self.with(now, ix, out, |it, scope| {
            if !it.kill(scope, order) {
                it.start_without_waiting(scope);
            }
        });
    }

    fn delete(&mut self, now: Time, reason: KillReason, grace: Option<Span>, out: &mut Outbox) {
        let sources = GraceSources {
            deletion: grace.or(self.plan.grace),
            ..GraceSources::default()
        };
        self.begin_end(now, reason, sources.choose(), out);
        if let Some(end) = &mut self.end {
            end.deleted = true;
        }
    }

    pub(super) fn evict(&mut self, now: Time, grace: Option<Span>, message: String, out: &mut Outbox) {
        if self.phase.is_terminal() {
            return;
        }
        let sources = GraceSources {
            forced: grace,
            pod: self.plan.grace,
            ..GraceSources::default()
        };
        push_event(out, Severity::Warning, "Evicted", message.clone());
        self.fail("Evicted", message);
        self.begin_end(now, KillReason::Evicted, sources.choose(), out);
    }

    pub(super) fn exceed_deadline(&mut self, now: Time, out: &mut Outbox) {
        let message = "Pod was active on the node longer than the specified deadline".to_owned();
        push_event(out, Severity::Normal, "DeadlineExceeded", message.clone());
        self.fail("DeadlineExceeded", message);
        let sources = GraceSources {
            pod: self.plan.grace,
            ..GraceSources::default()
        };
        self.begin_end(now, KillReason::Deadline, sources.choose(), out);
    }

    pub(super) fn fail(&mut self, reason: &str, message: String) {
        if self.failure.is_none() && self.end.is_none_or(|end| !end.deleted) {
            self.failure = Some(Failure {
                reason: reason.to_owned(),
                message,
                rejected: false,
            });
        }
    }
}
