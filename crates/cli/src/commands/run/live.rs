//! The live view: the log scrolls above, a line per container stands below it.
//!
//! It draws on the ordinary screen, so that the log stays in the terminal's history. Only lines that changed are
//! written again, in one piece. The terminal is put back as it was, also by a panic; the cursor is hidden and typed
//! characters are not shown meanwhile, so that nothing disturbs the table.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use crossterm::cursor::{Hide, MoveToColumn, MoveUp, Show};
use crossterm::queue;
use crossterm::terminal::{BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate};
use jiff::Timestamp;
use pulselet_agent::{Lines, PodLine};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};

use super::logs::ContainerLogs;
use super::stage::Remark;
use super::state::Pods;
use super::text::TextFormatter;
use super::view;

/// At most this many frames a second: more than the eye takes in, little work for the machine.
const FRAME: Duration = Duration::from_millis(50);
/// Ages and countdowns move on although nothing happens.
const TICK: Duration = Duration::from_millis(250);
/// Lines of the log that wait for the next frame before it is drawn at once.
const MAX_PENDING: usize = 1_000;

/// Shows lines until there are no more, then leaves the table as it was last.
pub(super) fn show(
    lines: Lines,
    remarks: mpsc::Receiver<Remark>,
    formatter: TextFormatter,
    pods: Pods,
    logs: Option<ContainerLogs>,
) -> io::Result<()> {
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let terminal = Terminal::take()?;
    let live = Live {
        screen: Screen::new(terminal),
        formatter,
        pods,
        logs,
        pending: Vec::new(),
        ending: None,
    };
    executor.block_on(live.run(lines, remarks))
}

struct Live {
    screen: Screen,
    formatter: TextFormatter,
    pods: Pods,
    logs: Option<ContainerLogs>,
    /// Lines of the log for the next frame.
    pending: Vec<String>,
    ending: Option<&'static str>,
}

impl Live {
    async fn run(mut self, mut lines: Lines, mut remarks: mpsc::Receiver<Remark>) -> io::Result<()> {
        let mut resized = signal(SignalKind::window_change())?;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut remarks_over = false;
        loop {
            let frame_at = Instant::now() + FRAME;
            tokio::select! {
                line = lines.next() => match line {
                    None => break,
                    Some(line) => self.take(&line),
                },
                remark = remarks.recv(), if !remarks_over => match remark {
                    None => remarks_over = true,
                    Some(remark) => self.remark(remark),
                },
                _ = resized.recv() => self.screen.resize(),
                _ = tick.tick() => {}
            }
            // Gathers what comes until the next frame is due.
            while self.pending.len() < MAX_PENDING {
                tokio::select! {
                    line = lines.next() => match line {
                        None => break,
                        Some(line) => self.take(&line),
                    },
                    () = tokio::time::sleep_until(frame_at) => break,
                }
            }
            self.read_logs();
            self.draw()?;
        }
        self.read_logs();
        // Nothing can be stopped any more.
        self.ending = Some("");
        self.draw()?;
        self.screen.leave()
    }

    fn read_logs(&mut self) {
        if let Some(logs) = &mut self.logs {
            logs.read(&mut |text| self.pending.push(text));
        }
    }

    fn take(&mut self, line: &Arc<PodLine>) {
        if let Some(logs) = &mut self.logs {
            logs.note(line);
        }
        self.pods.apply(line);
        if self.pods.has(&line.pod)
            && let Some(text) = self.formatter.format(line)
        {
            if let Some(logs) = &mut self.logs {
                logs.read_before(line, &mut |text| self.pending.push(text));
            }
            self.pending.push(text);
        }
    }

    fn remark(&mut self, remark: Remark) {
        match remark {
            Remark::Pods(views) => {
                for view in &views {
                    self.pods.recall(view);
                }
            }
            Remark::Adopted(views) => {
                if let Some(logs) = &mut self.logs {
                    for view in &views {
                        logs.recall(view);
                    }
                }
            }
            Remark::Say(text) => self.pending.push(text),
            Remark::Ending(hint) => self.ending = Some(hint),
        }
    }

    fn draw(&mut self) -> io::Result<()> {
        let table = view::render(&self.pods, self.ending, Timestamp::now(), size());
        self.screen.draw(&self.pending, table)?;
        self.pending.clear();
        Ok(())
    }
}

/// Columns and rows.
fn size() -> (u16, u16) {
    crossterm::terminal::size().unwrap_or((80, 24))
}

/// What stands on the screen below the log.
struct Screen {
    terminal: Terminal,
    shown: Vec<String>,
    /// Rows from the table's first to the cursor.
    height: usize,
    colour: bool,
}

impl Screen {
    fn new(terminal: Terminal) -> Self {
        let colour = anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never;
        Self {
            terminal,
            shown: Vec::new(),
            height: 0,
            colour,
        }
    }

    /// The terminal has another width: it has wrapped the lines that no longer fit, and all are drawn anew.
    fn resize(&mut self) {
        let (width, _) = size();
        let length = |line: &String| anstream::adapter::strip_str(line).to_string().chars().count();
        let rows = self
            .shown
            .iter()
            .map(|line| length(line).div_ceil(usize::from(width.max(1))).max(1));
        self.height = rows.sum();
        self.shown.clear();
    }

    fn draw(&mut self, log: &[String], table: Vec<String>) -> io::Result<()> {
        if log.is_empty() && table == self.shown {
            return Ok(());
        }
        let mut out = Vec::new();
        queue!(out, BeginSynchronizedUpdate)?;
        if log.is_empty() && table.len() == self.shown.len() {
            self.redraw_changed(&mut out, &table)?;
        } else {
            self.redraw_all(&mut out, log, &table)?;
        }
        queue!(out, EndSynchronizedUpdate)?;
        self.height = table.len();
        self.shown = table;
        io::stdout().write_all(&out)?;
        io::stdout().flush()
    }

    /// The cursor rests below the last line of the table, before and after.
    fn redraw_changed(&self, out: &mut Vec<u8>, table: &[String]) -> io::Result<()> {
        let height = table.len();
        for (row, line) in table.iter().enumerate() {
            if self.shown[row] == *line {
                continue;
            }
            let up = rows(height - row);
            queue!(out, MoveUp(up), MoveToColumn(0), Clear(ClearType::CurrentLine))?;
            out.extend_from_slice(self.styled(line).as_bytes());
            queue!(out, MoveToColumn(0))?;
            // Down again without scrolling.
            out.extend_from_slice(format!("\x1b[{up}B").as_bytes());
        }
        Ok(())
    }

    fn redraw_all(&self, out: &mut Vec<u8>, log: &[String], table: &[String]) -> io::Result<()> {
        if self.height > 0 {
            queue!(out, MoveUp(rows(self.height)))?;
        }
        queue!(out, MoveToColumn(0), Clear(ClearType::FromCursorDown))?;
        for line in log.iter().chain(table) {
            out.extend_from_slice(self.styled(line).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        Ok(())
    }

    fn styled(&self, line: &str) -> String {
        if self.colour {
            line.to_owned()
        } else {
            anstream::adapter::strip_str(line).to_string()
        }
    }

    fn leave(mut self) -> io::Result<()> {
        self.terminal.restore()
    }
}

fn rows(count: usize) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

/// The terminal, changed for as long as this lives.
struct Terminal {
    before: Option<Termios>,
}

impl Terminal {
    fn take() -> io::Result<Self> {
        let mut terminal = Self { before: None };
        // Without a keyboard (stdin is a file) there is nothing to keep quiet.
        if let Ok(before) = tcgetattr(io::stdin()) {
            let mut quiet = before.clone();
            quiet.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON);
            if tcsetattr(io::stdin(), OptionalActions::Now, &quiet).is_ok() {
                terminal.before = Some(before.clone());
                restore_on_panic(before);
            }
        }
        let mut out = io::stdout();
        queue!(out, Hide)?;
        out.flush()?;
        Ok(terminal)
    }

    fn restore(&mut self) -> io::Result<()> {
        put_back(self.before.take().as_ref())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A terminal that went away needs no restoring.
        let _ = self.restore();
    }
}

fn put_back(before: Option<&Termios>) -> io::Result<()> {
    if let Some(before) = before {
        tcsetattr(io::stdin(), OptionalActions::Now, before)?;
    }
    let mut out = io::stdout();
    queue!(out, Show)?;
    out.flush()
}

/// A panic in any thread leaves a terminal that can be worked with.
fn restore_on_panic(before: Termios) {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let _ = put_back(Some(&before));
        report(panic);
    }));
}
