//! The format of container logs, that of CRI: one entry a line, `<RFC 3339 time> <stdout|stderr> <F|P> <text>`.
//!
//! `P` marks a piece of a line that is continued by the stream's next entry, `F` the end of a line. Whoever writes
//! (the shim, containerd) cuts long lines; whoever reads joins them.

use std::io::Write;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Longest text of one entry in bytes, as containerd and CRI-O cut; readers may count on it.
pub const MAX_ENTRY_TEXT: usize = 16 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LogStream {
    Stdout,
    Stderr,
}

impl LogStream {
    pub fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// One line of a log file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry<'a> {
    pub at: Timestamp,
    pub stream: LogStream,
    /// Not the end of its line.
    pub partial: bool,
    /// Without a newline.
    pub text: &'a [u8],
}

impl<'a> LogEntry<'a> {
    /// Appends the entry with its newline.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let tag = if self.partial { 'P' } else { 'F' };
        // Writing to a vector does not fail.
        let _ = write!(out, "{:.9} {} {tag} ", self.at, self.stream.name());
        out.extend_from_slice(self.text);
        out.push(b'\n');
    }

    /// Reads a line, with or without its newline; returns `None` if it is not an entry.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let mut parts = line.splitn(4, |&byte| byte == b' ');
        let at = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
        let stream = match parts.next()? {
            b"stdout" => LogStream::Stdout,
            b"stderr" => LogStream::Stderr,
            _ => return None,
        };
        // The tag is the first of a list joined by colons; no other tag has a meaning.
        let partial = match parts.next()?.split(|&byte| byte == b':').next()? {
            b"P" => true,
            b"F" => false,
            _ => return None,
        };
        Some(Self {
            at,
            stream,
            partial,
            text: parts.next().unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_nine_digits_and_reads_back() {
        let at: Timestamp = "2026-01-02T03:04:05.5Z".parse().expect("a time");
        let entry = LogEntry {
            at,
            stream: LogStream::Stderr,
            partial: true,
            text: b"a b  c",
        };
        let mut line = Vec::new();
        entry.encode(&mut line);
        assert_eq!(line, b"2026-01-02T03:04:05.500000000Z stderr P a b  c\n");
        assert_eq!(LogEntry::parse(&line), Some(entry));
    }

    #[test]
    fn empty_lines_and_offsets_are_read() {
        let entry = LogEntry::parse(b"2026-01-02T03:04:05.5+02:00 stdout F:x \n").expect("an entry");
        assert_eq!(
            (entry.text, entry.partial, entry.at.to_string()),
            (&b""[..], false, "2026-01-02T01:04:05.5Z".into())
        );
    }

    #[test]
    fn what_is_no_entry_is_refused() {
        for line in [
            &b""[..],
            b"hello",
            b"2026-01-02T03:04:05Z",
            b"2026-01-02T03:04:05Z std F x",
            b"x stdout F x",
            b"\xff \xff",
        ] {
            assert_eq!(LogEntry::parse(line), None);
        }
    }
}
