//! Which store the API had whose pods this node runs.
//!
//! An API that has lost its store lists no pods, and a node that believes it ends all of them. So a node remembers the
//! identity of the store; another one is not followed until a person says that it is right. Other API servers have no
//! such identity, and are believed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::client::{ApiClient, ApiClientError, Call};

/// The file in the node's data directory that remembers the store.
pub const STORE_MEMORY: &str = "api-store";

#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreMemoryError {
    #[error(transparent)]
    Ask(#[from] ApiClientError),
    #[error(
        "the API has another store ({found}) than the one whose pods this node runs ({known}), and nothing is ended for it: \
         restore the API's store, or remove {path} to follow this one", path = path.display()
    )]
    OtherStore {
        known: String,
        found: String,
        path: PathBuf,
    },
    #[error("cannot use {path}: {source}", path = path.display())]
    File { path: PathBuf, source: io::Error },
}

/// What a server says about itself.
#[derive(Deserialize)]
struct Version {
    #[serde(rename = "pulseletStore")]
    store: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct StoreMemory(PathBuf);

impl StoreMemory {
    pub(crate) fn new(data_dir: &Path) -> Self {
        Self(data_dir.join(STORE_MEMORY))
    }

    /// Compares the API's store with the one that is remembered, and remembers the first.
    pub(crate) async fn check(&self, client: &ApiClient) -> Result<(), StoreMemoryError> {
        let version: Version = client.ask(Call::get("/version")).await?;
        match version.store {
            Some(found) => self.compare(found),
            None => Ok(()),
        }
    }

    /// Reads and writes a file of a few bytes.
    fn compare(&self, found: String) -> Result<(), StoreMemoryError> {
        let path = self.0.clone();
        match fs::read_to_string(&path) {
            Ok(known) if known.trim() == found => Ok(()),
            Ok(known) if known.trim().is_empty() => self.remember(&found),
            Ok(known) => Err(StoreMemoryError::OtherStore {
                known: known.trim().to_owned(),
                found,
                path,
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.remember(&found),
            Err(source) => Err(StoreMemoryError::File { path, source }),
        }
    }

    fn remember(&self, found: &str) -> Result<(), StoreMemoryError> {
        let path = self.0.clone();
        let written = pulselet_durable::replace(&path, format!("{found}\n").as_bytes(), 0o600);
        match written {
            // On a full disk the node must still follow the API.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                tracing::warn!(path = %path.display(), %error, "the API's store cannot be remembered");
                Ok(())
            }
            written => written.map_err(|source| StoreMemoryError::File { path, source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_store_is_refused_until_the_memory_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let memory = StoreMemory::new(directory.path());
        memory.compare("a".to_owned()).unwrap();
        memory.compare("a".to_owned()).unwrap();
        let error = memory.compare("b".to_owned()).unwrap_err();
        assert!(error.to_string().contains("api-store"), "{error}");
        fs::remove_file(directory.path().join(STORE_MEMORY)).unwrap();
        memory.compare("b".to_owned()).unwrap();
    }
}
