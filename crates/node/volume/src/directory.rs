//! Where a pod's volumes are on this node: the paths below the pod's own directory.
//!
//! The names are those of a kubelet, because people look there. Paths of volumes are made here and nowhere else.

use std::path::PathBuf;

/// The directory of one pod, which its owner makes and removes.
#[derive(Clone, Debug)]
pub struct PodDirectory(PathBuf);

impl PodDirectory {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Where memory is mounted for what does not belong on a disk.
    pub fn memory(&self) -> PathBuf {
        self.0.join("memory")
    }

    /// Where an `emptyDir` on the disk is.
    pub fn empty_dir(&self, volume: &str) -> PathBuf {
        self.volumes("kubernetes.io~empty-dir").join(volume)
    }

    pub(crate) fn config_map(&self, volume: &str) -> PathBuf {
        self.volumes("kubernetes.io~configmap").join(volume)
    }

    /// The link that leads to a persistent volume.
    pub(crate) fn persistent(&self, volume: &str) -> PathBuf {
        self.volumes("kubernetes.io~local-volume").join(volume)
    }

    fn volumes(&self, kind: &str) -> PathBuf {
        self.0.join("volumes").join(kind)
    }
}
