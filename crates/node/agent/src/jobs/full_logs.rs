//! Logs that are full, where the runtime leaves them to the node: moved aside under a number, as shims do it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pulselet_plan::duties::LogBounds;
use pulselet_runtime::{ContainerId, Operation};

use super::{JobContext, bounded};

/// The log of a container that runs.
#[derive(Debug)]
pub(crate) struct GrowingLog {
    pub(crate) container: ContainerId,
    pub(crate) path: PathBuf,
}

impl JobContext {
    /// Moves full logs aside one by one, unless that is under way.
    pub(crate) async fn bound_logs(self: Arc<Self>, logs: Vec<GrowingLog>) {
        let Ok(_permit) = self.limits.logs.try_acquire() else {
            return;
        };
        let bounds = self.duties.logs;
        for GrowingLog { container, path } in logs {
            let full = path.clone();
            let moved = tokio::task::spawn_blocking(move || move_aside_if_full(&full, bounds)).await;
            match moved {
                Ok(Ok(false)) => continue,
                Ok(Ok(true)) => {}
                Ok(Err(error)) => {
                    tracing::warn!(log = %path.display(), %error, "a full log cannot be moved aside");
                    continue;
                }
                Err(error) => {
                    tracing::error!(%error, "moving a log aside panicked");
                    continue;
                }
            }
            if let Err(error) = bounded(Operation::ReopenLog, self.runtime.reopen_log(&container)).await {
                tracing::warn!(%container, %error, "the runtime does not begin a new log; the old one is put back");
                put_back(&path);
            }
        }
    }
}

/// Whether the log was full.
fn move_aside_if_full(path: &Path, bounds: LogBounds) -> io::Result<bool> {
    let size = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_file() => metadata.len(),
        Ok(_) => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if size < bounds.max_size {
        return Ok(false);
    }
    // The file that is written counts too.
    let kept = bounds.max_files.saturating_sub(1);
    let _ = fs::remove_file(numbered(path, kept));
    for number in (1..kept).rev() {
        match fs::rename(numbered(path, number), numbered(path, number + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    fs::rename(path, numbered(path, 1))?;
    Ok(true)
}

/// The runtime writes on to the file that it has open: under its own name it is found.
fn put_back(path: &Path) {
    if !path.exists() {
        let _ = fs::rename(numbered(path, 1), path);
    }
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_is_kept_under_a_number_and_the_oldest_goes() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("0.log");
        let bounds = LogBounds {
            max_size: 4,
            max_files: 3,
        };
        assert!(!move_aside_if_full(&path, bounds).expect("nothing is there"));
        for text in ["one!", "two!", "three"] {
            fs::write(&path, text).expect("a log");
            assert!(move_aside_if_full(&path, bounds).expect("it is moved"));
        }
        fs::write(&path, "new").expect("a log");
        assert!(!move_aside_if_full(&path, bounds).expect("it has room"));
        let read = |path: &Path| fs::read_to_string(path).ok();
        assert_eq!(read(&numbered(&path, 1)).as_deref(), Some("three"));
        assert_eq!(read(&numbered(&path, 2)).as_deref(), Some("two!"));
        assert_eq!(read(&numbered(&path, 3)), None);
    }
}
