//! What the agent and a shim say to each other over the socket.
//!
//! Every frame is a length of four bytes, big end first, and that many bytes. A connection carries one [`Request`] in
//! JSON and its [`Reply`]; after some requests it goes on:
//! - [`Request::Subscribe`]: [`Reply::Running`] at once, [`Reply::Exited`] when that has happened.
//! - [`Request::Exec`]: [`Reply::ExecDone`], then one frame that is the output itself; two, stdout and stderr, if they were
//!   asked for apart.
//! - [`Request::ExecStream`] and [`Request::Attach`]: [`Reply::Streaming`], then frames both ways whose first byte is a
//!   [`Channel`].

use jiff::Timestamp;
use pulselet_runtime::{ContainerExit, ExecOutcome};
use serde::{Deserialize, Serialize};

/// Largest frame in bytes: a command line with room to spare, or an exec's output.
pub const MAX_FRAME: usize = 1 << 20;

/// Bytes of stream data in one frame.
pub const MAX_STREAM_DATA: usize = 16 * 1024;

/// Bytes of the length before each frame.
pub const LENGTH_BYTES: usize = 4;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Asks for the state of the container now and when it ends.
    Subscribe,
    /// Asks for the stop signal now, SIGKILL after the grace; shortens a stop under way.
    Stop {
        grace_ms: u64,
    },
    Exec(ExecCall),
    ExecStream(StreamCall),
    Attach(StreamCall),
    ReopenLog,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecCall {
    pub command: Vec<String>,
    pub timeout_ms: Option<u64>,
    /// Bytes; what is above [`MAX_FRAME`] is taken as that.
    pub output_limit: usize,
    /// Whether stderr is wanted apart from stdout.
    #[serde(default)]
    pub separate_stderr: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the switches of a Kubernetes exec request"
)]
pub struct StreamCall {
    /// Empty for attach.
    pub command: Vec<String>,
    pub tty: bool,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    /// The caller's kind of terminal. Agents of before do not say.
    #[serde(default)]
    pub term: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    Done,
    Running {
        pid: i32,
        started_at: Timestamp,
    },
    Exited(ContainerExit),
    ExecDone {
        outcome: ExecOutcome,
        truncated: bool,
    },
    Streaming,
    /// The command cannot be executed.
    CannotRun {
        message: String,
    },
    Refused(ShimRefusal),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShimRefusal {
    /// The container is being killed or has ended.
    Ended,
    /// As many commands as are allowed run already.
    TooManyExecs,
    Malformed {
        detail: String,
    },
    Failed {
        detail: String,
    },
}

/// What a stream frame carries; the first of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    Stdin,
    Stdout,
    Stderr,
    /// The client's stdin has ended.
    StdinEnd,
    /// JSON of a terminal size.
    Resize,
    /// JSON of the exit code; the last frame.
    Exit,
}

impl Channel {
    pub fn byte(self) -> u8 {
        match self {
            Self::Stdin => 0,
            Self::Stdout => 1,
            Self::Stderr => 2,
            Self::StdinEnd => 3,
            Self::Resize => 4,
            Self::Exit => 5,
        }
    }

    pub fn from_byte(byte: u8) -> Option<Self> {
        [
            Self::Stdin,
            Self::Stdout,
            Self::Stderr,
            Self::StdinEnd,
            Self::Resize,
            Self::Exit,
        ]
        .into_iter()
        .find(|channel| channel.byte() == byte)
    }

    /// Splits a stream frame; returns `None` if its channel is unknown.
    pub fn split(frame: &[u8]) -> Option<(Self, &[u8])> {
        let (&first, data) = frame.split_first()?;
        Some((Self::from_byte(first)?, data))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("a frame of {length} bytes is larger than the {MAX_FRAME} allowed")]
pub struct FrameTooLarge {
    pub length: usize,
}

/// Appends a frame made of several parts to a buffer.
pub fn put_frame(buffer: &mut Vec<u8>, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    assert!(length <= MAX_FRAME, "a frame of {length} bytes was made");
    buffer.extend_from_slice(
        &u32::try_from(length)
            .expect("the maximum fits four bytes")
            .to_be_bytes(),
    );
    for part in parts {
        buffer.extend_from_slice(part);
    }
}

/// The length a frame's first bytes announce.
pub fn frame_length(prefix: [u8; LENGTH_BYTES]) -> Result<usize, FrameTooLarge> {
    let length = usize::try_from(u32::from_be_bytes(prefix)).unwrap_or(usize::MAX);
    if length > MAX_FRAME {
        Err(FrameTooLarge { length })
    } else {
        Ok(length)
    }
}

/// A message as JSON. Our own types always serialise.
pub fn to_json<T: Serialize>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message).expect("a message has only string keys")
}
