//! Tables, and the statements that change them.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use pulselet_engine::time::Time;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Transaction, params};

use super::{Batch, EVENTS_PER_POD, EventRow, KILLS_IN_ALL, KILLS_PER_CONTAINER, KillRow, Write};
use crate::state::clock::Base;

/// Keys of the table `meta`.
pub(super) const BASE: &str = "clock";
pub(super) const LAST: &str = "last";

/// How long a reader or the writer waits for the other's lock; both hold it for moments only.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Pages of cache in KiB (negative: `SQLite`'s way to say KiB). The state of a thousand pods is read once.
const CACHE: &str = "-512";

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pods (uid TEXT PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS specs (
    uid TEXT NOT NULL, generation INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (uid, generation)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    uid TEXT NOT NULL, container TEXT NOT NULL, severity TEXT NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL,
    count INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    UNIQUE (uid, container, reason, message)
);
CREATE TABLE IF NOT EXISTS kills (
    uid TEXT NOT NULL, pod TEXT NOT NULL, container TEXT NOT NULL, attempt INTEGER NOT NULL, at INTEGER NOT NULL,
    lines TEXT NOT NULL, UNIQUE (uid, container, attempt, at)
);
CREATE INDEX IF NOT EXISTS kills_of_container ON kills (pod, container, at);
CREATE INDEX IF NOT EXISTS kills_by_time ON kills (at);
";

/// Kept in the file's `user_version`. 0 were files without a number, whose tables and rows are the same. A change of either gets
/// the next number and a step in [`migrate`] that leads to it.
pub(super) const FORMAT: i64 = 1;

/// The format of a file that is there, looked at without writing to it; `None` if it cannot be told.
pub(super) fn format_of(path: &Path) -> Option<i64> {
    if !path.exists() {
        return None;
    }
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
    connection.busy_timeout(BUSY_TIMEOUT).ok()?;
    user_version(&connection).ok()
}

fn user_version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0))
}

fn migrate(connection: &Connection) -> rusqlite::Result<()> {
    if user_version(connection)? < FORMAT {
        connection.pragma_update(None, "user_version", FORMAT)?;
    }
    Ok(())
}

/// A new file is its owner's alone, and so are those that `SQLite` makes beside it.
pub(super) fn open(path: &Path) -> rusqlite::Result<Connection> {
    let mut private = OpenOptions::new();
    // What fails here fails in a moment again, and is reported then.
    let _ = private.write(true).create_new(true).mode(0o600).open(path);
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "cache_size", CACHE)?;
    connection.execute_batch(TABLES)?;
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict == "ok" {
        migrate(&connection)?;
        return Ok(connection);
    }
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    Err(rusqlite::Error::SqliteFailure(code, Some(verdict)))
}

/// Reads the file alone, without its log and without a lock, so that no other file is needed beside it. Right only for
/// a file that its last user has closed.
pub(super) fn open_unchanged(path: &Path) -> rusqlite::Result<Connection> {
    let mut name = String::from("file:");
    for character in path.to_string_lossy().chars() {
        match character {
            '%' => name.push_str("%25"),
            '?' => name.push_str("%3f"),
            '#' => name.push_str("%23"),
            plain => name.push(plain),
        }
    }
    name.push_str("?immutable=1");
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(name, flags)
}

pub(super) fn meta(connection: &Connection, key: &str) -> rusqlite::Result<Option<String>> {
    let mut statement = connection.prepare("SELECT value FROM meta WHERE key = ?")?;
    statement.query_row([key], |row| row.get(0)).optional()
}

fn set_meta(connection: &Connection, key: &str, value: &str) -> rusqlite::Result<()> {
    let mut statement =
        connection.prepare_cached("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)")?;
    statement.execute([key, value]).map(drop)
}

fn save_base(connection: &Connection, base: &Base) -> rusqlite::Result<()> {
    let text = serde_json::to_string(base).expect("a base is plain data");
    set_meta(connection, BASE, &text)
}

/// Writes all of a batch or nothing; with it where the time line begins, if that is new.
pub(super) fn commit(
    connection: &mut Connection,
    batch: &Batch,
    base: Option<&Base>,
) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    if let Some(base) = base {
        save_base(&transaction, base)?;
    }
    for write in &batch.writes {
        apply(&transaction, write)?;
    }
    if batch.writes.iter().any(|write| matches!(write, Write::Kill(_))) {
        forget_old_kills(&transaction)?;
    }
    set_meta(&transaction, LAST, &batch.now.as_micros().to_string())?;
    transaction.commit()
}

fn apply(transaction: &Transaction<'_>, write: &Write) -> rusqlite::Result<()> {
    let run = |sql: &str, values: &[&dyn rusqlite::ToSql]| -> rusqlite::Result<()> {
        transaction.prepare_cached(sql)?.execute(values).map(drop)
    };
    match write {
        Write::Record { uid, body } => run(
            "INSERT INTO pods (uid, record) VALUES (?, ?) ON CONFLICT (uid) DO UPDATE SET record = excluded.record",
            &[uid, body],
        ),
        Write::Spec {
            uid,
            generation,
            body,
        } => run(
            "INSERT OR REPLACE INTO specs (uid, generation, body) VALUES (?, ?, ?)",
            &[uid, generation, body],
        ),
        Write::ForgetSpec { uid, generation } => run(
            "DELETE FROM specs WHERE uid = ? AND generation = ?",
            &[uid, generation],
        ),
        Write::Forget { uid } => {
            run("DELETE FROM pods WHERE uid = ?", &[uid])?;
            run("DELETE FROM specs WHERE uid = ?", &[uid])?;
            run("DELETE FROM events WHERE uid = ?", &[uid])
        }
        Write::Event(event) => add_event(transaction, event),
        Write::Kill(kill) => save_kill(transaction, kill),
        // A file, written by the writer once the transaction stands.
        Write::Spare { .. } => Ok(()),
    }
}

fn add_event(transaction: &Transaction<'_>, event: &EventRow) -> rusqlite::Result<()> {
    let mut insert = transaction.prepare_cached(
        "INSERT INTO events (uid, container, severity, reason, message, count, first, last)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (uid, container, reason, message)
         DO UPDATE SET count = count + excluded.count, last = excluded.last",
    )?;
    let EventRow {
        uid,
        container,
        severity,
        reason,
        message,
        count,
        first,
        last,
    } = event;
    insert.execute(params![
        uid, container, severity, reason, message, count, first, last
    ])?;
    let mut prune = transaction.prepare_cached(
        "DELETE FROM events WHERE uid = ?1 AND (SELECT count(*) FROM events WHERE uid = ?1) > ?2 AND rowid NOT IN
         (SELECT rowid FROM events WHERE uid = ?1 ORDER BY last DESC, rowid DESC LIMIT ?2)",
    )?;
    prune.execute(params![uid, EVENTS_PER_POD]).map(drop)
}

fn save_kill(transaction: &Transaction<'_>, kill: &KillRow) -> rusqlite::Result<()> {
    let KillRow {
        uid,
        pod,
        container,
        attempt,
        at,
        lines,
    } = kill;
    let at = micros(*at);
    let mut save = transaction.prepare_cached(
        "INSERT INTO kills (uid, pod, container, attempt, at, lines) VALUES (?, ?, ?, ?, ?, ?)
         ON CONFLICT (uid, container, attempt, at) DO UPDATE SET lines = excluded.lines",
    )?;
    save.execute(params![uid, pod, container, attempt, at, lines])?;
    let mut prune = transaction.prepare_cached(
        "DELETE FROM kills WHERE pod = ?1 AND container = ?2 AND rowid NOT IN
         (SELECT rowid FROM kills WHERE pod = ?1 AND container = ?2 ORDER BY at DESC LIMIT ?3)",
    )?;
    prune
        .execute(params![pod, container, KILLS_PER_CONTAINER])
        .map(drop)
}

/// Once per batch: it looks at all of them.
fn forget_old_kills(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    let mut prune = transaction.prepare_cached(
        "DELETE FROM kills WHERE rowid IN (SELECT rowid FROM kills ORDER BY at DESC LIMIT -1 OFFSET ?)",
    )?;
    prune.execute([KILLS_IN_ALL]).map(drop)
}

/// `SQLite`'s integers are signed; engine time passes 2^63 microseconds in the year 294,000.
fn micros(at: Time) -> i64 {
    i64::try_from(at.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_new_database_is_its_owners_alone() {
        let directory = tempfile::tempdir().unwrap();
        let _connection = open(&directory.path().join("node.db")).unwrap();
        for entry in std::fs::read_dir(directory.path()).unwrap().flatten() {
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{entry:?}");
        }
    }
}
