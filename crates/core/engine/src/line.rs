//! Event lines: what happens to a pod, one thing a line, as `run`, `simulate` and `history` print it.

use std::sync::Arc;

use pulselet_vocabulary::{PodName, Signal};
use serde::Serialize;

use crate::io::ProbeOutcome;
use crate::plan::{Hook, ProbeKind};
use crate::time::{Span, Time};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub at: Time,
    /// The container it concerns; none where it concerns the pod.
    pub container: Option<Arc<str>>,
    pub body: LineBody,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum LineBody {
    Created {
        id: Arc<str>,
        restart_count: u32,
    },
    Running {
        id: Arc<str>,
        restart_count: u32,
    },
    Probe {
        kind: ProbeKind,
        outcome: LineOutcome,
        detail: String,
        latency_ms: f64,
        run: u32,
        /// False for a look that failed, and for what was forgiven.
        counted: bool,
        /// Before the first counted tick.
        look: bool,
    },
    Started,
    Ready,
    Unready,
    Killing {
        reason: KillReason,
        #[serde(serialize_with = "span_seconds")]
        grace_period_seconds: Span,
        grace_from: GraceFrom,
    },
    Hook {
        hook: Hook,
        outcome: HookOutcome,
        #[serde(serialize_with = "span_seconds")]
        seconds: Span,
    },
    Signal {
        signal: Signal,
    },
    GraceExceeded {
        signal: Signal,
    },
    Exited {
        exit_code: i32,
        reason: ExitReason,
        #[serde(serialize_with = "maybe_seconds", skip_serializing_if = "Option::is_none")]
        seconds: Option<Span>,
    },
    Backoff {
        #[serde(serialize_with = "span_seconds")]
        seconds: Span,
    },
    /// All containers of the pod restart because this container exited with this code.
    RestartAllContainers {
        exit_code: i32,
    },
    Phase {
        phase: Phase,
    },
    Deleted,
    AgentRestarted,
    Warning {
        message: String,
    },
}

/// A line as JSON: time and pod first, then the line's own fields.
#[derive(Clone, Debug, Serialize)]
pub struct LineRecord<'a> {
    /// Seconds since the pod was accepted.
    pub t: f64,
    /// Wall-clock time, RFC 3339, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<&'a str>,
    pub pod: &'a PodName,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<&'a str>,
    #[serde(flatten)]
    pub body: &'a LineBody,
}

/// An outcome as lines show it: what counts as a failure is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LineOutcome {
    Success,
    Failure,
    Warning,
    Error,
}

impl LineOutcome {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

impl From<ProbeOutcome> for LineOutcome {
    fn from(outcome: ProbeOutcome) -> Self {
        match outcome {
            ProbeOutcome::Success => Self::Success,
            ProbeOutcome::Warning => Self::Warning,
            ProbeOutcome::Failure | ProbeOutcome::Unknown => Self::Failure,
            ProbeOutcome::Error => Self::Error,
        }
    }
}

/// Why a container is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum KillReason {
    StartupProbe,
    LivenessProbe,
    Deleted,
    /// A user of the node stopped the pod; it is there again once it is started.
    Stopped,
    Evicted,
    /// The machine goes down.
    NodeShutdown,
    Deadline,
    SandboxChanged,
    /// The manifest names another image.
    ImageChanged,
    /// Somebody asked for another life.
    Restarted,
    /// Another container of the pod exited with a code that restarts all of them.
    AllContainersRestarting,
    PostStartHook,
    /// All main containers have finished for good, so the sidecars may go.
    Completed,
}

impl KillReason {
    /// The kind of probe that condemned the container; `None` if none did.
    pub const fn probe(self) -> Option<ProbeKind> {
        match self {
            Self::StartupProbe => Some(ProbeKind::Startup),
            Self::LivenessProbe => Some(ProbeKind::Liveness),
            Self::Deleted
            | Self::Stopped
            | Self::Evicted
            | Self::NodeShutdown
            | Self::Deadline
            | Self::SandboxChanged
            | Self::ImageChanged
            | Self::Restarted
            | Self::AllContainersRestarting
            | Self::PostStartHook
            | Self::Completed => None,
        }
    }
}

/// Where a grace period came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum GraceFrom {
    Override,
    Deletion,
    Probe,
    /// The node's setting for kills by probes.
    NodeDefault,
    Pod,
    Minimum,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HookOutcome {
    Success,
    Failure,
    /// The grace period ended before the hook did.
    Timeout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
pub enum ExitReason {
    Completed,
    Error,
    OOMKilled,
    /// It never ran: the runtime could not start it.
    StartError,
    /// It was stopped because all containers of its pod restart.
    RestartingAllContainers,
}

impl ExitReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "Completed",
            Self::Error => "Error",
            Self::OOMKilled => "OOMKilled",
            Self::StartError => "StartError",
            Self::RestartingAllContainers => "RestartingAllContainers",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, serde::Deserialize)]
pub enum Phase {
    #[default]
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl Phase {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn span_seconds<S: serde::Serializer>(span: &Span, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(span.as_secs_f64())
}

#[expect(clippy::ref_option, reason = "serde's signature")]
fn maybe_seconds<S: serde::Serializer>(span: &Option<Span>, serializer: S) -> Result<S::Ok, S::Error> {
    match span {
        Some(span) => span_seconds(span, serializer),
        None => serializer.serialize_none(),
    }
}
