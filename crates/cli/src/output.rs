//! Writing: data to stdout, diagnostics to stderr, colour only where it is wanted.
//!
//! Text carries ANSI styles unconditionally; `anstream` removes them unless the stream is a terminal or
//! `--color always` was given, and honours `NO_COLOR`. Everything reads well without colour.

use std::io::{self, Write};

use clap::ValueEnum;

use crate::exit::Failure;

pub(crate) const RED: &str = "\x1b[1;31m";
pub(crate) const YELLOW: &str = "\x1b[1;33m";
pub(crate) const GREEN: &str = "\x1b[32m";
pub(crate) const CYAN: &str = "\x1b[36m";
pub(crate) const BOLD: &str = "\x1b[1m";
pub(crate) const DIM: &str = "\x1b[2m";
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

/// Buffered stdout for data.
pub(crate) fn stdout() -> io::BufWriter<anstream::AutoStream<io::StdoutLock<'static>>> {
    io::BufWriter::new(anstream::stdout().lock())
}

/// One line of an error, and what to do about it, on stderr.
pub(crate) fn error(message: &str, hint: Option<&str>) {
    let mut stderr = anstream::stderr().lock();
    // When stderr is gone there is nowhere left to complain to; the exit code still says it.
    let _ = writeln!(stderr, "{RED}error{RESET}: {message}");
    if let Some(hint) = hint {
        let _ = writeln!(stderr, "{CYAN}hint{RESET}: {hint}");
    }
}

/// One line for those who asked for more with `-v`.
pub(crate) fn note(message: &str) {
    let _ = writeln!(anstream::stderr().lock(), "{DIM}{message}{RESET}");
}

/// Turns a failed write of data into a failure, except for a closed pipe: `| head` has read enough.
pub(crate) fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::usage(format_args!("cannot write the output: {error}")))
        }
        _ => Ok(()),
    }
}
