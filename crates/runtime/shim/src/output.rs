//! The streams of the main process, seen from the shim: what it writes goes to the log and to attached clients, what
//! attached clients type goes to its stdin.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use jiff::Timestamp;
use pulselet_runtime::{TerminalSize, log::LogStream};
use rustix::io::{Errno, ioctl_fionbio};

use crate::{
    launch::ChildStreams,
    log_file::{LineCutter, LogFile},
    terminal,
};

/// Bytes read from the process at a time.
const READ_CHUNK: usize = 16 * 1024;

/// Typed bytes that wait for the process to read them; above this, clients have to wait.
const MAX_TYPED: usize = 64 * 1024;

/// Bytes read after the end of everything. A pipe holds less; more can come only from a stranger that got hold of it.
const MAX_REMAINS: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Streams {
    log: LogFile,
    stdout: Option<Source>,
    stderr: Option<Source>,
    stdin: Option<OwnedFd>,
    /// Typed by clients and not yet taken by the process.
    typed: Vec<u8>,
    /// Close stdin once `typed` is empty.
    stdin_ending: bool,
    terminal: bool,
}

#[derive(Debug)]
struct Source {
    fd: OwnedFd,
    cutter: LineCutter,
}

/// Whether the main process gets a stdin that stays open, and a terminal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamOptions {
    pub(crate) stdin: bool,
    pub(crate) tty: bool,
}

impl Streams {
    /// Makes both ends.
    pub(crate) fn open(options: StreamOptions, log: LogFile) -> io::Result<(Self, ChildStreams)> {
        let mut streams = Self {
            log,
            stdout: None,
            stderr: None,
            stdin: None,
            typed: Vec::new(),
            stdin_ending: false,
            terminal: options.tty,
        };
        let child = if options.tty {
            streams.open_terminal(options)?
        } else {
            streams.open_pipes(options)?
        };
        Ok((streams, child))
    }

    fn open_terminal(&mut self, options: StreamOptions) -> io::Result<ChildStreams> {
        let (ours, theirs) = terminal::open()?;
        if options.stdin {
            self.stdin = Some(nonblocking(ours.try_clone()?)?);
        }
        self.stdout = Some(Source::new(ours, LogStream::Stdout)?);
        Ok(ChildStreams {
            stdin: theirs.try_clone()?,
            stdout: theirs.try_clone()?,
            stderr: theirs,
            terminal: true,
        })
    }

    fn open_pipes(&mut self, options: StreamOptions) -> io::Result<ChildStreams> {
        let (stdout, their_stdout) = io::pipe()?;
        let (stderr, their_stderr) = io::pipe()?;
        self.stdout = Some(Source::new(stdout.into(), LogStream::Stdout)?);
        self.stderr = Some(Source::new(stderr.into(), LogStream::Stderr)?);
        let stdin = if options.stdin {
            let (their_stdin, stdin) = io::pipe()?;
            self.stdin = Some(nonblocking(stdin.into())?);
            their_stdin.into()
        } else {
            File::open("/dev/null")?.into()
        };
        Ok(ChildStreams {
            stdin,
            stdout: their_stdout.into(),
            stderr: their_stderr.into(),
            terminal: false,
        })
    }

    /// What to wait for to be readable.
    pub(crate) fn source(&self, stream: LogStream) -> Option<BorrowedFd<'_>> {
        match stream {
            LogStream::Stdout => self.stdout.as_ref(),
            LogStream::Stderr => self.stderr.as_ref(),
        }
        .map(|source| source.fd.as_fd())
    }

    /// What to wait for to be writable.
    pub(crate) fn sink(&self) -> Option<BorrowedFd<'_>> {
        self.stdin
            .as_ref()
            .filter(|_| !self.typed.is_empty())
            .map(AsFd::as_fd)
    }

    /// Moves one piece of output to the log and to `tee`. Returns the number of bytes, 0 when there is none now.
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
        self.typed.len() < MAX_TYPED
    }

    pub(crate) fn type_in(&mut self, data: &[u8]) {
        if self.stdin.is_some() {
            self.typed.extend_from_slice(data);
            self.push_typed();
        }
    }

    /// Gives the process what it takes now.
    pub(crate) fn push_typed(&mut self) {
        while let Some(stdin) = &self.stdin
            && !self.typed.is_empty()
        {
            match rustix::io::write(stdin, &self.typed) {
                Ok(count) => drop(self.typed.drain(..count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.stdin = None;
                    self.typed = Vec::new();
                }
            }
        }
        if self.stdin_ending {
            self.stdin = None;
        }
    }

    /// No more will be typed. A terminal has no end of its own.
    pub(crate) fn end_stdin(&mut self) {
        if !self.terminal {
            self.stdin_ending = true;
            self.push_typed();
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

impl Source {
    fn new(fd: OwnedFd, stream: LogStream) -> io::Result<Self> {
        Ok(Self {
            fd: nonblocking(fd)?,
            cutter: LineCutter::new(stream),
        })
    }
}

pub(crate) fn nonblocking(fd: OwnedFd) -> io::Result<OwnedFd> {
    ioctl_fionbio(&fd, true)?;
    Ok(fd)
}
