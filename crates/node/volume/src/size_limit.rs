//! How large an `emptyDir` on the disk may become, and how large it is: a pod that takes more than a `sizeLimit` is to be
//! evicted. Those in memory are bounded by the kernel.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use pulselet_model::Pod;
use pulselet_model::openapi::api::core::v1 as core;
use pulselet_model::quantity::Amount;

use crate::directory::PodDirectory;

/// Files and directories of a volume that are looked at; whoever has more is judged by these.
const MAX_FILES: usize = 1_000_000;
/// Bytes of the blocks in which the kernel counts.
const BLOCK: u64 = 512;
/// Nano-units in one unit of a quantity.
const NANOS: i128 = 1_000_000_000;

/// How large a volume on the disk may become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeLimit {
    volume: String,
    /// As the pod writes it.
    text: String,
    bytes: u64,
}

impl SizeLimit {
    /// The limits of a pod that nobody but the node keeps.
    pub fn of(pod: &Pod) -> Vec<Self> {
        let limit = |volume: &core::Volume| {
            let source = volume.empty_dir.as_ref()?;
            if source.medium.as_deref() == Some("Memory") {
                return None;
            }
            Some(Self {
                volume: volume.name.clone(),
                text: source.size_limit.as_ref()?.0.clone(),
                bytes: limit_bytes(source)?,
            })
        };
        pod.spec.volumes.iter().filter_map(limit).collect()
    }

    /// Measures the volume. `Some` with the reason for the pod's eviction if it takes more than it may. The disk may not
    /// answer, so this may block.
    pub fn check(&self, directory: &PodDirectory) -> Option<String> {
        let Self { volume, text, bytes } = self;
        let used = disk_usage(&directory.empty_dir(volume));
        (used > *bytes)
            .then(|| format!("Usage of EmptyDir volume \"{volume}\" exceeds the limit \"{text}\". "))
    }
}

/// The size that an `emptyDir` may have. `None` if there is no limit; zero is none, as upstream has it.
pub(crate) fn limit_bytes(source: &core::EmptyDirVolumeSource) -> Option<u64> {
    let amount = Amount::parse(&source.size_limit.as_ref()?.0).ok()?;
    let bytes = u64::try_from(amount.nanos() / NANOS).ok()?;
    (bytes > 0).then_some(bytes)
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
    use serde_json::json;

    #[test]
    fn only_limits_on_the_disk_are_the_nodes() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {"containers": [{"name": "app"}], "volumes": [
                {"name": "a", "emptyDir": {"sizeLimit": "1Mi"}},
                {"name": "b", "emptyDir": {"sizeLimit": "1Mi", "medium": "Memory"}},
                {"name": "c", "emptyDir": {"sizeLimit": "0"}},
                {"name": "d", "emptyDir": {}},
                {"name": "e", "hostPath": {"path": "/x"}},
            ]},
        }))
        .unwrap();
        let limit = SizeLimit {
            volume: "a".into(),
            text: "1Mi".into(),
            bytes: 1 << 20,
        };
        assert_eq!(SizeLimit::of(&pod), [limit]);
    }

    #[test]
    fn what_is_too_large_is_named_with_its_limit() {
        let directory = tempfile::tempdir().unwrap();
        let pod = PodDirectory::new(directory.path());
        let limit = SizeLimit {
            volume: "a".into(),
            text: "64Ki".into(),
            bytes: 64 << 10,
        };
        assert_eq!(limit.check(&pod), None, "nothing is there yet");
        fs::create_dir_all(pod.empty_dir("a")).unwrap();
        fs::write(pod.empty_dir("a").join("file"), vec![1; 1 << 20]).unwrap();
        let message = "Usage of EmptyDir volume \"a\" exceeds the limit \"64Ki\". ";
        assert_eq!(limit.check(&pod).as_deref(), Some(message));
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
