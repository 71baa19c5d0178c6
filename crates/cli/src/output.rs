//! Writing: data to stdout, diagnostics to stderr, colour only where it is wanted.
//!
//! Text carries ANSI styles unconditionally; `anstream` removes them unless the stream is a terminal or
//! `--color always` was given, and honours `NO_COLOR`. Everything reads well without colour.

use std::io::{self, Write};
use std::sync::mpsc;
use std::time::Duration;

use clap::ValueEnum;

use crate::exit::Failure;
use crate::logging;

/// How long a server that begins to serve waits for the reader of its stdout, which takes a line in microseconds.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(1);

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
    let hint = hint.map(|hint| format!("{CYAN}hint{RESET}: {hint}\n"));
    diagnose(&format!(
        "{RED}error{RESET}: {message}\n{}",
        hint.unwrap_or_default()
    ));
}

/// One line for those who asked for more with `-v`.
pub(crate) fn note(message: &str) {
    diagnose(&format!("{DIM}{message}{RESET}\n"));
}

/// Writes to stderr; among the lines of the log if there is one, so that the order holds and no reader delays an agent.
fn diagnose(text: &str) {
    if !logging::say(text) {
        // When stderr is gone there is nowhere left to complain to; the exit code still says it.
        let _ = anstream::stderr().lock().write_all(text.as_bytes());
    }
}

/// One line of data about a server that begins to serve, on stdout. A stdout that takes nothing does not keep it from
/// that: a disk may be full, and a reader may have stalled.
pub(crate) fn announce(line: String) {
    let (written, result) = mpsc::sync_channel(1);
    let write = move || {
        let mut stdout = stdout();
        let result = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
        // The receiver is gone if the reader took too long.
        let _ = written.send(result);
    };
    let begun = std::thread::Builder::new()
        .name("announce".to_owned())
        .spawn(write);
    match begun.map(|_| result.recv_timeout(ANNOUNCE_TIMEOUT)) {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(error))) | Err(error) => tracing::warn!(%error, "stdout cannot be written"),
        Ok(Err(_)) => tracing::warn!("stdout is not read"),
    }
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
