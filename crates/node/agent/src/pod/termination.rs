//! The message a container leaves behind: its termination file, or the end of its log.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use pulselet_plan::MessagePolicy;
use pulselet_runtime::{ContainerExit, ContainerStatus, log};

use crate::state::layout::Layout;

/// Bytes of a termination file that are read, as upstream reads.
const MAX_MESSAGE: u64 = 4096;
/// Bytes and lines of the log that stand in for it.
const MAX_LOG: usize = 2048;
const MAX_LOG_LINES: usize = 80;
/// Bytes at the end of a log file that are looked at: its entries carry more than their text.
const LOG_TAIL: u64 = 16 * 1024;

/// What status says about an exit, if there is anything to say.
pub(crate) fn message(
    layout: &Layout,
    uid: &str,
    policy: MessagePolicy,
    status: &ContainerStatus,
    exit: &ContainerExit,
) -> Option<String> {
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    let path = layout.termination_message(uid, &status.name, status.attempt);
    let file = read_end(&path, MAX_MESSAGE, false).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    if let Some(text) = file.and_then(some) {
        return Some(text);
    }
    let falls_back = match policy {
        MessagePolicy::File => false,
        MessagePolicy::FallbackToLogsOnError => exit.code != 0,
    };
    if falls_back {
        let tail = read_end(&status.log_path, LOG_TAIL, true).unwrap_or_default();
        if let Some(text) = some(last_lines(&tail)) {
            return Some(text);
        }
    }
    some(exit.message.clone())
}

/// Reads from a file that a container may have put there: never waits for a pipe, never follows a link.
fn read_end(path: &Path, limit: u64, from_end: bool) -> Option<Vec<u8>> {
    let mut file = log::open_to_read(path).ok()?;
    if from_end {
        let start = file.metadata().ok()?.len().saturating_sub(limit);
        file.seek(SeekFrom::Start(start)).ok()?;
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// For a fuzzer: messages are bounded.
pub(crate) fn fuzz_message(path: &Path, tail: &[u8]) {
    let message = read_end(path, MAX_MESSAGE, false).unwrap_or_default();
    assert!(message.len() as u64 <= MAX_MESSAGE);
    let tail_start = tail
        .len()
        .saturating_sub(usize::try_from(LOG_TAIL).unwrap_or(usize::MAX));
    // Each byte that is no text becomes a mark of three bytes.
    assert!(last_lines(&tail[tail_start..]).len() <= 3 * MAX_LOG);
}

fn last_lines(tail: &[u8]) -> String {
    let mut text = Vec::new();
    let entries: Vec<_> = tail
        .split(|byte| *byte == b'\n')
        .filter_map(log::LogEntry::parse)
        .collect();
    for entry in &entries[entries.len().saturating_sub(MAX_LOG_LINES)..] {
        text.extend_from_slice(entry.text);
        if !entry.partial {
            text.push(b'\n');
        }
    }
    let start = text.len().saturating_sub(MAX_LOG);
    String::from_utf8_lossy(&text[start..]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_its_last_lines_joined() {
        let tail = b"cut off\n2026-01-02T03:04:05Z stdout P hel\n2026-01-02T03:04:05Z stdout F lo\n\
                     2026-01-02T03:04:05Z stderr F bye\n";
        assert_eq!(last_lines(tail), "hello\nbye\n");
        let many: Vec<_> = (0..200)
            .map(|n| format!("2026-01-02T03:04:05Z stdout F {n}\n"))
            .collect();
        let many = many.concat();
        let text = last_lines(many.as_bytes());
        assert_eq!(
            (text.lines().count(), text.lines().next()),
            (MAX_LOG_LINES, Some("120"))
        );
    }

    #[test]
    fn a_pipe_or_a_link_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        assert_eq!(read_end(&link, 10, false), None);
        let pipe = directory.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        assert_eq!(read_end(&pipe, 10, false), None);
        let file = directory.path().join("file");
        std::fs::write(&file, "0123456789").unwrap();
        assert_eq!(read_end(&file, 4, true).unwrap(), b"6789");
    }
}
