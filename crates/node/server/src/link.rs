//! A connection that speaks one of the protocols, driven by a task of its own.
//!
//! Both directions are bounded: a client is not read while nobody takes what it sent last, and commands are not taken
//! while a client does not read. The task ends when the client leaves, when nothing moves for hours, or when whoever
//! holds the [`Sender`]s has dropped them all, and then the client is told goodbye first.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::protocol::{Command, Event, Protocol, StreamId};

/// Bytes read at a time.
const READ_CHUNK: usize = 16 * 1024;
/// Bytes that wait to be written before no more commands are taken.
const MAX_OUTPUT: usize = 64 * 1024;
/// Events and commands that wait, each with a chunk of data at most.
const QUEUE: usize = 8;
/// How long a connection may be silent in both directions, as a kubelet has it.
const IDLE_TIMEOUT: Duration = Duration::from_hours(4);
/// How long a client may take to notice that all is said.
const LINGER: Duration = Duration::from_secs(5);

/// The session's end of a connection.
#[derive(Debug)]
pub(crate) struct Link {
    events: mpsc::Receiver<Event>,
    commands: mpsc::Sender<Command>,
    task: AbortOnDropHandle<()>,
}

/// Sends to a client. Clones send to the same one.
#[derive(Debug, Clone)]
pub(crate) struct Sender(mpsc::Sender<Command>);

/// The client has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left;

impl Link {
    pub(crate) fn start<S, P>(stream: S, protocol: P) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
        P: Protocol,
    {
        let (told, events) = mpsc::channel(QUEUE);
        let (commands, orders) = mpsc::channel(QUEUE);
        let (reader, writer) = tokio::io::split(stream);
        let driver = Driver {
            reader,
            writer,
            protocol,
            told,
            orders,
            events: VecDeque::new(),
            output: Vec::new(),
            unflushed: false,
        };
        let task = AbortOnDropHandle::new(tokio::spawn(driver.run()));
        Self {
            events,
            commands,
            task,
        }
    }

    pub(crate) fn sender(&self) -> Sender {
        Sender(self.commands.clone())
    }

    /// What the client does next.
    pub(crate) async fn next(&mut self) -> Result<Event, Left> {
        match self.events.recv().await {
            Some(Event::Closed) | None => Err(Left),
            Some(event) => Ok(event),
        }
    }

    /// Says goodbye, if there is still somebody to say it to, and waits for the end; all other senders are gone.
    pub(crate) async fn finish(self) {
        drop(self.events);
        drop(self.commands);
        // However it ended, it has.
        let _ = self.task.await;
    }
}

impl Sender {
    pub(crate) async fn data(&self, stream: StreamId, bytes: Bytes) -> Result<(), Left> {
        self.send(Command::Data { stream, bytes }).await
    }

    pub(crate) async fn end(&self, stream: StreamId) -> Result<(), Left> {
        self.send(Command::End { stream }).await
    }

    pub(crate) async fn reset(&self, stream: StreamId) -> Result<(), Left> {
        self.send(Command::Reset { stream }).await
    }

    async fn send(&self, command: Command) -> Result<(), Left> {
        self.0.send(command).await.map_err(|_| Left)
    }
}

#[derive(Debug)]
struct Driver<S, P> {
    reader: ReadHalf<S>,
    writer: WriteHalf<S>,
    protocol: P,
    told: mpsc::Sender<Event>,
    orders: mpsc::Receiver<Command>,
    /// Read and not told yet.
    events: VecDeque<Event>,
    /// To be written.
    output: Vec<u8>,
    /// Written, but perhaps not sent.
    unflushed: bool,
}

impl<S: AsyncRead + AsyncWrite + Send + 'static, P: Protocol> Driver<S, P> {
    async fn run(mut self) {
        match self.exchange().await {
            Ok(()) => {
                self.protocol.send(Command::Close, &mut self.output);
                let _ = timeout(LINGER, self.part()).await;
            }
            Err(error) => tracing::debug!(%error, "a client of streams has left"),
        }
    }

    /// Runs until there is nothing more to say to the client.
    async fn exchange(&mut self) -> io::Result<()> {
        let mut chunk = vec![0; READ_CHUNK];
        let mut deadline = Instant::now() + IDLE_TIMEOUT;
        loop {
            let room = self.output.len() < MAX_OUTPUT;
            let waiting = !self.events.is_empty();
            let unsent = self.unflushed || !self.output.is_empty();
            tokio::select! {
                written = push(&mut self.writer, &mut self.output, &mut self.unflushed), if unsent => written?,
                permit = self.told.reserve(), if waiting => match permit {
                    Ok(permit) => if let Some(event) = self.events.pop_front() {
                        permit.send(event);
                    },
                    // Nobody listens any more.
                    Err(_) => self.events.clear(),
                },
                count = self.reader.read(&mut chunk), if room && !waiting => {
                    let count = count?;
                    if count == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    self.protocol
                        .receive(&chunk[..count], &mut self.events, &mut self.output)
                        .map_err(io::Error::other)?;
                }
                order = self.orders.recv(), if room => match order {
                    Some(command) => self.protocol.send(command, &mut self.output),
                    None => return Ok(()),
                },
                () = sleep_until(deadline) => return Err(io::ErrorKind::TimedOut.into()),
            }
            deadline = Instant::now() + IDLE_TIMEOUT;
        }
    }

    /// Sends what is left, and waits for the client to hang up: closing earlier could take from it what it has not
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
    use crate::websocket::{Channels, Closing};

    fn link(size: usize) -> (Link, tokio::io::DuplexStream) {
        let (ours, theirs) = duplex(size);
        (Link::start(ours, Channels::new(Closing::Never)), theirs)
    }

    #[tokio::test]
    async fn goodbye_comes_after_everything_else() {
        let (link, mut client) = link(16);
        let sender = link.sender();
        let speaking = async {
            sender.data(1, "hello".into()).await.unwrap();
            sender.data(3, "status".into()).await.unwrap();
            drop(sender);
            link.finish().await;
        };
        let listening = async {
            let mut heard = vec![0; 21];
            client.read_exact(&mut heard).await.unwrap();
            drop(client);
            heard
        };
        let ((), heard) = tokio::join!(speaking, listening);
        assert_eq!(
            heard,
            b"\x82\x06\x01hello\x82\x07\x03status\x88\x02\x03\xe8"[..21]
        );
    }

    #[tokio::test]
    async fn who_leaves_is_noticed_from_both_ends() {
        let (mut link, client) = link(16);
        drop(client);
        assert_eq!(link.next().await, Err(Left));
        let sender = link.sender();
        let mut sent = Ok(());
        while sent.is_ok() {
            sent = sender.data(1, "x".into()).await;
        }
    }

    #[tokio::test]
    async fn who_breaks_the_protocol_is_left() {
        let (mut link, mut client) = link(1024);
        client.write_all(b"\x82\x01x").await.unwrap();
        assert_eq!(link.next().await, Err(Left));
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_holds_up_its_sender() {
        let (link, client) = link(1024);
        let sender = link.sender();
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
}
