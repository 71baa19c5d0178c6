//! Making the streams between the shim and a process: pipes, or a terminal.

use std::{fs::File, io, os::fd::OwnedFd};

use rustix::io::ioctl_fionbio;

use crate::{launcher::ChildStreams, terminal};

/// The kind of a terminal whose user does not name one, as in other runtimes.
const DEFAULT_TERM: &str = "xterm";

/// What a process gets besides a stdout and a stderr.
#[derive(Debug)]
pub(crate) struct StreamOptions {
    /// A stdin that somebody can type into; without it stdin is /dev/null.
    pub(crate) stdin: bool,
    /// A terminal in place of pipes.
    pub(crate) tty: bool,
    /// What the terminal is made with; `None` if it is to be one of the host's.
    pub(crate) multiplexer: Option<OwnedFd>,
    /// The kind of terminal; `None` for the usual one.
    pub(crate) term: Option<String>,
}

/// The shim's ends of a process's streams. Reading and writing them never blocks.
#[derive(Debug)]
pub(crate) struct StreamEnds {
    /// With a terminal, the shim's side of it.
    pub(crate) stdout: OwnedFd,
    /// `None` with a terminal, which has one output.
    pub(crate) stderr: Option<OwnedFd>,
    pub(crate) stdin: Option<OwnedFd>,
}

/// Makes both ends.
pub(crate) fn open(options: StreamOptions) -> io::Result<(StreamEnds, ChildStreams)> {
    if options.tty {
        open_terminal(options)
    } else {
        open_pipes(options.stdin)
    }
}

fn open_terminal(options: StreamOptions) -> io::Result<(StreamEnds, ChildStreams)> {
    let (ours, theirs) = terminal::open(options.multiplexer)?;
    let ours = nonblocking(ours)?;
    let ends = StreamEnds {
        stdin: options.stdin.then(|| ours.try_clone()).transpose()?,
        stdout: ours,
        stderr: None,
    };
    let child = ChildStreams {
        stdin: theirs.try_clone()?,
        stdout: theirs.try_clone()?,
        stderr: theirs,
        terminal: Some(options.term.unwrap_or_else(|| DEFAULT_TERM.to_owned())),
    };
    Ok((ends, child))
}

fn open_pipes(stdin: bool) -> io::Result<(StreamEnds, ChildStreams)> {
    let (stdout, their_stdout) = io::pipe()?;
    let (stderr, their_stderr) = io::pipe()?;
    let (stdin, their_stdin) = if stdin {
        let (theirs, ours) = io::pipe()?;
        (Some(nonblocking(ours.into())?), theirs.into())
    } else {
        (None, File::open("/dev/null")?.into())
    };
    let ends = StreamEnds {
        stdout: nonblocking(stdout.into())?,
        stderr: Some(nonblocking(stderr.into())?),
        stdin,
    };
    let child = ChildStreams {
        stdin: their_stdin,
        stdout: their_stdout.into(),
        stderr: their_stderr.into(),
        terminal: None,
    };
    Ok((ends, child))
}

pub(crate) fn nonblocking(fd: OwnedFd) -> io::Result<OwnedFd> {
    ioctl_fionbio(&fd, true)?;
    Ok(fd)
}
