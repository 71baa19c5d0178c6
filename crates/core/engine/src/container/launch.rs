//! From a container's turn to a running life: image, creation, start.

use std::sync::Arc;

use pulselet_vocabulary::{Signal, exit_code};

use super::{Container, Ended, Life, Running, Stage};
use crate::backoff::{BackOff, Decided, Ends};
use crate::hook::HookRun;
use crate::io::{Action, CreateError, ImageFailure, LifeKey, Pulled};
use crate::line::{ExitReason, LineBody};
use crate::plan::{ContainerPlan, Hook, ProbeKind};
use crate::probe_runner::ProbeRunner;
use crate::scope::Scope;
use crate::status::Terminated;
use crate::time::{Span, Time};
use crate::transition::Transition;

/// A creation that failed is tried again after this long.
const CREATE_AGAIN_AFTER: Span = Span::from_secs(10);
/// A pull that failed is tried again after this long, then after twice as long, and so on up to the greatest.
const PULL_AGAIN_AFTER: Span = Span::from_secs(10);
const PULL_AGAIN_AT_MOST: Span = Span::from_secs(300);

impl Container {
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

    pub(super) fn ensure_image(&mut self, scope: &mut Scope<'_>) {
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

    pub(crate) fn image_failed(&mut self, scope: &mut Scope<'_>, error: ImageFailure, message: String) {
        if self.stage != Stage::Pulling {
            return;
        }
        let image = &self.plan.image;
        match error {
            ImageFailure::ErrImagePull => {
                scope.warning("Failed", format!("Failed to pull image \"{image}\": {message}"));
                scope.warning("Failed", "Error: ErrImagePull");
            }
            ImageFailure::ErrImageNeverPull => {
                scope.warning("ErrImageNeverPull", message.clone());
                scope.warning("Failed", "Error: ErrImageNeverPull");
            }
            ImageFailure::InvalidImageName => {
                scope.warning("InspectFailed", message.clone());
                scope.warning("Failed", "Error: InvalidImageName");
            }
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
        if error == ImageFailure::ErrImagePull {
            scope.normal("BackOff", format!("Back-off pulling image \"{image}\""));
            scope.warning("Failed", "Error: ImagePullBackOff");
        }
        self.stage = Stage::PullBackOff {
            until,
            error,
            message,
        };
    }

    pub(super) fn create(&mut self, scope: &mut Scope<'_>) {
        self.stage = Stage::Creating;
        self.asked_image = Some(Arc::clone(&self.plan.image));
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

    /// The life that must be over because a much later one is there, made by an agent that could not write it down.
    pub(crate) fn outdated_by(&self, life: LifeKey) -> Option<LifeKey> {
        let attempt = self.starting_or_running()?.attempt;
        let forgotten = life.attempt > self.next_attempt;
        forgotten.then_some(LifeKey { attempt, ..life })
    }

    /// The container is there. A creation that was given up, or lost with an agent, may turn up late. One that is later
    /// than the next was made by an agent whose memory is lost, and is gone on with.
    pub(crate) fn created(&mut self, scope: &mut Scope<'_>, id: Arc<str>, stop_signal: Option<Signal>) {
        let attempt = scope.life.attempt;
        let awaited = matches!(self.stage, Stage::Creating | Stage::CreateBackOff { .. });
        let forgotten = attempt > self.next_attempt
            && self.starting_or_running().is_none()
            && self.stage != Stage::Finished;
        if !forgotten && (!awaited || attempt != self.next_attempt) {
            return;
        }
        self.next_attempt = attempt + 1;
        scope.normal("Created", "Container created");
        scope.line(LineBody::Created {
            id: Arc::clone(&id),
            restart_count: attempt,
        });
        scope.transition(Transition::Created { life: scope.life });
        self.warn_of_unknown_signal(scope, stop_signal);
        forget_old_life(scope);
        let plan = self.plan_with_asked_image();
        self.probers = ProbeKind::ALL.map(|kind| {
            plan.probe(kind)
                .map(|probe| ProbeRunner::new(kind, Arc::clone(probe)))
        });
        self.stage = Stage::Starting(Life {
            attempt,
            id,
            stop_signal,
            plan,
        });
    }

    /// The plan of a life that was just made. Another manifest may have come since it was asked for.
    fn plan_with_asked_image(&self) -> Arc<ContainerPlan> {
        match &self.asked_image {
            Some(image) if *image != self.plan.image => Arc::new(ContainerPlan {
                image: Arc::clone(image),
                ..(*self.plan).clone()
            }),
            Some(_) | None => Arc::clone(&self.plan),
        }
    }

    pub(super) fn warn_of_unknown_signal(&mut self, scope: &mut Scope<'_>, effective: Option<Signal>) {
        let Some(wanted) = self.plan.stop_signal else {
            return;
        };
        // A runtime that does not know the field may still be known to go by the image.
        if effective == Some(wanted) || self.reported.stop_signal_unknown {
            return;
        }
        self.reported.stop_signal_unknown = true;
        let by = effective.map_or("its image's signal or the runtime's default", Signal::name);
        let message = format!(
            "The runtime does not know stop signals: container {} asks for {wanted} and is stopped by {by}",
            scope.name
        );
        scope.line(LineBody::Warning {
            message: message.clone(),
        });
        scope.warning("StopSignalNotSupported", message);
    }

    fn starting_or_running(&self) -> Option<&Life> {
        match &self.stage {
            Stage::Starting(life) | Stage::Running(Running { life, .. }) => Some(life),
            Stage::Pending
            | Stage::Pulling
            | Stage::PullBackOff { .. }
            | Stage::Creating
            | Stage::CreateBackOff { .. }
            | Stage::BackOff { .. }
            | Stage::Finished => None,
        }
    }

    /// The life that is about to run, if it is this attempt.
    pub(super) fn starting(&self, attempt: u32) -> Option<Life> {
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
        scope.transition(Transition::Running {
            life: scope.life,
            since: at,
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
            succeeded: false,
            signal_unhandled: false,
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
            exit_code: exit_code::START_ERROR,
            reason: ExitReason::StartError,
            seconds: None,
        });
        scope.transition(Transition::Ended {
            life: scope.life,
            stop: None,
        });
        let terminated = Terminated {
            id: Arc::clone(&life.id),
            exit_code: exit_code::START_ERROR,
            reason: ExitReason::StartError,
            message: Some(message),
            started_at: None,
            finished_at: scope.now,
        };
        self.record_end(terminated, &life);
        true
    }

    pub(super) fn record_end(&mut self, terminated: Terminated, life: &Life) {
        let ended = Ended {
            terminated,
            stop_signal: life.stop_signal,
            image: Some(Arc::clone(&life.plan.image)),
            attempt: life.attempt,
        };
        self.earlier = self.newest.replace(ended);
        self.stage = Stage::Pending;
    }
}

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
