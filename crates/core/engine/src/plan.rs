//! What a pod asks for, in the engine's own types.
//!
//! A plan is made once from an admitted manifest, with the node's gates already applied: a field whose gate is off
//! does not appear here. Its values cannot be invalid: periods are at least a millisecond, thresholds at least one.

use std::sync::Arc;

use pulselet_vocabulary::Signal;
use serde::{Deserialize, Serialize};

use crate::time::Span;

/// A pod: its containers in the order of the manifest, init containers first, ephemeral ones last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodPlan {
    /// How long a container may take to stop when neither a probe nor a deletion says otherwise.
    pub grace: Option<Span>,
    /// How long the pod may be active, counted from its acceptance.
    pub active_deadline: Option<Span>,
    pub containers: Vec<Arc<ContainerPlan>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerPlan {
    pub name: Arc<str>,
    pub image: Arc<str>,
    pub role: Role,
    /// The container's own policy if it has one, else the pod's; always `Always` for a sidecar.
    pub restart: RestartPolicy,
    /// What exit codes lead to, whatever `restart` says; the first rule that matches decides.
    pub restart_rules: Vec<RestartRule>,
    pub startup: Option<Arc<ProbePlan>>,
    pub liveness: Option<Arc<ProbePlan>>,
    pub readiness: Option<Arc<ProbePlan>>,
    pub post_start: Option<HookPlan>,
    pub pre_stop: Option<HookPlan>,
    /// The signal the manifest asks for. Without it the image's or the runtime's own is used.
    pub stop_signal: Option<Signal>,
}

impl ContainerPlan {
    pub fn probe(&self, kind: ProbeKind) -> Option<&Arc<ProbePlan>> {
        match kind {
            ProbeKind::Startup => self.startup.as_ref(),
            ProbeKind::Liveness => self.liveness.as_ref(),
            ProbeKind::Readiness => self.readiness.as_ref(),
        }
    }
}

impl ContainerPlan {
    /// What its rules say about this exit code; none if `restart` decides.
    pub fn action_after(&self, code: i32) -> Option<RestartAction> {
        let rule = self.restart_rules.iter().find(|rule| rule.applies_to(code));
        rule.map(|rule| rule.action)
    }

    /// Whether an exit of this container can restart all containers of its pod.
    pub fn may_restart_all(&self) -> bool {
        let restarts_all = |rule: &RestartRule| rule.action == RestartAction::RestartAllContainers;
        self.restart_rules.iter().any(restarts_all)
    }

    /// This plan with the times of the other one's probes, as far as both have them.
    pub(crate) fn with_times_of(&self, other: &Self) -> Self {
        let timed = |kind| {
            let (own, other) = (self.probe(kind)?, other.probe(kind));
            Some(other.map_or_else(|| Arc::clone(own), |other| Arc::new(own.with_times_of(other))))
        };
        Self {
            startup: timed(ProbeKind::Startup),
            liveness: timed(ProbeKind::Liveness),
            readiness: timed(ProbeKind::Readiness),
            ..self.clone()
        }
    }
}

/// What a container is to its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Runs to completion before the next container begins.
    Init,
    /// Begins among the init containers, stays for the life of the pod, leaves after the main containers.
    Sidecar,
    Main,
    /// Added to a running pod to look at it. It runs once, and nothing of the pod depends on it.
    Ephemeral,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

/// What happens when the exit code is (or is not) one of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartRule {
    /// A plan of an agent that knew one action names none.
    #[serde(default)]
    pub action: RestartAction,
    pub matches: ExitCodeMatch,
    pub codes: Vec<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum RestartAction {
    /// The container restarts.
    #[default]
    Restart,
    /// The init containers, sidecars and main containers end, and the pod begins with its first init container again.
    RestartAllContainers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitCodeMatch {
    In,
    NotIn,
}

impl RestartRule {
    pub fn applies_to(&self, code: i32) -> bool {
        match self.matches {
            ExitCodeMatch::In => self.codes.contains(&code),
            ExitCodeMatch::NotIn => !self.codes.contains(&code),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeKind {
    Startup,
    Liveness,
    Readiness,
}

impl ProbeKind {
    pub const ALL: [Self; 3] = [Self::Startup, Self::Liveness, Self::Readiness];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Liveness => "liveness",
            Self::Readiness => "readiness",
        }
    }

    /// As it opens a sentence.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

/// How a probe asks; the engine needs to know only what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Handler {
    Exec,
    Http,
    Tcp,
    Grpc,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbePlan {
    pub handler: Handler,
    /// Counted from the container's start.
    pub initial_delay: Span,
    /// Between two ticks before the probe has succeeded.
    pub period: Span,
    /// Between two ticks once it has: the whole seconds of the manifest where `period` is below one second.
    pub period_after: Span,
    pub timeout: Span,
    pub success_threshold: u32,
    pub failure_threshold: u32,
    /// Failures in a row that condemn before the first success; never below `failure_threshold`.
    pub initial_failure_threshold: u32,
    /// How long the container may take to stop when this probe condemned it.
    pub grace: Option<Span>,
}

impl ProbePlan {
    /// Whether its period is below one second: then it has another one for later.
    pub(crate) fn is_fast(&self) -> bool {
        self.period < self.period_after
    }

    /// What a gate changes for a life that has begun: when its probe asks and waits, and how long a kill takes. What it
    /// counts to stays as it was.
    pub(crate) fn with_times_of(&self, other: &Self) -> Self {
        Self {
            initial_delay: other.initial_delay,
            period: other.period,
            period_after: other.period_after,
            timeout: other.timeout,
            grace: other.grace,
            ..self.clone()
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HookPlan {
    /// Nothing runs: the engine waits by itself, so that an agent's restart does not lengthen it.
    Sleep(Span),
    /// A command, a request or a connection that the driver carries out.
    Run,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Hook {
    PostStart,
    PreStop,
}

/// When a probe with a period below one second goes back to whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SubSecondPolicy {
    /// After the first published success of a life, for the rest of it.
    #[default]
    OnlyFirstTime,
    /// Whenever the published result is success.
    AlwaysWhenWaitingForSuccess,
    /// Never.
    Always,
}

/// How fast a probe may be whose period is below one second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProbePace {
    /// As its plan says.
    #[default]
    Planned,
    /// The node is late: it goes by whole seconds for now.
    Stretched,
}

/// What holds for every pod of the node and changes what the engine decides: the node's settings, and its pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    pub sub_second_policy: SubSecondPolicy,
    /// Whether startup and readiness probes look again before their first counted tick.
    pub looks: bool,
    /// Whether a command that cannot be started fails its probe instead of being thrown away.
    pub exec_error_is_failure: bool,
    /// Whether a liveness time-out is forgiven when the agent itself was late.
    pub overload_guard: bool,
    pub backoff_initial: Span,
    pub backoff_max: Span,
    /// How long a container may take to stop that a probe condemned and whose probe names nothing, where that is shorter
    /// than the pod's grace period.
    #[serde(default)]
    pub probe_grace: Option<Span>,
    #[serde(default)]
    pub pace: ProbePace,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sub_second_policy: SubSecondPolicy::default(),
            looks: true,
            exec_error_is_failure: false,
            overload_guard: false,
            backoff_initial: Span::from_secs(10),
            backoff_max: Span::from_secs(300),
            probe_grace: None,
            pace: ProbePace::default(),
        }
    }
}
