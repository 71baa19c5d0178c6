//! Why a container cannot be made from its manifest on this node.

use std::io;
use std::path::PathBuf;

use pulselet_plan::PodRefusal;
use pulselet_volume::{DownwardError, ObjectError, PrepareError, SourceKind};
use thiserror::Error;

use super::non_root::RootError;

/// The text goes into the container's status and event, so it speaks of the manifest.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error("{}", .0.status_message())]
    Refused(PodRefusal),
    #[error(transparent)]
    Root(#[from] RootError),
    #[error("couldn't find key {key} in {} {object}", kind.type_name())]
    MissingKey {
        kind: SourceKind,
        /// namespace/name
        object: String,
        key: String,
    },
    #[error("environment variable {variable:?}: {source}")]
    Downward { variable: String, source: DownwardError },
    #[error("environment variable {variable:?}: its source is not supported on this node")]
    EnvSource { variable: String },
    #[error("volume {volume:?} of mount {path:?} is not among the pod's volumes")]
    UnknownVolume { volume: String, path: String },
    #[error(transparent)]
    Volume(#[from] PrepareError),
    #[error("volume {volume:?}: {why}")]
    ImageVolume { volume: String, why: String },
    #[error("cannot prepare {path}: {source}", path = path.display())]
    Prepare { path: PathBuf, source: io::Error },
    #[error("container {container:?} is not in the pod")]
    UnknownContainer { container: String },
    #[error("unable to find target container {target:?}: it does not run")]
    NoTarget { target: String },
}
