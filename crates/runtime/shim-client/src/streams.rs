//! Interactive connections: a shim's stream frames as plain byte streams for the caller.

use pulselet_runtime::{
    AttachOptions, Error, ExecStreams, Operation, ReadStream, Result, TerminalSize, WriteStream,
};
use pulselet_shim::protocol::{Channel, MAX_STREAM_DATA, put_frame, to_json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, WriteHalf},
    net::UnixStream,
    sync::{mpsc, oneshot},
};

use crate::client::{Client, read_frame};

/// Bytes between the caller and us in each direction.
const BUFFER: usize = 64 * 1024;

/// Sizes of a terminal that wait to be passed on; a person cannot resize faster.
const RESIZES: usize = 4;

/// Turns a connection that is in streaming mode into the caller's ends.
pub(crate) fn open(client: Client, operation: Operation, wanted: AttachOptions) -> ExecStreams {
    let (from_shim, to_shim) = tokio::io::split(client.stream);
    let pair = |wanted: bool| {
        if wanted {
            Some(tokio::io::duplex(BUFFER))
        } else {
            None
        }
        .unzip()
    };
    let (stdin, their_stdin) = pair(wanted.stdin);
    let (stdout, their_stdout) = pair(wanted.stdout);
    let (stderr, their_stderr) = pair(wanted.stderr && !wanted.tty);
    let (resize, resizes) = mpsc::channel(RESIZES);
    let (mut exit_sender, exit) = oneshot::channel();
    let sender = tokio::spawn(send(to_shim, their_stdin, resizes));
    tokio::spawn(async move {
        let result = tokio::select! {
            result = receive(from_shim, operation, their_stdout, their_stderr) => Some(result),
            () = exit_sender.closed() => None,
        };
        sender.abort();
        if let Some(result) = result {
            let _ = exit_sender.send(result);
        }
    });
    ExecStreams {
        stdin: stdin.map(|stream| Box::new(stream) as WriteStream),
        stdout: stdout.map(|stream| Box::new(stream) as ReadStream),
        stderr: stderr.map(|stream| Box::new(stream) as ReadStream),
        resize: wanted.tty.then_some(resize),
        exit,
    }
}

/// Passes on what the shim says, until it says how it ended.
async fn receive(
    mut stream: tokio::io::ReadHalf<UnixStream>,
    operation: Operation,
    mut stdout: Option<DuplexStream>,
    mut stderr: Option<DuplexStream>,
) -> Result<i32> {
    loop {
        let frame = match read_frame(&mut stream).await {
            Ok(Some(frame)) => frame,
            Ok(None) => return Err(Error::unavailable(operation, "the container's shim hung up")),
            Err(error) => return Err(Error::unavailable(operation, error)),
        };
        match Channel::split(&frame) {
            Some((Channel::Stdout, data)) => pass_on(&mut stdout, data).await,
            Some((Channel::Stderr, data)) => pass_on(&mut stderr, data).await,
            Some((Channel::Exit, data)) => {
                return serde_json::from_slice(data).map_err(|error| Error::failed(operation, error));
            }
            Some((Channel::Stdin | Channel::StdinEnd | Channel::Resize, _)) | None => {}
        }
    }
}

/// A caller that dropped its end does not want the rest.
async fn pass_on(end: &mut Option<DuplexStream>, data: &[u8]) {
    if let Some(stream) = end
        && stream.write_all(data).await.is_err()
    {
        *end = None;
    }
}

/// Passes on what the caller types and how large its terminal is.
async fn send(
    mut stream: WriteHalf<UnixStream>,
    mut stdin: Option<DuplexStream>,
    mut resizes: mpsc::Receiver<TerminalSize>,
) {
    let mut chunk = vec![0; MAX_STREAM_DATA];
    let mut resizing = true;
    loop {
        let mut frame = Vec::new();
        tokio::select! {
            // A size that was sent before something was typed counts before it.
            biased;
            size = resizes.recv(), if resizing => match size {
                Some(size) => put_frame(&mut frame, &[&[Channel::Resize.byte()], &to_json(&size)]),
                None => resizing = false,
            },
            count = read_some(&mut stdin, &mut chunk) => if count > 0 {
                put_frame(&mut frame, &[&[Channel::Stdin.byte()], &chunk[..count]]);
            } else {
                stdin = None;
                put_frame(&mut frame, &[&[Channel::StdinEnd.byte()]]);
            },
        }
        if stream.write_all(&frame).await.is_err() {
            return;
        }
    }
}

/// Never returns without a stdin.
async fn read_some(stdin: &mut Option<DuplexStream>, chunk: &mut [u8]) -> usize {
    match stdin {
        Some(stream) => stream.read(chunk).await.unwrap_or(0),
        None => std::future::pending().await,
    }
}
