//! A person at a command: exec and attach, whatever protocol their streams come by.
//!
//! What must always hold: the outcome is the last thing a client is sent; a client that leaves takes its command with
//! it, since its streams are dropped; a command that has ended does not wait for the client's input.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use pulselet_runtime::{
    AttachOptions, ContainerId, ExecOptions, ExecStreams, ReadStream, Runtime, TerminalSize, WriteStream,
};
use pulselet_streaming::{
    NegotiatedProtocol, PeerLeft, STREAM_TYPE, StatusForm, StreamConnection, StreamEvent, StreamId,
    StreamLayout, StreamSender,
};
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::status::Outcome;

/// Bytes of output sent at a time.
const OUTPUT_CHUNK: usize = 32 * 1024;
/// How long a client may take to open its streams, as a kubelet has it.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a terminal's size that has not arrived whole.
const MAX_RESIZE: usize = 1024;

/// The streams a client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the four switches of a Kubernetes request"
)]
pub struct WantedStreams {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// Which stream of the connection is which of the command's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Roles {
    stdin: Option<StreamId>,
    stdout: Option<StreamId>,
    stderr: Option<StreamId>,
    error: Option<StreamId>,
    resize: Option<StreamId>,
}

impl Roles {
    /// Those of a WebSocket, which are always the same.
    fn channels(wanted: WantedStreams) -> Self {
        Self {
            stdin: wanted.stdin.then_some(0),
            stdout: wanted.stdout.then_some(1),
            stderr: wanted.stderr.then_some(2),
            error: Some(3),
            resize: wanted.tty.then_some(4),
        }
    }

    /// Those a client of SPDY opens, once it has opened all of them.
    async fn opened(
        connection: &mut StreamConnection,
        wanted: WantedStreams,
        resizes: bool,
    ) -> Result<Self, OpenError> {
        timeout(OPEN_TIMEOUT, Self::collect(connection, wanted, resizes))
            .await
            .unwrap_or(Err(OpenError::TimedOut))
    }

    async fn collect(
        connection: &mut StreamConnection,
        wanted: WantedStreams,
        resizes: bool,
    ) -> Result<Self, OpenError> {
        let mut roles = Self::default();
        while !roles.complete(wanted, resizes) {
            let (stream, headers) = match connection.next().await.map_err(|PeerLeft| OpenError::Left)? {
                StreamEvent::Opened { stream, headers } => (stream, headers),
                // A client that only reads ends its side at once.
                StreamEvent::Ended { .. } => continue,
                StreamEvent::Data { .. } | StreamEvent::Reset { .. } | StreamEvent::Closed => {
                    return Err(OpenError::TooEarly);
                }
            };
            let kind = headers.iter().find(|(name, _)| name == STREAM_TYPE);
            let role = match kind.map(|(_, kind)| kind.as_str()) {
                Some("stdin") => &mut roles.stdin,
                Some("stdout") => &mut roles.stdout,
                Some("stderr") => &mut roles.stderr,
                Some("error") => &mut roles.error,
                Some("resize") => &mut roles.resize,
                _ => return Err(OpenError::Kind),
            };
            if role.replace(stream).is_some() {
                return Err(OpenError::Kind);
            }
        }
        Ok(roles)
    }

    fn complete(&self, wanted: WantedStreams, resizes: bool) -> bool {
        let there = |wanted: bool, role: Option<StreamId>| !wanted || role.is_some();
        self.error.is_some()
            && there(wanted.stdin, self.stdin)
            && there(wanted.stdout, self.stdout)
            && there(wanted.stderr, self.stderr)
            && there(wanted.tty && resizes, self.resize)
    }
}

/// Why the streams of a command did not come to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum OpenError {
    #[error("the client took too long to open its streams")]
    TimedOut,
    #[error("the client has left")]
    Left,
    #[error("the client sent data before all streams were open")]
    TooEarly,
    #[error("the client opened a stream of an unknown kind, or one twice")]
    Kind,
}

/// What a command's exit code means to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// It is the command's: exec.
    Reported,
    /// It is the container's, and in its status: attach.
    InStatus,
}

/// Where the streams of a command come from.
#[derive(Debug)]
pub enum SessionStart {
    Exec(ExecOptions),
    Attach(AttachOptions),
}

impl SessionStart {
    fn ending(&self) -> Ending {
        match self {
            Self::Exec(_) => Ending::Reported,
            Self::Attach(_) => Ending::InStatus,
        }
    }

    /// The streams, or the message for the client.
    async fn streams(&self, runtime: &dyn Runtime, id: &ContainerId) -> Result<ExecStreams, String> {
        match self {
            Self::Exec(options) => {
                let started = runtime.exec(id, options).await;
                started.map_err(|error| format!("error executing command in container: {error}"))
            }
            Self::Attach(options) => {
                let started = runtime.attach(id, options).await;
                started.map_err(|error| format!("error attaching to container: {error}"))
            }
        }
    }
}

/// Runs a command, or attaches to a container, once the client has opened its streams.
pub async fn run_command(
    mut connection: StreamConnection,
    protocol: &NegotiatedProtocol,
    wanted: WantedStreams,
    start: &SessionStart,
    runtime: &dyn Runtime,
    id: &ContainerId,
) {
    let roles = match protocol.layout() {
        StreamLayout::Channels => Ok(Roles::channels(wanted)),
        StreamLayout::Opened => Roles::opened(&mut connection, wanted, protocol.sends_terminal_size()).await,
    };
    match roles {
        Ok(roles) => {
            let form = protocol.status_form();
            let started = start.streams(runtime, id).await;
            run(connection, roles, form, start.ending(), started).await;
        }
        Err(error) => tracing::debug!(%error, "a command was not run"),
    }
}

/// Connects a client with a command until one of them ends.
async fn run(
    mut connection: StreamConnection,
    roles: Roles,
    form: StatusForm,
    ending: Ending,
    started: Result<ExecStreams, String>,
) {
    let sender = connection.sender();
    let outcome = match started {
        Ok(streams) => converse(&mut connection, &sender, roles, ending, streams).await,
        Err(error) => Ok(Outcome::Error(error)),
    };
    if let Ok(outcome) = outcome {
        // If this fails, the client has left.
        let _ = report(&sender, roles, &outcome, form).await;
    }
    drop(sender);
    connection.finish().await;
}

async fn report(
    sender: &StreamSender,
    roles: Roles,
    outcome: &Outcome,
    form: StatusForm,
) -> Result<(), PeerLeft> {
    for stream in [roles.stdout, roles.stderr].into_iter().flatten() {
        sender.end(stream).await?;
    }
    let Some(error) = roles.error else {
        return Ok(());
    };
    if let Some(text) = outcome.render(form) {
        sender.data(error, text.into()).await?;
    }
    sender.end(error).await
}

async fn converse(
    connection: &mut StreamConnection,
    sender: &StreamSender,
    roles: Roles,
    ending: Ending,
    streams: ExecStreams,
) -> Result<Outcome, PeerLeft> {
    let ExecStreams {
        stdin,
        stdout,
        stderr,
        resize,
        exit,
    } = streams;
    let mut input = Input {
        stdin,
        resize,
        unread: Vec::new(),
    };
    let listening = async {
        loop {
            input.take(connection.next().await?, roles).await;
        }
    };
    let speaking = async {
        let (out, err) = tokio::join!(
            copy(sender, roles.stdout, stdout),
            copy(sender, roles.stderr, stderr)
        );
        out.and(err)?;
        Ok(match (exit.await, ending) {
            (Ok(Ok(0)), _) | (Ok(Ok(_)), Ending::InStatus) => Outcome::Success,
            (Ok(Ok(code)), Ending::Reported) => Outcome::ExitCode(code),
            (Ok(Err(error)), _) => Outcome::Error(error.to_string()),
            (Err(_), _) => Outcome::Error("nobody knows how it ended".to_owned()),
        })
    };
    tokio::select! {
        left = listening => left,
        outcome = speaking => outcome,
    }
}

/// Passes output on until there is no more; output that is not wanted is thrown away.
async fn copy(
    sender: &StreamSender,
    stream: Option<StreamId>,
    from: Option<ReadStream>,
) -> Result<(), PeerLeft> {
    let Some(mut from) = from else {
        return Ok(());
    };
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(OUTPUT_CHUNK);
        // A stream that fails has ended, and the exit says why.
        let count = from.read_buf(&mut buffer).await.unwrap_or(0);
        if count == 0 {
            return Ok(());
        }
        let chunk = buffer.split().freeze();
        if let Some(stream) = stream {
            sender.data(stream, chunk).await?;
        }
    }
}

/// What a client sends to a command.
struct Input {
    stdin: Option<WriteStream>,
    resize: Option<mpsc::Sender<TerminalSize>>,
    /// The beginning of a size.
    unread: Vec<u8>,
}

impl Input {
    async fn take(&mut self, event: StreamEvent, roles: Roles) {
        match event {
            StreamEvent::Data { stream, bytes } if Some(stream) == roles.stdin => self.typed(&bytes).await,
            StreamEvent::Data { stream, bytes } if Some(stream) == roles.resize => self.resized(&bytes).await,
            StreamEvent::Ended { stream } | StreamEvent::Reset { stream } if Some(stream) == roles.stdin => {
                self.stdin = None;
            }
            // Nothing is expected on the others.
            StreamEvent::Data { .. }
            | StreamEvent::Ended { .. }
            | StreamEvent::Reset { .. }
            | StreamEvent::Opened { .. }
            | StreamEvent::Closed => {}
        }
    }

    async fn typed(&mut self, bytes: &Bytes) {
        if let Some(stdin) = &mut self.stdin {
            let written = async {
                stdin.write_all(bytes).await?;
                stdin.flush().await
            };
            // A command that does not read any more is no reason to stop listening to it.
            if written.await.is_err() {
                self.stdin = None;
            }
        }
    }

    async fn resized(&mut self, bytes: &[u8]) {
        let Some(resize) = &self.resize else {
            return;
        };
        self.unread.extend_from_slice(bytes);
        for size in sizes(&mut self.unread) {
            // A terminal that is gone needs no size.
            let _ = resize.send(size).await;
        }
    }
}

/// As clients write it.
#[derive(Debug, Deserialize)]
struct Size {
    #[serde(rename = "Width")]
    width: u16,
    #[serde(rename = "Height")]
    height: u16,
}

/// Takes whole sizes off the front. What is not one is forgotten.
fn sizes(unread: &mut Vec<u8>) -> Vec<TerminalSize> {
    let mut stream = serde_json::Deserializer::from_slice(unread).into_iter::<Size>();
    let mut sizes = Vec::new();
    let mut broken = false;
    for size in &mut stream {
        match size {
            Ok(Size { width, height }) => sizes.push(TerminalSize {
                columns: width,
                rows: height,
            }),
            Err(error) => {
                broken = !error.is_eof();
                break;
            }
        }
    }
    let read = stream.byte_offset();
    unread.drain(..read);
    if broken || unread.len() > MAX_RESIZE {
        unread.clear();
    }
    sizes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_read_as_they_come() {
        let mut unread = b"{\"Width\":80,\"Height\":24}\n{\"Width\":1".to_vec();
        let size = |columns, rows| TerminalSize { columns, rows };
        assert_eq!(sizes(&mut unread), [size(80, 24)]);
        unread.extend(b"00,\"Height\":50}");
        assert_eq!(sizes(&mut unread), [size(100, 50)]);
        assert!(unread.is_empty());
        for nonsense in ["{\"Width\":-1,\"Height\":2}", "[]", "{\"Width\":70000}", "x"] {
            unread.extend(nonsense.as_bytes());
            assert_eq!(sizes(&mut unread), []);
            assert!(unread.is_empty(), "{nonsense}");
        }
        unread.extend(vec![b' '; 2 * MAX_RESIZE]);
        unread.push(b'{');
        sizes(&mut unread);
        assert!(unread.len() <= MAX_RESIZE);
    }

    proptest! {
        #[test]
        fn any_size_is_survived(mut bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            sizes(&mut bytes);
            prop_assert!(bytes.len() <= MAX_RESIZE);
        }
    }
}
