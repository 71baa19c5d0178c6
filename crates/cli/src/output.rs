//! Writing: data to stdout, diagnostics to stderr, colour only where it is wanted.
//!
//! Text carries ANSI styles unconditionally; `anstream` removes them unless the stream is a terminal or
//! `--color always` was given, and honours `NO_COLOR`. Everything reads well without colour.

use std::io::{self, Write};

use clap::ValueEnum;

use crate::exit::Failure;

pub(crate) const RED: &str = "\x1b[1;31m";
pub(crate) const RESET: &str = "\x1b[0m";

/// `--color`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorArg {
    Auto,
    Always,
    Never,
}

impl ColorArg {
    /// Sets the choice for every stream of this process.
    pub(crate) fn apply(self) {
        match self {
            Self::Auto => anstream::ColorChoice::Auto,
            Self::Always => anstream::ColorChoice::Always,
            Self::Never => anstream::ColorChoice::Never,
        }
        .write_global();
    }
}

/// `-o` of the commands that print data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

/// Buffered stdout for data. A reader that went away (`| head`) ends the command quietly.
pub(crate) fn stdout() -> io::BufWriter<anstream::AutoStream<io::StdoutLock<'static>>> {
    io::BufWriter::new(anstream::stdout().lock())
}

/// One line of an error on stderr.
pub(crate) fn error(message: &str) {
    let mut stderr = anstream::stderr().lock();
    // When stderr is gone there is nowhere left to complain to; the exit code still tells.
    let _ = writeln!(stderr, "{RED}error{RESET}: {message}");
}

/// Turns a failed write of data into a failure, except for a closed pipe, which is how `head` says thank you.
pub(crate) fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::usage(format_args!("cannot write the output: {error}")))
        }
        _ => Ok(()),
    }
}
