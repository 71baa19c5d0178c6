//! The way of log lines to stderr: a bounded queue, and a thread that alone waits for the reader.
//!
//! A caller never waits and never fails, whatever becomes of stderr. A line is lost where the queue is full and where it
//! cannot be written; lost lines are counted, and a line in their place says how many there were once stderr takes
//! lines again.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing_subscriber::fmt::format::Writer as Text;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

/// Bytes of text in the queue. A burst of some thousand lines fits, and a reader that stalls costs no more memory.
const MAX_BYTES: usize = 1024 * 1024;
/// Lines in the queue. Their bookkeeping stays below half a MiB, however short they are.
const MAX_LINES: usize = 8 * 1024;

/// Lines that wait to be written.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// A line was added.
    added: Condvar,
    /// Everything is written or lost.
    emptied: Condvar,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct State {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// The queue was full and is not yet half empty. Dropping lines in long runs keeps the lines that report it few.
    sheds: bool,
    /// The writer has taken an entry that is not yet written.
    writing: bool,
}

#[derive(Debug)]
enum Entry {
    Line(Vec<u8>),
    /// So many lines are missing here.
    Dropped(u64),
}

impl State {
    fn has_room(&mut self, line: usize) -> bool {
        let share = if self.sheds { 2 } else { 1 };
        let bytes = self.bytes + line <= MAX_BYTES / share;
        // An empty queue takes any line that fits at all.
        let empty = self.entries.is_empty() && line <= MAX_BYTES;
        let room = empty || bytes && self.entries.len() < MAX_LINES / share;
        self.sheds = !room;
        room
    }
}

impl Queue {
    /// Starts the thread that writes to `out`.
    pub(super) fn start<F>(out: F, colour: bool) -> io::Result<Arc<Self>>
    where
        F: AsFd + Send + 'static,
    {
        let queue = Arc::new(Self::default());
        let source = Arc::clone(&queue);
        let mut writer = Writer {
            out,
            colour,
            lost: 0,
            mid_line: false,
        };
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || {
                loop {
                    let lost = writer.write(source.next());
                    source.dropped.fetch_add(lost, Ordering::Relaxed);
                }
            })?;
        Ok(queue)
    }

    /// Adds a line with its end, or drops it.
    pub(super) fn push(&self, line: &[u8]) {
        let mut state = self.lock();
        if state.has_room(line.len()) {
            state.bytes += line.len();
            state.entries.push_back(Entry::Line(line.to_vec()));
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            match state.entries.back_mut() {
                Some(Entry::Dropped(count)) => *count += 1,
                Some(Entry::Line(_)) | None => state.entries.push_back(Entry::Dropped(1)),
            }
        }
        drop(state);
        self.added.notify_one();
    }

    /// Waits until everything is written or lost, but no longer than this.
    pub(super) fn flush(&self, timeout: Duration) {
        let pending = |state: &mut State| state.writing || !state.entries.is_empty();
        // Nothing more can be done for the lines that are left after the time.
        drop(self.emptied.wait_timeout_while(self.lock(), timeout, pending));
    }

    /// How many lines were lost so far.
    pub(super) fn dropped(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.dropped)
    }

    fn next(&self) -> Entry {
        let mut state = self.lock();
        state.writing = false;
        loop {
            if let Some(entry) = state.entries.pop_front() {
                if let Entry::Line(line) = &entry {
                    state.bytes -= line.len();
                }
                state.writing = true;
                return entry;
            }
            self.emptied.notify_all();
            state = self.added.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A panic elsewhere leaves the queue whole: nothing under the lock stops half-way.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the thread writes with.
struct Writer<F> {
    out: F,
    colour: bool,
    /// Lines that were lost since the last one that reached the reader.
    lost: u64,
    /// A write failed in the middle of a line.
    mid_line: bool,
}

impl<F: AsFd> Writer<F> {
    /// Writes an entry, after what has to be said about lines that are missing before it. Returns how many lines were lost now.
    fn write(&mut self, entry: Entry) -> u64 {
        let line = match entry {
            Entry::Dropped(count) => {
                self.lost += count;
                // If it fails, the next line tries again.
                let _ = self.report();
                return 0;
            }
            Entry::Line(line) => line,
        };
        if self.report().and_then(|()| self.write_line(&line)).is_ok() {
            return 0;
        }
        self.lost += 1;
        1
    }

    fn report(&mut self) -> Result<(), Errno> {
        if self.lost > 0 {
            self.write_line(report_of(self.lost, self.colour).as_bytes())?;
            self.lost = 0;
        }
        Ok(())
    }

    fn write_line(&mut self, line: &[u8]) -> Result<(), Errno> {
        if self.mid_line {
            self.write_all(b"\n")?;
            self.mid_line = false;
        }
        self.write_all(line)
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            match rustix::io::write(&self.out, bytes) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => {
                    bytes = &bytes[count..];
                    self.mid_line = !bytes.is_empty();
                }
                Err(Errno::INTR) => {}
                // Another process that shares the file may have set O_NONBLOCK.
                Err(Errno::AGAIN) => self.wait_for_room()?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn wait_for_room(&self) -> Result<(), Errno> {
        match poll(&mut [PollFd::new(&self.out, PollFlags::OUT)], None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The line about lines that are missing, in the form that all lines have.
fn report_of(count: u64, colour: bool) -> String {
    let mut time = String::new();
    // Without a time it still says what matters.
    let _ = SystemTime.format_time(&mut Text::new(&mut time));
    if colour {
        format!(
            "\x1b[2m{time}\x1b[0m \x1b[33m WARN\x1b[0m log lines dropped \x1b[3mcount\x1b[0m\x1b[2m=\x1b[0m{count}\n"
        )
    } else {
        format!("{time}  WARN log lines dropped count={count}\n")
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;

    use super::*;

    const PATIENCE: Duration = Duration::from_mins(1);

    /// All lines that a reader gets, the time taken away from reports.
    fn read(mut pipe: impl io::Read, until: &str) -> Vec<String> {
        let mut text = String::new();
        let mut byte = [0; 4096];
        while !text.ends_with(until) {
            let count = pipe.read(&mut byte).expect("the pipe is read");
            assert!(count > 0, "it ended before {until:?}");
            text.push_str(std::str::from_utf8(&byte[..count]).expect("UTF-8"));
        }
        let without_time = |line: &str| match line.split_once("  WARN ") {
            Some((_, report)) => report.to_owned(),
            None => line.to_owned(),
        };
        text.lines().map(without_time).collect()
    }

    #[test]
    fn a_reader_that_comes_back_reads_how_many_lines_are_missing() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let queue = Queue::start(writer, false).expect("a thread");
        let line = |number: usize| format!("{number:0>1023}\n");
        let mut count = 0;
        while queue.dropped.load(Ordering::Relaxed) < 100 {
            queue.push(line(count).as_bytes());
            count += 1;
        }
        let all = read(reader, "dropped count=100\n");
        let written: Vec<String> = (0..count - 100)
            .map(|number| line(number).trim_end().to_owned())
            .collect();
        assert_eq!(all[..all.len() - 1], written);
        assert_eq!(
            all.last().map(String::as_str),
            Some("log lines dropped count=100")
        );
    }

    #[test]
    fn nothing_is_lost_on_the_way_to_a_reader() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let queue = Queue::start(writer, false).expect("a thread");
        let reading = std::thread::spawn(|| read(reader, "1999\n"));
        for number in 0..2000 {
            queue.push(format!("{number}\n").as_bytes());
        }
        queue.flush(PATIENCE);
        let expected: Vec<String> = (0..2000).map(|number| number.to_string()).collect();
        assert_eq!(reading.join().expect("no panic"), expected);
        assert_eq!(queue.dropped.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_device_that_is_full_loses_and_counts_lines() {
        let full = File::options().write(true).open("/dev/full").expect("a device");
        let queue = Queue::start(full, false).expect("a thread");
        queue.push(b"one\n");
        queue.push(b"two\n");
        queue.flush(PATIENCE);
        // The count follows the write.
        while queue.dropped.load(Ordering::Relaxed) < 2 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_line_that_was_cut_off_is_ended() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let mut writer = Writer {
            out: writer,
            colour: false,
            lost: 1,
            mid_line: true,
        };
        assert_eq!(writer.write(Entry::Line(b"next\n".to_vec())), 0);
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("UTF-8");
        assert!(
            text.starts_with('\n') && text.ends_with("log lines dropped count=1\nnext\n"),
            "{text}"
        );
    }

    #[test]
    fn a_full_queue_takes_lines_again_when_half_is_written() {
        let mut state = State::default();
        assert!(!state.has_room(MAX_BYTES + 1));
        assert!(state.has_room(MAX_BYTES), "an empty queue");
        state.entries.push_back(Entry::Line(Vec::new()));
        state.bytes = MAX_BYTES;
        assert!(!state.has_room(1));
        state.bytes = MAX_BYTES / 2;
        assert!(!state.has_room(1));
        state.bytes -= 1;
        assert!(state.has_room(1));
    }
}
