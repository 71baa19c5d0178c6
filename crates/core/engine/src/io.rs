//! What goes into a pod's state machine and what comes out of it.
//!
//! Every action that concerns a container names one *life* of it, and so does every answer: an answer about a life
//! that is over is dropped. The driver commits the pod's state before it carries out an action, answers each action
//! exactly once, and may report any observation again.

use std::sync::Arc;

use pulselet_vocabulary::Signal;
use serde::{Deserialize, Serialize};

use crate::event::Event;
use crate::line::Line;
use crate::plan::{Hook, PodPlan, ProbeKind, Settings};
use crate::pressure::PressureChange;
use crate::time::{Span, Time};
use crate::transition::Transition;

/// The place of a container in [`PodPlan::containers`].
pub type ContainerIx = usize;

/// One instance of a container: the first is attempt 0, and each restart adds one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LifeKey {
    pub container: ContainerIx,
    pub attempt: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// Answers [`Action::RunSandbox`].
    SandboxReady,
    SandboxFailed {
        message: String,
    },
    /// Answers [`Action::RunSandbox`] too: a volume cannot be filled yet, so the sandbox was not begun.
    VolumesNotReady,
    /// The sandbox is gone although nobody asked: a reboot, or a hand from outside.
    SandboxLost,
    /// Answers [`Action::StopSandbox`].
    SandboxStopped,
    /// The image is not there and is being fetched.
    ImagePulling {
        container: ContainerIx,
    },
    /// Answers [`Action::EnsureImage`].
    ImageReady {
        container: ContainerIx,
        pulled: Pulled,
    },
    ImageFailed {
        container: ContainerIx,
        error: ImageFailure,
        message: String,
    },
    /// Answers [`Action::Create`], or found by adoption.
    Created {
        life: LifeKey,
        id: Arc<str>,
        stop_signal: Option<Signal>,
    },
    CreateFailed {
        life: LifeKey,
        reason: CreateError,
        message: String,
    },
    /// Answers [`Action::Start`], or found by adoption. `at` is the runtime's moment of the start.
    Running {
        life: LifeKey,
        at: Time,
    },
    StartFailed {
        life: LifeKey,
        message: String,
    },
    Exited {
        life: LifeKey,
        exit: Exit,
    },
    /// Answers [`Action::Probe`].
    ProbeDone {
        life: LifeKey,
        kind: ProbeKind,
        report: ProbeReport,
    },
    /// Answers [`Action::Hook`].
    HookDone {
        life: LifeKey,
        hook: Hook,
        result: Result<(), String>,
    },
    /// Answers [`Action::Stop`] and [`Action::Kill`]: the signal was sent at that moment.
    Signalled {
        life: LifeKey,
        signal: Signal,
        at: Time,
    },
    /// The main process of this life was read, and its stop signal would not end it. The driver reads it some time
    /// after its start and again when a stop begins.
    StopSignalUnhandled {
        life: LifeKey,
        signal: Signal,
    },
    /// Without a number the pod's own grace period counts. A later one can only shorten it.
    Delete {
        grace: Option<Span>,
    },
    /// A stop by a user of the node: a deletion whose lines say who wanted it.
    Stop {
        grace: Option<Span>,
    },
    /// The node needs the room. Without a number the pod's own grace period counts.
    Evict {
        grace: Option<Span>,
        message: String,
    },
    /// The machine goes down, and this is the time that is left. A shorter grace period of the pod counts.
    NodeShutdown {
        left: Span,
        then: AfterShutdown,
    },
    /// The machine stays up after all: a pod that was stopped for its shutdown begins anew.
    ShutdownCancelled,
    /// Somebody wants another life of a container, now: a running one is stopped with the pod's grace period first, one that
    /// waits for its next start waits no longer.
    Restart {
        container: ContainerIx,
    },
    /// The agent was away: every unanswered action is asked for again. The driver reports what it finds in the
    /// runtime before it says this.
    AgentRestarted,
    /// A new plan and new settings. The plan may have more ephemeral containers than the old one, and no others.
    Replan {
        /// What new lives are made from.
        plan: Arc<PodPlan>,
        /// What lives that have begun take the times of their probes from; all else they keep.
        running: Arc<PodPlan>,
        settings: Settings,
    },
    /// The node is late, or keeps up again. A pod without a probe below one second need not be told.
    Pressure {
        change: PressureChange,
    },
}

/// What becomes of a pod that was stopped because its machine goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterShutdown {
    /// It has failed. A cluster runs another pod instead.
    Failed,
    /// It begins anew with the next agent: it belongs to this machine.
    BeginsAnew,
}

/// How an image came to be there.
#[derive(Clone, Debug, PartialEq)]
pub enum Pulled {
    AlreadyPresent,
    Fetched {
        took: Span,
        bytes: u64,
    },
    /// The runtime uses no images.
    NotNeeded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageFailure {
    ErrImagePull,
    ErrImageNeverPull,
    InvalidImageName,
}

impl ImageFailure {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ErrImagePull => "ErrImagePull",
            Self::ErrImageNeverPull => "ErrImageNeverPull",
            Self::InvalidImageName => "InvalidImageName",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CreateError {
    /// The manifest names something that is not there: a secret, a path, a user.
    CreateContainerConfigError,
    /// The runtime refused.
    CreateContainerError,
}

impl CreateError {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CreateContainerConfigError => "CreateContainerConfigError",
            Self::CreateContainerError => "CreateContainerError",
        }
    }
}

/// How a life ended, as the runtime recorded it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub code: i32,
    pub at: Time,
    pub oom_killed: bool,
    /// What the container left as its termination message, or why it could not be started.
    pub message: Option<String>,
    /// The stop that the runtime carried out on this life, if there was one. It closes the gap when the answer to
    /// [`Action::Stop`] was lost with an agent.
    pub stop: Option<StopRecord>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRecord {
    pub signal: Signal,
    pub at: Time,
    /// SIGKILL had to follow because the grace period was over.
    pub forced: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ProbeReport {
    pub outcome: ProbeOutcome,
    /// For people: what the handler saw.
    pub detail: String,
    /// That of a command that failed.
    pub exit_code: Option<i32>,
    pub latency: Span,
    /// The program has seen something of it: a connection was made, or the command was to run in its container.
    pub reached: bool,
    /// The outcome is a time-out of the handler.
    pub timed_out: bool,
    /// The driver was itself kept from running while this probe was under way.
    pub starved: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeOutcome {
    Success,
    /// Good enough, with something to report.
    Warning,
    Failure,
    /// The handler could not decide; it counts as a failure.
    Unknown,
    /// The handler could not ask; it counts as nothing.
    Error,
}

impl ProbeOutcome {
    pub const fn is_success(self) -> bool {
        match self {
            Self::Success | Self::Warning => true,
            Self::Failure | Self::Unknown | Self::Error => false,
        }
    }
}

/// What the driver is asked to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    RunSandbox {
        attempt: u32,
    },
    /// All containers are gone.
    StopSandbox,
    /// Pull the image if the container's policy asks for it.
    EnsureImage {
        container: ContainerIx,
    },
    Create {
        life: LifeKey,
    },
    Start {
        life: LifeKey,
    },
    /// Run the probe once; a handler *error* is tried again at once, [`PROBE_TRIES`] times in all, and reported once.
    Probe {
        life: LifeKey,
        kind: ProbeKind,
        timeout: Span,
        /// A look gives up after this long unless it is connected by then. The program sees one request of it at most:
        /// it is not tried again and follows no redirect.
        look: Option<Span>,
    },
    Hook {
        life: LifeKey,
        hook: Hook,
        limit: Option<Span>,
    },
    /// Nobody waits for this hook any more: end it. No answer is wanted.
    CancelHook {
        life: LifeKey,
        hook: Hook,
    },
    /// Send the stop signal, and SIGKILL to all that is left once `grace` is over. The runtime keeps that promise
    /// even if the agent dies. Asked again with a shorter grace, the shorter one counts.
    Stop {
        life: LifeKey,
        grace: Span,
    },
    /// SIGKILL to all that is left, now.
    Kill {
        life: LifeKey,
    },
    /// The record of a life that nobody will ask for again.
    Remove {
        life: LifeKey,
    },
}

/// How often a probe is tried when its handler cannot ask.
pub const PROBE_TRIES: u32 = 3;

/// What one step produced. The driver empties and reuses it.
#[derive(Debug, Default)]
pub struct Outbox {
    pub actions: Vec<Action>,
    /// What the driver goes by.
    pub transitions: Vec<Transition>,
    /// What people read. Nothing is to be decided by them.
    pub lines: Vec<Line>,
    pub events: Vec<Event>,
    /// Whether the state must be on disk before the actions are carried out. Only one more success of a probe that
    /// succeeded before, and what leads to it, leave this false.
    pub dirty: bool,
}

impl Outbox {
    pub fn clear(&mut self) {
        self.actions.clear();
        self.transitions.clear();
        self.lines.clear();
        self.events.clear();
        self.dirty = false;
    }
}
