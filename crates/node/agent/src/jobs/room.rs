//! The room that `emptyDir` volumes take on the disk: a pod that takes more than a `sizeLimit` is evicted. Those in
//! memory are bounded by the kernel.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pulselet_engine::PodKey;
use pulselet_engine::io::Input;
use pulselet_engine::time::Span;
use pulselet_plan::SizeLimit;

use super::Tools;

/// Files and directories of a volume that are looked at; whoever has more is judged by these.
const MAX_FILES: usize = 1_000_000;
/// Bytes of the blocks in which the kernel counts.
const BLOCK: u64 = 512;
/// What is left to a pod that is evicted for this, as a kubelet has it.
const GRACE: Span = Span::from_secs(1);

/// A volume to be measured.
#[derive(Debug)]
pub(crate) struct Measurement {
    pub(crate) pod: PodKey,
    pub(crate) uid: Arc<str>,
    pub(crate) limit: SizeLimit,
}

impl Tools {
    /// Measures volumes one by one, unless that is under way.
    pub(crate) async fn measure(self: Arc<Self>, volumes: Vec<Measurement>) {
        let Ok(_permit) = self.limits.measurements.try_acquire() else {
            return;
        };
        for Measurement { pod, uid, limit } in volumes {
            let path = self.layout.empty_dir(&uid, &limit.volume);
            let measured = tokio::task::spawn_blocking(move || disk_usage(&path));
            let used = measured.await.expect("measuring does not panic");
            if used > limit.bytes {
                let SizeLimit { volume, text, .. } = limit;
                let message = format!("Usage of EmptyDir volume \"{volume}\" exceeds the limit \"{text}\". ");
                let grace = Some(GRACE);
                self.tell(pod, Input::Evict { grace, message }).await;
            }
        }
    }
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
