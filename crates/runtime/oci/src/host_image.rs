//! The built-in image: the machine's own root file system under a throw-away layer, for machines without a registry.
//!
//! Its containers can read what the root file system has, but for what is known to be secret: data directories of
//! agents, keys and passwords, and sockets of the machine's services. What is hidden is looked up anew for every
//! container, by its real path. It has to be allowed: whoever may run pods could read the machine's files otherwise.

mod secrets;

use std::path::PathBuf;

use pulselet_runtime::{ImageErrorKind, ImageSummary, Mount, Propagation, RuntimeImageError};

use crate::image::Template;
pub use secrets::{announce_data_dir, forget_data_dir};

/// The name of the built-in image.
pub const HOST_IMAGE: &str = "pulselet.local/host";

/// Where its containers find the program itself.
const PROGRAM_PATH: &str = "/usr/local/bin/pulselet";

#[derive(Debug)]
pub(crate) struct HostImage {
    pub(crate) allowed: bool,
    /// The agent's own data, of which nothing is shown.
    pub(crate) data_dir: PathBuf,
    /// The program that it has.
    pub(crate) program: PathBuf,
}

impl HostImage {
    pub(crate) fn is(reference: &str) -> bool {
        reference.strip_suffix(":latest").unwrap_or(reference) == HOST_IMAGE
    }

    pub(crate) fn template(&self) -> Result<Template, RuntimeImageError> {
        if !self.allowed {
            return Err(refused());
        }
        Ok(Template {
            layers: vec![PathBuf::from("/")],
            hidden: secrets::hidden_paths(&self.data_dir),
            mounts: vec![Mount {
                volume: String::new(),
                container_path: PROGRAM_PATH.into(),
                host_path: self.program.clone(),
                image: None,
                sub_path: None,
                read_only: true,
                recursive_read_only: false,
                propagation: Propagation::Private,
            }],
            ..Template::default()
        })
    }

    /// As runtimes list images; `None` if it must not be used.
    pub(crate) fn summary(&self) -> Option<ImageSummary> {
        self.allowed.then(|| ImageSummary {
            id: HOST_IMAGE.to_owned(),
            tags: vec![format!("{HOST_IMAGE}:latest")],
            stop_signal_known: true,
            uid: Some(0),
            ..ImageSummary::default()
        })
    }

    pub(crate) fn pull(&self) -> Result<ImageSummary, RuntimeImageError> {
        self.summary().ok_or_else(refused)
    }
}

fn refused() -> RuntimeImageError {
    RuntimeImageError {
        reference: HOST_IMAGE.to_owned(),
        kind: ImageErrorKind::Pull,
        message: format!(
            "image {HOST_IMAGE:?} shows the machine's own files and is not allowed here; \
             allow it with `hostImage: true` in the agent's --config file"
        ),
    }
}
