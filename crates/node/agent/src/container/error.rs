//! Why a container cannot be made from its manifest on this node.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::downward::DownwardError;
use super::non_root::RootError;
use crate::objects::{ObjectError, ObjectKind};

/// The text goes into the container's status and event, so it speaks of the manifest.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error(transparent)]
    Root(#[from] RootError),
    #[error("couldn't find key {key} in {} {object}", kind.type_name())]
    MissingKey {
        kind: ObjectKind,
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
    #[error("volume {volume:?} has no files yet")]
    NotWritten { volume: String },
    #[error("volume {volume:?}: its kind is not supported on this node")]
    VolumeKind { volume: String },
    #[error("volume {volume:?}: hostPath type check failed: {path} is not a {wanted}", path = path.display())]
    HostPathType {
        volume: String,
        path: PathBuf,
        wanted: &'static str,
    },
    #[error("volume {volume:?}: unknown hostPath type {kind:?}")]
    UnknownHostPathType { volume: String, kind: String },
    #[error("volume {volume:?}: subPath {sub_path:?} leads out of the volume")]
    SubPath { volume: String, sub_path: String },
    #[error("cannot prepare {path}: {source}", path = path.display())]
    Prepare { path: PathBuf, source: io::Error },
    #[error("container {container:?} is not in the pod")]
    UnknownContainer { container: String },
}
