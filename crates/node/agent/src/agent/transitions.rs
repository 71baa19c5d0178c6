//! The engine's transitions, kept as facts about lives and counted as metrics.
//!
//! Everything that the agent knows of a life's course comes from here; lines are for people.

use std::sync::Arc;
use std::time::Duration;

use pulselet_engine::line::KillReason;
use pulselet_engine::plan::ProbeKind;
use pulselet_engine::status::ReportedState;
use pulselet_engine::transition::Stop;
use pulselet_engine::{PodKey, PodMachine, Transition};

use super::Agent;
use super::entry::{Life, LifeStage, PodEntry};
use crate::endpoints::metrics::{Metrics, ProbeName, RunningCounts, StopOutcome};

/// A program has set up its signal handlers by then, or has none.
pub(super) const SIGNALS_READ_AFTER: Duration = Duration::from_secs(10);

impl Agent {
    pub(super) fn follow(&mut self, key: PodKey, transitions: &[Transition]) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        for transition in transitions {
            follow_one(entry, *transition, &self.metrics);
            entry.changed_visibly |= transition.changes_status();
        }
        if transitions.iter().any(|transition| transition.changes_status()) {
            self.count_signals(key);
        }
        self.count_lives(key, transitions);
        for transition in transitions {
            match *transition {
                Transition::Running { life, .. } => self.read_signals(key, life, SIGNALS_READ_AFTER),
                Transition::StopBegan { life, grace, .. } if !grace.span.is_zero() => {
                    self.read_signals(key, life, Duration::ZERO);
                }
                Transition::StopBegan { .. }
                | Transition::Created { .. }
                | Transition::FirstSuccess { .. }
                | Transition::GraceExceeded { .. }
                | Transition::Ended { .. }
                | Transition::StatusChanged
                | Transition::WorkerRetired { .. } => {}
            }
        }
    }
}

impl Agent {
    /// Starts and ends of containers, as a kubelet counts them.
    fn count_lives(&self, key: PodKey, transitions: &[Transition]) {
        for transition in transitions {
            let (life, has_ended) = match *transition {
                Transition::Running { life, .. } => (life, false),
                Transition::Ended { life, .. } => (life, true),
                Transition::Created { .. }
                | Transition::FirstSuccess { .. }
                | Transition::StopBegan { .. }
                | Transition::GraceExceeded { .. }
                | Transition::StatusChanged
                | Transition::WorkerRetired { .. } => continue,
            };
            let Some(report) = self.pods.get(key).map(PodMachine::status) else {
                continue;
            };
            let Some(container) = report.containers.get(life.container) else {
                continue;
            };
            if !has_ended {
                self.metrics.kubelet.container_started(container.role);
                continue;
            }
            let end = match &container.state {
                ReportedState::Terminated(end) => Some(end),
                ReportedState::Waiting { .. } | ReportedState::Running { .. } => container.last.as_ref(),
            };
            if let Some(end) = end {
                self.metrics
                    .kubelet
                    .container_terminated(container.role, end.exit_code, end.reason.as_str());
            }
        }
    }

    /// How many pods and containers there are now.
    pub(super) fn count_running(&self) {
        let mut counts = RunningCounts::default();
        for entry in self.entries.values() {
            counts.pods += i64::from(entry.location.is_some());
            for life in &entry.lives {
                match life.stage {
                    LifeStage::Found | LifeStage::Created => counts.created += 1,
                    LifeStage::Running => counts.running += 1,
                    LifeStage::Ended => counts.exited += 1,
                }
            }
        }
        self.metrics.kubelet.count(counts);
    }
}

fn follow_one(entry: &mut PodEntry, transition: Transition, metrics: &Metrics) {
    match transition {
        Transition::Created { life } => {
            if let Some(life) = entry.life_mut(life) {
                life.stage = LifeStage::Created;
            }
        }
        Transition::Running { life, .. } => {
            if let Some(life) = entry.life_mut(life) {
                life.stage = LifeStage::Running;
            }
        }
        Transition::FirstSuccess { after, .. } => metrics.first_success(after.into()),
        Transition::GraceExceeded { reason, .. } => {
            if ends_pod(reason) && !entry.grace_exceeded {
                entry.grace_exceeded = true;
                metrics.grace_exceeded();
            }
        }
        Transition::Ended { life, stop } => {
            if let Some(life) = entry.life_mut(life) {
                ended(life, stop, metrics);
            }
        }
        Transition::WorkerRetired { container, kind } => {
            if let Some(container) = entry.name_of(container) {
                metrics.forget_probe(&probe_name(entry, &container, kind));
            }
        }
        Transition::StopBegan { .. } | Transition::StatusChanged => {}
    }
}

/// Whether a container that is stopped for this reason goes because its pod goes.
const fn ends_pod(reason: KillReason) -> bool {
    match reason {
        KillReason::Deleted
        | KillReason::Stopped
        | KillReason::Evicted
        | KillReason::NodeShutdown
        | KillReason::Deadline
        | KillReason::Completed => true,
        KillReason::StartupProbe
        | KillReason::LivenessProbe
        | KillReason::SandboxChanged
        | KillReason::ImageChanged
        | KillReason::Restarted
        | KillReason::AllContainersRestarting
        | KillReason::PostStartHook => false,
    }
}

fn ended(life: &mut Life, stop: Option<Stop>, metrics: &Metrics) {
    life.stage = LifeStage::Ended;
    let Some(Stop { reason, took, killed }) = stop else {
        return;
    };
    let outcome = match (life.unseen_end, killed) {
        (true, _) => StopOutcome::Error,
        (false, true) => StopOutcome::Killed,
        (false, false) => StopOutcome::Graceful,
    };
    metrics.stopped(reason, outcome, took.into());
}

pub(super) fn probe_name(entry: &PodEntry, container: &Arc<str>, kind: ProbeKind) -> ProbeName {
    ProbeName {
        kind,
        container: Arc::clone(container),
        pod: Arc::clone(&entry.identity.name),
        namespace: Arc::clone(&entry.identity.namespace),
        uid: Arc::clone(&entry.identity.uid),
    }
}
