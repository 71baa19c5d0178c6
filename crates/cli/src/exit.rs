//! Exit codes, and how a command that could not do its work says so.
//!
//! This is the only place that knows the numbers. A command returns `Ok(Exit)` when it did its work, whatever
//! the answer was, and `Err(Failure)` when it could not.

use std::fmt::Display;
use std::process::ExitCode;

use crate::data_dir;

/// How a command ended. Later ones are worse: of several files the worst counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exit {
    /// Done; the answer, where there is one, is yes.
    Done,
    /// Done, and the answer is no: a manifest is rejected, a pod failed, a wait was in vain.
    No,
    /// Usage error or unreadable input.
    Usage,
    /// The environment is missing something.
    Environment,
    /// Somebody asked it to end.
    Interrupted,
    /// What a workload of ours leaves with; any code.
    Workload(u8),
}

impl Exit {
    const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::No => 1,
            Self::Usage => 2,
            Self::Environment => 3,
            Self::Interrupted => 130,
            Self::Workload(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Why a command could not do its work: one line, and where possible what to do next.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
    hint: Option<String>,
}

impl Failure {
    /// The input or the command line cannot be used.
    pub(crate) fn usage(message: impl Display) -> Self {
        Self {
            exit: Exit::Usage,
            message: message.to_string(),
            hint: None,
        }
    }

    /// What was asked for cannot be had.
    pub(crate) fn no(message: impl Display) -> Self {
        Self {
            exit: Exit::No,
            message: message.to_string(),
            hint: None,
        }
    }

    /// Something this machine should have is not there.
    pub(crate) fn environment(message: impl Display) -> Self {
        Self {
            exit: Exit::Environment,
            message: message.to_string(),
            hint: None,
        }
    }

    #[must_use]
    pub(crate) fn with_hint(mut self, hint: impl Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// Writes the failure to stderr, once.
    pub(crate) fn report(&self) -> Exit {
        crate::output::error(&self.message, self.hint.as_deref());
        self.exit
    }
}

/// Reports what clap has to say; help and version are not errors.
pub(crate) fn report_usage(error: &clap::Error) -> Exit {
    // A closed stdout or stderr leaves nobody to write to.
    let _ = error.print();
    if error.use_stderr() {
        Exit::Usage
    } else {
        Exit::Done
    }
}

impl From<pulselet_agent::control::ControlClientError> for Failure {
    /// What an agent refuses is an answer; an agent that is not there is missing.
    fn from(error: pulselet_agent::control::ControlClientError) -> Self {
        use pulselet_agent::control::ControlClientError;
        let exit = match &error {
            ControlClientError::Refused { .. } => Exit::No,
            ControlClientError::Connect { .. }
            | ControlClientError::Send(_)
            | ControlClientError::Timeout
            | ControlClientError::Receive(_)
            | ControlClientError::Decode(_) => Exit::Environment,
        };
        let hint = match &error {
            ControlClientError::Connect { path, .. } => data_dir::hint_of_system_agent(path),
            ControlClientError::Refused { .. }
            | ControlClientError::Send(_)
            | ControlClientError::Timeout
            | ControlClientError::Receive(_)
            | ControlClientError::Decode(_) => None,
        };
        Self {
            exit,
            message: error.to_string(),
            hint: hint.map(str::to_owned),
        }
    }
}
