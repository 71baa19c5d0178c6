//! Transitions: what has changed about a pod, for the driver that keeps facts beside it.
//!
//! A line shows people what happened and may be worded otherwise tomorrow; a transition is what a driver goes by. Each
//! change gives one transition, in the order in which things happened, and one that was given is never taken back.

use crate::io::{ContainerIx, LifeKey};
use crate::line::KillReason;
use crate::plan::ProbeKind;
use crate::termination::Grace;
use crate::time::{Span, Time};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// The runtime has the container of this life.
    Created { life: LifeKey },
    /// The life runs since this moment.
    Running { life: LifeKey, since: Time },
    /// A probe of this life has succeeded for the first time, so long after the life began to run.
    FirstSuccess { life: LifeKey, after: Span },
    /// The life is to end. It is given again when another reason shortens the grace period.
    StopBegan {
        life: LifeKey,
        reason: KillReason,
        grace: Grace,
    },
    /// The grace period did not do: SIGKILL had to follow the stop signal.
    GraceExceeded { life: LifeKey, reason: KillReason },
    /// The life is over; `stop` is `None` if nobody had asked for its end.
    Ended { life: LifeKey, stop: Option<Stop> },
    /// Started, ready or phase has changed, or the pod is gone.
    StatusChanged,
    /// A probe worker has nothing left to do: its results and metric series go.
    WorkerRetired { container: ContainerIx, kind: ProbeKind },
}

/// How a stop went that ended a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The reason that counted in the end.
    pub reason: KillReason,
    /// From the first decision to the exit.
    pub took: Span,
    /// SIGKILL was sent, as the stop signal or after it.
    pub killed: bool,
}

impl Transition {
    /// Whether the pod's status is another than before.
    pub const fn changes_status(self) -> bool {
        match self {
            Self::Created { .. }
            | Self::Running { .. }
            | Self::StopBegan { .. }
            | Self::GraceExceeded { .. }
            | Self::Ended { .. }
            | Self::StatusChanged => true,
            Self::FirstSuccess { .. } | Self::WorkerRetired { .. } => false,
        }
    }
}
