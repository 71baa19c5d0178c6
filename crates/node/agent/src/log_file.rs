//! A container's log as its shim keeps it: entries of CRI's format, a full file moved aside under a number.
//!
//! A log is read from its oldest piece on, and then on as it grows, into the file that takes the place of a full one.
//! Memory is one entry, however long a line of the log is. Links are not followed, wherever they lead.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use pulselet_runtime::log::{self, LogEntry, MAX_ENTRY_TEXT};

/// Pieces of a log that are looked for; the shim keeps fewer.
const MAX_PIECES: u32 = 100;
/// Bytes of an entry's line: its text and what stands before it.
const MAX_LINE: usize = MAX_ENTRY_TEXT + 128;

/// A log that is read to its end, and then on as it grows.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    /// The pieces that are left, the oldest first.
    older: VecDeque<BufReader<File>>,
    newest: BufReader<File>,
    /// A line that has not ended yet.
    unfinished: Vec<u8>,
}

impl LogFile {
    pub fn open(path: &Path) -> io::Result<Self> {
        // The newest first: a piece moved aside meanwhile is then read twice at worst, never missed.
        let newest = log::open_to_read(path)?;
        let mut older = VecDeque::new();
        for number in 1..MAX_PIECES {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{number}"));
            let Ok(piece) = log::open_to_read(Path::new(&name)) else {
                break;
            };
            if piece.metadata()?.ino() != newest.metadata()?.ino() {
                older.push_front(BufReader::new(piece));
            }
        }
        Ok(Self {
            path: path.to_owned(),
            older,
            newest: BufReader::new(newest),
            unfinished: Vec::new(),
        })
    }

    /// Hands out the entries there are now, from where the last call was broken off.
    pub fn read(&mut self, each: &mut dyn FnMut(&LogEntry<'_>) -> ControlFlow<()>) -> io::Result<()> {
        loop {
            let piece = self.older.front_mut().unwrap_or(&mut self.newest);
            if read_entries(piece, &mut self.unfinished, each)?.is_break() {
                return Ok(());
            }
            if self.older.pop_front().is_none() {
                let Some(next) = self.moved_aside()? else {
                    return Ok(());
                };
                // Something may have been added before the move: what was the newest is read once more.
                let full = std::mem::replace(&mut self.newest, BufReader::new(next));
                self.older.push_back(full);
            }
        }
    }

    /// How many entries match, from the beginning of the log on, wherever it was read to.
    pub fn count(&self, matches: impl Fn(&LogEntry<'_>) -> bool) -> io::Result<u64> {
        let mut count = 0;
        let mut unfinished = Vec::new();
        for piece in self.older.iter().chain([&self.newest]) {
            let mut piece = BufReader::new(FromStart {
                file: piece.get_ref(),
                at: 0,
            });
            let counting = &mut |entry: &LogEntry<'_>| {
                count += u64::from(matches(entry));
                ControlFlow::Continue(())
            };
            // It is never broken off.
            let _ = read_entries(&mut piece, &mut unfinished, counting)?;
        }
        Ok(count)
    }

    /// The file that has taken the place of the one being read.
    fn moved_aside(&self) -> io::Result<Option<File>> {
        let there = match log::open_to_read(&self.path) {
            Ok(file) => file,
            // It goes with its pod.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let same = there.metadata()?.ino() == self.newest.get_ref().metadata()?.ino();
        Ok((!same).then_some(there))
    }
}

fn read_entries(
    from: &mut impl BufRead,
    unfinished: &mut Vec<u8>,
    each: &mut dyn FnMut(&LogEntry<'_>) -> ControlFlow<()>,
) -> io::Result<ControlFlow<()>> {
    loop {
        let available = from.fill_buf()?;
        if available.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        let end = available.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(available.len(), |end| end + 1);
        if unfinished.len() + taken <= MAX_LINE {
            unfinished.extend_from_slice(&available[..taken]);
        }
        from.consume(taken);
        if end.is_some() {
            // What is no entry was not written by a shim.
            let flow = LogEntry::parse(unfinished).map_or(ControlFlow::Continue(()), |entry| each(&entry));
            unfinished.clear();
            if flow.is_break() {
                return Ok(flow);
            }
        }
    }
}

/// Reads a file without moving its position.
struct FromStart<'a> {
    file: &'a File,
    at: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn write(path: &Path, entries: &[(&str, &str)]) {
        let at = "2026-01-02T03:04:05.000000000Z";
        let lines = entries
            .iter()
            .map(|(tag, text)| format!("{at} stdout {tag} {text}\n"));
        let mut file = File::options().create(true).append(true).open(path).unwrap();
        file.write_all(lines.collect::<String>().as_bytes()).unwrap();
    }

    /// The texts of what is there now.
    fn texts(log: &mut LogFile) -> Vec<String> {
        let mut texts = Vec::new();
        log.read(&mut |entry| {
            texts.push(String::from_utf8_lossy(entry.text).into_owned());
            ControlFlow::Continue(())
        })
        .unwrap();
        texts
    }

    #[test]
    fn pieces_are_read_from_the_oldest_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        write(&directory.path().join("0.log.2"), &[("F", "one")]);
        write(&directory.path().join("0.log.1"), &[("P", "tw"), ("F", "o")]);
        write(&path, &[("F", "three"), ("nonsense", "x")]);
        let mut log = LogFile::open(&path).unwrap();
        assert_eq!(log.count(|entry| !entry.partial).unwrap(), 3);
        assert_eq!(texts(&mut log), ["one", "tw", "o", "three"]);
        assert_eq!(log.count(|_| true).unwrap(), 1, "the other pieces are done with");
    }

    #[test]
    fn reading_goes_on_where_it_was_broken_off() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        write(&directory.path().join("0.log.1"), &[("F", "one"), ("F", "two")]);
        write(&path, &[("F", "three")]);
        let mut log = LogFile::open(&path).unwrap();
        for expected in ["one", "two", "three"] {
            let mut seen = Vec::new();
            log.read(&mut |entry| {
                seen.extend_from_slice(entry.text);
                ControlFlow::Break(())
            })
            .unwrap();
            assert_eq!(seen, expected.as_bytes());
        }
        assert!(texts(&mut log).is_empty());
    }

    #[test]
    fn a_log_is_followed_into_its_next_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        write(&path, &[("F", "one")]);
        let mut log = LogFile::open(&path).unwrap();
        assert_eq!(texts(&mut log), ["one"]);
        write(&path, &[("F", "two")]);
        std::fs::rename(&path, directory.path().join("0.log.1")).unwrap();
        write(&path, &[("F", "three")]);
        assert_eq!(texts(&mut log), ["two", "three"]);
    }

    #[test]
    fn an_endless_line_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        std::fs::write(&path, vec![b'x'; 10 * MAX_LINE]).unwrap();
        write(&path, &[("F", ""), ("F", "after")]);
        let mut log = LogFile::open(&path).unwrap();
        assert_eq!(texts(&mut log), ["after"]);
        assert!(log.unfinished.len() <= MAX_LINE);
    }
}
