//! `pulselet logs`: what a container wrote, from the files its shim keeps.
//!
//! The agent says where the log is; the files are read here.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use pulselet_agent::control::ControlClient;
use pulselet_agent::{LogFile, LogPlace};
use pulselet_runtime::log::LogEntry;

use crate::agent;
use crate::cli::LogsArgs;
use crate::exit::{Exit, Failure};
use crate::interrupt::Interrupts;
use crate::output;

/// How often a log is looked at that is followed.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(100);
/// Looks between two questions whether the container still runs.
const LOOKS_PER_QUESTION: u32 = 5;
/// Lines that `--tail` may ask for, so that a slip of the finger does not fill the memory.
const MAX_TAIL: usize = 1_000_000;

pub(crate) fn run(args: &LogsArgs) -> Result<Exit, Failure> {
    if args.tail.is_some_and(|tail| tail > MAX_TAIL) {
        return Err(Failure::usage(format_args!("--tail takes {MAX_TAIL} at most")));
    }
    agent::small_executor()?.block_on(print(args))
}

async fn print(args: &LogsArgs) -> Result<Exit, Failure> {
    let client = args.data.client()?;
    let place = ask(args, &client).await?;
    let mut printer = Printer {
        out: output::stdout(),
        timestamps: args.timestamps,
        begun: true,
        tail: args.tail.map(|lines| (lines, VecDeque::new())),
    };
    let mut log = LogFile::open(&place.path).map_err(|error| unreadable(&place.path, &error))?;
    let mut gone = printed(printer.copy(&mut log), &place)? || printed(printer.show_tail(), &place)?;
    if !args.follow || args.previous {
        return Ok(Exit::Done);
    }
    let mut interrupts = Interrupts::listen()?;
    let mut looks = 0;
    let mut ended = !place.running;
    while !gone && !ended {
        tokio::select! {
            () = tokio::time::sleep(FOLLOW_INTERVAL) => {}
            () = interrupts.next() => return Ok(Exit::Interrupted),
        }
        looks += 1;
        // Asked before looking: what was written before the end is printed.
        ended = looks % LOOKS_PER_QUESTION == 0 && has_ended(args, &client, &place).await;
        gone = printed(printer.copy(&mut log), &place)?;
    }
    Ok(Exit::Done)
}

async fn ask(args: &LogsArgs, client: &ControlClient) -> Result<LogPlace, Failure> {
    let (pod, container) = (&args.pod, args.container.as_deref());
    Ok(client.log(pod, container, args.previous).await?)
}

/// Whether the life that is followed is over: it ended, another has begun, or the pod is gone.
async fn has_ended(args: &LogsArgs, client: &ControlClient, place: &LogPlace) -> bool {
    let now = ask(args, client).await;
    !now.is_ok_and(|now| now.running && now.attempt == place.attempt)
}

/// Whether the reader has gone away; other failures are failures.
fn printed(result: io::Result<()>, place: &LogPlace) -> Result<bool, Failure> {
    match result {
        Ok(()) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(true),
        Err(error) => Err(unreadable(&place.path, &error)),
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure::environment(format_args!("cannot read {}: {error}", path.display()))
        .with_hint("logs are the agent's: read them as the user it runs as")
}

/// Turns entries into the lines they were.
#[derive(Debug)]
struct Printer<W> {
    out: W,
    timestamps: bool,
    /// The next entry begins a line.
    begun: bool,
    /// How many lines are wanted, and the last ones so far.
    tail: Option<(usize, VecDeque<Vec<u8>>)>,
}

impl<W: Write> Printer<W> {
    /// Prints what there is now.
    fn copy(&mut self, log: &mut LogFile) -> io::Result<()> {
        let mut printed = Ok(());
        log.read(&mut |entry| {
            printed = self.entry(entry);
            if printed.is_ok() {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        printed?;
        self.out.flush()
    }

    fn entry(&mut self, entry: &LogEntry<'_>) -> io::Result<()> {
        let mut text = Vec::with_capacity(entry.text.len() + 40);
        if self.timestamps && self.begun {
            write!(text, "{:.9} ", entry.at)?;
        }
        text.extend_from_slice(entry.text);
        if !entry.partial {
            text.push(b'\n');
        }
        let begins = std::mem::replace(&mut self.begun, !entry.partial);
        match &mut self.tail {
            None => self.out.write_all(&text),
            Some((wanted, last)) => {
                keep(last, *wanted, text, begins);
                Ok(())
            }
        }
    }

    /// Prints the last lines; from now on all are printed.
    fn show_tail(&mut self) -> io::Result<()> {
        if let Some((_, last)) = self.tail.take() {
            for line in last {
                self.out.write_all(&line)?;
            }
        }
        self.out.flush()
    }
}

fn keep(last: &mut VecDeque<Vec<u8>>, wanted: usize, text: Vec<u8>, begins: bool) {
    match last.back_mut().filter(|_| !begins) {
        Some(line) => line.extend(text),
        None => last.push_back(text),
    }
    while last.len() > wanted {
        last.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: &str = "2026-01-02T03:04:05.000000000Z";

    fn shown(tail: Option<usize>, timestamps: bool) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        let entries = [("F", "one"), ("P", "tw"), ("F", "o"), ("F", "three")];
        let lines = entries.map(|(tag, text)| format!("{AT} stdout {tag} {text}\n"));
        std::fs::write(&path, lines.concat()).unwrap();
        let mut printer = Printer {
            out: Vec::new(),
            timestamps,
            begun: true,
            tail: tail.map(|lines| (lines, VecDeque::new())),
        };
        printer.copy(&mut LogFile::open(&path).unwrap()).unwrap();
        printer.show_tail().unwrap();
        String::from_utf8(printer.out).unwrap()
    }

    #[test]
    fn cut_lines_are_joined_and_the_last_ones_counted() {
        assert_eq!(shown(None, false), "one\ntwo\nthree\n");
        assert_eq!(shown(Some(2), false), "two\nthree\n");
        assert_eq!(shown(Some(0), false), "");
        assert_eq!(shown(Some(2), true), format!("{AT} two\n{AT} three\n"));
    }
}
