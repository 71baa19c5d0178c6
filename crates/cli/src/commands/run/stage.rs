//! Where a run shows its lines: a thread of its own, so that a slow reader never holds up the agent.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::thread::JoinHandle;

use pulselet_agent::{FULL_BACKLOG, LineHub, Lines, PodLine, PodView};
use tokio::sync::{Notify, mpsc};
use tracing_subscriber::fmt::MakeWriter;

use super::live;
use super::state::Pods;
use super::text::TextFormatter;
use crate::exit::Failure;
use crate::output::{self, Format};

/// Remarks that wait to be shown; what comes faster than a terminal takes it is not read by anybody.
const REMARKS: usize = 256;

/// Something to show that is not an event line.
#[derive(Debug)]
pub(super) enum Remark {
    /// How the pods were when the agent took them.
    Pods(Vec<PodView>),
    /// A line for the log.
    Say(String),
    /// The run is ending; this is how it can be ended faster.
    Ending(&'static str),
}

/// The thread that shows lines. It ends when the hub it listens to is gone.
#[derive(Debug)]
pub(super) struct Stage {
    thread: JoinHandle<io::Result<()>>,
    /// Where remarks go; none where stderr does.
    remarks: Option<mpsc::Sender<Remark>>,
    closed: Arc<Notify>,
}

impl Stage {
    pub(super) fn open(
        format: Format,
        every_probe: bool,
        hub: &LineHub,
        pods: &Pods,
    ) -> Result<Self, Failure> {
        let lines = hub.subscribe(FULL_BACKLOG);
        let closed = Arc::new(Notify::new());
        let formatter = TextFormatter::new(pods, every_probe);
        let pods = pods.clone();
        let live = format == Format::Text && is_live_terminal();
        let (remarks, shown) = mpsc::channel(REMARKS);
        let signal = Arc::clone(&closed);
        let show = move || {
            let ended = match format {
                Format::Text if live => live::show(lines, shown, formatter, pods),
                Format::Text => print_text(lines, formatter, &pods),
                Format::Json => print_json(lines, &pods),
            };
            // Waking somebody who no longer waits does no harm.
            signal.notify_one();
            ended
        };
        let thread = std::thread::Builder::new()
            .name("stage".to_owned())
            .spawn(show)
            .map_err(|error| Failure::environment(format_args!("cannot start a thread: {error}")))?;
        Ok(Self {
            thread,
            remarks: live.then_some(remarks),
            closed,
        })
    }

    /// Waits until nobody reads any more.
    pub(super) async fn closed(&self) {
        self.closed.notified().await;
    }

    pub(super) fn remark(&self, remark: Remark) {
        match &self.remarks {
            // A terminal that takes nothing loses remarks, not lines.
            Some(remarks) => drop(remarks.try_send(remark)),
            None => match remark {
                Remark::Say(text) => output::note(&text),
                Remark::Ending(hint) => output::note(hint),
                Remark::Pods(_) => {}
            },
        }
    }

    /// Where the log goes while the stage is up.
    pub(super) fn log_writer(&self) -> LogWriter {
        LogWriter(self.remarks.clone())
    }

    /// Waits until everything is shown. The hub must be gone.
    pub(super) fn close(self) -> Result<(), Failure> {
        drop(self.remarks);
        output::written(self.thread.join().expect("showing lines does not panic"))
    }
}

/// A terminal that can be drawn on.
fn is_live_terminal() -> bool {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    io::stdout().is_terminal() && !dumb
}

fn print_text(lines: Lines, mut formatter: TextFormatter, pods: &Pods) -> io::Result<()> {
    print(lines, pods, |line| formatter.format(line))
}

fn print_json(lines: Lines, pods: &Pods) -> io::Result<()> {
    print(lines, pods, |line| Some(line.to_json()))
}

/// Prints the lines of our pods as they come, several with one write where they come fast.
fn print(
    mut lines: Lines,
    pods: &Pods,
    mut format: impl FnMut(&PodLine) -> Option<String>,
) -> io::Result<()> {
    let mut out = output::stdout();
    while let Some(first) = lines.blocking_next() {
        let mut next = Some(first);
        while let Some(line) = next {
            if let Some(text) = format(&line).filter(|_| pods.has(&line.pod)) {
                writeln!(out, "{text}")?;
            }
            next = lines.try_next();
        }
        out.flush()?;
    }
    Ok(())
}

/// Writes log lines to stderr, or hands them to a live view.
#[derive(Clone, Debug)]
pub(super) struct LogWriter(Option<mpsc::Sender<Remark>>);

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl io::Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &self.0 {
            None => io::stderr().write(bytes),
            Some(remarks) => {
                let text = String::from_utf8_lossy(bytes).trim_end().to_owned();
                // As with remarks: nobody reads what comes faster than it can be shown.
                let _ = remarks.try_send(Remark::Say(text));
                Ok(bytes.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
