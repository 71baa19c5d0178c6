//! Copies of a store, and looking whether one is whole. None of it needs a server; all of it blocks.

use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::{reader, schema};
use crate::{Integrity, StoreError, StoreIdentity};

/// Added to the revision of a store that is restored, so that no revision ever means two states: clients that have seen
/// what the backup does not have begin anew.
const REVISION_LEAP: i64 = 1_000_000;

/// What a look at a store has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReport {
    pub objects: usize,
    pub revision: u64,
    /// What is wrong with the file itself; empty if nothing is.
    pub file: Vec<String>,
    /// The keys of values that are not what was written.
    pub damaged: Vec<String>,
}

impl CheckReport {
    pub fn is_whole(&self) -> bool {
        self.file.is_empty() && self.damaged.is_empty()
    }
}

/// Looks at every page and every value. `is_whole` says whether a value is what was written.
pub fn check(path: &Path, is_whole: impl Fn(&[u8], Integrity) -> bool) -> Result<CheckReport, StoreError> {
    let failed = |source| StoreError::Read { source };
    let connection = schema::open_reader(path)?;
    let mut report = CheckReport {
        objects: 0,
        revision: reader::latest(&connection).map_err(failed)?.0,
        file: page_errors(&connection).map_err(failed)?,
        damaged: Vec::new(),
    };
    let checksum = match schema::has_checksums(&connection) {
        Ok(true) => "checksum",
        Ok(false) => "NULL",
        Err(source) => return Err(failed(source)),
    };
    let mut statement = connection
        .prepare(&format!(
            "SELECT key, value, {checksum} FROM current ORDER BY key"
        ))
        .map_err(failed)?;
    let mut rows = statement.query([]).map_err(failed)?;
    // What cannot be read any more is in the report already: a page is damaged.
    while let Ok(Some(row)) = rows.next() {
        report.objects += 1;
        let (Ok(key), value) = (row.get::<_, String>(0), row.get::<_, Vec<u8>>(1)) else {
            report.file.push("a key cannot be read".to_owned());
            continue;
        };
        let checksum = row.get::<_, Option<i64>>(2).unwrap_or_default();
        let is_whole = |value: Vec<u8>| is_whole(&value, reader::integrity(&value, checksum));
        if !value.is_ok_and(is_whole) {
            report.damaged.push(key);
        }
    }
    Ok(report)
}

fn page_errors(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare("PRAGMA integrity_check(20)")?;
    let lines = statement.query_map([], |row| row.get::<_, String>(0))?;
    let lines: Vec<String> = lines.collect::<rusqlite::Result<_>>()?;
    Ok(lines.into_iter().filter(|line| line != "ok").collect())
}

/// Copies a store, also while a server uses it, into a new file.
pub fn backup(path: &Path, to: &Path) -> Result<(), StoreError> {
    if to.exists() {
        return Err(copy_failed(to, "there is a file already"));
    }
    copy(path, to)
}

/// Puts a backup in the place of a store that no server uses. Returns where that one was put, if there was one.
pub fn restore(backup: &Path, path: &Path) -> Result<Option<PathBuf>, StoreError> {
    let fresh = path.with_extension("restoring");
    let _ = fs::remove_file(&fresh);
    copy(backup, &fresh)?;
    let (identity, revision) = leap(&fresh).map_err(|error| copy_failed(&fresh, &error.to_string()))?;
    let aside = put_aside(path).map_err(|error| copy_failed(path, &error.to_string()))?;
    let settled = StoreIdentity {
        identity,
        open: false,
        revision,
    };
    let moved = fs::File::open(&fresh)
        .and_then(|file| file.sync_all())
        .and_then(|()| fs::rename(&fresh, path))
        .and_then(|()| pulselet_durable::sync_directory(path.parent().unwrap_or(Path::new("."))));
    moved.map_err(|error| copy_failed(path, &error.to_string()))?;
    settled.write(path)?;
    Ok(aside)
}

fn copy_failed(path: &Path, message: &str) -> StoreError {
    StoreError::Copy {
        path: path.display().to_string(),
        message: message.to_owned(),
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), StoreError> {
    let connection = schema::open_reader(from)?;
    let name = to
        .to_str()
        .ok_or_else(|| copy_failed(to, "the name is not UTF-8"))?;
    let copied = reader::latest(&connection).and_then(|_| connection.execute("VACUUM INTO ?1", [name]));
    copied.map_err(|error| copy_failed(to, &error.to_string()))?;
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(to, private)
        .and_then(|()| fs::File::open(to)?.sync_all())
        .map_err(|error| copy_failed(to, &error.to_string()))
}

/// Moves the revision on and forgets the history, which others may have seen go on differently.
fn leap(path: &Path) -> rusqlite::Result<(String, u64)> {
    let mut connection = Connection::open(path)?;
    let identity = match schema::identity(&connection)? {
        Some(identity) => identity,
        None => schema::new_identity(&connection)?,
    };
    let transaction = connection.transaction()?;
    transaction.execute(
        "UPDATE counters SET value = value + ?1 WHERE name = 'revision'",
        [REVISION_LEAP],
    )?;
    transaction.execute(
        "UPDATE counters SET value = (SELECT value FROM counters WHERE name = 'revision') WHERE name = 'compacted'",
        [],
    )?;
    transaction.execute("DELETE FROM history", [])?;
    schema::set_identity(&transaction, &identity)?;
    transaction.commit()?;
    let revision = reader::latest(&connection)?;
    Ok((identity, revision.0))
}

/// Renames a store and what belongs to it.
fn put_aside(path: &Path) -> std::io::Result<Option<PathBuf>> {
    let stamp = jiff::Timestamp::now().as_millisecond();
    let with = |tail: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(tail);
        PathBuf::from(name)
    };
    let aside = with(&format!(".before-restore-{stamp}"));
    for tail in ["-wal", "-shm"] {
        let mut to = aside.as_os_str().to_owned();
        to.push(tail);
        match fs::rename(with(tail), PathBuf::from(to)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    match fs::rename(path, &aside) {
        Ok(()) => Ok(Some(aside)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
