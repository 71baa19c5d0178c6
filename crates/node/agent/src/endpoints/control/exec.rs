//! A command in a container, over the socket: the request becomes a stream of frames both ways.
//!
//! A frame is a byte for its kind, four bytes for the length of what follows (big endian), and that. The client sends input
//! and sizes of its terminal, the agent output and, last, how it ended. A client that leaves takes its command with it.

use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use pulselet_runtime::{ExecStreams, ReadStream, TerminalSize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::Mutex;

use super::client::ControlClientError;

/// What the connection is upgraded to.
pub(super) const PROTOCOL: &str = "pulselet-exec";
/// Bytes of output sent at a time.
const OUTPUT_CHUNK: usize = 32 * 1024;
/// Longest frame, in bytes: neither side sends more at a time.
const MAX_FRAME: usize = 64 * 1024;

/// What one side tells the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecFrame {
    Stdin(Bytes),
    /// There is no more input.
    StdinEnded,
    Resized(TerminalSize),
    Stdout(Bytes),
    Stderr(Bytes),
    /// The last frame: the command's exit code.
    Exited(i32),
    /// The last frame: nobody knows how it ended, and why.
    Failed(String),
}

impl ExecFrame {
    fn encode(&self) -> Vec<u8> {
        let (kind, payload) = match self {
            Self::Stdin(bytes) => (0, bytes.to_vec()),
            Self::StdinEnded => (1, Vec::new()),
            Self::Resized(size) => {
                let sides = [size.columns.to_be_bytes(), size.rows.to_be_bytes()];
                (2, sides.concat())
            }
            Self::Stdout(bytes) => (3, bytes.to_vec()),
            Self::Stderr(bytes) => (4, bytes.to_vec()),
            Self::Exited(code) => (5, code.to_be_bytes().to_vec()),
            Self::Failed(why) => (6, why.as_bytes().to_vec()),
        };
        let length = u32::try_from(payload.len()).expect("frames are short");
        let mut frame = vec![kind];
        frame.extend(length.to_be_bytes());
        frame.extend(payload);
        frame
    }

    fn decode(kind: u8, payload: Bytes) -> io::Result<Self> {
        let bad = || io::Error::new(io::ErrorKind::InvalidData, "a frame that makes no sense");
        Ok(match (kind, &payload[..]) {
            (0, _) => Self::Stdin(payload),
            (1, []) => Self::StdinEnded,
            (2, [a, b, c, d]) => Self::Resized(TerminalSize {
                columns: u16::from_be_bytes([*a, *b]),
                rows: u16::from_be_bytes([*c, *d]),
            }),
            (3, _) => Self::Stdout(payload),
            (4, _) => Self::Stderr(payload),
            (5, bytes) => Self::Exited(i32::from_be_bytes(bytes.try_into().map_err(|_| bad())?)),
            (6, bytes) => Self::Failed(String::from_utf8_lossy(bytes).into_owned()),
            _ => return Err(bad()),
        })
    }
}

/// The next frame; `None` if the other side has left.
async fn read_frame(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<ExecFrame>> {
    let kind = match from.read_u8().await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        kind => kind?,
    };
    let length = usize::try_from(from.read_u32().await?).unwrap_or(usize::MAX);
    if length > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame is too long"));
    }
    let mut payload = BytesMut::zeroed(length);
    from.read_exact(&mut payload).await?;
    ExecFrame::decode(kind, payload.freeze()).map(Some)
}

async fn write_frame(to: &mut (impl AsyncWrite + Unpin), frame: &ExecFrame) -> io::Result<()> {
    to.write_all(&frame.encode()).await?;
    to.flush().await
}

type Wire = TokioIo<Upgraded>;

/// Connects a client with a command until one of them ends.
pub(super) async fn converse(upgraded: Upgraded, streams: ExecStreams) {
    let (mut input, output) = tokio::io::split(TokioIo::new(upgraded));
    let output = Mutex::new(output);
    let ExecStreams {
        mut stdin,
        stdout,
        stderr,
        resize,
        exit,
    } = streams;
    let listening = async {
        while let Ok(Some(frame)) = read_frame(&mut input).await {
            match frame {
                ExecFrame::Stdin(bytes) => {
                    if let Some(command) = &mut stdin
                        && command.write_all(&bytes).await.is_err()
                    {
                        // A command that does not read any more is no reason to stop listening to it.
                        stdin = None;
                    }
                }
                ExecFrame::StdinEnded => stdin = None,
                ExecFrame::Resized(size) => {
                    if let Some(resize) = &resize {
                        // A terminal that is gone needs no size.
                        let _ = resize.send(size).await;
                    }
                }
                ExecFrame::Stdout(_) | ExecFrame::Stderr(_) | ExecFrame::Exited(_) | ExecFrame::Failed(_) => {
                    return;
                }
            }
        }
    };
    let speaking = async {
        let copied = tokio::join!(
            copy(&output, stdout, ExecFrame::Stdout),
            copy(&output, stderr, ExecFrame::Stderr)
        );
        let last = match exit.await {
            Ok(Ok(code)) => ExecFrame::Exited(code),
            Ok(Err(error)) => ExecFrame::Failed(error.to_string()),
            Err(_) => ExecFrame::Failed("nobody knows how the command ended".to_owned()),
        };
        if let (Ok(()), Ok(())) = copied {
            // If this fails, the client has left.
            let _ = write_frame(&mut *output.lock().await, &last).await;
        }
    };
    tokio::select! {
        () = listening => {}
        () = speaking => {}
    }
}

/// Passes output on until there is no more.
async fn copy(
    to: &Mutex<WriteHalf<Wire>>,
    from: Option<ReadStream>,
    frame: fn(Bytes) -> ExecFrame,
) -> io::Result<()> {
    let Some(mut from) = from else {
        return Ok(());
    };
    let mut buffer = vec![0; OUTPUT_CHUNK];
    loop {
        // A stream that fails has ended, and the exit says why.
        let count = from.read(&mut buffer).await.unwrap_or(0);
        if count == 0 {
            return Ok(());
        }
        let bytes = Bytes::copy_from_slice(&buffer[..count]);
        write_frame(&mut *to.lock().await, &frame(bytes)).await?;
    }
}

/// The client's side of a command.
#[derive(Debug)]
pub struct ExecSession {
    frames: ReadHalf<Wire>,
    input: ExecInput,
}

impl ExecSession {
    pub(super) fn new(upgraded: Upgraded) -> Self {
        let (frames, output) = tokio::io::split(TokioIo::new(upgraded));
        let input = ExecInput(Arc::new(Mutex::new(output)));
        Self { frames, input }
    }

    /// Where input goes. Clones are the same command's.
    pub fn input(&self) -> ExecInput {
        self.input.clone()
    }

    /// The next frame. Each call must be waited for to its end.
    pub async fn next(&mut self) -> Result<ExecFrame, ControlClientError> {
        let frame = read_frame(&mut self.frames).await;
        let broken = |error: io::Error| ControlClientError::Receive(error.into());
        let left = || ControlClientError::Receive("the agent has ended, and with it the command".into());
        frame.map_err(broken)?.ok_or_else(left)
    }
}

/// What a client sends to its command.
#[derive(Clone, Debug)]
pub struct ExecInput(Arc<Mutex<WriteHalf<Wire>>>);

impl ExecInput {
    /// Fails when the agent is gone.
    pub async fn send(&self, frame: ExecFrame) -> io::Result<()> {
        write_frame(&mut *self.0.lock().await, &frame).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_frame_arrives_as_it_was_sent() {
        let frames = [
            ExecFrame::Stdin(Bytes::from_static(b"typed")),
            ExecFrame::Stdin(Bytes::new()),
            ExecFrame::StdinEnded,
            ExecFrame::Resized(TerminalSize {
                columns: 300,
                rows: 24,
            }),
            ExecFrame::Stdout(Bytes::from(vec![7; MAX_FRAME])),
            ExecFrame::Stderr(Bytes::from_static(b"\xff")),
            ExecFrame::Exited(-1),
            ExecFrame::Failed("gone".to_owned()),
        ];
        let wire: Vec<u8> = frames.iter().flat_map(ExecFrame::encode).collect();
        let mut wire = &wire[..];
        for frame in frames {
            assert_eq!(read_frame(&mut wire).await.unwrap(), Some(frame));
        }
        assert_eq!(read_frame(&mut wire).await.unwrap(), None);
    }

    #[tokio::test]
    async fn nonsense_is_an_error_and_takes_no_memory() {
        let too_long = [3, 0xff, 0xff, 0xff, 0xff];
        for wire in [
            &too_long[..],
            &[9, 0, 0, 0, 0],
            &[2, 0, 0, 0, 1, 0],
            &[5, 0, 0, 0, 0],
            &[0, 0],
        ] {
            let mut from = wire;
            assert!(read_frame(&mut from).await.is_err(), "{wire:?}");
        }
    }
}
