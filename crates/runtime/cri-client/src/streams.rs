//! Commands, attached streams and forwarded ports. CRI hands out an address for each, at which streams are served.
//!
//! The connection lives as long as somebody listens for its end. Each stream is a pipe of bounded size between the
//! caller and the connection, so a reader that stops reading stops the sender.

use std::io;
use std::time::Duration;

use pulselet_runtime::{
    AttachOptions, DuplexStream, Error, ExecOptions, ExecStreams, Operation, Result, TerminalSize,
};
use serde::Deserialize;
use thiserror::Error as ThisError;
use tokio::io::{
    AsyncReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream as Pipe, ReadHalf, WriteHalf, duplex,
    split,
};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::spdy::{self, Frame, Opener, PIECE};

/// How long a server may take to begin; it is on this machine.
const BEGIN: Duration = Duration::from_secs(30);
/// Bytes of a server's answer before the streams begin.
const MAX_ANSWER: usize = 16 * 1024;
/// Bytes of the last word on a command.
const MAX_STATUS: usize = 64 * 1024;
/// Bytes in a pipe.
const PIPE: usize = 64 * 1024;
/// Sizes of a terminal on their way; only the last matters.
const SIZES: usize = 4;
/// Frames on their way to the server.
const FRAMES: usize = 16;

const COMMANDS: &str = "v4.channel.k8s.io";
const PORTS: &str = "portforward.k8s.io";

#[derive(Debug, ThisError)]
enum StreamError {
    #[error("the runtime's address for streams cannot be used: {url:?}")]
    Address { url: String },
    #[error("cannot connect to the runtime's streams at {host}: {source}")]
    Connect { host: String, source: io::Error },
    #[error("the runtime does not serve streams: {answer}")]
    Refused { answer: String },
    #[error("the connection to the runtime broke: {0}")]
    Broken(#[from] io::Error),
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
        let connection = upgrade(url, COMMANDS).await?;
        begin_command(connection, wanted).await
    };
    bounded(begun)
        .await
        .map_err(|error| Error::failed(operation, error))
}

/// Connects to a port of a pod.
pub(crate) async fn port(url: &str, port: u16) -> Result<DuplexStream> {
    let begun = async {
        let connection = upgrade(url, PORTS).await?;
        begin_port(connection, port).await
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

/// The two halves of a connection that speaks SPDY.
struct Upgraded {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

/// Asks for streams and reads the answer. What follows the answer stays in the reader's buffer.
async fn upgrade(url: &str, protocol: &str) -> std::result::Result<Upgraded, StreamError> {
    let address = || StreamError::Address { url: url.to_owned() };
    let rest = url.strip_prefix("http://").ok_or_else(address)?;
    let (host, path) = rest.split_once('/').ok_or_else(address)?;
    if url.contains(['\r', '\n', ' ']) {
        return Err(address());
    }
    let stream = TcpStream::connect(host)
        .await
        .map_err(|source| StreamError::Connect {
            host: host.to_owned(),
            source,
        })?;
    let (reader, mut writer) = stream.into_split();
    let request = format!(
        "POST /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
         X-Stream-Protocol-Version: {protocol}\r\nContent-Length: 0\r\n\r\n"
    );
    writer.write_all(request.as_bytes()).await?;
    let mut reader = BufReader::new(reader);
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") && answer.len() < MAX_ANSWER {
        match reader.read_u8().await {
            Ok(byte) => answer.push(byte),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error.into()),
        }
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    if !answer.starts_with("HTTP/1.1 101 ") {
        let answer = answer.lines().next().unwrap_or_default().to_owned();
        return Err(StreamError::Refused { answer });
    }
    Ok(Upgraded { reader, writer })
}

/// Ends of pipes that frames are written to, by the stream they come from.
#[derive(Default)]
struct Outputs {
    error: u32,
    status: Vec<u8>,
    status_ended: bool,
    pipes: Vec<(u32, WriteHalf<Pipe>)>,
}

async fn begin_command(
    mut connection: Upgraded,
    wanted: Wanted,
) -> std::result::Result<ExecStreams, StreamError> {
    let mut opener = Opener::default();
    let mut open = async |kind: &str| {
        let (id, frame) = opener.open(&[("streamtype", kind)], false);
        connection.writer.write_all(&frame).await.map(|()| id)
    };
    let mut outputs = Outputs {
        error: open("error").await?,
        ..Outputs::default()
    };
    let stdin_id = if wanted.stdin {
        Some(open("stdin").await?)
    } else {
        None
    };
    let mut readers = [None, None];
    for (place, (kind, wanted)) in [("stdout", wanted.stdout), ("stderr", wanted.stderr)]
        .into_iter()
        .enumerate()
    {
        if wanted {
            let id = open(kind).await?;
            let (ours, theirs) = duplex(PIPE);
            outputs.pipes.push((id, split(ours).1));
            readers[place] = Some(theirs);
        }
    }
    let resize_id = if wanted.tty {
        Some(open("resize").await?)
    } else {
        None
    };
    let (frames, to_send) = mpsc::channel(FRAMES);
    let stdin = stdin_id.map(|id| send_pipe(id, &frames));
    let resize = resize_id.map(|id| send_sizes(id, &frames));
    let (done, exit) = oneshot::channel();
    tokio::spawn(drive(connection, outputs, frames, to_send, done));
    let [stdout, stderr] = readers;
    Ok(ExecStreams {
        stdin: stdin.map(|pipe| Box::new(pipe) as _),
        stdout: stdout.map(|pipe| Box::new(pipe) as _),
        stderr: stderr.map(|pipe| Box::new(pipe) as _),
        resize,
        exit,
    })
}

async fn begin_port(mut connection: Upgraded, port: u16) -> std::result::Result<Pipe, StreamError> {
    let mut opener = Opener::default();
    let port = port.to_string();
    let headers = |kind| [("streamtype", kind), ("port", port.as_str()), ("requestid", "0")];
    let (error, frame) = opener.open(&headers("error"), true);
    connection.writer.write_all(&frame).await?;
    let (data, frame) = opener.open(&headers("data"), false);
    connection.writer.write_all(&frame).await?;
    let (ours, theirs) = duplex(PIPE);
    let (input, output) = split(ours);
    let (frames, to_send) = mpsc::channel(FRAMES);
    tokio::spawn(send_input(data, input, frames.clone()));
    let outputs = Outputs {
        error,
        pipes: vec![(data, output)],
        ..Outputs::default()
    };
    // Whoever drops the pipe has left: nothing else ends the connection.
    let (done, ended) = oneshot::channel();
    tokio::spawn(async move {
        let driving = drive(connection, outputs, frames, to_send, done);
        tokio::join!(driving, async {
            if let Ok(Err(error)) = ended.await {
                tracing::debug!(%error, "a forwarded port");
            }
        });
    });
    Ok(theirs)
}

/// The caller's end of a pipe whose content goes to a stream.
fn send_pipe(id: u32, frames: &mpsc::Sender<Vec<u8>>) -> Pipe {
    let (ours, theirs) = duplex(PIPE);
    tokio::spawn(send_input(id, split(ours).0, frames.clone()));
    theirs
}

async fn send_input(id: u32, mut input: ReadHalf<Pipe>, frames: mpsc::Sender<Vec<u8>>) {
    let mut piece = vec![0; PIECE];
    loop {
        // The other end was dropped, or the caller has nothing more to say.
        let length = input.read(&mut piece).await.unwrap_or(0);
        let sent = frames.send(spdy::data(id, &piece[..length], length == 0)).await;
        if sent.is_err() || length == 0 {
            return;
        }
    }
}

fn send_sizes(id: u32, frames: &mpsc::Sender<Vec<u8>>) -> mpsc::Sender<TerminalSize> {
    let (sender, mut sizes) = mpsc::channel::<TerminalSize>(SIZES);
    let frames = frames.clone();
    tokio::spawn(async move {
        while let Some(size) = sizes.recv().await {
            let text = format!("{{\"Width\":{},\"Height\":{}}}\n", size.columns, size.rows);
            if frames.send(spdy::data(id, text.as_bytes(), false)).await.is_err() {
                return;
            }
        }
    });
    sender
}

/// Carries frames both ways until the server has said all, or the caller has left.
async fn drive(
    connection: Upgraded,
    mut outputs: Outputs,
    frames: mpsc::Sender<Vec<u8>>,
    mut to_send: mpsc::Receiver<Vec<u8>>,
    mut done: oneshot::Sender<Result<i32>>,
) {
    let Upgraded {
        mut reader,
        mut writer,
    } = connection;
    let sending = async {
        while let Some(frame) = to_send.recv().await {
            if writer.write_all(&frame).await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    };
    let code = tokio::select! {
        read = outputs.receive(&mut reader, &frames) => read.and_then(|()| outputs.code()),
        () = sending => unreachable!("it waits for ever"),
        () = done.closed() => return,
    };
    drop(outputs);
    let _ = done.send(code.map_err(|error| Error::failed(Operation::Exec, error)));
}

impl Outputs {
    async fn receive(
        &mut self,
        reader: &mut BufReader<OwnedReadHalf>,
        frames: &mpsc::Sender<Vec<u8>>,
    ) -> std::result::Result<(), StreamError> {
        while !(self.status_ended && self.pipes.is_empty()) {
            let Some(frame) = spdy::read(reader).await? else {
                return Ok(());
            };
            match frame {
                Frame::Data { stream, fin, bytes } => self.take(stream, fin, &bytes).await,
                Frame::Reset { stream } => self.take(stream, true, &[]).await,
                // A pong that does not fit waits for nobody: the next ping gets one.
                Frame::Ping { id } => drop(frames.try_send(spdy::pong(id))),
                Frame::GoAway => return Ok(()),
                Frame::Other => {}
            }
        }
        Ok(())
    }

    async fn take(&mut self, stream: u32, fin: bool, bytes: &[u8]) {
        if stream == self.error {
            let room = MAX_STATUS - self.status.len();
            self.status.extend_from_slice(&bytes[..bytes.len().min(room)]);
            self.status_ended |= fin;
            return;
        }
        let Some(place) = self.pipes.iter().position(|(id, _)| *id == stream) else {
            return;
        };
        // A reader that has left does not keep the others from theirs.
        let gone = self.pipes[place].1.write_all(bytes).await.is_err();
        if fin || gone {
            let (_, mut pipe) = self.pipes.swap_remove(place);
            let _ = pipe.shutdown().await;
        }
    }

    fn code(&self) -> std::result::Result<i32, StreamError> {
        exit_code(&self.status)
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
            let result = upgrade(url, COMMANDS).await.err();
            assert!(matches!(result, Some(StreamError::Address { .. })), "{url:?}");
        }
    }
}
