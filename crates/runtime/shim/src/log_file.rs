//! The container's log: entries in CRI's format, in files of bounded size and number.
//!
//! A full `0.log` becomes `0.log.1`, that becomes `0.log.2`, and so on. A log that cannot be written never stops the
//! container: what does not fit is dropped, and counted in an entry of its own as soon as writing works again.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use pulselet_runtime::log::{self, LogEntry, LogStream, MAX_ENTRY_TEXT};

/// Bytes after which a new file is begun; the kubelet's default.
pub const LOG_FILE_SIZE: u64 = 10 << 20;

/// Files kept in all, the one being written among them; the kubelet's default.
pub const LOG_FILES: u32 = 5;

#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    file: Option<File>,
    size: u64,
    limit: u64,
    files: u32,
    /// Bytes of entries that could not be written since the last that could.
    lost: u64,
}

impl LogFile {
    /// Opens the log for appending. The directories above it must exist.
    pub(crate) fn open(path: &Path, limit: u64, files: u32) -> io::Result<Self> {
        let mut log = Self {
            path: path.to_owned(),
            file: None,
            size: 0,
            limit,
            files,
            lost: 0,
        };
        log.reopen()?;
        Ok(log)
    }

    /// Opens the path anew, after somebody moved the file away.
    pub(crate) fn reopen(&mut self) -> io::Result<()> {
        self.file = None;
        let file = log::open_to_append(&self.path)?;
        self.size = file.metadata()?.len();
        self.file = Some(file);
        Ok(())
    }

    /// Appends whole entries.
    pub(crate) fn write(&mut self, entries: &[u8]) {
        if entries.is_empty() {
            return;
        }
        if self.size > 0 && self.size.saturating_add(entries.len() as u64) > self.limit {
            self.rotate();
        }
        if self.file.is_none() && self.reopen().is_err() {
            self.lost += entries.len() as u64;
            return;
        }
        if self.lost > 0 {
            let text = format!("{} bytes of log could not be written and are lost", self.lost);
            let mut note = Vec::new();
            LogEntry {
                at: Timestamp::now(),
                stream: LogStream::Stderr,
                partial: false,
                text: text.as_bytes(),
            }
            .encode(&mut note);
            if !self.append(&note) {
                self.lost += entries.len() as u64;
                return;
            }
            self.lost = 0;
        }
        if !self.append(entries) {
            self.lost += entries.len() as u64;
        }
    }

    /// Writes all or, after a failure, takes the half written entry back.
    fn append(&mut self, bytes: &[u8]) -> bool {
        let Some(file) = &mut self.file else { return false };
        if file.write_all(bytes).is_ok() {
            self.size += bytes.len() as u64;
            return true;
        }
        let _ = file.set_len(self.size);
        false
    }

    fn rotate(&mut self) {
        for number in (1..self.files.saturating_sub(1)).rev() {
            let _ = fs::rename(self.numbered(number), self.numbered(number + 1));
        }
        if self.files > 1 {
            let _ = fs::rename(&self.path, self.numbered(1));
        } else {
            let _ = fs::remove_file(&self.path);
        }
        // Without a new file the old one is gone from its name: `write` tries to open one each time.
        let _ = self.reopen();
    }

    fn numbered(&self, number: u32) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }
}

/// Cuts a stream into entries. Keeps what may still become a longer line.
#[derive(Debug)]
pub(crate) struct LineCutter {
    stream: LogStream,
    pending: Vec<u8>,
}

impl LineCutter {
    pub(crate) fn new(stream: LogStream) -> Self {
        Self {
            stream,
            pending: Vec::new(),
        }
    }

    /// Adds what was read and appends the entries that are complete.
    pub(crate) fn push(&mut self, mut data: &[u8], at: Timestamp, out: &mut Vec<u8>) {
        while let Some(end) = data.iter().position(|&byte| byte == b'\n') {
            self.extend(&data[..end], at, out);
            self.emit(false, at, out);
            data = &data[end + 1..];
        }
        self.extend(data, at, out);
    }

    /// The stream has ended: what is left is an entry, though no newline came.
    pub(crate) fn finish(&mut self, at: Timestamp, out: &mut Vec<u8>) {
        if !self.pending.is_empty() {
            self.emit(true, at, out);
        }
    }

    fn extend(&mut self, mut text: &[u8], at: Timestamp, out: &mut Vec<u8>) {
        while self.pending.len() + text.len() > MAX_ENTRY_TEXT {
            let (head, tail) = text.split_at(MAX_ENTRY_TEXT - self.pending.len());
            self.pending.extend_from_slice(head);
            self.emit(true, at, out);
            text = tail;
        }
        self.pending.extend_from_slice(text);
    }

    fn emit(&mut self, partial: bool, at: Timestamp, out: &mut Vec<u8>) {
        LogEntry {
            at,
            stream: self.stream,
            partial,
            text: &self.pending,
        }
        .encode(out);
        self.pending.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(pieces: &[&[u8]]) -> Vec<(bool, usize, Vec<u8>)> {
        let mut cutter = LineCutter::new(LogStream::Stdout);
        let mut out = Vec::new();
        for piece in pieces {
            cutter.push(piece, Timestamp::UNIX_EPOCH, &mut out);
        }
        cutter.finish(Timestamp::UNIX_EPOCH, &mut out);
        out.split_inclusive(|&byte| byte == b'\n')
            .map(|line| {
                let entry = LogEntry::parse(line).expect("an entry");
                (
                    entry.partial,
                    entry.text.len(),
                    entry.text[..entry.text.len().min(8)].to_vec(),
                )
            })
            .collect()
    }

    #[test]
    fn lines_are_joined_across_reads_and_empty_ones_kept() {
        let lines = cut(&[b"he", b"llo\n\nwor", b"ld\nend"]);
        let texts: Vec<_> = lines
            .iter()
            .map(|(partial, _, text)| (*partial, text.as_slice()))
            .collect();
        assert_eq!(
            texts,
            [
                (false, &b"hello"[..]),
                (false, b""),
                (false, b"world"),
                (true, b"end")
            ]
        );
    }

    #[test]
    fn long_lines_are_cut_into_partial_entries() {
        let long = vec![b'x'; MAX_ENTRY_TEXT * 2 + 5];
        let sizes: Vec<_> = cut(&[&long, b"\n"])
            .into_iter()
            .map(|(partial, size, _)| (partial, size))
            .collect();
        assert_eq!(
            sizes,
            [(true, MAX_ENTRY_TEXT), (true, MAX_ENTRY_TEXT), (false, 5)]
        );
        let exact: Vec<_> = cut(&[&long[..MAX_ENTRY_TEXT], b"\n"])
            .into_iter()
            .map(|(p, size, _)| (p, size))
            .collect();
        assert_eq!(exact, [(false, MAX_ENTRY_TEXT)]);
    }

    #[test]
    fn files_rotate_by_size_and_the_oldest_goes() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("0.log");
        let mut log = LogFile::open(&path, 10, 3).expect("opens");
        for entry in [b"11111111\n", b"22222222\n", b"33333333\n", b"44444444\n"] {
            log.write(entry);
        }
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap_or_default();
        assert_eq!(read("0.log"), "44444444\n");
        assert_eq!(read("0.log.1"), "33333333\n");
        assert_eq!(read("0.log.2"), "22222222\n");
        assert!(!dir.path().join("0.log.3").exists());
    }

    #[test]
    fn a_moved_log_is_opened_anew_and_losses_are_told() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("sub/0.log");
        fs::create_dir(dir.path().join("sub")).expect("makes");
        let mut log = LogFile::open(&path, 1000, 2).expect("opens");
        log.write(b"one\n");
        fs::rename(dir.path().join("sub"), dir.path().join("away")).expect("moves");
        log.reopen().expect_err("the directory is gone");
        log.write(b"two\n");
        fs::create_dir(dir.path().join("sub")).expect("makes");
        log.write(b"three\n");
        let text = fs::read_to_string(&path).expect("is there again");
        assert!(
            text.contains("4 bytes of log could not be written") && text.ends_with("\nthree\n"),
            "{text}"
        );
    }
}
