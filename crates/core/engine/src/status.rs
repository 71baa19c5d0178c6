//! A pod's status as others see it: derived from the state on request, never stored beside it.

use std::sync::Arc;

use pulselet_vocabulary::Signal;
use serde::{Deserialize, Serialize};

use crate::line::{ExitReason, Phase};
use crate::plan::{ProbeKind, Role};
use crate::time::{Span, Time};

#[derive(Clone, Debug, PartialEq)]
pub struct PodReport {
    pub phase: Phase,
    /// Why the pod failed as a whole: `Evicted`, `DeadlineExceeded`, `PodOSNotSupported` ...
    pub reason: Option<String>,
    pub message: Option<String>,
    /// The node never took it: what its containers and conditions would be means nothing.
    pub rejected: bool,
    pub accepted_at: Time,
    pub conditions: Vec<PodCondition>,
    pub containers: Vec<ContainerReport>,
}

/// How a probe works at this moment: offsets, policies and the first success are accounted for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveProbe {
    pub container: Arc<str>,
    pub kind: ProbeKind,
    pub period: Span,
    pub timeout: Span,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodCondition {
    pub kind: ConditionKind,
    pub status: bool,
    pub reason: Option<String>,
    pub message: Option<String>,
    pub changed_at: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionKind {
    PodReadyToStartContainers,
    Initialized,
    Ready,
    ContainersReady,
    PodScheduled,
    /// The pod ends because of its node, not of itself.
    DisruptionTarget,
    /// Only in pods with a rule that restarts all containers.
    AllContainersRestarting,
}

impl ConditionKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PodReadyToStartContainers => "PodReadyToStartContainers",
            Self::Initialized => "Initialized",
            Self::Ready => "Ready",
            Self::ContainersReady => "ContainersReady",
            Self::PodScheduled => "PodScheduled",
            Self::DisruptionTarget => "DisruptionTarget",
            Self::AllContainersRestarting => "AllContainersRestarting",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct ContainerReport {
    pub name: Arc<str>,
    pub role: Role,
    /// What it runs or ran last; what it is asked to run only where that is being made.
    pub image: Arc<str>,
    pub state: ReportedState,
    /// The end of the life before the one `state` speaks of.
    pub last: Option<Terminated>,
    pub id: Option<Arc<str>>,
    pub started: bool,
    pub ready: bool,
    pub restart_count: u32,
    /// The signal that stops this container, as far as it is known.
    pub stop_signal: Option<Signal>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ReportedState {
    Waiting {
        reason: &'static str,
        message: Option<String>,
    },
    Running {
        started_at: Time,
    },
    Terminated(Terminated),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminated {
    pub id: Arc<str>,
    pub exit_code: i32,
    pub reason: ExitReason,
    pub message: Option<String>,
    /// None where it never ran.
    pub started_at: Option<Time>,
    pub finished_at: Time,
}
