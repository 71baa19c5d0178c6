//! The volumes of a pod: which of them a node writes, and how large those on its disk may become.
//!
//! What belongs into a written volume is for whoever writes it: that depends on objects that change while the pod runs.

use std::sync::Arc;

use pulselet_model::openapi::api::core::v1::{EmptyDirVolumeSource, ImageVolumeSource, Volume};
use pulselet_model::quantity::Amount;

use crate::blueprint::PullPolicy;

/// Nano-units in one unit of a quantity.
const NANOS: i128 = 1_000_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeBlueprint {
    pub name: Box<str>,
    pub kind: VolumeKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeKind {
    /// A directory of the pod on the node's disk.
    Disk {
        limit: Option<Box<SizeLimit>>,
    },
    /// A directory of the pod in memory, which the kernel bounds.
    Memory,
    HostPath,
    ConfigMap,
    Secret,
    DownwardApi,
    Projected,
    /// The files of an image, which the runtime mounts.
    Image(Box<ImageVolume>),
    /// Everything that this node cannot mount.
    Other,
}

/// An image that is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageVolume {
    /// As the pod names it.
    pub reference: Arc<str>,
    pub pull_policy: PullPolicy,
}

/// How large a volume on the disk may become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeLimit {
    pub volume: Box<str>,
    /// As the pod writes it.
    pub text: Box<str>,
    pub bytes: u64,
}

impl VolumeKind {
    /// Whether the node fills the volume with files and keeps them up to date.
    pub fn is_written(&self) -> bool {
        match self {
            Self::ConfigMap | Self::Secret | Self::DownwardApi | Self::Projected => true,
            Self::Disk { .. } | Self::Memory | Self::HostPath | Self::Image(_) | Self::Other => false,
        }
    }
}

impl VolumeBlueprint {
    pub(crate) fn new(volume: &Volume) -> Self {
        let kind = if volume.config_map.is_some() {
            VolumeKind::ConfigMap
        } else if volume.secret.is_some() {
            VolumeKind::Secret
        } else if volume.downward_api.is_some() {
            VolumeKind::DownwardApi
        } else if volume.projected.is_some() {
            VolumeKind::Projected
        } else if let Some(source) = &volume.empty_dir {
            empty_dir(&volume.name, source)
        } else if volume.host_path.is_some() {
            VolumeKind::HostPath
        } else if let Some(source) = &volume.image {
            VolumeKind::Image(Box::new(ImageVolume::new(source)))
        } else {
            VolumeKind::Other
        };
        Self {
            name: volume.name.as_str().into(),
            kind,
        }
    }

    /// The limit that the node keeps; `None` if there is none, or if the kernel keeps it.
    pub fn size_limit(&self) -> Option<&SizeLimit> {
        match &self.kind {
            VolumeKind::Disk { limit } => limit.as_deref(),
            VolumeKind::Memory
            | VolumeKind::HostPath
            | VolumeKind::ConfigMap
            | VolumeKind::Secret
            | VolumeKind::DownwardApi
            | VolumeKind::Projected
            | VolumeKind::Image(_)
            | VolumeKind::Other => None,
        }
    }

    /// The image whose files it shows; `None` if it shows other files.
    pub fn image(&self) -> Option<&ImageVolume> {
        match &self.kind {
            VolumeKind::Image(image) => Some(image),
            VolumeKind::Disk { .. }
            | VolumeKind::Memory
            | VolumeKind::HostPath
            | VolumeKind::ConfigMap
            | VolumeKind::Secret
            | VolumeKind::DownwardApi
            | VolumeKind::Projected
            | VolumeKind::Other => None,
        }
    }
}

impl ImageVolume {
    fn new(source: &ImageVolumeSource) -> Self {
        Self {
            reference: source.reference.as_deref().unwrap_or_default().into(),
            pull_policy: PullPolicy::read(source.pull_policy.as_deref().unwrap_or_default()),
        }
    }
}

fn empty_dir(volume: &str, source: &EmptyDirVolumeSource) -> VolumeKind {
    if source.medium.as_deref() == Some("Memory") {
        return VolumeKind::Memory;
    }
    VolumeKind::Disk {
        limit: size_limit(volume, source).map(Box::new),
    }
}

fn size_limit(volume: &str, source: &EmptyDirVolumeSource) -> Option<SizeLimit> {
    Some(SizeLimit {
        volume: volume.into(),
        text: source.size_limit.as_ref()?.0.as_str().into(),
        bytes: limit_bytes(source)?,
    })
}

/// The size that an `emptyDir` may have. `None` if there is no limit; zero is none, as upstream has it.
pub fn limit_bytes(source: &EmptyDirVolumeSource) -> Option<u64> {
    let amount = Amount::parse(&source.size_limit.as_ref()?.0).ok()?;
    let bytes = u64::try_from(amount.nanos() / NANOS).ok()?;
    (bytes > 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn volume(source: Value) -> VolumeBlueprint {
        let mut volume = source;
        volume["name"] = "data".into();
        VolumeBlueprint::new(&serde_json::from_value(volume).expect("a volume"))
    }

    #[test]
    fn only_limits_on_the_disk_are_the_nodes() {
        let limited = volume(json!({"emptyDir": {"sizeLimit": "1Mi"}}));
        let limit = SizeLimit {
            volume: "data".into(),
            text: "1Mi".into(),
            bytes: 1 << 20,
        };
        assert_eq!(limited.size_limit(), Some(&limit));
        for source in [
            json!({"emptyDir": {"sizeLimit": "1Mi", "medium": "Memory"}}),
            json!({"emptyDir": {"sizeLimit": "0"}}),
            json!({"emptyDir": {}}),
            json!({"hostPath": {"path": "/x"}}),
        ] {
            assert_eq!(volume(source.clone()).size_limit(), None, "{source}");
        }
    }

    #[test]
    fn the_node_writes_what_comes_from_objects() {
        for (source, is_written) in [
            (json!({"configMap": {"name": "c"}}), true),
            (json!({"secret": {"secretName": "s"}}), true),
            (json!({"downwardAPI": {}}), true),
            (json!({"projected": {"sources": []}}), true),
            (json!({"emptyDir": {}}), false),
            (json!({"hostPath": {"path": "/x"}}), false),
            (json!({"nfs": {"server": "n", "path": "/"}}), false),
        ] {
            assert_eq!(volume(source.clone()).kind.is_written(), is_written, "{source}");
        }
    }
}
