//! Where a run shows its lines: a thread of its own, so that a slow reader never holds up the agent.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::thread::JoinHandle;

use pulselet_agent::{FULL_BACKLOG, LineHub, Lines, PodLine, PodView};
use tokio::sync::{Notify, mpsc};
use tokio::time::MissedTickBehavior;
use tracing_subscriber::fmt::MakeWriter;

use super::live;
use super::logs::{ContainerLogs, LOOK_INTERVAL};
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
    /// Pods of this run that were there before it.
    Adopted(Vec<PodView>),
    /// A line for the log.
    Say(String),
    /// The run is ending; this is how it can be ended faster.
    Ending(&'static str),
}

/// The thread that shows lines. It ends when the hub it listens to is gone.
#[derive(Debug)]
pub(super) struct Stage {
    thread: JoinHandle<io::Result<()>>,
    remarks: mpsc::Sender<Remark>,
    /// It draws on a terminal: nobody else may write there.
    live: bool,
    closed: Arc<Notify>,
}

impl Stage {
    pub(super) fn open(
        format: Format,
        every_probe: bool,
        hub: &LineHub,
        pods: &Pods,
        logs: Option<ContainerLogs>,
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
                Format::Text if live => live::show(lines, shown, formatter, pods, logs),
                Format::Text => print_text(lines, shown, formatter, &pods, logs),
                Format::Json => print_json(lines, shown, &pods, logs),
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
            remarks,
            live,
            closed,
        })
    }

    /// Waits until nobody reads any more.
    pub(super) async fn closed(&self) {
        self.closed.notified().await;
    }

    pub(super) fn remark(&self, remark: Remark) {
        match remark {
            Remark::Say(text) if !self.live => output::note(&text),
            Remark::Ending(hint) if !self.live => output::note(hint),
            // A terminal that takes nothing loses remarks, not lines.
            Remark::Say(_) | Remark::Ending(_) | Remark::Pods(_) | Remark::Adopted(_) => {
                drop(self.remarks.try_send(remark));
            }
        }
    }

    /// Where the log goes while the stage is up, if not to stderr.
    pub(super) fn log_writer(&self) -> Option<LogWriter> {
        self.live.then(|| LogWriter(self.remarks.clone()))
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

fn print_text(
    lines: Lines,
    remarks: mpsc::Receiver<Remark>,
    mut formatter: TextFormatter,
    pods: &Pods,
    logs: Option<ContainerLogs>,
) -> io::Result<()> {
    let mut printer = Printer {
        out: output::stdout(),
        logs,
        prints_logs: |out, text| writeln!(out, "{text}"),
    };
    printer.run(lines, remarks, pods, |line| formatter.format(line))
}

fn print_json(
    lines: Lines,
    remarks: mpsc::Receiver<Remark>,
    pods: &Pods,
    logs: Option<ContainerLogs>,
) -> io::Result<()> {
    let mut printer = Printer {
        out: output::stdout(),
        logs,
        // stdout is for event lines alone.
        prints_logs: |_, text| writeln!(anstream::stderr().lock(), "{text}"),
    };
    printer.run(lines, remarks, pods, |line| Some(line.to_json()))
}

/// Prints the lines of our pods as they come, several with one write where they come fast, each after what containers
/// had printed before it.
struct Printer<W> {
    out: W,
    logs: Option<ContainerLogs>,
    prints_logs: fn(&mut W, &str) -> io::Result<()>,
}

impl<W: io::Write> Printer<W> {
    fn run(
        &mut self,
        lines: Lines,
        remarks: mpsc::Receiver<Remark>,
        pods: &Pods,
        format: impl FnMut(&PodLine) -> Option<String>,
    ) -> io::Result<()> {
        let executor = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()?;
        executor.block_on(self.print(lines, remarks, pods, format))
    }

    async fn print(
        &mut self,
        mut lines: Lines,
        mut remarks: mpsc::Receiver<Remark>,
        pods: &Pods,
        mut format: impl FnMut(&PodLine) -> Option<String>,
    ) -> io::Result<()> {
        let mut look = tokio::time::interval(LOOK_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let mut next = tokio::select! {
                line = lines.next() => match line {
                    None => break,
                    line => line,
                },
                Some(remark) = remarks.recv() => {
                    self.recall(remark);
                    None
                }
                _ = look.tick(), if self.logs.is_some() => {
                    self.print_logs()?;
                    None
                }
            };
            while let Some(line) = next {
                let text = format(&line).filter(|_| pods.has(&line.pod));
                if let Some(logs) = &mut self.logs {
                    logs.note(&line);
                }
                if let Some(text) = text {
                    self.print_logs_before(&line)?;
                    writeln!(self.out, "{text}")?;
                }
                next = lines.try_next();
            }
            self.out.flush()?;
        }
        self.print_logs()?;
        self.out.flush()
    }

    fn recall(&mut self, remark: Remark) {
        if let (Some(logs), Remark::Adopted(views)) = (&mut self.logs, remark) {
            for view in &views {
                logs.recall(view);
            }
        }
    }

    /// What a container printed before it ended comes before the line that says so.
    fn print_logs_before(&mut self, line: &PodLine) -> io::Result<()> {
        self.print_what(|logs, each| logs.read_before(line, each))
    }

    fn print_logs(&mut self) -> io::Result<()> {
        self.print_what(ContainerLogs::read)
    }

    fn print_what(
        &mut self,
        read: impl FnOnce(&mut ContainerLogs, &mut dyn FnMut(String)),
    ) -> io::Result<()> {
        let mut printed = Ok(());
        if let Some(logs) = &mut self.logs {
            read(logs, &mut |text| {
                if printed.is_ok() {
                    printed = (self.prints_logs)(&mut self.out, &text);
                }
            });
        }
        printed
    }
}

/// Hands log lines to a live view.
#[derive(Clone, Debug)]
pub(super) struct LogWriter(mpsc::Sender<Remark>);

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl io::Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes).trim_end().to_owned();
        // As with remarks: nobody reads what comes faster than it can be shown.
        let _ = self.0.try_send(Remark::Say(text));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
