//! Commands run in a container, attached streams and forwarded ports.
//!
//! [`ExecRequest`] is for probes and hooks: bounded in time and output. [`ExecStreams`] is for a person at the other
//! end: its streams are as long as they want to be, and its memory is the pipes'.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{mpsc, oneshot},
};

use crate::Result;

/// Bytes kept of a probe's or hook's output, as upstream keeps.
pub const PROBE_OUTPUT_LIMIT: usize = 10 * 1024;

/// A command with a bound on its time and its output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecRequest {
    pub command: Vec<String>,
    /// `None` if it may take as long as it wants.
    pub timeout: Option<Duration>,
    /// Bytes of combined output kept; what follows is read and thrown away.
    pub output_limit: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOutput {
    pub outcome: ExecOutcome,
    /// stdout and stderr in the order they were read.
    pub output: Vec<u8>,
    pub truncated: bool,
}

/// The same with stdout and stderr apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeparateExecOutput {
    pub outcome: ExecOutcome,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub truncated: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExecOutcome {
    /// The command's own code, or that of the signal that ended it ([`exit_code`](crate::exit_code)).
    Exited(i32),
    /// The timeout came first; the command and all it had started were killed.
    TimedOut,
}

/// A command with streams.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the four switches of a Kubernetes exec request"
)]
pub struct ExecOptions {
    pub command: Vec<String>,
    pub tty: bool,
    pub stdin: bool,
    pub stdout: bool,
    /// With `tty` there is no separate stderr.
    pub stderr: bool,
    /// With `tty`, the caller's kind of terminal, as in `TERM`. A runtime may not know how to pass it on.
    pub term: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the four switches of a Kubernetes attach request"
)]
pub struct AttachOptions {
    pub tty: bool,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    pub columns: u16,
    pub rows: u16,
}

pub type ReadStream = Box<dyn AsyncRead + Send + Unpin>;
pub type WriteStream = Box<dyn AsyncWrite + Send + Unpin>;

/// Both directions of one connection.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}
pub type DuplexStream = Box<dyn Duplex>;

/// The caller's ends of a command's streams.
pub struct ExecStreams {
    pub stdin: Option<WriteStream>,
    pub stdout: Option<ReadStream>,
    pub stderr: Option<ReadStream>,
    /// Sizes of the caller's terminal, with a tty.
    pub resize: Option<mpsc::Sender<TerminalSize>>,
    /// The exit code, once; for attach, that of the container. Who drops it has left: the connection is closed, and an
    /// interactive command is killed.
    pub exit: oneshot::Receiver<Result<i32>>,
}

impl fmt::Debug for ExecStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecStreams")
            .field("stdin", &self.stdin.is_some())
            .field("stdout", &self.stdout.is_some())
            .field("stderr", &self.stderr.is_some())
            .field("resize", &self.resize.is_some())
            .finish_non_exhaustive()
    }
}
