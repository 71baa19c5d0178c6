//! A connection that speaks one of the protocols, driven by a task of its own.
//!
//! Both directions are bounded: a peer is not read while nobody takes what it sent last, and no commands are taken while
//! a peer does not read. The task ends when the peer leaves, when the [`StreamConnection`] is dropped, or when the
//! connection and its [`StreamSender`]s have all finished; in the last case the protocol's close is sent first.
//!
//! The two sides differ where it matters who may wait for whom. A server ends a connection that nothing moves on for
//! hours, and leaves a client as soon as it cannot be written to. A client goes on to read, whatever becomes of what it
//! sends: a command may well write before it reads, or end before it has read all of its input.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::protocol::{Command, ProtocolError, Side, StreamEvent, StreamId, StreamProtocol};

/// Bytes read at a time.
const READ_CHUNK: usize = 16 * 1024;
/// Bytes that wait to be written before no more commands are taken.
const MAX_OUTPUT: usize = 64 * 1024;
/// Events and commands that wait, each with a message's data at most.
const QUEUE: usize = 8;
/// How long a client may be silent while it is sent nothing, as a kubelet has it.
const IDLE_TIMEOUT: Duration = Duration::from_hours(4);
/// How long a peer may take to close its side after the protocol's close.
const LINGER: Duration = Duration::from_secs(5);

/// A connection with several streams.
#[derive(Debug)]
pub struct StreamConnection {
    events: mpsc::Receiver<StreamEvent>,
    commands: mpsc::Sender<Command>,
    task: AbortOnDropHandle<Result<(), ConnectionError>>,
}

/// Sends to the peer. Clones send to the same one.
#[derive(Debug, Clone)]
pub struct StreamSender(mpsc::Sender<Command>);

/// The peer has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the peer of the connection has left")]
pub struct PeerLeft;

/// Why a connection ended before everything was said.
#[derive(Debug, Error)]
pub enum ConnectionError {
    #[error("the peer has closed the connection")]
    Closed,
    #[error("the connection cannot be read: {0}")]
    Read(#[source] io::Error),
    #[error("the connection cannot be written to: {0}")]
    Write(#[source] io::Error),
    #[error("the peer broke the protocol: {0}")]
    Protocol(#[from] ProtocolError),
    #[error("nothing was sent or received for {0:?}")]
    Idle(Duration),
}

impl StreamConnection {
    /// Begins with `output`, which the protocol has already made.
    pub(crate) fn start<S, P>(stream: S, protocol: P, output: Vec<u8>) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
        P: StreamProtocol,
    {
        let (published, events) = mpsc::channel(QUEUE);
        let (sender, commands) = mpsc::channel(QUEUE);
        let (reader, writer) = tokio::io::split(stream);
        let driver = Driver {
            side: protocol.side(),
            reader,
            writer,
            protocol,
            commands,
            events: VecDeque::new(),
            output,
            unflushed: false,
            writable: true,
        };
        Self {
            events,
            commands: sender,
            task: AbortOnDropHandle::new(tokio::spawn(driver.run(published))),
        }
    }

    pub fn sender(&self) -> StreamSender {
        StreamSender(self.commands.clone())
    }

    /// What the peer does next.
    pub async fn next(&mut self) -> Result<StreamEvent, PeerLeft> {
        match self.events.recv().await {
            Some(StreamEvent::Closed) | None => Err(PeerLeft),
            Some(event) => Ok(event),
        }
    }

    /// Why the peer has left, once it has; `None` if it closed the protocol or the connection.
    pub async fn failure(self) -> Option<ConnectionError> {
        if !self.events.is_closed() {
            return None;
        }
        match self.task.await {
            Ok(Ok(()) | Err(ConnectionError::Closed)) | Err(_) => None,
            Ok(Err(error)) => Some(error),
        }
    }

    /// Sends the protocol's close if the peer is still there, and waits for the end. All other senders must be gone.
    pub async fn finish(self) {
        drop(self.events);
        drop(self.commands);
        // However it ended, it has.
        let _ = self.task.await;
    }
}

impl StreamSender {
    pub async fn data(&self, stream: StreamId, bytes: Bytes) -> Result<(), PeerLeft> {
        self.send(Command::Data { stream, bytes }).await
    }

    /// Nothing more will be sent on the stream.
    pub async fn end(&self, stream: StreamId) -> Result<(), PeerLeft> {
        self.send(Command::End { stream }).await
    }

    /// Gives a stream up in both directions.
    pub async fn reset(&self, stream: StreamId) -> Result<(), PeerLeft> {
        self.send(Command::Reset { stream }).await
    }

    async fn send(&self, command: Command) -> Result<(), PeerLeft> {
        self.0.send(command).await.map_err(|_| PeerLeft)
    }
}

#[derive(Debug)]
struct Driver<S, P> {
    side: Side,
    reader: ReadHalf<S>,
    writer: WriteHalf<S>,
    protocol: P,
    commands: mpsc::Receiver<Command>,
    /// Read and not published yet.
    events: VecDeque<StreamEvent>,
    /// To be written.
    output: Vec<u8>,
    /// Written, but perhaps not sent.
    unflushed: bool,
    /// Whether the peer still takes what is written.
    writable: bool,
}

impl<S: AsyncRead + AsyncWrite + Send + 'static, P: StreamProtocol> Driver<S, P> {
    async fn run(mut self, published: mpsc::Sender<StreamEvent>) -> Result<(), ConnectionError> {
        let exchanged = self.exchange(&published).await;
        match &exchanged {
            Ok(()) => {
                self.protocol.send(Command::Close, &mut self.output);
                let _ = timeout(LINGER, self.part()).await;
            }
            Err(error) => tracing::debug!(%error, "a connection of streams has ended"),
        }
        exchanged
    }

    /// Runs until there is nothing more to say to the peer.
    async fn exchange(&mut self, published: &mpsc::Sender<StreamEvent>) -> Result<(), ConnectionError> {
        let mut chunk = vec![0; READ_CHUNK];
        let mut deadline = Instant::now() + IDLE_TIMEOUT;
        loop {
            let room = self.output.len() < MAX_OUTPUT;
            let waiting = !self.events.is_empty();
            let unsent = self.unflushed || !self.output.is_empty();
            let may_read = !waiting && (room || self.side == Side::Client);
            tokio::select! {
                written = push(&mut self.writer, &mut self.output, &mut self.unflushed), if unsent => {
                    self.written(written)?;
                }
                permit = published.reserve(), if waiting => match permit {
                    Ok(permit) => if let Some(event) = self.events.pop_front() {
                        permit.send(event);
                    },
                    // The receiver of events is gone.
                    Err(_) => self.events.clear(),
                },
                count = self.reader.read(&mut chunk), if may_read => {
                    let count = count.map_err(ConnectionError::Read)?;
                    self.received(&chunk[..count], room)?;
                }
                command = self.commands.recv(), if room => match command {
                    Some(command) if self.writable => self.protocol.send(command, &mut self.output),
                    Some(_) => {}
                    None => return Ok(()),
                },
                () = sleep_until(deadline), if self.side == Side::Server => {
                    return Err(ConnectionError::Idle(IDLE_TIMEOUT));
                }
            }
            deadline = Instant::now() + IDLE_TIMEOUT;
        }
    }

    fn received(&mut self, bytes: &[u8], room: bool) -> Result<(), ConnectionError> {
        if bytes.is_empty() {
            return Err(ConnectionError::Closed);
        }
        let waiting = self.output.len();
        self.protocol.receive(bytes, &mut self.events, &mut self.output)?;
        // A pong that does not fit waits for nobody: the next ping gets one.
        if !room || !self.writable {
            self.output.truncate(waiting);
        }
        Ok(())
    }

    fn written(&mut self, written: io::Result<()>) -> Result<(), ConnectionError> {
        match (written, self.side) {
            (Ok(()), _) => Ok(()),
            (Err(error), Side::Server) => Err(ConnectionError::Write(error)),
            (Err(error), Side::Client) => {
                tracing::debug!(%error, "a server of streams takes no more");
                self.writable = false;
                self.unflushed = false;
                self.output.clear();
                Ok(())
            }
        }
    }

    /// Sends what is left, and waits for the peer to close its side: closing earlier could take from it what it has not
    /// read yet.
    async fn part(&mut self) -> io::Result<()> {
        while self.unflushed || !self.output.is_empty() {
            push(&mut self.writer, &mut self.output, &mut self.unflushed).await?;
        }
        self.writer.shutdown().await?;
        let mut chunk = vec![0; READ_CHUNK];
        while self.reader.read(&mut chunk).await? > 0 {}
        Ok(())
    }
}

/// Writes some of the output, or flushes what was written. Dropped before it is done, it has done nothing.
async fn push<W: AsyncWrite + Unpin>(
    writer: &mut W,
    output: &mut Vec<u8>,
    unflushed: &mut bool,
) -> io::Result<()> {
    if output.is_empty() {
        writer.flush().await?;
        *unflushed = false;
        return Ok(());
    }
    let count = writer.write(output).await?;
    if count == 0 {
        return Err(io::ErrorKind::WriteZero.into());
    }
    output.drain(..count);
    *unflushed = true;
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;
    use crate::spdy::Spdy;
    use crate::spdy::SpdyClient;
    use crate::websocket::{Channels, Closing, Coding};

    fn connection(size: usize) -> (StreamConnection, tokio::io::DuplexStream) {
        let (ours, theirs) = duplex(size);
        let channels = Channels::new(Coding::Binary, Closing::Never);
        (StreamConnection::start(ours, channels, Vec::new()), theirs)
    }

    #[tokio::test]
    async fn the_close_comes_after_everything_else() {
        let (connection, mut client) = connection(16);
        let sender = connection.sender();
        let speaking = async {
            sender.data(1, "hello".into()).await.unwrap();
            sender.data(3, "status".into()).await.unwrap();
            drop(sender);
            connection.finish().await;
        };
        let listening = async {
            let mut received = vec![0; 21];
            client.read_exact(&mut received).await.unwrap();
            drop(client);
            received
        };
        let ((), received) = tokio::join!(speaking, listening);
        assert_eq!(
            received,
            b"\x82\x06\x01hello\x82\x07\x03status\x88\x02\x03\xe8"[..21]
        );
    }

    #[tokio::test]
    async fn who_leaves_is_noticed_from_both_ends() {
        let (mut connection, client) = connection(16);
        drop(client);
        assert_eq!(connection.next().await, Err(PeerLeft));
        let sender = connection.sender();
        let mut sent = Ok(());
        while sent.is_ok() {
            sent = sender.data(1, "x".into()).await;
        }
    }

    #[tokio::test]
    async fn who_breaks_the_protocol_is_left() {
        let (mut connection, mut client) = connection(1024);
        client.write_all(b"\x82\x01x").await.unwrap();
        assert_eq!(connection.next().await, Err(PeerLeft));
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_holds_up_its_sender() {
        let (connection, client) = connection(1024);
        let sender = connection.sender();
        let big = Bytes::from(vec![0; 64 * 1024]);
        let mut sent = 0;
        while timeout(Duration::from_millis(200), sender.data(1, big.clone()))
            .await
            .is_ok()
        {
            sent += 1;
            assert!(sent < 100, "nothing bounds what waits for the client");
        }
        drop(client);
    }

    /// A client with one stream, and the server of it.
    fn pair(size: usize) -> (StreamConnection, StreamConnection, StreamId) {
        let (ours, theirs) = duplex(size);
        let mut client = SpdyClient::default();
        let stream = client.open(&[("streamtype", "data")]);
        let server = StreamConnection::start(theirs, Spdy::server(), Vec::new());
        (client.start(ours), server, stream)
    }

    #[tokio::test]
    async fn client_and_server_understand_each_other() {
        let (mut client, mut server, stream) = pair(64);
        let headers = vec![("streamtype".to_owned(), "data".to_owned())];
        assert_eq!(server.next().await, Ok(StreamEvent::Opened { stream, headers }));
        let (from_client, from_server) = (client.sender(), server.sender());
        from_client.data(stream, "ask".into()).await.unwrap();
        from_client.end(stream).await.unwrap();
        let bytes = "ask".into();
        assert_eq!(server.next().await, Ok(StreamEvent::Data { stream, bytes }));
        assert_eq!(server.next().await, Ok(StreamEvent::Ended { stream }));
        from_server.data(stream, "answer".into()).await.unwrap();
        from_server.end(stream).await.unwrap();
        drop(from_server);
        let ending = tokio::spawn(server.finish());
        let bytes = "answer".into();
        assert_eq!(client.next().await, Ok(StreamEvent::Data { stream, bytes }));
        assert_eq!(client.next().await, Ok(StreamEvent::Ended { stream }));
        assert_eq!(client.next().await, Err(PeerLeft));
        assert!(client.failure().await.is_none());
        ending.await.unwrap();
    }

    /// A frame of data as a server sends it.
    fn frame(stream: StreamId, bytes: &[u8]) -> Vec<u8> {
        let length = u32::try_from(bytes.len()).unwrap();
        [stream.to_be_bytes().as_slice(), &length.to_be_bytes(), bytes].concat()
    }

    #[tokio::test]
    async fn a_client_reads_while_its_server_does_not() {
        let (ours, mut server) = duplex(16);
        let mut client = SpdyClient::default();
        let stream = client.open(&[]);
        let mut client = client.start(ours);
        let sender = client.sender();
        let sending =
            tokio::spawn(
                async move { while sender.data(stream, vec![0; MAX_OUTPUT].into()).await.is_ok() {} },
            );
        for _ in 0..100 {
            server.write_all(&frame(stream, b"output")).await.unwrap();
            let mut received = Vec::new();
            while received.len() < 6 {
                match client.next().await {
                    Ok(StreamEvent::Data { bytes, .. }) => received.extend_from_slice(&bytes),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(received, b"output");
        }
        drop(client);
        sending.await.unwrap();
    }

    #[tokio::test]
    async fn a_client_gets_what_was_sent_before_its_server_stopped_reading() {
        let (mut server, to_client) = duplex(1024);
        server.write_all(&frame(1, b"the end")).await.unwrap();
        // Whatever is written fails.
        let (broken, gone) = duplex(1);
        drop(gone);
        let mut client = SpdyClient::default();
        let stream = client.open(&[]);
        let mut client = client.start(tokio::io::join(to_client, broken));
        let bytes = "the end".into();
        assert_eq!(client.next().await, Ok(StreamEvent::Data { stream, bytes }));
        server.write_all(b"\x80\x09\0\x01\0\0\0\0").await.unwrap();
        assert_eq!(client.next().await, Err(PeerLeft));
        let failure = client.failure().await;
        assert!(matches!(
            failure,
            Some(ConnectionError::Protocol(ProtocolError::Version))
        ));
    }
}
