//! The streams of an exec process, seen from its supervisor: collected up to a limit, or forwarded to a client.

use std::{
    io::{self, PipeWriter},
    os::fd::OwnedFd,
};

use pulselet_sys::ChildSignals;
use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
};

use crate::{
    connection::Connection,
    launcher::ChildStreams,
    poll_wait::wait_for,
    process_streams::{self, StreamOptions, nonblocking},
    protocol::{Channel, MAX_FRAME, MAX_STREAM_DATA, StreamCall},
    stdin_queue::StdinQueue,
    terminal,
};

/// Bytes a client may be behind before the command has to wait.
const MAX_BACKLOG: usize = 256 * 1024;

/// Pieces of output taken before looking at anything else; more than a pipe holds.
const READS_A_TURN: usize = 16;

/// Output kept up to a limit. What is beyond is read and thrown away, so that the command does not block.
#[derive(Debug)]
pub(crate) struct CollectedOutput {
    /// `None` once it has ended.
    pub(crate) reader: Option<OwnedFd>,
    pub(crate) bytes: Vec<u8>,
    limit: usize,
    pub(crate) truncated: bool,
}

impl CollectedOutput {
    fn new(limit: usize) -> io::Result<(Self, PipeWriter)> {
        let (reader, writer) = io::pipe()?;
        let output = Self {
            reader: Some(nonblocking(reader.into())?),
            bytes: Vec::new(),
            limit: limit.min(MAX_FRAME),
            truncated: false,
        };
        Ok((output, writer))
    }

    /// Makes a pipe for stdout and stderr together, and a stdin that is empty.
    pub(crate) fn open(limit: usize) -> io::Result<(Self, ChildStreams)> {
        let (output, writer) = Self::new(limit)?;
        let streams = ChildStreams {
            stdin: std::fs::File::open("/dev/null")?.into(),
            stdout: writer.try_clone()?.into(),
            stderr: writer.into(),
            terminal: None,
        };
        Ok((output, streams))
    }

    /// Makes a pipe for stdout and one for stderr.
    pub(crate) fn open_separately(limit: usize) -> io::Result<([Self; 2], ChildStreams)> {
        let (stdout, stdout_writer) = Self::new(limit)?;
        let (stderr, stderr_writer) = Self::new(limit)?;
        let streams = ChildStreams {
            stdin: std::fs::File::open("/dev/null")?.into(),
            stdout: stdout_writer.into(),
            stderr: stderr_writer.into(),
            terminal: None,
        };
        Ok(([stdout, stderr], streams))
    }

    /// Takes what there is, but not for ever: the command may write faster than we read.
    pub(crate) fn collect(&mut self) {
        for _ in 0..READS_A_TURN {
            match read_chunk(&mut self.reader) {
                None => return,
                Some(chunk) => {
                    let room = self.limit - self.bytes.len();
                    self.truncated |= chunk.len() > room;
                    self.bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
                }
            }
        }
    }
}

/// The supervisor's ends of an interactive command's streams.
#[derive(Debug)]
pub(crate) struct InteractiveStreams {
    /// `None` once it has ended.
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    stdin: StdinQueue,
    /// Kept open to the command's end: closing the shim's side would hang the terminal up.
    terminal: Option<OwnedFd>,
}

impl InteractiveStreams {
    /// A terminal is made with the multiplexer, or is one of the host's.
    pub(crate) fn open(call: &StreamCall, multiplexer: Option<OwnedFd>) -> io::Result<(Self, ChildStreams)> {
        let options = StreamOptions {
            stdin: call.stdin,
            tty: call.tty,
            multiplexer,
            term: call.term.clone(),
        };
        let (ends, child) = process_streams::open(options)?;
        let streams = Self {
            terminal: call.tty.then(|| ends.stdout.try_clone()).transpose()?,
            stdout: Some(ends.stdout),
            stderr: ends.stderr,
            stdin: StdinQueue::new(ends.stdin),
        };
        Ok((streams, child))
    }

    /// Waits for anything to do. Returns whether the client has sent something.
    pub(crate) fn wait(&self, signals: &ChildSignals, connection: &Connection) -> bool {
        let client = connection.interest(self.stdin.has_room());
        let mut fds = vec![
            PollFd::new(connection, client),
            PollFd::new(signals, PollFlags::IN),
        ];
        if connection.backlog() < MAX_BACKLOG {
            let sources = [&self.stdout, &self.stderr].into_iter().flatten();
            fds.extend(sources.map(|source| PollFd::new(source, PollFlags::IN)));
        }
        if let Some(stdin) = self.stdin.pending() {
            fds.push(PollFd::from_borrowed_fd(stdin, PollFlags::OUT));
        }
        wait_for(&mut fds, None);
        fds[0]
            .revents()
            .intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR)
    }

    /// Does what a frame of the client asks for.
    pub(crate) fn take_frame(&mut self, frame: &[u8]) {
        match Channel::split(frame) {
            Some((Channel::Stdin, data)) => self.stdin.push(data),
            // A terminal has no end of its own.
            Some((Channel::StdinEnd, _)) if self.terminal.is_none() => self.stdin.end(),
            Some((Channel::Resize, data)) => {
                if let (Some(terminal), Ok(size)) = (&self.terminal, serde_json::from_slice(data)) {
                    terminal::resize(terminal, size);
                }
            }
            Some((Channel::StdinEnd | Channel::Stdout | Channel::Stderr | Channel::Exit, _)) | None => {}
        }
    }

    /// Gives the command what it takes now of what was typed.
    pub(crate) fn flush_stdin(&mut self) {
        self.stdin.flush();
    }

    /// Sends one piece of each stream, unless the client is too far behind.
    pub(crate) fn forward(&mut self, connection: &mut Connection) {
        if connection.backlog() < MAX_BACKLOG {
            self.forward_once(connection);
        }
    }

    /// Sends what the command left in its pipes.
    pub(crate) fn forward_remains(&mut self, connection: &mut Connection) {
        for _ in 0..READS_A_TURN {
            if !self.forward_once(connection) {
                return;
            }
        }
    }

    /// Sends one piece of each stream. Returns whether there was any.
    fn forward_once(&mut self, connection: &mut Connection) -> bool {
        let mut any = false;
        for (source, channel) in [
            (&mut self.stdout, Channel::Stdout),
            (&mut self.stderr, Channel::Stderr),
        ] {
            if let Some(chunk) = read_chunk(source) {
                connection.send_stream(channel, &chunk);
                any = true;
            }
        }
        any
    }
}

/// Reads what is there now. Returns `None` when there is nothing, and then perhaps never will be.
fn read_chunk(source: &mut Option<OwnedFd>) -> Option<Vec<u8>> {
    let mut chunk = [0; MAX_STREAM_DATA];
    match rustix::io::read(source.as_ref()?, &mut chunk) {
        Ok(count @ 1..) => Some(chunk[..count].to_vec()),
        Err(Errno::AGAIN | Errno::INTR) => None,
        Ok(0) | Err(_) => {
            *source = None;
            None
        }
    }
}
