//! How much of a disk is taken.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Files and directories that are looked at; whoever has more is judged by these.
const MAX_FILES: usize = 1_000_000;
/// Bytes of the blocks in which the kernel counts.
const BLOCK: u64 = 512;

/// What a directory with all below it takes of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DiskUsage {
    pub bytes: u64,
    /// Files and directories, itself included.
    pub inodes: u64,
}

/// Bytes on the disk below a directory. Links are not followed, and a file with several names counts once.
pub fn disk_usage(directory: &Path) -> u64 {
    measure(directory).bytes
}

/// The same with the number of files.
pub fn measure(directory: &Path) -> DiskUsage {
    let mut pending: Vec<PathBuf> = vec![directory.to_owned()];
    let mut linked = HashSet::new();
    let (mut files, mut blocks) = (0, 0_u64);
    while let Some(path) = pending.pop() {
        // What a container removes meanwhile takes no room.
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        let is_directory = metadata.is_dir();
        if !is_directory && metadata.nlink() > 1 && !linked.insert((metadata.dev(), metadata.ino())) {
            continue;
        }
        blocks = blocks.saturating_add(metadata.blocks());
        files += 1;
        if is_directory {
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            let room = MAX_FILES.saturating_sub(files + pending.len());
            pending.extend(entries.take(room).map(|entry| entry.path()));
        }
    }
    DiskUsage {
        bytes: blocks.saturating_mul(BLOCK),
        inodes: files as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_nowhere_and_count_once() {
        let directory = tempfile::tempdir().expect("works");
        let file = directory.path().join("below/file");
        fs::create_dir(directory.path().join("below")).expect("works");
        fs::write(&file, vec![1; 1 << 20]).expect("works");
        let before = disk_usage(directory.path());
        assert!((1 << 20..2 << 20).contains(&before), "{before}");
        fs::hard_link(&file, directory.path().join("again")).expect("works");
        std::os::unix::fs::symlink("/", directory.path().join("root")).expect("works");
        let after = disk_usage(directory.path());
        assert!(after < before + (1 << 16), "{after}");
        assert_eq!(
            measure(directory.path()).inodes,
            4,
            "two directories, a file and a link"
        );
        assert_eq!(measure(Path::new("/no/such/directory")), DiskUsage::default());
        assert_eq!(disk_usage(Path::new("/no/such/directory")), 0);
    }
}
