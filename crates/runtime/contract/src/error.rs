//! Why a verb failed.
//!
//! The variants are those a caller acts upon differently; everything else is [`Error::Failed`] with the operation and
//! its cause.

use std::{fmt, time::Duration};

use crate::RuntimeImageError;

pub type Result<T> = std::result::Result<T, Error>;

/// The cause of a failure, as the implementation knows it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{kind} {id} not found")]
    NotFound { kind: ObjectKind, id: String },
    #[error("{kind} {id} exists already")]
    AlreadyExists { kind: ObjectKind, id: String },
    #[error("{field}: {detail}")]
    Invalid { field: &'static str, detail: String },
    /// The object is there, but not in a state in which the operation makes sense, as exec in an exited container.
    #[error("cannot {operation} {id}: it is {state}")]
    WrongState {
        operation: Operation,
        id: String,
        state: &'static str,
    },
    /// The command cannot be executed: missing, not executable, its directory or user unknown.
    #[error("{message}")]
    CannotRun { message: String },
    #[error("this runtime cannot {operation}")]
    Unsupported { operation: Operation },
    #[error(transparent)]
    Image(#[from] RuntimeImageError),
    #[error("cannot {operation}: no answer within {after:?}")]
    Timeout { operation: Operation, after: Duration },
    /// The runtime, or the shim of the container, cannot be reached; the object itself may be well.
    #[error("cannot {operation}: {source}")]
    Unavailable { operation: Operation, source: BoxError },
    #[error("cannot {operation}: {source}")]
    Failed { operation: Operation, source: BoxError },
}

impl Error {
    pub fn no_sandbox(id: impl fmt::Display) -> Self {
        Self::NotFound {
            kind: ObjectKind::Sandbox,
            id: id.to_string(),
        }
    }

    pub fn no_container(id: impl fmt::Display) -> Self {
        Self::NotFound {
            kind: ObjectKind::Container,
            id: id.to_string(),
        }
    }

    pub fn failed(operation: Operation, source: impl Into<BoxError>) -> Self {
        Self::Failed {
            operation,
            source: source.into(),
        }
    }

    pub fn unavailable(operation: Operation, source: impl Into<BoxError>) -> Self {
        Self::Unavailable {
            operation,
            source: source.into(),
        }
    }

    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    Sandbox,
    Container,
    Image,
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sandbox => "sandbox",
            Self::Container => "container",
            Self::Image => "image",
        })
    }
}

/// A verb, worded so that it fits after "cannot".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    Connect,
    Version,
    RunSandbox,
    StopSandbox,
    RemoveSandbox,
    SandboxStatus,
    CreateContainer,
    StartContainer,
    StopContainer,
    RemoveContainer,
    UpdateContainer,
    UpdateSandbox,
    SeparateOutputs,
    ContainerStatus,
    ContainerStats,
    List,
    Exec,
    Attach,
    PortForward,
    ReopenLog,
    PullImage,
    ImageStatus,
    RemoveImage,
    WatchEvents,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "connect",
            Self::Version => "tell its version",
            Self::RunSandbox => "run sandbox",
            Self::StopSandbox => "stop sandbox",
            Self::RemoveSandbox => "remove sandbox",
            Self::SandboxStatus => "get status of sandbox",
            Self::CreateContainer => "create container",
            Self::StartContainer => "start container",
            Self::StopContainer => "stop container",
            Self::RemoveContainer => "remove container",
            Self::UpdateContainer => "change the limits of container",
            Self::UpdateSandbox => "change the limits of sandbox",
            Self::SeparateOutputs => "tell stdout from stderr",
            Self::ContainerStatus => "get status of container",
            Self::ContainerStats => "measure container",
            Self::List => "list",
            Self::Exec => "execute in container",
            Self::Attach => "attach to container",
            Self::PortForward => "forward port",
            Self::ReopenLog => "reopen log",
            Self::PullImage => "pull image",
            Self::ImageStatus => "look at image",
            Self::RemoveImage => "remove image",
            Self::WatchEvents => "watch events",
        })
    }
}
