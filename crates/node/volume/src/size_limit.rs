//! How large an `emptyDir` on the disk may become, and how large it is: a pod that takes more than a `sizeLimit` is to be
//! evicted. Those in memory are bounded by the kernel.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use pulselet_plan::SizeLimit;

use crate::directory::PodDirectory;

/// Files and directories of a volume that are looked at; whoever has more is judged by these.
const MAX_FILES: usize = 1_000_000;
/// Bytes of the blocks in which the kernel counts.
const BLOCK: u64 = 512;

/// Measures a volume. `Some` with the reason for the pod's eviction if it takes more than it may. The disk may not
/// answer, so this may block.
pub fn exceeded(limit: &SizeLimit, directory: &PodDirectory) -> Option<String> {
    let SizeLimit { volume, text, bytes } = limit;
    let used = disk_usage(&directory.empty_dir(volume));
    (used > *bytes).then(|| format!("Usage of EmptyDir volume \"{volume}\" exceeds the limit \"{text}\". "))
}

/// Bytes on the disk below a directory. Links are not followed, and a file with several names counts once.
fn disk_usage(directory: &Path) -> u64 {
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
    blocks.saturating_mul(BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_is_named_with_its_limit() {
        let directory = tempfile::tempdir().unwrap();
        let pod = PodDirectory::new(directory.path());
        let limit = SizeLimit {
            volume: "a".into(),
            text: "64Ki".into(),
            bytes: 64 << 10,
        };
        assert_eq!(exceeded(&limit, &pod), None, "nothing is there yet");
        fs::create_dir_all(pod.empty_dir("a")).unwrap();
        fs::write(pod.empty_dir("a").join("file"), vec![1; 1 << 20]).unwrap();
        let message = "Usage of EmptyDir volume \"a\" exceeds the limit \"64Ki\". ";
        assert_eq!(exceeded(&limit, &pod).as_deref(), Some(message));
    }

    #[test]
    fn links_lead_nowhere_and_count_once() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("below/file");
        fs::create_dir(directory.path().join("below")).unwrap();
        fs::write(&file, vec![1; 1 << 20]).unwrap();
        let before = disk_usage(directory.path());
        assert!((1 << 20..2 << 20).contains(&before), "{before}");
        fs::hard_link(&file, directory.path().join("again")).unwrap();
        std::os::unix::fs::symlink("/", directory.path().join("root")).unwrap();
        let after = disk_usage(directory.path());
        assert!(after < before + (1 << 16), "{after}");
        assert_eq!(disk_usage(Path::new("/no/such/directory")), 0);
    }
}
