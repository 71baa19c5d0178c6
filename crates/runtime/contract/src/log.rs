//! The format of container logs, that of CRI: one entry a line, `<RFC 3339 time> <stdout|stderr> <F|P> <text>`.
//!
//! `P` marks a piece of a line that is continued by the stream's next entry, `F` the end of a line. Whoever writes
//! (the shim, containerd) cuts long lines; whoever reads joins them.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use jiff::Timestamp;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use serde::{Deserialize, Serialize};

/// Longest text of one entry in bytes, as containerd and CRI-O cut; readers may count on it.
pub const MAX_ENTRY_TEXT: usize = 16 * 1024;

/// Parts at the end of a log's path that are made by us: the pod's directory, the container's, the file.
const OWN_PARTS: usize = 3;

/// Opens a log to read it. What is not a plain file, reached without a link, is an error: a container that may write where
/// logs are would else have any file of the host read to whoever may see its log.
pub fn open_to_read(path: &Path) -> io::Result<File> {
    open(path, OFlags::RDONLY)
}

/// Opens a log to append to it, and makes it if it is missing; what holds for [`open_to_read`] holds here.
pub fn open_to_append(path: &Path) -> io::Result<File> {
    open(path, OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND)
}

fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    let above = path.ancestors().take(OWN_PARTS + 1).last();
    let above = above.filter(|above| *above != path && !above.as_os_str().is_empty());
    let (above, own) = match above.and_then(|above| Some((above, path.strip_prefix(above).ok()?))) {
        Some(split) => split,
        None => (Path::new("."), path),
    };
    let directory = openat(
        CWD,
        above,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mode = if flags.contains(OFlags::CREATE) {
        Mode::from_raw_mode(0o640)
    } else {
        Mode::empty()
    };
    let file = File::from(openat2(&directory, own, flags, mode, ResolveFlags::NO_SYMLINKS)?);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("it is not a file"))
    }
}

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
    fn a_log_is_a_plain_file_and_no_link_leads_to_it() {
        use std::fs;
        use std::os::unix::fs::symlink;

        let directory = tempfile::tempdir().expect("a directory");
        let logs = directory.path().join("logs");
        fs::create_dir_all(logs.join("pod/app")).expect("makes");
        let outside = directory.path().join("outside");
        fs::create_dir_all(outside.join("app")).expect("makes");
        fs::write(outside.join("app/0.log"), "secret").expect("writes");
        let plain = logs.join("pod/app/0.log");
        open_to_append(&plain)
            .expect("is made")
            .write_all(b"x")
            .expect("writes");
        open_to_read(&plain).expect("is there");
        symlink(outside.join("app/0.log"), logs.join("pod/app/1.log")).expect("links");
        symlink(outside.join("app"), logs.join("pod/linked")).expect("links");
        symlink(&outside, logs.join("linked")).expect("links");
        rustix::fs::mkfifoat(CWD, logs.join("pod/app/2.log"), Mode::RWXU).expect("makes");
        for path in [
            "pod/app/1.log",
            "pod/linked/0.log",
            "linked/app/0.log",
            "pod/app/2.log",
            "pod/app",
        ] {
            open_to_read(&logs.join(path)).expect_err(path);
            open_to_append(&logs.join(path)).expect_err(path);
        }
        let text = fs::read_to_string(outside.join("app/0.log")).expect("reads");
        assert_eq!(text, "secret");
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
