//! The agent's log: diagnostics for operators, on stderr or wherever a live view puts them.
//!
//! No reader of the log delays or ends the agent: lines for stderr, notes and errors of the command among them, go through
//! the queue of [`queue`], which drops and counts what it cannot pass on. `tracing-appender` would not do: its queue is
//! bounded by lines alone, it counts no failed write, and at its end it prints to stdout if the reader has stalled.

mod queue;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::Write as _;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use self::queue::Queue;
use crate::exit::Failure;

/// Says what is logged, in the words of `tracing-subscriber`'s filters; wins over `-v`.
const VARIABLE: &str = "PULSELET_LOG";

/// Libraries that tell every frame and every wakeup of a connection. Whoever looks for their mistakes names them in
/// [`VARIABLE`].
const TALKATIVE: [&str; 6] = ["h2", "hyper", "hyper_util", "rustls", "tonic", "tower"];

/// How long the end of the process waits for the log. A working reader takes a full queue in milliseconds; one that has
/// stalled must not keep a service manager waiting.
const EXIT_FLUSH: Duration = Duration::from_secs(1);
/// How long a thread that panics waits for the log, in case the process aborts next. A kill may wait for the thread.
const PANIC_FLUSH: Duration = Duration::from_millis(100);

/// The way to stderr, once a command logs there.
static QUEUE: OnceLock<Arc<Queue>> = OnceLock::new();

/// How much a command logs without `-v`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Quietness {
    /// The command itself prints what happens; the log has what nobody could expect.
    Foreground,
    /// The log is all there is.
    Daemon,
}

impl Quietness {
    fn level(self, verbose: u8) -> &'static str {
        match (self, verbose) {
            (Self::Foreground, 0) => "error",
            (Self::Foreground, 1) => "warn",
            (Self::Foreground, 2) | (Self::Daemon, 0) => "info",
            (Self::Foreground, 3) | (Self::Daemon, 1) => "debug",
            (Self::Foreground | Self::Daemon, _) => "trace",
        }
    }
}

/// Begins to log on stderr. A process does that once.
pub(crate) fn start(quietness: Quietness, verbose: u8) -> Result<(), Failure> {
    let queue = Queue::start(rustix::stdio::stderr(), has_colour())
        .map_err(|error| Failure::environment(format_args!("cannot start a thread: {error}")))?;
    let queue = QUEUE.get_or_init(|| queue);
    log_panics(queue);
    start_on(quietness, verbose, || QueueWriter(queue));
    Ok(())
}

/// Begins to log elsewhere. A process does that once.
pub(crate) fn start_on<W>(quietness: Quietness, verbose: u8, writer: W)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_from_env(VARIABLE)
        .unwrap_or_else(|_| EnvFilter::new(directives(quietness.level(verbose))));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(has_colour())
        .with_target(false)
        // It would print to stderr that stderr cannot be written, and panic.
        .log_internal_errors(false)
        .init();
}

/// Puts text that ends with a line's end among the lines of the log. False if this command has no log on stderr.
pub(crate) fn say(text: &str) -> bool {
    let Some(queue) = QUEUE.get() else { return false };
    if has_colour() {
        queue.push(text.as_bytes());
    } else {
        queue.push(anstream::adapter::strip_str(text).to_string().as_bytes());
    }
    true
}

/// How many lines of the log were lost: the reader was too slow, or they could not be written.
pub(crate) fn dropped_lines() -> Arc<AtomicU64> {
    QUEUE.get().map(|queue| queue.dropped()).unwrap_or_default()
}

/// Dropped last, it lets the reader have all lines.
#[derive(Debug)]
pub(crate) struct FlushAtExit;

impl Drop for FlushAtExit {
    fn drop(&mut self) {
        if let Some(queue) = QUEUE.get() {
            queue.flush(EXIT_FLUSH);
        }
    }
}

fn has_colour() -> bool {
    anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never
}

/// Reports of panics go the way of all lines: written directly they would wait for the reader.
fn log_panics(queue: &'static Queue) {
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("<unnamed>");
        let mut text = format!("thread '{name}' {panic}\n");
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            // Writing to a string does not fail.
            let _ = write!(text, "stack backtrace:\n{backtrace}");
        }
        queue.push(text.as_bytes());
        queue.flush(PANIC_FLUSH);
    }));
}

/// Passes every event on to the queue.
struct QueueWriter(&'static Queue);

impl io::Write for QueueWriter {
    /// An event comes whole.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.push(event);
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Our own code at this level, libraries of the wire at info at most.
fn directives(level: &str) -> String {
    if !matches!(level, "debug" | "trace") {
        return level.to_owned();
    }
    let quiet = TALKATIVE.map(|library| format!("{library}=info"));
    format!("{level},{}", quiet.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_reported_among_the_lines() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let queue: &'static Queue = Box::leak(Box::new(Queue::start(writer, false).expect("a thread")));
        log_panics(queue);
        let ended = std::thread::Builder::new()
            .name("worker".to_owned())
            .spawn(|| panic!("of this test"));
        assert!(ended.expect("a thread").join().is_err());
        drop(std::panic::take_hook());
        let mut lines = io::BufRead::lines(io::BufReader::new(reader)).map_while(Result::ok);
        let first = lines.next().expect("a line");
        assert!(first.starts_with("thread 'worker' panicked at "), "{first}");
        assert_eq!(lines.next().as_deref(), Some("of this test"));
    }

    #[test]
    fn libraries_of_the_wire_stay_quiet() {
        assert_eq!(directives("info"), "info");
        let debug = directives(Quietness::Daemon.level(1));
        assert!(debug.starts_with("debug,h2=info,"), "{debug}");
        assert!(EnvFilter::try_new(directives(Quietness::Daemon.level(2))).is_ok());
    }
}
