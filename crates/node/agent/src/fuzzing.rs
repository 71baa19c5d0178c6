//! What fuzzers call, and nobody else: these functions take what a container leaves in files that the agent reads.

use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::container_config::fuzz_hosts_file;
use crate::log_file::LogFile;
use crate::pod::termination;

/// A function with its name, by which fuzzers and their corpora know it.
type FuzzTarget = (&'static str, fn(&[u8]));

pub const TARGETS: &[FuzzTarget] = &[
    ("hosts_file", read_hosts_file),
    ("log_file", read_log_file),
    ("termination_message", read_termination_message),
];

/// A file of this run's own.
struct ScratchFile(PathBuf);

impl ScratchFile {
    fn new(bytes: &[u8]) -> Option<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pulselet-fuzz-file-{}-{number}", std::process::id());
        let file = Self(std::env::temp_dir().join(name));
        fs::write(&file.0, bytes).ok()?;
        Some(file)
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Looks at a hosts file that a container has changed; it is right afterwards.
pub fn read_hosts_file(bytes: &[u8]) {
    if let Some(file) = ScratchFile::new(bytes) {
        fuzz_hosts_file(&file.0);
    }
}

/// Reads a log that others may have written to.
pub fn read_log_file(bytes: &[u8]) {
    let Some(file) = ScratchFile::new(bytes) else {
        return;
    };
    let Ok(mut log) = LogFile::open(&file.0) else {
        return;
    };
    let counted = log.count(|_| true).unwrap_or_default();
    let mut read = 0;
    let _ = log.read(&mut |_| {
        read += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(read, counted);
}

/// Makes a message of the file and of the end of the log that a container left.
pub fn read_termination_message(bytes: &[u8]) {
    if let Some(file) = ScratchFile::new(bytes) {
        termination::fuzz_message(&file.0, bytes);
    }
}
