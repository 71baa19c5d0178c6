//! Volumes whose files the node writes: where they are, on disk or in memory.

use std::io;
use std::path::PathBuf;

use pulselet_model::openapi::api::core::v1 as core;
use thiserror::Error;

use crate::atomic::{self, WriteError};
use crate::contents::{Contents, VolumeFiles};
use crate::directory::PodDirectory;
use crate::memory::{self, Medium};

/// Memory that one pod's secrets, tokens and the like may take, in bytes. Two versions of a volume must fit.
const POD_MEMORY_BYTES: u64 = 64 << 20;

#[derive(Debug, Error)]
pub(crate) enum PlaceFilesError {
    #[error("cannot mount memory at {path}: {source}", path = path.display())]
    Mount { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Where the files of a volume are.
#[derive(Clone, Debug)]
pub(crate) struct WrittenVolume {
    directory: PathBuf,
    /// The memory it is in.
    memory: Option<PathBuf>,
}

impl WrittenVolume {
    /// None for volumes whose files are not the node's.
    pub(crate) fn of(pod: &PodDirectory, volume: &core::Volume) -> Option<Self> {
        let contents = Contents::of(volume)?;
        let memory = contents.in_memory.then(|| pod.memory());
        let directory = match &memory {
            Some(memory) => memory.join(&volume.name),
            None => pod.config_map(&volume.name),
        };
        Some(Self { directory, memory })
    }

    /// The directory, once it has files; none before.
    pub(crate) fn directory(&self) -> Option<PathBuf> {
        atomic::is_written(&self.directory).then(|| self.directory.clone())
    }

    /// Makes the volume hold exactly these files.
    pub(crate) fn store(&self, files: &VolumeFiles) -> Result<(), PlaceFilesError> {
        if let Some(memory) = &self.memory {
            let medium = memory::ensure(memory, Some(POD_MEMORY_BYTES), 0o755).map_err(|source| {
                PlaceFilesError::Mount {
                    path: memory.clone(),
                    source,
                }
            })?;
            if medium == Medium::Disk {
                tracing::debug!(path = %memory.display(), "mounting needs root: secrets are on disk");
            }
        }
        if atomic::write(&self.directory, files)? {
            tracing::debug!(volume = %self.directory.display(), "files of a volume were written");
        }
        Ok(())
    }
}
