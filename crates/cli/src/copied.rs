//! Data directories that were copied: only one of two directories has the containers that both know of.
//!
//! A directory that an agent has used tells which one it is. Another one may have its records all the same: a copy, a
//! restored backup, a directory that was moved to another disk. It is used like any other if nothing of its pods is alive
//! (after a restart of the machine nothing is) or if what is alive has lost its own directory. It is not used as long as
//! its pods are those of the original.

use std::path::{Path, PathBuf};

use pulselet_agent::{DataDir, DirectoryIdentity};

use crate::exit::Failure;
use crate::runtime::{cri_owner, roots_with_shims};

/// Returns an error if the pods of the directory are those of another one. Nothing is changed.
pub(crate) fn reject(data_dir: &Path) -> Result<(), Failure> {
    match original(data_dir)? {
        None => Ok(()),
        Some(original) => Err(rejected(data_dir, &original)),
    }
}

/// The same for a directory that this process has claimed; one that can be used learns which one it is.
pub(crate) fn check(data_dir: &DataDir) -> Result<(), Failure> {
    let path = data_dir.path();
    reject(path)?;
    let recorded = DirectoryIdentity::of(path).and_then(|identity| identity.record());
    if let Err(error) = recorded {
        // A full disk keeps no agent from its pods.
        tracing::warn!(path = %path.display(), %error, "cannot record the identity of the data directory");
    }
    Ok(())
}

fn rejected(data_dir: &Path, original: &Path) -> Failure {
    let (copy, original) = (data_dir.display(), original.display());
    let message =
        format_args!("cannot use the data directory {copy}: it is a copy of {original}, which has the pods");
    Failure::environment(message).with_hint(format_args!(
        "`pulselet reset --data-dir {copy} --yes` removes the copy and no pod; to use the copy instead, end the pods \
         with `pulselet reset --data-dir {original} --yes`"
    ))
}

/// The directory that has the pods of this one.
pub(crate) fn original(data_dir: &Path) -> Result<Option<PathBuf>, Failure> {
    // A directory that does not exist yet is no copy; one that cannot be looked at is reported by its user.
    let Ok(identity) = DirectoryIdentity::of(data_dir) else {
        return Ok(None);
    };
    let recorded = DirectoryIdentity::recorded(data_dir);
    if recorded
        .as_ref()
        .is_some_and(|it| it.is_same_directory(&identity))
    {
        return Ok(None);
    }
    for root in roots_with_shims(data_dir) {
        let found = pulselet_runtime_oci::live_original(&root).map_err(|error| {
            Failure::environment(format_args!(
                "cannot tell whether {} is a copy: {error}",
                data_dir.display()
            ))
        })?;
        if let Some(other) = found {
            return Ok(Some(other.parent().unwrap_or(&other).to_owned()));
        }
    }
    Ok(recorded
        .map(|it| it.path)
        .filter(|path| is_same_owner(data_dir, path)))
}

/// Whether a CRI server takes the containers of one directory for those of the other, which still exists.
fn is_same_owner(data_dir: &Path, recorded: &Path) -> bool {
    data_dir != recorded && cri_owner(data_dir).is_some_and(|own| cri_owner(recorded) == Some(own))
}
