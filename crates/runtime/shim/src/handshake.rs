//! What a shim reports to the agent that starts it, once, on its stdout.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::protocol::to_json;

/// What the agent learns about the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Handshake {
    Started {
        pid: i32,
        started_at: Timestamp,
    },
    /// The container's own fault; its exit is recorded.
    CannotRun {
        message: String,
    },
    /// It has been started before.
    AlreadyStarted,
    /// The machine's fault; the container has not begun its life and may be started again.
    Failed {
        detail: String,
    },
}

/// Reports to the agent. If it is gone nobody reads it, and nothing depends on that.
pub fn report(handshake: &Handshake) {
    report_to(&mut io::stdout(), handshake);
}

pub(crate) fn report_to(agent: &mut impl Write, handshake: &Handshake) {
    let _ = agent.write_all(&to_json(handshake));
    let _ = agent.flush();
}

/// Reports that there will be no shim. Returns the code to exit with.
pub fn refuse(detail: &str) -> ExitCode {
    report(&Handshake::Failed {
        detail: detail.to_owned(),
    });
    ExitCode::FAILURE
}
