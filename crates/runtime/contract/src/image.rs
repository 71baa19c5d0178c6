//! Images as a runtime knows them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::Signal;

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ImageSummary {
    /// The digest of its configuration, `sha256:...`.
    pub id: String,
    pub tags: Vec<String>,
    /// `name@sha256:...`
    pub digests: Vec<String>,
    /// Bytes.
    pub size: u64,
    /// `STOPSIGNAL` as the image has it; `None` if it has none or the runtime does not report it.
    pub stop_signal: Option<String>,
    /// Whether a missing `stop_signal` means that the image has none.
    pub stop_signal_known: bool,
    /// `USER` where it is a number.
    pub uid: Option<u32>,
    /// `USER` where it is a name.
    pub username: Option<String>,
}

impl ImageSummary {
    /// The signal this image asks for; `None` if it asks for none, an error if it cannot be understood.
    pub fn parsed_stop_signal(&self) -> Option<Result<Signal, crate::ParseSignalError>> {
        self.stop_signal
            .as_deref()
            .filter(|text| !text.is_empty())
            .map(Signal::from_image)
    }
}

/// Where images are kept, and how much room they take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageStorage {
    pub path: PathBuf,
    pub used_bytes: u64,
    /// Files and directories.
    pub used_inodes: u64,
}

/// What a registry wants to see. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub enum RegistryCredentials {
    Basic { username: String, password: String },
    IdentityToken(String),
    RegistryToken(String),
}

impl std::fmt::Debug for RegistryCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RegistryCredentials(..)")
    }
}

#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct RuntimeImageError {
    pub reference: String,
    pub kind: ImageErrorKind,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageErrorKind {
    /// The reference is not one.
    InvalidName,
    /// Neither here nor in its registry.
    NotFound,
    /// The registry refused or could not be reached, or what it sent is broken.
    Pull,
    /// Some container needs it.
    InUse,
}
