//! The agent's side of a shim's socket.

use std::{fs::File, io, os::fd::AsRawFd, path::Path};

use pulselet_shim::{
    protocol::{FrameTooLarge, LENGTH_BYTES, Reply, Request, frame_length, put_frame, to_json},
    record::SOCKET_FILE,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// There is no shim, or not yet.
    #[error("cannot reach the container's shim: {0}")]
    Connect(io::Error),
    #[error("the connection to the container's shim failed: {0}")]
    Transfer(#[from] io::Error),
    /// It hung up where an answer was due.
    #[error("the container's shim hung up")]
    HungUp,
    #[error("the container's shim does not keep to the protocol: {0}")]
    Frame(#[from] FrameTooLarge),
    #[error("the container's shim does not keep to the protocol: {0}")]
    Parse(#[from] serde_json::Error),
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) stream: UnixStream,
}

impl Client {
    pub(crate) async fn connect(dir: &Path) -> Result<Self, ClientError> {
        // By way of an open directory, because the path of a socket may not be longer than 107 bytes.
        let directory = File::open(dir).map_err(ClientError::Connect)?;
        let path = format!("/proc/self/fd/{}/{SOCKET_FILE}", directory.as_raw_fd());
        let stream = UnixStream::connect(path).await.map_err(ClientError::Connect)?;
        Ok(Self { stream })
    }

    /// Sends a request and takes the first reply.
    pub(crate) async fn ask(&mut self, request: &Request) -> Result<Reply, ClientError> {
        let mut frame = Vec::new();
        put_frame(&mut frame, &[&to_json(request)]);
        self.stream.write_all(&frame).await?;
        self.reply().await
    }

    pub(crate) async fn reply(&mut self) -> Result<Reply, ClientError> {
        Ok(serde_json::from_slice(&self.frame().await?)?)
    }

    pub(crate) async fn frame(&mut self) -> Result<Vec<u8>, ClientError> {
        read_frame(&mut self.stream).await?.ok_or(ClientError::HungUp)
    }
}

/// Reads one frame. Returns `None` at the end of the stream.
pub(crate) async fn read_frame(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<Option<Vec<u8>>, ClientError> {
    let mut prefix = [0; LENGTH_BYTES];
    match stream.read_exact(&mut prefix).await {
        Ok(_) => {}
        Err(error) if is_hang_up(&error) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let mut frame = vec![0; frame_length(prefix)?];
    stream.read_exact(&mut frame).await?;
    Ok(Some(frame))
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
    )
}
