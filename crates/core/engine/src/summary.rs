//! A pod seen from outside: phase, conditions and status, computed from its state.

use std::sync::Arc;

use crate::container::{Container, Stage};
use crate::io::ImageFailure;
use crate::line::Phase;
use crate::plan::Role;
use crate::pod::{PodMachine, Sandbox};
use crate::status::{ConditionKind, ContainerReport, PodCondition, PodReport, ReportedState};
use crate::time::Time;

pub(crate) fn phase(pod: &PodMachine) -> Phase {
    if pod.phase.is_terminal() {
        return pod.phase;
    }
    let alive = pod.containers.iter().any(Container::is_alive);
    if pod.end.is_some() && !alive {
        return final_phase(pod);
    }
    if is_waiting(pod) {
        Phase::Pending
    } else {
        Phase::Running
    }
}

/// Some container has yet to run for the first time.
fn is_waiting(pod: &PodMachine) -> bool {
    pod.containers.iter().any(|it| match it.role() {
        Role::Init => !it.has_succeeded(),
        Role::Sidecar => !it.was_started,
        Role::Main => it.running().is_none() && it.newest().is_none(),
        Role::Ephemeral => false,
    })
}

fn final_phase(pod: &PodMachine) -> Phase {
    // Deleted before they were done, they never will be.
    let failed = |it: &Container| pod.is_deleting() || (it.is_finished() && it.newest().is_some());
    let init_failed = pod
        .containers
        .iter()
        .any(|it| it.role() == Role::Init && !it.has_succeeded() && failed(it));
    if pod.failure.is_some() || init_failed {
        return Phase::Failed;
    }
    if is_waiting(pod) {
        return pod.phase;
    }
    let all_well = pod
        .containers
        .iter()
        .filter(|it| it.role() == Role::Main)
        .all(Container::has_succeeded);
    if all_well { Phase::Succeeded } else { Phase::Failed }
}

/// All containers that stay are ready.
pub(crate) fn is_ready(pod: &PodMachine) -> bool {
    !pod.phase.is_terminal()
        && pod
            .containers
            .iter()
            .filter(|it| it.counts_for_readiness())
            .all(Container::is_ready)
}

fn is_initialized(container: &Container) -> bool {
    match container.role() {
        Role::Init => container.has_succeeded(),
        Role::Sidecar => container.was_started,
        Role::Main | Role::Ephemeral => true,
    }
}

pub(crate) fn update_conditions(pod: &mut PodMachine, now: Time) {
    let (unready_reason, unready_message) = match pod.phase {
        Phase::Succeeded => ("PodCompleted", String::new()),
        Phase::Failed => ("PodFailed", String::new()),
        Phase::Pending | Phase::Running => (
            "ContainersNotReady",
            list(pod, "unready", |it| !it.counts_for_readiness() || it.is_ready()),
        ),
    };
    // A pod that was initialized stays so when its init containers run again.
    let was_initialized = |it: &PodCondition| it.kind == ConditionKind::Initialized && it.status;
    let initialized = pod.phase == Phase::Succeeded
        || pod.conditions.iter().any(was_initialized)
        || pod.containers.iter().all(is_initialized);
    let incomplete = || list(pod, "incomplete", is_initialized);
    let ready = is_ready(pod);
    let updates = [
        (
            ConditionKind::PodReadyToStartContainers,
            pod.sandbox == Sandbox::Ready,
            None,
        ),
        (
            ConditionKind::Initialized,
            initialized,
            (!initialized).then(|| ("ContainersNotInitialized", incomplete())),
        ),
        (
            ConditionKind::Ready,
            ready,
            (!ready).then(|| (unready_reason, unready_message.clone())),
        ),
        (
            ConditionKind::ContainersReady,
            ready,
            (!ready).then(|| (unready_reason, unready_message.clone())),
        ),
        (ConditionKind::PodScheduled, true, None),
    ];
    for (kind, status, why) in updates {
        set_condition(&mut pod.conditions, kind, status, why, now);
    }
    if pod.containers.iter().any(|it| it.plan().may_restart_all()) {
        let kind = ConditionKind::AllContainersRestarting;
        let (status, why) = restarting(pod);
        let why = why.map(|(reason, message)| (reason, message.to_owned()));
        set_condition(&mut pod.conditions, kind, status, why, now);
    }
}

/// Whether all containers restart, and why.
fn restarting(pod: &PodMachine) -> (bool, Option<(&'static str, &'static str)>) {
    match pod.phase {
        Phase::Succeeded => (false, Some(("PodCompleted", ""))),
        Phase::Failed => (false, Some(("PodFailed", ""))),
        Phase::Pending | Phase::Running if pod.restarting_after.is_some() => {
            let message = "container exited with restart policy rule";
            (true, Some(("RestartAllContainersStarted", message)))
        }
        Phase::Pending | Phase::Running => (false, None),
    }
}

/// Says that the pod ends because of its node.
pub(crate) fn add_disruption(conditions: &mut Vec<PodCondition>, message: &str, now: Time) {
    let why = Some(("TerminationByKubelet", message.to_owned()));
    set_condition(conditions, ConditionKind::DisruptionTarget, true, why, now);
}

fn set_condition(
    conditions: &mut Vec<PodCondition>,
    kind: ConditionKind,
    status: bool,
    why: Option<(&str, String)>,
    now: Time,
) {
    let (reason, message) = why.unzip();
    let reason = reason.map(str::to_owned);
    let message = message.filter(|message| !message.is_empty());
    match conditions.iter_mut().find(|it| it.kind == kind) {
        None => conditions.push(PodCondition {
            kind,
            status,
            reason,
            message,
            changed_at: now,
        }),
        Some(condition) => {
            let changed_at = if condition.status == status {
                condition.changed_at
            } else {
                now
            };
            *condition = PodCondition {
                kind,
                status,
                reason,
                message,
                changed_at,
            };
        }
    }
}

/// The sentence of a condition about the containers for which something does not hold.
fn list(pod: &PodMachine, what: &str, holds: impl Fn(&Container) -> bool) -> String {
    let names: Vec<&str> = pod
        .containers
        .iter()
        .filter(|it| !holds(it))
        .map(|it| &*it.plan().name)
        .collect();
    if names.is_empty() {
        String::new()
    } else {
        format!("containers with {what} status: [{}]", names.join(" "))
    }
}

pub(crate) fn status(pod: &PodMachine) -> PodReport {
    let has_init = pod.containers.iter().any(|it| match it.role() {
        Role::Init | Role::Sidecar => true,
        Role::Main | Role::Ephemeral => false,
    });
    PodReport {
        phase: pod.phase,
        reason: pod
            .failure
            .as_ref()
            .filter(|_| pod.phase == Phase::Failed)
            .map(|it| it.reason.clone()),
        message: pod
            .failure
            .as_ref()
            .filter(|_| pod.phase == Phase::Failed)
            .map(|it| it.message.clone()),
        rejected: pod.failure.as_ref().is_some_and(|it| it.rejected),
        accepted_at: pod.accepted_at,
        conditions: pod.conditions.clone(),
        containers: pod
            .containers
            .iter()
            .map(|it| {
                let creating = if pod.restarting_after.is_some() && it.newest().is_some() {
                    "RestartingAllContainers"
                } else if has_init && it.role() != Role::Ephemeral {
                    "PodInitializing"
                } else {
                    "ContainerCreating"
                };
                container_status(it, creating)
            })
            .collect(),
    }
}

/// `creating` is why a container waits whose next life is neither there nor delayed.
fn container_status(container: &Container, creating: &'static str) -> ContainerReport {
    let newest = container.newest();
    let state = state(container, creating);
    let last = match state {
        ReportedState::Terminated(_) => container.earlier(),
        ReportedState::Waiting { .. } | ReportedState::Running { .. } => newest,
    };
    let (id, stop_signal) = match container.stage() {
        Stage::Starting(life) => (Some(&life.id), life.stop_signal),
        Stage::Running(running) => (Some(&running.life.id), running.life.stop_signal),
        Stage::Pending
        | Stage::Pulling
        | Stage::PullBackOff { .. }
        | Stage::Creating
        | Stage::CreateBackOff { .. }
        | Stage::BackOff { .. }
        | Stage::Finished => (
            newest.map(|it| &it.terminated.id),
            newest.and_then(|it| it.stop_signal),
        ),
    };
    ContainerReport {
        name: Arc::clone(&container.plan().name),
        role: container.role(),
        image: Arc::clone(container.image()),
        last: last.map(|it| it.terminated.clone()),
        id: id.cloned(),
        started: container.is_started(),
        ready: container.is_ready() && container.counts_for_readiness()
            || (container.role() == Role::Init && container.has_succeeded()),
        restart_count: container.restart_count(),
        stop_signal,
        state,
    }
}

fn state(container: &Container, creating: &'static str) -> ReportedState {
    let waiting = |reason, message: Option<&String>| ReportedState::Waiting {
        reason,
        message: message.cloned(),
    };
    match container.stage() {
        Stage::Running(running) => ReportedState::Running {
            started_at: running.started_at,
        },
        Stage::Pending | Stage::Pulling | Stage::Creating | Stage::Starting(_) => waiting(creating, None),
        Stage::PullBackOff { error, message, .. } => match error {
            ImageFailure::ErrImagePull => {
                let image = &container.plan().image;
                let message = format!(
                    "Back-off pulling image \"{image}\": {}: {message}",
                    error.as_str()
                );
                waiting("ImagePullBackOff", Some(&message))
            }
            // No waiting helps: they are what they are until somebody changes something.
            ImageFailure::ErrImageNeverPull | ImageFailure::InvalidImageName => {
                waiting(error.as_str(), Some(message))
            }
        },
        Stage::CreateBackOff { error, message, .. } => waiting(error.as_str(), Some(message)),
        Stage::BackOff {
            after_failed_hook: true,
            ..
        } => waiting("PostStartHookError", None),
        Stage::BackOff {
            after_failed_hook: false,
            ..
        } => waiting("CrashLoopBackOff", None),
        Stage::Finished => match container.newest() {
            Some(ended) => ReportedState::Terminated(ended.terminated.clone()),
            None => waiting(creating, None),
        },
    }
}
