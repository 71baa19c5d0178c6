//! Volumes of persistent volume claims: asked for once, before the pod's sandbox is made; from then on a link in the pod's
//! directory says where they are, also for the next agent and while the API is away.
//!
//! Only volumes of the node itself are served, `hostPath` and `local`: others need storage drivers.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pulselet_model::Pod;
use pulselet_model::openapi::api::core::v1 as core;
use thiserror::Error;

use crate::directory::PodDirectory;
use crate::objects::{ObjectSource, SourceError};
use crate::prepare::{PrepareError, check_host_path};

/// What the API says of a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimedVolume {
    /// There is no such claim.
    Missing,
    /// It has no volume yet.
    Unbound,
    Bound(Arc<core::PersistentVolume>),
}

/// Why there is no path for a claim. The text goes into an event.
#[derive(Debug, Error)]
pub(crate) enum ClaimError {
    #[error("persistentvolumeclaim {claim:?} not found")]
    Missing { claim: String },
    #[error("persistentvolumeclaim {claim:?} is not bound to a persistent volume")]
    Unbound { claim: String },
    #[error(
        "the persistent volume {volume:?} is neither a hostPath nor a local volume, and this node has no storage drivers"
    )]
    Foreign { volume: String },
    #[error("the persistent volume {volume:?} is a block device, and this node mounts file systems only")]
    Block { volume: String },
    #[error(transparent)]
    Ask(#[from] SourceError),
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error("cannot note where the persistent volume is: {0}")]
    Note(io::Error),
}

impl ClaimError {
    /// The API could not be asked, which is not the pod's trouble.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            Self::Ask(SourceError::Fetch { .. }) => true,
            Self::Ask(SourceError::NoApi | SourceError::Unsupported { .. })
            | Self::Missing { .. }
            | Self::Unbound { .. }
            | Self::Foreign { .. }
            | Self::Block { .. }
            | Self::Prepare(_)
            | Self::Note(_) => false,
        }
    }
}

/// The claim that a volume is made from; `None` if it is made from something else. An ephemeral volume has one that is
/// named after the pod and the volume.
pub(crate) fn claim_name(pod: &Pod, volume: &core::Volume) -> Option<String> {
    match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => Some(claim.claim_name.clone()),
        (None, Some(_)) => Some(format!("{}-{}", pod.name(), volume.name)),
        (None, None) => None,
    }
}

/// Whether the claim may only be read.
pub(crate) fn is_read_only(volume: &core::Volume) -> bool {
    let claim = volume.persistent_volume_claim.as_ref();
    claim.and_then(|claim| claim.read_only) == Some(true)
}

/// Where the volume is, once [`bind`] has found out.
pub(crate) fn path(directory: &PodDirectory, volume: &str) -> Option<PathBuf> {
    fs::read_link(directory.persistent(volume)).ok()
}

/// Finds out where the volume of a claim is, unless that is known.
pub(crate) async fn bind(
    source: &dyn ObjectSource,
    directory: &PodDirectory,
    pod: &Pod,
    volume: &core::Volume,
) -> Result<(), ClaimError> {
    let Some(claim) = claim_name(pod, volume) else {
        return Ok(());
    };
    if path(directory, &volume.name).is_some() {
        return Ok(());
    }
    let found = match source.claimed_volume(pod.namespace(), &claim).await? {
        ClaimedVolume::Missing => return Err(ClaimError::Missing { claim }),
        ClaimedVolume::Unbound => return Err(ClaimError::Unbound { claim }),
        ClaimedVolume::Bound(found) => found,
    };
    let place = place(&volume.name, &found)?;
    note(&directory.persistent(&volume.name), &place).map_err(ClaimError::Note)
}

/// The path of a volume of this node.
fn place(name: &str, volume: &core::PersistentVolume) -> Result<PathBuf, ClaimError> {
    let named = || volume.metadata.name.clone().unwrap_or_default();
    let foreign = || ClaimError::Foreign { volume: named() };
    let spec = volume.spec.as_ref().ok_or_else(foreign)?;
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err(ClaimError::Block { volume: named() });
    }
    let (path, kind) = match (&spec.host_path, &spec.local) {
        (Some(host), _) => (&host.path, host.type_.as_deref().unwrap_or_default()),
        // It was made by an administrator: a missing one is a mistake.
        (None, Some(local)) => (&local.path, "Directory"),
        (None, None) => return Err(foreign()),
    };
    let path = PathBuf::from(path);
    check_host_path(name, &path, kind)?;
    Ok(path)
}

fn note(link: &Path, place: &Path) -> io::Result<()> {
    if let Some(parent) = link.parent() {
        fs::create_dir_all(parent)?;
    }
    symlink(place, link)
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use pulselet_model::openapi::api::core::v1::{ConfigMap, Secret};
    use serde_json::{Value, json};

    use super::*;
    use crate::objects::{Token, TokenRequest};
    use crate::prepare::PreparedVolume;

    /// An API with one claim.
    #[derive(Debug)]
    struct OneClaim(ClaimedVolume);

    #[async_trait]
    impl ObjectSource for OneClaim {
        async fn config_map(&self, _: &str, _: &str) -> Result<Option<Arc<ConfigMap>>, SourceError> {
            Ok(None)
        }

        async fn secret(&self, _: &str, _: &str) -> Result<Option<Arc<Secret>>, SourceError> {
            Ok(None)
        }

        async fn token(&self, _: &TokenRequest) -> Result<Token, SourceError> {
            Err(SourceError::NoApi)
        }

        async fn claimed_volume(&self, _: &str, claim: &str) -> Result<ClaimedVolume, SourceError> {
            assert_eq!(claim, "data");
            Ok(self.0.clone())
        }
    }

    fn pod() -> Pod {
        let claim = json!({"claimName": "data", "readOnly": true});
        serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {
                "containers": [{"name": "app"}],
                "volumes": [{"name": "v", "persistentVolumeClaim": claim}],
            },
        }))
        .expect("a pod")
    }

    fn bound(spec: &Value) -> ClaimedVolume {
        let volume = json!({"metadata": {"name": "pv"}, "spec": spec});
        ClaimedVolume::Bound(serde_json::from_value(volume).expect("a volume"))
    }

    async fn bind_to(claimed: ClaimedVolume) -> Result<PathBuf, String> {
        let directory = tempfile::tempdir().expect("a directory");
        let directory = PodDirectory::new(directory.path().join("pod"));
        let pod = pod();
        let volume = &pod.spec.volumes[0];
        let made = bind(&OneClaim(claimed), &directory, &pod, volume).await;
        made.map_err(|error| error.to_string())?;
        let prepared = PreparedVolume::new(&directory, &pod, volume).map_err(|error| error.to_string())?;
        assert!(prepared.read_only);
        Ok(prepared.path)
    }

    #[tokio::test]
    async fn a_claim_leads_to_a_directory_of_the_node() {
        let there = tempfile::tempdir().expect("a directory");
        let path = there.path();
        assert_eq!(
            bind_to(bound(&json!({"local": {"path": path}}))).await.as_deref(),
            Ok(path)
        );
        let new = path.join("new");
        let host = json!({"hostPath": {"path": new, "type": "DirectoryOrCreate"}});
        assert_eq!(bind_to(bound(&host)).await.as_deref(), Ok(new.as_path()));
        assert!(new.is_dir());
    }

    #[tokio::test]
    async fn a_claim_that_leads_nowhere_says_why() {
        for (claimed, why) in [
            (ClaimedVolume::Missing, "persistentvolumeclaim \"data\" not found"),
            (ClaimedVolume::Unbound, "is not bound"),
            (
                bound(&json!({"csi": {"driver": "d", "volumeHandle": "h"}})),
                "no storage drivers",
            ),
            (
                bound(&json!({"volumeMode": "Block", "local": {"path": "/dev/x"}})),
                "block device",
            ),
            (
                bound(&json!({"local": {"path": "/is/not/there"}})),
                "is not a directory",
            ),
        ] {
            let error = bind_to(claimed).await.expect_err("an error");
            assert!(error.contains(why), "{error}");
        }
    }
}
