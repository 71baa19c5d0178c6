//! The streams of the init process, seen from the shim: what it writes goes to the log and to attached clients, what
//! attached clients type goes to its stdin.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use jiff::Timestamp;
use pulselet_runtime::{TerminalSize, log::LogStream};
use rustix::io::Errno;

use crate::{
    launcher::ChildStreams,
    log_file::{LineCutter, LogFile},
    process_streams::{self, StreamOptions},
    stdin_queue::StdinQueue,
    terminal,
};

/// Bytes read from the process at a time.
const READ_CHUNK: usize = 16 * 1024;

/// Bytes read after the end of everything. A pipe holds less; more can come only from a stranger that got hold of it.
const MAX_REMAINS: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct InitStreams {
    log: LogFile,
    stdout: Option<LogSource>,
    stderr: Option<LogSource>,
    stdin: StdinQueue,
    terminal: bool,
}

/// A stream that is read and cut into log entries.
#[derive(Debug)]
struct LogSource {
    fd: OwnedFd,
    cutter: LineCutter,
}

impl InitStreams {
    /// Makes both ends.
    pub(crate) fn open(options: StreamOptions, log: LogFile) -> io::Result<(Self, ChildStreams)> {
        let terminal = options.tty;
        let (ends, child) = process_streams::open(options)?;
        let streams = Self {
            log,
            stdout: Some(LogSource::new(ends.stdout, LogStream::Stdout)),
            stderr: ends.stderr.map(|fd| LogSource::new(fd, LogStream::Stderr)),
            stdin: StdinQueue::new(ends.stdin),
            terminal,
        };
        Ok((streams, child))
    }

    /// What to wait for to be readable; `None` if that stream has ended.
    pub(crate) fn source(&self, stream: LogStream) -> Option<BorrowedFd<'_>> {
        match stream {
            LogStream::Stdout => self.stdout.as_ref(),
            LogStream::Stderr => self.stderr.as_ref(),
        }
        .map(|source| source.fd.as_fd())
    }

    /// What to wait for to be writable; `None` if nothing is to be written.
    pub(crate) fn sink(&self) -> Option<BorrowedFd<'_>> {
        self.stdin.pending()
    }

    /// Moves one piece of output to the log and to `tee`. Returns the number of bytes, 0 when there is none now. Not inlined: a
    /// shim whose container says nothing has no stack for its output.
    #[inline(never)]
    pub(crate) fn pump(&mut self, stream: LogStream, tee: impl FnOnce(&[u8])) -> usize {
        let slot = match stream {
            LogStream::Stdout => &mut self.stdout,
            LogStream::Stderr => &mut self.stderr,
        };
        let Some(source) = slot else { return 0 };
        let mut chunk = [0; READ_CHUNK];
        let mut entries = Vec::new();
        let count = match rustix::io::read(&source.fd, &mut chunk) {
            Err(Errno::AGAIN | Errno::INTR) => return 0,
            Ok(count @ 1..) => {
                source
                    .cutter
                    .push(&chunk[..count], Timestamp::now(), &mut entries);
                tee(&chunk[..count]);
                count
            }
            // A terminal says EIO when its other side is closed.
            Ok(0) | Err(_) => {
                source.cutter.finish(Timestamp::now(), &mut entries);
                *slot = None;
                0
            }
        };
        self.log.write(&entries);
        count
    }

    /// Takes what is left when no process is.
    pub(crate) fn drain(&mut self, mut tee: impl FnMut(LogStream, &[u8])) {
        for stream in [LogStream::Stdout, LogStream::Stderr] {
            let mut total = 0;
            while total < MAX_REMAINS {
                match self.pump(stream, |data| tee(stream, data)) {
                    0 => break,
                    count => total += count,
                }
            }
        }
        let mut entries = Vec::new();
        for mut source in [self.stdout.take(), self.stderr.take()].into_iter().flatten() {
            source.cutter.finish(Timestamp::now(), &mut entries);
        }
        self.log.write(&entries);
    }

    pub(crate) fn can_take_typed(&self) -> bool {
        self.stdin.has_room()
    }

    pub(crate) fn type_in(&mut self, data: &[u8]) {
        self.stdin.push(data);
        self.stdin.flush();
    }

    /// Gives the process what it takes now of what was typed.
    pub(crate) fn flush_stdin(&mut self) {
        self.stdin.flush();
    }

    /// No more will be typed. A terminal has no end of its own.
    pub(crate) fn end_stdin(&mut self) {
        if !self.terminal {
            self.stdin.end();
            self.stdin.flush();
        }
    }

    pub(crate) fn resize(&self, size: TerminalSize) {
        if let Some(source) = self.stdout.as_ref().filter(|_| self.terminal) {
            terminal::resize(&source.fd, size);
        }
    }

    pub(crate) fn reopen_log(&mut self) -> io::Result<()> {
        self.log.reopen()
    }
}

impl LogSource {
    fn new(fd: OwnedFd, stream: LogStream) -> Self {
        Self {
            fd,
            cutter: LineCutter::new(stream),
        }
    }
}
