//! Which directory a data directory is, written down in itself.
//!
//! A directory that is moved within its file system keeps its device and number; a copy has others. So a directory whose
//! record names another one was copied, restored from a backup or moved to another file system.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

const FILE: &str = "agent.identity";
/// Only the owner of the directory reads it.
const MODE: u32 = 0o600;

/// A data directory, by its device and number, and the path that it had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryIdentity {
    pub path: PathBuf,
    device: u64,
    inode: u64,
}

impl DirectoryIdentity {
    /// The identity that the directory has now.
    pub fn of(directory: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(directory)?;
        Ok(Self {
            path: directory.to_owned(),
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }

    /// The identity that the last agent wrote down. `None` if an agent of an earlier build was the last, or none, or what
    /// it wrote is damaged.
    pub fn recorded(directory: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(directory.join(FILE)).ok()?).ok()
    }

    /// Whether both are one directory, even if it was moved.
    pub fn is_same_directory(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// Writes the identity into the directory, unless it says that already.
    pub fn record(&self) -> io::Result<()> {
        if Self::recorded(&self.path).as_ref() == Some(self) {
            return Ok(());
        }
        pulselet_durable::replace(&self.path.join(FILE), &serde_json::to_vec(self)?, MODE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_directory_is_the_same_and_a_copy_is_not() {
        let home = tempfile::tempdir().unwrap();
        let [before, after, copy] = ["before", "after", "copy"].map(|name| home.path().join(name));
        fs::create_dir(&before).unwrap();
        assert_eq!(DirectoryIdentity::recorded(&before), None);
        DirectoryIdentity::of(&before).unwrap().record().unwrap();
        fs::rename(&before, &after).unwrap();
        fs::create_dir(&copy).unwrap();
        fs::copy(after.join(FILE), copy.join(FILE)).unwrap();
        for (directory, is_same) in [(&after, true), (&copy, false)] {
            let recorded = DirectoryIdentity::recorded(directory).unwrap();
            let now = DirectoryIdentity::of(directory).unwrap();
            assert_eq!(recorded.path, before);
            assert_eq!(
                now.is_same_directory(&recorded),
                is_same,
                "{}",
                directory.display()
            );
            now.record().unwrap();
            assert_eq!(DirectoryIdentity::recorded(directory), Some(now));
        }
    }

    #[test]
    fn a_damaged_identity_counts_as_none() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join(FILE), "{").unwrap();
        assert_eq!(DirectoryIdentity::recorded(home.path()), None);
    }
}
