//! The files a shim keeps in its container's directory, for itself and for every later agent.
//!
//! `life.json` says that the container's one life has begun, `exit.json` how it ended. Both appear whole or not at all.
//! The exit is on the disk itself before [`write_exit`] returns; a life ends with the machine anyway, so for that the
//! page cache is enough. `shim.lock` is locked as long as the shim lives.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write},
    path::Path,
};

use jiff::Timestamp;
use pulselet_runtime::ContainerExit;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::protocol::to_json;

/// The agent's own record of what was asked for. It is the first to come and the first to go: without it there is no
/// container.
pub const CONTAINER_FILE: &str = "container.json";
pub const LIFE_FILE: &str = "life.json";
pub const EXIT_FILE: &str = "exit.json";
pub const LOCK_FILE: &str = "shim.lock";
pub const SOCKET_FILE: &str = "shim.sock";

/// Largest record that is read, in bytes. Ours have a few hundred; a configuration may have long variables.
const MAX_RECORD: u64 = 8 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LifeRecord {
    /// The init process is about to be started.
    Launching,
    Running {
        pid: i32,
        started_at: Timestamp,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("cannot write {file}: {source}")]
    Write { file: String, source: io::Error },
    #[error("cannot read {file}: {source}")]
    Read { file: String, source: io::Error },
    #[error("{file} is damaged: {source}")]
    Parse { file: String, source: serde_json::Error },
}

/// How far a written record has got when the call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Survives the death of this process.
    Process,
    /// Survives the loss of power.
    Disk,
}

pub fn write_life(dir: &Path, life: LifeRecord) -> Result<(), RecordError> {
    write(dir, LIFE_FILE, &life, Durability::Process)
}

pub fn write_exit(dir: &Path, exit: &ContainerExit) -> Result<(), RecordError> {
    write(dir, EXIT_FILE, exit, Durability::Disk)
}

pub fn read_life(dir: &Path) -> Result<Option<LifeRecord>, RecordError> {
    read(dir, LIFE_FILE)
}

pub fn read_exit(dir: &Path) -> Result<Option<ContainerExit>, RecordError> {
    read(dir, EXIT_FILE)
}

/// Replaces a record in one step.
pub fn write<T: Serialize>(
    dir: &Path,
    name: &str,
    record: &T,
    durability: Durability,
) -> Result<(), RecordError> {
    let temporary = dir.join(format!(".{name}.new"));
    let result = (|| {
        let mut file = File::create(&temporary)?;
        file.write_all(&to_json(record))?;
        if durability == Durability::Disk {
            file.sync_data()?;
        }
        fs::rename(&temporary, dir.join(name))?;
        if durability == Durability::Disk {
            File::open(dir)?.sync_all()?;
        }
        Ok(())
    })();
    if result.is_err() {
        // On a full disk the remains would take the room that is missing.
        let _ = fs::remove_file(&temporary);
    }
    result.map_err(|source| RecordError::Write {
        file: dir.join(name).display().to_string(),
        source,
    })
}

/// Returns `None` if there is no such record.
pub fn read<T: DeserializeOwned>(dir: &Path, name: &str) -> Result<Option<T>, RecordError> {
    let path = dir.join(name);
    let failed = |source| RecordError::Read {
        file: path.display().to_string(),
        source,
    };
    let bytes = match File::open(&path) {
        Ok(file) => {
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut io::Read::take(file, MAX_RECORD), &mut bytes).map_err(failed)?;
            bytes
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|source| RecordError::Parse {
            file: path.display().to_string(),
            source,
        })
}

/// Takes the lock that only a living shim has. Returns `None` if there is one.
pub fn try_lock(dir: &Path) -> io::Result<Option<File>> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(dir.join(LOCK_FILE))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use pulselet_runtime::{ExitCause, exit_code};

    use super::*;

    #[test]
    fn records_read_back_and_replace_each_other() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(read_exit(dir.path()).expect("reads"), None);
        let mut exit = ContainerExit {
            started_at: Some(Timestamp::UNIX_EPOCH),
            finished_at: Timestamp::UNIX_EPOCH,
            code: exit_code::KILLED,
            reason: ExitCause::Error,
            message: String::new(),
            killed_after_grace: Some(true),
        };
        write_exit(dir.path(), &exit).expect("writes");
        exit.code = 3;
        write_exit(dir.path(), &exit).expect("writes again");
        assert_eq!(read_exit(dir.path()).expect("reads"), Some(exit));
        let names: Vec<_> = fs::read_dir(dir.path())
            .expect("lists")
            .map(|e| e.expect("an entry").file_name())
            .collect();
        assert_eq!(names, [EXIT_FILE], "no temporary file stays");
    }

    #[test]
    fn a_damaged_record_is_an_error_that_names_the_file() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join(LIFE_FILE), b"{\"Runn").expect("writes");
        let error = read_life(dir.path()).expect_err("it is cut short");
        assert!(error.to_string().contains("life.json is damaged"), "{error}");
    }

    #[test]
    fn only_one_shim_gets_the_lock() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = try_lock(dir.path()).expect("locks");
        assert!(first.is_some());
        assert!(try_lock(dir.path()).expect("asks").is_none());
        drop(first);
        assert!(try_lock(dir.path()).expect("locks").is_some());
    }
}
