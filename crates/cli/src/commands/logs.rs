//! `pulselet logs`: what a container wrote, from the files its monitor keeps.
//!
//! The agent says where the log is; the files are read here. Entries have CRI's format, and a full file is moved aside
//! under a number, so a log is read from its oldest piece on.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pulselet_node::LogPlace;
use pulselet_node::control::Client;
use pulselet_runtime::log::{Entry, MAX_ENTRY_TEXT};

use crate::agent;
use crate::cli::LogsArgs;
use crate::exit::{Exit, Failure};
use crate::interrupt::Interrupts;
use crate::output;

/// How often a log is looked at that is followed.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(100);
/// Looks between two questions whether the container still runs.
const LOOKS_PER_QUESTION: u32 = 5;
/// Pieces of a log that are looked for; the monitor keeps fewer.
const MAX_PIECES: u32 = 100;
/// Bytes of an entry's line: its text and what stands before it.
const MAX_LINE: usize = MAX_ENTRY_TEXT + 128;
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
    let mut log = Log::open(&place.path).map_err(|error| unreadable(&place.path, &error))?;
    let mut gone = printed(log.copy(&mut printer), &place)? || printed(printer.show_tail(), &place)?;
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
        gone = printed(log.copy(&mut printer), &place)?;
    }
    Ok(Exit::Done)
}

async fn ask(args: &LogsArgs, client: &Client) -> Result<LogPlace, Failure> {
    let (pod, container) = (&args.pod, args.container.as_deref());
    Ok(client
        .log(&pod.namespace, &pod.name, container, args.previous)
        .await?)
}

/// Whether the life that is followed is over: it ended, another has begun, or the pod is gone.
async fn has_ended(args: &LogsArgs, client: &Client, place: &LogPlace) -> bool {
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

/// A log that is read to its end, and then on as it grows.
#[derive(Debug)]
struct Log {
    path: PathBuf,
    /// The pieces that are left, the oldest first.
    older: VecDeque<File>,
    newest: BufReader<File>,
    /// A line that has not ended yet.
    unfinished: Vec<u8>,
}

impl Log {
    fn open(path: &Path) -> io::Result<Self> {
        // The newest first: a piece moved aside meanwhile is then read twice at worst, never missed.
        let newest = File::open(path)?;
        let mut older = VecDeque::new();
        for number in 1..MAX_PIECES {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{number}"));
            let Ok(piece) = File::open(name) else { break };
            if piece.metadata()?.ino() != newest.metadata()?.ino() {
                older.push_front(piece);
            }
        }
        Ok(Self {
            path: path.to_owned(),
            older,
            newest: BufReader::new(newest),
            unfinished: Vec::new(),
        })
    }

    /// Prints what there is now.
    fn copy(&mut self, printer: &mut Printer<impl Write>) -> io::Result<()> {
        while let Some(piece) = self.older.pop_front() {
            copy_lines(&mut BufReader::new(piece), &mut self.unfinished, printer)?;
        }
        copy_lines(&mut self.newest, &mut self.unfinished, printer)?;
        while let Some(next) = self.moved_aside()? {
            // Whatever was added before the move.
            copy_lines(&mut self.newest, &mut self.unfinished, printer)?;
            self.newest = BufReader::new(next);
            copy_lines(&mut self.newest, &mut self.unfinished, printer)?;
        }
        printer.out.flush()
    }

    /// The file that has taken the place of the one being read.
    fn moved_aside(&self) -> io::Result<Option<File>> {
        let there = match File::open(&self.path) {
            Ok(file) => file,
            // It goes with its pod.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let same = there.metadata()?.ino() == self.newest.get_ref().metadata()?.ino();
        Ok((!same).then_some(there))
    }
}

fn copy_lines(
    from: &mut BufReader<File>,
    unfinished: &mut Vec<u8>,
    printer: &mut Printer<impl Write>,
) -> io::Result<()> {
    loop {
        let available = from.fill_buf()?;
        if available.is_empty() {
            return Ok(());
        }
        let end = available.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(available.len(), |end| end + 1);
        if unfinished.len() + taken <= MAX_LINE {
            unfinished.extend_from_slice(&available[..taken]);
        }
        from.consume(taken);
        if end.is_some() {
            printer.entry(unfinished)?;
            unfinished.clear();
        }
    }
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
    fn entry(&mut self, line: &[u8]) -> io::Result<()> {
        // What is no entry was not written by a monitor.
        let Some(entry) = Entry::parse(line) else {
            return Ok(());
        };
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

    fn write(path: &Path, entries: &[(&str, &str)]) {
        let lines = entries
            .iter()
            .map(|(tag, text)| format!("{AT} stdout {tag} {text}\n"));
        let mut file = File::options().create(true).append(true).open(path).unwrap();
        file.write_all(lines.collect::<String>().as_bytes()).unwrap();
    }

    fn printer(tail: Option<usize>, timestamps: bool) -> Printer<Vec<u8>> {
        Printer {
            out: Vec::new(),
            timestamps,
            begun: true,
            tail: tail.map(|lines| (lines, VecDeque::new())),
        }
    }

    fn shown(log: &mut Log, mut printer: Printer<Vec<u8>>) -> String {
        log.copy(&mut printer).unwrap();
        printer.show_tail().unwrap();
        String::from_utf8(printer.out).unwrap()
    }

    #[test]
    fn pieces_are_read_from_the_oldest_on_and_cut_lines_are_joined() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        write(&directory.path().join("0.log.2"), &[("F", "one")]);
        write(&directory.path().join("0.log.1"), &[("P", "tw"), ("F", "o")]);
        write(&path, &[("F", "three"), ("nonsense", "x")]);
        let read = |tail, timestamps| shown(&mut Log::open(&path).unwrap(), printer(tail, timestamps));
        assert_eq!(read(None, false), "one\ntwo\nthree\n");
        assert_eq!(read(Some(2), false), "two\nthree\n");
        assert_eq!(read(Some(0), false), "");
        assert_eq!(read(Some(2), true), format!("{AT} two\n{AT} three\n"));
    }

    #[test]
    fn a_log_is_followed_into_its_next_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        write(&path, &[("F", "one")]);
        let mut log = Log::open(&path).unwrap();
        assert_eq!(shown(&mut log, printer(None, false)), "one\n");
        write(&path, &[("F", "two")]);
        std::fs::rename(&path, directory.path().join("0.log.1")).unwrap();
        write(&path, &[("F", "three")]);
        assert_eq!(shown(&mut log, printer(None, false)), "two\nthree\n");
    }

    #[test]
    fn an_endless_line_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        std::fs::write(&path, vec![b'x'; 10 * MAX_LINE]).unwrap();
        write(&path, &[("F", ""), ("F", "after")]);
        let mut log = Log::open(&path).unwrap();
        assert_eq!(shown(&mut log, printer(None, false)), "after\n");
        assert!(log.unfinished.len() <= MAX_LINE);
    }
}
