//! Commands, attached streams and forwarded ports. CRI hands out an address for each, at which streams are served.
//!
//! The connection lives as long as its end is waited for. Each stream is a pipe of bounded size between the
//! caller and the connection, so a reader that stops reading stops the sender.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use pulselet_runtime::{
    AttachOptions, DuplexStream, Error, ExecOptions, ExecStreams, Operation, Result, TerminalSize,
};
use pulselet_streaming::{
    ConnectionError, PORT, PORT_FORWARD, PeerLeft, REQUEST_ID, RequestUpgradeError, STREAM_TYPE, SpdyClient,
    StreamConnection, StreamEvent, StreamId, StreamSender, V4_CHANNEL, request_upgrade,
};
use serde::Deserialize;
use thiserror::Error as ThisError;
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream as Pipe, ReadHalf, WriteHalf,
    duplex, split,
};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// How long a server may take to begin; it is on this machine.
const BEGIN: Duration = Duration::from_secs(30);
/// Bytes of the last word on a command.
const MAX_STATUS: usize = 64 * 1024;
/// Bytes in a pipe.
const PIPE: usize = 64 * 1024;
/// Bytes of a pipe's content that are sent at a time.
const PIECE: usize = 32 * 1024;
/// Sizes of a terminal on their way; only the last matters.
const SIZES: usize = 4;

#[derive(Debug, ThisError)]
enum StreamError {
    #[error("the runtime's address for streams cannot be used: {url:?}")]
    Address { url: String },
    #[error("cannot connect to the runtime's streams at {host}: {source}")]
    Connect { host: String, source: io::Error },
    #[error("the runtime does not serve streams: {0}")]
    Upgrade(#[from] RequestUpgradeError),
    #[error("the connection to the runtime broke: {0}")]
    Broken(#[from] ConnectionError),
    #[error("the runtime said nothing within {0:?}")]
    Late(Duration),
    #[error("the runtime did not tell how it ended")]
    NoStatus,
    #[error("{0}")]
    Failed(String),
}

/// Which streams a command has.
#[derive(Debug, Clone, Copy)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the four switches of an exec request"
)]
pub(crate) struct Wanted {
    tty: bool,
    stdin: bool,
    stdout: bool,
    stderr: bool,
}

impl From<&ExecOptions> for Wanted {
    fn from(options: &ExecOptions) -> Self {
        Self {
            tty: options.tty,
            stdin: options.stdin,
            stdout: options.stdout,
            stderr: options.stderr && !options.tty,
        }
    }
}

impl From<&AttachOptions> for Wanted {
    fn from(options: &AttachOptions) -> Self {
        Self {
            tty: options.tty,
            stdin: options.stdin,
            stdout: options.stdout,
            stderr: options.stderr && !options.tty,
        }
    }
}

impl Wanted {
    pub(crate) fn stderr(self) -> bool {
        self.stderr
    }
}

/// Connects to the streams of a command.
pub(crate) async fn command(operation: Operation, url: &str, wanted: Wanted) -> Result<ExecStreams> {
    let begun = async {
        let connection = connect(url, V4_CHANNEL).await?;
        Ok(begin_command(connection, wanted))
    };
    bounded(begun)
        .await
        .map_err(|error| Error::failed(operation, error))
}

/// Connects to a port of a pod.
pub(crate) async fn port(url: &str, port: u16) -> Result<DuplexStream> {
    let begun = async {
        let connection = connect(url, PORT_FORWARD).await?;
        Ok(begin_port(connection, port))
    };
    let pipe = bounded(begun).await;
    Ok(Box::new(
        pipe.map_err(|error| Error::failed(Operation::PortForward, error))?,
    ))
}

async fn bounded<T>(
    begun: impl Future<Output = std::result::Result<T, StreamError>>,
) -> std::result::Result<T, StreamError> {
    timeout(BEGIN, begun)
        .await
        .unwrap_or(Err(StreamError::Late(BEGIN)))
}

/// A connection on which a server is ready for the streams of a protocol.
async fn connect(
    url: &str,
    protocol: &'static str,
) -> std::result::Result<impl AsyncRead + AsyncWrite + Send + use<>, StreamError> {
    let address = || StreamError::Address { url: url.to_owned() };
    let rest = url.strip_prefix("http://").ok_or_else(address)?;
    let (host, _) = rest.split_once('/').ok_or_else(address)?;
    if url.contains(['\r', '\n', ' ']) {
        return Err(address());
    }
    let stream = TcpStream::connect(host)
        .await
        .map_err(|source| StreamError::Connect {
            host: host.to_owned(),
            source,
        })?;
    Ok(request_upgrade(stream, host, &rest[host.len()..], protocol).await?)
}

/// Ends of pipes that data are written to, by the stream they come from.
#[derive(Default)]
struct Outputs {
    error: StreamId,
    status: Vec<u8>,
    status_ended: bool,
    pipes: Vec<(StreamId, WriteHalf<Pipe>)>,
}

fn begin_command(stream: impl AsyncRead + AsyncWrite + Send + 'static, wanted: Wanted) -> ExecStreams {
    let mut client = SpdyClient::default();
    let error = client.open(&[(STREAM_TYPE, "error")]);
    let mut open = |kind: &str, wanted: bool| wanted.then(|| client.open(&[(STREAM_TYPE, kind)]));
    let stdin = open("stdin", wanted.stdin);
    let stdout = open("stdout", wanted.stdout);
    let stderr = open("stderr", wanted.stderr);
    let resize = open("resize", wanted.tty);
    let connection = client.start(stream);
    let mut outputs = Outputs {
        error,
        ..Outputs::default()
    };
    let mut receive = |stream: StreamId| {
        let (ours, theirs) = duplex(PIPE);
        outputs.pipes.push((stream, split(ours).1));
        Box::new(theirs) as _
    };
    let (stdout, stderr) = (stdout.map(&mut receive), stderr.map(&mut receive));
    let stdin = stdin.map(|stream| Box::new(send_pipe(stream, connection.sender())) as _);
    let resize = resize.map(|stream| send_sizes(stream, connection.sender()));
    let (done, exit) = oneshot::channel();
    tokio::spawn(drive(connection, outputs, done));
    ExecStreams {
        stdin,
        stdout,
        stderr,
        resize,
        exit,
    }
}

fn begin_port(stream: impl AsyncRead + AsyncWrite + Send + 'static, port: u16) -> Pipe {
    let mut client = SpdyClient::default();
    let port = port.to_string();
    let headers = |kind| [(STREAM_TYPE, kind), (PORT, port.as_str()), (REQUEST_ID, "0")];
    let error = client.open_to_read(&headers("error"));
    let data = client.open(&headers("data"));
    let connection = client.start(stream);
    let (ours, theirs) = duplex(PIPE);
    let (input, output) = split(ours);
    tokio::spawn(send_input(data, input, connection.sender()));
    let outputs = Outputs {
        error,
        pipes: vec![(data, output)],
        ..Outputs::default()
    };
    // Whoever drops the pipe has left: nothing else ends the connection.
    let (done, ended) = oneshot::channel();
    tokio::spawn(async move {
        let driving = drive(connection, outputs, done);
        tokio::join!(driving, async {
            if let Ok(Err(error)) = ended.await {
                tracing::debug!(%error, "a forwarded port");
            }
        });
    });
    theirs
}

/// The caller's end of a pipe whose content goes to a stream.
fn send_pipe(stream: StreamId, sender: StreamSender) -> Pipe {
    let (ours, theirs) = duplex(PIPE);
    tokio::spawn(send_input(stream, split(ours).0, sender));
    theirs
}

async fn send_input(stream: StreamId, mut input: ReadHalf<Pipe>, sender: StreamSender) {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(PIECE);
        let piece = input.read_buf(&mut buffer).await;
        let sent = match piece {
            // The other end was dropped, or the caller has nothing more to say.
            Ok(0) | Err(_) => {
                // A server that has left needs no end.
                let _ = sender.end(stream).await;
                return;
            }
            Ok(_) => sender.data(stream, buffer.split().freeze()).await,
        };
        if sent == Err(PeerLeft) {
            return;
        }
    }
}

fn send_sizes(stream: StreamId, sender: StreamSender) -> mpsc::Sender<TerminalSize> {
    let (sizes, mut to_send) = mpsc::channel::<TerminalSize>(SIZES);
    tokio::spawn(async move {
        while let Some(size) = to_send.recv().await {
            let text = format!("{{\"Width\":{},\"Height\":{}}}\n", size.columns, size.rows);
            if sender.data(stream, text.into()).await == Err(PeerLeft) {
                return;
            }
        }
    });
    sizes
}

/// Takes what the server sends until it has said all, or the caller has left.
async fn drive(connection: StreamConnection, mut outputs: Outputs, mut done: oneshot::Sender<Result<i32>>) {
    let code = tokio::select! {
        received = outputs.receive(connection) => received.and_then(|()| exit_code(&outputs.status)),
        () = done.closed() => return,
    };
    drop(outputs);
    let _ = done.send(code.map_err(|error| Error::failed(Operation::Exec, error)));
}

impl Outputs {
    async fn receive(&mut self, mut connection: StreamConnection) -> std::result::Result<(), StreamError> {
        while !(self.status_ended && self.pipes.is_empty()) {
            match connection.next().await {
                Ok(StreamEvent::Data { stream, bytes }) => self.take(stream, false, &bytes).await,
                Ok(StreamEvent::Ended { stream } | StreamEvent::Reset { stream }) => {
                    self.take(stream, true, &[]).await;
                }
                // Servers open no streams, and `next` does not return `Closed`.
                Ok(StreamEvent::Opened { .. } | StreamEvent::Closed) => {}
                Err(PeerLeft) => {
                    return connection
                        .failure()
                        .await
                        .map_or(Ok(()), |error| Err(error.into()));
                }
            }
        }
        Ok(())
    }

    async fn take(&mut self, stream: StreamId, last: bool, bytes: &[u8]) {
        if stream == self.error {
            let room = MAX_STATUS - self.status.len();
            self.status.extend_from_slice(&bytes[..bytes.len().min(room)]);
            self.status_ended |= last;
            return;
        }
        let Some(place) = self.pipes.iter().position(|(id, _)| *id == stream) else {
            return;
        };
        // A reader that has left does not keep the others from theirs.
        let gone = self.pipes[place].1.write_all(bytes).await.is_err();
        if last || gone {
            let (_, mut pipe) = self.pipes.swap_remove(place);
            let _ = pipe.shutdown().await;
        }
    }
}

/// The last word on a command, as Kubernetes writes it.
#[derive(Debug, Deserialize)]
struct LastWord {
    status: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    details: Option<Details>,
}

#[derive(Debug, Deserialize)]
struct Details {
    #[serde(default)]
    causes: Vec<Cause>,
}

#[derive(Debug, Deserialize)]
struct Cause {
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
}

fn exit_code(status: &[u8]) -> std::result::Result<i32, StreamError> {
    if status.is_empty() {
        return Err(StreamError::NoStatus);
    }
    let Ok(status) = serde_json::from_slice::<LastWord>(status) else {
        return Err(StreamError::Failed(String::from_utf8_lossy(status).into_owned()));
    };
    if status.status == "Success" {
        return Ok(0);
    }
    let causes = status.details.map(|details| details.causes).unwrap_or_default();
    let code = causes.iter().find(|cause| cause.reason == "ExitCode");
    code.and_then(|cause| cause.message.parse().ok())
        .ok_or(StreamError::Failed(status.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_tells_the_exit_code() {
        let code = |text: &str| exit_code(text.as_bytes()).map_err(|error| error.to_string());
        assert_eq!(code(r#"{"metadata":{},"status":"Success"}"#), Ok(0));
        let failed = r#"{"status":"Failure","message":"m","reason":"NonZeroExitCode",
                        "details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#;
        assert_eq!(code(failed), Ok(3));
        assert_eq!(
            code(r#"{"status":"Failure","message":"broken"}"#),
            Err("broken".into())
        );
        assert_eq!(code("no such container"), Err("no such container".into()));
        assert!(code("").is_err());
    }

    #[tokio::test]
    async fn an_address_that_cannot_be_used_is_refused() {
        for url in [
            "https://127.0.0.1/x",
            "http://127.0.0.1",
            "",
            "http://x y/z",
            "http://x\r\n/z",
        ] {
            let result = connect(url, V4_CHANNEL).await.err();
            assert!(matches!(result, Some(StreamError::Address { .. })), "{url:?}");
        }
    }
}
