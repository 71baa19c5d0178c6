//! The files a shim keeps in its container's directory, for itself and for every later agent.
//!
//! `life.json` says that the container's one life has begun, `exit.json` how it ended. Both appear whole or not at all.
//! The exit is on the disk itself before [`write_exit`] returns; a life ends with the machine anyway, so for that the
//! page cache is enough. `shim.lock` is locked as long as the shim lives.
//!
//! Every record says in which format it is written; one that does not is of the time before formats were counted. A record of
//! a format that is not known yet is an error of its own, for which nothing is removed or replaced.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write},
    path::Path,
};

use jiff::Timestamp;
use pulselet_runtime::{ContainerExit, ContainerUser};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::protocol::to_json;

/// The agent's own record of what was asked for. It is the first to come and the first to go: without it there is no
/// container.
pub const CONTAINER_FILE: &str = "container.json";
pub const LIFE_FILE: &str = "life.json";
pub const EXIT_FILE: &str = "exit.json";
pub const LOCK_FILE: &str = "shim.lock";
pub const SOCKET_FILE: &str = "shim.sock";

/// The format in which records are written. 0 were those without a number.
pub const FORMAT: u32 = 1;

/// A record and its format, as they are in a file.
#[derive(Serialize)]
struct Written<'a, T> {
    format: u32,
    record: &'a T,
}

#[derive(Deserialize)]
struct Read<'a> {
    format: u32,
    #[serde(borrow)]
    record: &'a RawValue,
}

/// Largest record that is read, in bytes. Ours have a few hundred; a configuration may have long variables.
const MAX_RECORD: u64 = 8 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LifeRecord {
    /// The init process is about to be started.
    Launching,
    Running {
        pid: i32,
        started_at: Timestamp,
        /// `None` also in records from before it was kept.
        #[serde(default)]
        user: Option<ContainerUser>,
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
    #[error(
        "{file} has format {found}, this program knows {FORMAT}: it was written by a newer one; use that, or end its pods \
         with it first"
    )]
    Newer { file: String, found: u32 },
}

/// How far a written record has got when the call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Survives the death of this process.
    Process,
    /// Survives the loss of power.
    Disk,
}

pub fn write_life(dir: &Path, life: &LifeRecord) -> Result<(), RecordError> {
    write(dir, LIFE_FILE, life, Durability::Process)
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
        let written = Written {
            format: FORMAT,
            record,
        };
        file.write_all(&to_json(&written))?;
        match durability {
            Durability::Process => fs::rename(&temporary, dir.join(name)),
            Durability::Disk => {
                file.sync_data()?;
                fs::rename(&temporary, dir.join(name))?;
                File::open(dir)?.sync_all()
            }
        }
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

/// Brings a record to the disk that was written for this process's death alone.
pub fn sync(dir: &Path, name: &str) -> Result<(), RecordError> {
    let synced = File::open(dir.join(name))
        .and_then(|file| file.sync_data())
        .and_then(|()| File::open(dir)?.sync_all());
    synced.map_err(|source| RecordError::Write {
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
    let file = || path.display().to_string();
    let parsed = match serde_json::from_slice::<Read<'_>>(&bytes) {
        Ok(Read { format, .. }) if format > FORMAT => {
            return Err(RecordError::Newer {
                file: file(),
                found: format,
            });
        }
        Ok(Read { record, .. }) => serde_json::from_str(record.get()),
        Err(_) => serde_json::from_slice(&bytes),
    };
    parsed
        .map(Some)
        .map_err(|source| RecordError::Parse { file: file(), source })
}

/// Fails if a record of a directory is of a format that is not known yet. What else may be wrong with one is found when it is
/// read.
pub fn refuse_newer(dir: &Path) -> Result<(), RecordError> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Ok(());
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if Path::new(name)
            .extension()
            .is_none_or(|extension| extension != "json")
        {
            continue;
        }
        if let Err(error @ RecordError::Newer { .. }) = read::<serde::de::IgnoredAny>(dir, name) {
            return Err(error);
        }
    }
    Ok(())
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
    fn a_record_without_a_format_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let plain = r#"{"Running":{"pid":7,"started_at":"2026-01-01T00:00:00Z"}}"#;
        fs::write(dir.path().join(LIFE_FILE), plain).expect("writes");
        let life = read_life(dir.path()).expect("reads").expect("it is there");
        assert!(matches!(
            life,
            LifeRecord::Running {
                pid: 7,
                user: None,
                ..
            }
        ));
        fs::write(dir.path().join(LIFE_FILE), r#""Launching""#).expect("writes");
        assert_eq!(read_life(dir.path()).expect("reads"), Some(LifeRecord::Launching));
        write_life(dir.path(), &life).expect("writes");
        let text = fs::read_to_string(dir.path().join(LIFE_FILE)).expect("reads");
        assert!(text.starts_with(r#"{"format":1,"record":"#), "{text}");
    }

    #[test]
    fn a_record_of_a_newer_format_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        refuse_newer(dir.path()).expect("there is none");
        let newer = r#"{"format":2,"record":{"Elsewhere":1}}"#;
        fs::write(dir.path().join(LIFE_FILE), newer).expect("writes");
        for error in [
            read_life(dir.path()).expect_err("it is newer"),
            refuse_newer(dir.path()).expect_err("it is newer"),
        ] {
            let text = error.to_string();
            assert!(
                text.contains("life.json has format 2, this program knows 1"),
                "{text}"
            );
        }
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
