//! Who we are to the server: a random name, made once per data directory.
//!
//! It is a file and not made from the directory's path, so that a directory that was moved finds its containers again
//! and one that was emptied does not lay hands on those of another life.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use thiserror::Error;

const FILE: &str = "owner";
/// Bytes of a name that is read, twice those of one that is made.
const MAX_NAME: usize = 64;

#[derive(Debug, Error)]
pub enum OwnerError {
    #[error("cannot make {path}: {source}", path = path.display())]
    Make { path: PathBuf, source: io::Error },
    #[error("cannot read {path}: {source}", path = path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} does not hold a name; remove it if no pod runs, else restore it", path = path.display())]
    Broken { path: PathBuf },
}

/// Reads the name of a data directory, or gives it one.
pub(crate) fn load(root: &Path) -> Result<String, OwnerError> {
    let path = root.join(FILE);
    match fs::read_to_string(&path) {
        Ok(text) => {
            let name = text.trim_end();
            let is_name = !name.is_empty()
                && name.len() <= MAX_NAME
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
            if !is_name {
                return Err(OwnerError::Broken { path });
            }
            Ok(name.to_owned())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = format!("{:032x}", rand::random::<u128>());
            write(root, &path, &name).map_err(|source| OwnerError::Make { path, source })?;
            Ok(name)
        }
        Err(source) => Err(OwnerError::Read { path, source }),
    }
}

/// The name that a data directory has already.
pub(crate) fn find(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join(FILE)).ok()?;
    Some(text.trim_end().to_owned()).filter(|name| !name.is_empty())
}

/// Whether a data directory has a name.
pub(crate) fn exists(root: &Path) -> bool {
    root.join(FILE).exists()
}

/// On disk before the first container carries it.
fn write(root: &Path, path: &Path, name: &str) -> io::Result<()> {
    fs::create_dir_all(root)?;
    let new = path.with_extension("new");
    let mut file = fs::File::create(&new)?;
    writeln!(file, "{name}")?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    fs::File::open(root)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_keeps_its_name_and_others_have_others() {
        let [one, other] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let name = load(one.path()).expect("made");
        assert_eq!(load(one.path()).expect("read"), name);
        assert_ne!(load(other.path()).expect("made"), name);
    }

    #[test]
    fn a_broken_name_is_not_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        for text in ["", "a b", "../x", &"x".repeat(65)] {
            fs::write(directory.path().join(FILE), text).expect("written");
            assert!(
                matches!(load(directory.path()), Err(OwnerError::Broken { .. })),
                "{text:?}"
            );
        }
    }
}
