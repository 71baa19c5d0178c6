//! Which store a file is, remembered beside it.
//!
//! A database that was deleted, emptied, replaced, or that lost its log opens without complaint and knows less than its
//! clients were told. To those who act on what is missing (a node ends pods that the API does not have) that is worse
//! than no store at all. So the store has an identity, kept inside and beside it, and the file beside it says whether a
//! log must be there. What must always hold: a store whose two identities differ is not opened.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::StoreError;

/// What is known beside a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreIdentity {
    pub identity: String,
    /// It was in use when this was written: without its log it is not whole.
    pub open: bool,
    /// It has been at this revision.
    pub revision: u64,
}

impl StoreIdentity {
    /// The file beside a store.
    pub fn path(store: &Path) -> PathBuf {
        store.with_extension("identity")
    }

    /// `None` if nothing is known: the store is new, or of an earlier build.
    pub(super) fn read(store: &Path) -> Result<Option<Self>, StoreError> {
        let path = Self::path(store);
        let failed = |source| StoreError::Identify {
            path: path.display().to_string(),
            source,
        };
        match fs::read(&path) {
            Ok(text) => {
                let parsed = serde_json::from_slice(&text);
                // A file that says nothing remembers nothing, and the store's own identity is as good.
                Ok(parsed.ok())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    pub(super) fn write(&self, store: &Path) -> Result<(), StoreError> {
        let path = Self::path(store);
        let text = serde_json::to_vec(self).expect("an identity is plain data");
        pulselet_durable::replace(&path, &text, 0o600).map_err(|source| StoreError::Identify {
            path: path.display().to_string(),
            source,
        })
    }

    /// Whether what was found in the file can be what was there. `log_bytes` is the size of its log.
    pub(super) fn check(&self, found: Option<&str>, revision: u64, log_bytes: u64) -> Result<(), String> {
        match found {
            None => Err("it is empty".to_owned()),
            Some(found) if found != self.identity => Err(format!(
                "it is another store ({found}) than the one that was here ({})",
                self.identity
            )),
            Some(_) if self.open && log_bytes == 0 => {
                Err("its log is missing, the file with -wal at the end of its name (if you know that somebody has closed \
                     the database since, remove the file with .identity at the end of its name)"
                    .to_owned())
            }
            Some(_) if revision < self.revision => Err(format!(
                "it is at revision {revision}, but it has been at {}",
                self.revision
            )),
            Some(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_store_with_all_of_its_past_is_accepted() {
        let known = StoreIdentity {
            identity: "a".into(),
            open: true,
            revision: 7,
        };
        assert_eq!(known.check(Some("a"), 7, 1), Ok(()));
        for (found, revision, log) in [
            (None, 7, 1),
            (Some("b"), 7, 1),
            (Some("a"), 6, 1),
            (Some("a"), 7, 0),
        ] {
            assert!(
                known.check(found, revision, log).is_err(),
                "{found:?} {revision} {log}"
            );
        }
        let closed = StoreIdentity { open: false, ..known };
        assert_eq!(
            closed.check(Some("a"), 7, 0),
            Ok(()),
            "a store that was closed has no log"
        );
    }
}
