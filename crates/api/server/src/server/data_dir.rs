//! The data directory: one server at a time, and nobody else.
//!
//! It holds secrets, the key of the certificate authority and the administrator's credentials. Whatever of it was open
//! to others, made by an earlier version or by hand, is closed before anything is read.

use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::ServeError;

/// The mode of directories and of files.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// What a group or others may do.
const OTHERS: u32 = 0o077;
/// The bit of a directory that is meant for everybody, such as `/tmp`. It is not ours to close.
const SHARED: u32 = 0o1000;

const LOCK: &str = "api.lock";
/// The files of the server, apart from kubeconfigs and what is in `pki`.
const FILES: [&str; 7] = [
    LOCK,
    "api.db",
    "api.db-shm",
    "api.db-wal",
    "api.identity",
    "api.reserve",
    "tokens.csv",
];

/// Creates the directory or makes it private, and locks it, so that only one server uses it.
pub(super) fn claim(path: &Path) -> Result<File, ServeError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE)
        .create(path)
        .map_err(|source| ServeError::CreateDataDir {
            path: path.to_owned(),
            source,
        })?;
    make_private(path)?;
    let failed = |source| ServeError::Lock {
        path: path.to_owned(),
        source,
    };
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(FILE_MODE)
        .open(path.join(LOCK))
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(ServeError::Locked {
            path: path.to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// Closes the directory and the server's files in it to everybody else.
fn make_private(path: &Path) -> Result<(), ServeError> {
    tighten(path, DIRECTORY_MODE)?;
    for name in FILES {
        tighten(&path.join(name), FILE_MODE)?;
    }
    for kubeconfig in entries(path)? {
        if kubeconfig.extension().is_some_and(|it| it == "kubeconfig") {
            tighten(&kubeconfig, FILE_MODE)?;
        }
    }
    let authority = path.join("pki");
    tighten(&authority, DIRECTORY_MODE)?;
    for file in entries(&authority)? {
        tighten(&file, FILE_MODE)?;
    }
    Ok(())
}

/// What is in a directory; nothing if there is none.
fn entries(path: &Path) -> Result<Vec<PathBuf>, ServeError> {
    let failed = |source| ServeError::MakePrivate {
        path: path.to_owned(),
        source,
    };
    let listed = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed.map_err(failed)?,
    };
    let paths: io::Result<Vec<PathBuf>> = listed.map(|entry| entry.map(|entry| entry.path())).collect();
    paths.map_err(failed)
}

/// Takes away what others may do with a file. One that is not there is fine, and a link is nobody's own.
fn tighten(path: &Path, mode: u32) -> Result<(), ServeError> {
    let failed = |source| ServeError::MakePrivate {
        path: path.to_owned(),
        source,
    };
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata.map_err(failed)?,
    };
    let found = metadata.permissions().mode() & 0o777;
    if found & OTHERS == 0 || metadata.is_symlink() {
        return Ok(());
    }
    if metadata.is_dir() && metadata.permissions().mode() & SHARED != 0 {
        tracing::warn!(path = %path.display(), "the data directory is shared with other users");
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed)?;
    tracing::warn!(
        path = %path.display(),
        "the mode of a file of the server was {found:o}, open to others; it is {mode:o} now"
    );
    Ok(())
}
