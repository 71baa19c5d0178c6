//! The file's tables and how connections to it are set up.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _};

use crate::StoreError;

/// Kept in the file's `user_version`. A change of the tables that earlier builds cannot work with gets the next number and a
/// step in [`prepare`] that leads to it.
const FORMAT: i64 = 1;
/// How long a connection waits for a lock. Only a checkpoint ever holds one against a reader.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Pages of cache of a connection that reads, in KiB (negative: `SQLite`'s way to say KiB). The kernel caches the file
/// for all of them.
const READER_CACHE: &str = "-512";

const TABLES: &str = "
CREATE TABLE current (
  key TEXT PRIMARY KEY,
  revision INTEGER NOT NULL,
  value BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE history (
  revision INTEGER PRIMARY KEY,
  key TEXT NOT NULL,
  value BLOB,
  previous_revision INTEGER,
  previous BLOB
);
CREATE INDEX history_by_key ON history (key, revision);
CREATE TABLE counters (
  name TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO counters VALUES ('revision', 0), ('compacted', 0);
PRAGMA user_version = 1;
";

pub(super) fn open_writer(path: &Path) -> Result<Connection, StoreError> {
    let failed = |source| StoreError::Open {
        path: path.display().to_string(),
        source,
    };
    refuse_newer(path)?;
    // Secrets are inside: the file is the owner's alone from its first byte on. SQLite gives its side files the same
    // mode.
    let created = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path);
    if let Err(error) = created {
        let reason = rusqlite::Error::InvalidPath(format!("{}: {error}", path.display()).into());
        return Err(failed(reason));
    }
    let mut connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(failed)?;
    prepare(&mut connection).map_err(failed)?;
    let found: i64 = connection
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .map_err(failed)?;
    if found != FORMAT {
        return Err(format_error(path, found));
    }
    Ok(connection)
}

/// Beside the tables, in files of every format.
const IDENTITY: &str =
    "CREATE TABLE IF NOT EXISTS identity (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL)";

/// Which store a file is; `None` if it is none yet, or one of an earlier build.
pub(super) fn identity(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let is_there: bool = connection.query_row(
        "SELECT COUNT(*) > 0 FROM sqlite_schema WHERE name = 'identity'",
        [],
        |row| row.get(0),
    )?;
    if !is_there {
        return Ok(None);
    }
    connection
        .query_row("SELECT id FROM identity", [], |row| row.get(0))
        .optional()
}

pub(super) fn set_identity(connection: &Connection, id: &str) -> rusqlite::Result<()> {
    connection.execute_batch(IDENTITY)?;
    // In one statement: there must be no moment without an identity.
    connection
        .execute("INSERT OR REPLACE INTO identity (one, id) VALUES (1, ?1)", [id])
        .map(drop)
}

/// A random identity.
pub(super) fn new_identity(connection: &Connection) -> rusqlite::Result<String> {
    connection.query_row("SELECT lower(hex(randomblob(16)))", [], |row| row.get(0))
}

fn format_error(path: &Path, found: i64) -> StoreError {
    StoreError::Format {
        path: path.display().to_string(),
        found,
        known: FORMAT,
    }
}

/// Looks at a file that is there without writing to it. What is wrong with it otherwise is found when it is opened.
fn refuse_newer(path: &Path) -> Result<(), StoreError> {
    if !path.exists() {
        return Ok(());
    }
    let found = open(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
        .and_then(|connection| connection.query_row("PRAGMA user_version", [], |row| row.get(0)));
    match found {
        Ok(found) if found > FORMAT => Err(format_error(path, found)),
        Ok(_) | Err(_) => Ok(()),
    }
}

pub(super) fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    let opened = open(path, OpenFlags::SQLITE_OPEN_READ_ONLY).and_then(|connection| {
        connection.pragma_update(None, "cache_size", READER_CACHE)?;
        Ok(connection)
    });
    opened.map_err(|source| StoreError::Open {
        path: path.display().to_string(),
        source,
    })
}

/// Gives back the memory in which a connection remembers pages of the file. It reads again what it needs.
pub(super) fn forget_pages(connection: &Connection) {
    if let Err(error) = connection.execute_batch("PRAGMA shrink_memory") {
        tracing::debug!(%error, "a connection to the store gives back no memory");
    }
}

fn open(path: &Path, mode: OpenFlags) -> rusqlite::Result<Connection> {
    // Each connection stays on one thread at a time, so SQLite need not lock it.
    let connection = Connection::open_with_flags(path, mode | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // The log stays when the last connection is closed: that it is missing must mean that somebody took it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    Ok(connection)
}

/// Whether values have checksums in this file. Builds before them leave the column out of what they write, and so empty.
pub(super) fn has_checksums(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row(
        "SELECT COUNT(*) > 0 FROM pragma_table_info('current') WHERE name = 'checksum'",
        [],
        |row| row.get(0),
    )
}

fn prepare(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // FULL: a commit returns after its log is on disk.
    connection.pragma_update(None, "synchronous", "FULL")?;
    let transaction = connection.transaction()?;
    let version: i64 = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version == 0 {
        transaction.execute_batch(TABLES)?;
    }
    if !has_checksums(&transaction)? {
        transaction.execute_batch("ALTER TABLE current ADD COLUMN checksum INTEGER")?;
    }
    transaction.commit()
}
