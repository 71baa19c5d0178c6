//! How large an `emptyDir` on the disk may become, and how large it is: a pod that takes more than a `sizeLimit` is to be
//! evicted. Those in memory are bounded by the kernel.

use pulselet_durable::disk_usage;
use pulselet_plan::SizeLimit;

use crate::directory::PodDirectory;

/// Measures a volume. `Some` with the reason for the pod's eviction if it takes more than it may. The disk may not
/// answer, so this may block.
pub fn exceeded(limit: &SizeLimit, directory: &PodDirectory) -> Option<String> {
    let SizeLimit { volume, text, bytes } = limit;
    let used = disk_usage(&directory.empty_dir(volume));
    (used > *bytes).then(|| format!("Usage of EmptyDir volume \"{volume}\" exceeds the limit \"{text}\". "))
}

#[cfg(test)]
mod tests {
    use std::fs;

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
}
