//! The built-in image: the machine's own root file system under a throw-away layer, for machines without a registry.
//!
//! Its containers can read what the root file system has, but for what is known to be secret: data directories of
//! agents, keys and passwords, and everything below `/run`, where sockets of the machine's services are. What is hidden is
//! looked up anew for containers, by its real path, at most once a second. It has to be allowed: whoever may run pods could read the machine's files otherwise.

mod secrets;

use std::{
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use pulselet_runtime::{ImageErrorKind, ImageSummary, Mount, Propagation, RuntimeImageError};

use crate::image::Template;
pub use secrets::{announce_data_dir, forget_data_dir};

/// The name of the built-in image.
pub const HOST_IMAGE: &str = "pulselet.local/host";

/// Where its containers find the program itself.
const PROGRAM_PATH: &str = "/usr/local/bin/pulselet";

/// How long what was found to be secret is taken for all that is. Many containers often start at once, and none that
/// runs notices a new secret either.
const FRESH: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct HostImage {
    allowed: bool,
    /// The agent's own data, of which nothing is shown.
    data_dir: PathBuf,
    /// The program that it has.
    program: PathBuf,
    hidden: Mutex<Option<HiddenPaths>>,
}

/// What was found to be secret, and when.
#[derive(Debug)]
struct HiddenPaths {
    found_at: Instant,
    paths: Vec<PathBuf>,
}

impl HostImage {
    pub(crate) const fn new(allowed: bool, data_dir: PathBuf, program: PathBuf) -> Self {
        Self {
            allowed,
            data_dir,
            program,
            hidden: Mutex::new(None),
        }
    }

    pub(crate) fn is(reference: &str) -> bool {
        reference.strip_suffix(":latest").unwrap_or(reference) == HOST_IMAGE
    }

    pub(crate) fn template(&self) -> Result<Template, RuntimeImageError> {
        if !self.allowed {
            return Err(refused());
        }
        Ok(Template {
            layers: vec![PathBuf::from("/")],
            hidden: self.hidden_paths(),
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

    fn hidden_paths(&self) -> Vec<PathBuf> {
        let mut hidden = self.hidden.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = hidden.as_ref().filter(|known| known.found_at.elapsed() < FRESH) {
            return known.paths.clone();
        }
        let found_at = Instant::now();
        let paths = secrets::hidden_paths(&self.data_dir);
        *hidden = Some(HiddenPaths {
            found_at,
            paths: paths.clone(),
        });
        paths
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
