//! Room that is kept on a disk for the day on which others have filled it.
//!
//! The reserve is a file of blocks that are taken but not used. Whoever cannot write because the disk is full gives it
//! up and tries again; when there is room once more it is taken back.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate, statvfs};

/// Bytes kept on a disk that is large: thousands of records and every deletion that frees more.
const LARGEST: u64 = 16 << 20;
/// On a small disk no more than this part of it is kept.
const SMALLEST_PART: u64 = 64;
/// The reserve is taken back once there is room for it so many times, so that it does not fill the disk itself.
const ROOM_TO_REFILL: u64 = 4;

/// See the module.
#[derive(Debug)]
pub struct Reserve {
    path: PathBuf,
    held: bool,
}

impl Reserve {
    /// Takes the room, if there is enough. On a full disk what an earlier owner took is still there.
    pub fn take(path: impl Into<PathBuf>) -> Self {
        let mut reserve = Self::found(path);
        reserve.refill();
        reserve
    }

    /// What an earlier owner took. Nothing is written, for who does not know yet whether the directory is theirs to change.
    pub fn found(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let held = fs::metadata(&path).is_ok_and(|file| file.len() > 0);
        Self { path, held }
    }

    /// Gives the room up. Returns whether there was any.
    pub fn give_up(&mut self) -> bool {
        if !std::mem::take(&mut self.held) {
            return false;
        }
        match fs::remove_file(&self.path) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "the room kept on the disk cannot be given up");
                false
            }
        }
    }

    /// Takes the room back if it was given up and there is enough again.
    pub fn refill(&mut self) {
        if self.held {
            return;
        }
        let directory = self.path.parent().unwrap_or(Path::new("."));
        let Ok(disk) = statvfs(directory) else { return };
        let bytes = (disk.f_blocks.saturating_mul(disk.f_frsize) / SMALLEST_PART).min(LARGEST);
        let available = disk.f_bavail.saturating_mul(disk.f_frsize);
        if bytes == 0 || available < bytes.saturating_mul(ROOM_TO_REFILL) {
            return;
        }
        match allocate(&self.path, bytes) {
            Ok(()) => self.held = true,
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "no room can be kept on the disk");
                let _ = fs::remove_file(&self.path);
            }
        }
    }
}

fn allocate(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(()),
        // A file system that cannot do it in one step.
        Err(rustix::io::Errno::OPNOTSUPP) => {
            let zeros = vec![0; 1 << 16];
            let mut left = bytes;
            while left > 0 {
                let part = usize::try_from(left).unwrap_or(zeros.len()).min(zeros.len());
                file.write_all(&zeros[..part])?;
                left -= part as u64;
            }
            file.sync_all()
        }
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_given_up_once_and_taken_back() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("reserve");
        let mut reserve = Reserve::take(&path);
        assert!(path.exists(), "the disk of this machine has room");
        assert!(reserve.give_up());
        assert!(!reserve.give_up(), "it is gone");
        assert!(!path.exists());
        reserve.refill();
        assert!(path.exists());
        assert!(Reserve::take(&path).give_up(), "the next owner finds it");
    }
}
