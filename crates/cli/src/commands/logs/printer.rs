//! Entries of a log as the lines they were, as many of them as are wanted.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::ops::ControlFlow;

use jiff::Timestamp;
use pulselet_agent::LogFile;
use pulselet_runtime::log::LogEntry;

/// How lines are printed, and which.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    pub(super) timestamps: bool,
    /// Only the last ones.
    pub(super) tail: Option<usize>,
    /// Only what was written since.
    pub(super) since: Option<Timestamp>,
    pub(super) prefix: Option<String>,
}

#[derive(Debug)]
pub(super) struct LinePrinter {
    wishes: Wishes,
    /// The next entry begins a line.
    begins: bool,
    /// The last lines so far, while only those are wanted.
    tail: Option<(usize, VecDeque<Vec<u8>>)>,
}

impl LinePrinter {
    pub(super) fn new(wishes: Wishes) -> Self {
        Self {
            begins: true,
            tail: wishes.tail.map(|lines| (lines, VecDeque::new())),
            wishes,
        }
    }

    /// Prints what there is now.
    pub(super) fn copy(&mut self, out: &mut impl Write, log: &mut LogFile) -> io::Result<()> {
        let mut printed = Ok(());
        log.read(&mut |entry| {
            printed = self.entry(out, entry);
            if printed.is_ok() {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        printed?;
        out.flush()
    }

    fn entry(&mut self, out: &mut impl Write, entry: &LogEntry<'_>) -> io::Result<()> {
        if self.wishes.since.is_some_and(|since| entry.at < since) {
            return Ok(());
        }
        let mut text = Vec::with_capacity(entry.text.len() + 40);
        if self.begins {
            text.extend(self.wishes.prefix.iter().flat_map(|prefix| prefix.bytes()));
        }
        if self.wishes.timestamps && self.begins {
            write!(text, "{:.9} ", entry.at)?;
        }
        text.extend_from_slice(entry.text);
        if !entry.partial {
            text.push(b'\n');
        }
        let begins = std::mem::replace(&mut self.begins, !entry.partial);
        match &mut self.tail {
            None => out.write_all(&text),
            Some((wanted, last)) => {
                keep(last, *wanted, text, begins);
                Ok(())
            }
        }
    }

    /// Prints the last lines; from now on all are printed.
    pub(super) fn show_tail(&mut self, out: &mut impl Write) -> io::Result<()> {
        if let Some((_, last)) = self.tail.take() {
            for line in last {
                out.write_all(&line)?;
            }
        }
        out.flush()
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
    const LATER: &str = "2026-01-02T03:04:06.000000000Z";

    fn shown(wishes: Wishes) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        let entries = [
            (AT, "F", "one"),
            (AT, "P", "tw"),
            (AT, "F", "o"),
            (LATER, "F", "three"),
        ];
        let lines = entries.map(|(at, tag, text)| format!("{at} stdout {tag} {text}\n"));
        std::fs::write(&path, lines.concat()).unwrap();
        let mut out = Vec::new();
        let mut printer = LinePrinter::new(wishes);
        printer
            .copy(&mut out, &mut LogFile::open(&path).unwrap())
            .unwrap();
        printer.show_tail(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn last(lines: usize) -> Wishes {
        Wishes {
            tail: Some(lines),
            ..Wishes::default()
        }
    }

    #[test]
    fn cut_lines_are_joined_and_the_last_ones_counted() {
        assert_eq!(shown(Wishes::default()), "one\ntwo\nthree\n");
        assert_eq!(shown(last(2)), "two\nthree\n");
        assert_eq!(shown(last(0)), "");
        let timestamps = true;
        assert_eq!(
            shown(Wishes {
                timestamps,
                ..last(2)
            }),
            format!("{AT} two\n{LATER} three\n")
        );
    }

    #[test]
    fn lines_carry_their_container_and_old_ones_are_left_out() {
        let prefix = Some("app | ".to_owned());
        let since = Some(LATER.parse().unwrap());
        let shown = shown(Wishes {
            since,
            prefix,
            ..Wishes::default()
        });
        assert_eq!(shown, "app | three\n");
    }
}
