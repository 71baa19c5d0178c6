//! Reads: the present, a past state, and the changes between two points.

use std::sync::Arc;

use bytes::Bytes;
use flate2::Crc;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use crate::{Change, Integrity, ListPage, Range, Revision, StoreError, StoredObject, prefix_end};

fn failed(source: rusqlite::Error) -> StoreError {
    StoreError::Read { source }
}

/// Revisions are stored as `SQLite`'s signed integers; the counter never gets near their end.
pub(super) fn to_sql(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

pub(super) fn from_sql(value: i64) -> Revision {
    Revision(u64::try_from(value).unwrap_or(0))
}

fn counter(connection: &Connection, name: &str) -> rusqlite::Result<Revision> {
    connection
        .prepare_cached("SELECT value FROM counters WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .map(from_sql)
}

pub(super) fn latest(connection: &Connection) -> rusqlite::Result<Revision> {
    counter(connection, "revision")
}

/// Changes up to and including this one can no longer be listed.
pub(super) fn compacted(connection: &Connection) -> rusqlite::Result<Revision> {
    counter(connection, "compacted")
}

pub(super) fn current(connection: &Connection, key: &str) -> rusqlite::Result<Option<StoredObject>> {
    connection
        .prepare_cached("SELECT key, revision, value, checksum FROM current WHERE key = ?1")?
        .query_row([key], entry)
        .optional()
}

/// The change that made a key what it is; `None` if it is absent.
pub(super) fn current_revision(connection: &Connection, key: &str) -> rusqlite::Result<Option<Revision>> {
    connection
        .prepare_cached("SELECT revision FROM current WHERE key = ?1")?
        .query_row([key], |row| row.get(0).map(from_sql))
        .optional()
}

fn entry(row: &Row<'_>) -> rusqlite::Result<StoredObject> {
    let value = Bytes::from(row.get::<_, Vec<u8>>(2)?);
    Ok(StoredObject {
        key: key(row, 0)?,
        revision: from_sql(row.get(1)?),
        integrity: integrity(&value, row.get(3)?),
        value,
    })
}

/// What is stored beside a value: its CRC-32.
pub(super) fn checksum(value: &[u8]) -> i64 {
    let mut checksum = Crc::new();
    checksum.update(value);
    i64::from(checksum.sum())
}

/// What the checksum beside a value says of it.
pub(super) fn integrity(value: &[u8], stored: Option<i64>) -> Integrity {
    match stored {
        Some(stored) if stored == checksum(value) => Integrity::Intact,
        Some(_) => Integrity::Damaged,
        None => Integrity::Unknown,
    }
}

/// A key whose bytes are damaged is nobody's name any more, and must not keep a list from the others.
fn key(row: &Row<'_>, column: usize) -> rusqlite::Result<String> {
    match row.get_ref(column)? {
        ValueRef::Text(bytes) => Ok(String::from_utf8_lossy(bytes).into_owned()),
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) | ValueRef::Blob(_) => row.get(column),
    }
}

/// A value and the newest revision, in one statement because that sees one state. `SQLite` would prepare a join anew
/// for every key.
const SELECT_ONE: &str = "
SELECT key, revision, value, checksum, (SELECT value FROM counters WHERE name = 'revision') FROM current WHERE key = ?1";

pub(super) fn get(
    connection: &mut Connection,
    key: &str,
) -> Result<(Option<StoredObject>, Revision), StoreError> {
    let mut statement = connection.prepare_cached(SELECT_ONE).map_err(failed)?;
    let found = statement.query_row([key], |row| Ok((entry(row)?, from_sql(row.get(4)?))));
    drop(statement);
    if let Some((found, revision)) = found.optional().map_err(failed)? {
        return Ok((Some(found), revision));
    }
    let transaction = connection.transaction().map_err(failed)?;
    let revision = latest(&transaction).map_err(failed)?;
    let found = current(&transaction, key).map_err(failed)?;
    Ok((found, revision))
}

pub(super) fn range(connection: &mut Connection, range: &Range) -> Result<ListPage, StoreError> {
    let transaction = connection.transaction().map_err(failed)?;
    let newest = latest(&transaction).map_err(failed)?;
    let revision = range.at.unwrap_or(newest);
    if revision != newest {
        check_window(&transaction, revision, newest)?;
    }
    select(&transaction, range, revision, revision == newest).map_err(failed)
}

/// The keys of a range at a revision: those not changed since, and for the others what they held before the first
/// change since.
const SELECT_PAST: &str = "
SELECT key, revision, value, checksum FROM current WHERE key > ?1 AND key < ?2 AND revision <= ?3
UNION ALL
SELECT key, previous_revision, previous, NULL FROM history AS later
WHERE key > ?1 AND key < ?2 AND revision > ?3 AND previous IS NOT NULL AND previous_revision <= ?3
ORDER BY key";
const SELECT_PRESENT: &str = "
SELECT key, revision, value, checksum FROM current WHERE key > ?1 AND key < ?2 AND revision <= ?3 ORDER BY key";

fn select(
    transaction: &Transaction<'_>,
    range: &Range,
    revision: Revision,
    present: bool,
) -> rusqlite::Result<ListPage> {
    let query = if present { SELECT_PRESENT } else { SELECT_PAST };
    let mut statement = transaction.prepare_cached(query)?;
    // A key is longer than the prefix of its kind, so "after the prefix" leaves none out.
    let after = range.after.as_deref().unwrap_or(&range.prefix);
    let end = String::from_utf8_lossy(&prefix_end(&range.prefix)).into_owned();
    let mut rows = statement.query(params![after, end, to_sql(revision)])?;
    let limit = range.limit.unwrap_or(usize::MAX);
    let max_bytes = range.max_bytes.unwrap_or(usize::MAX);
    let mut bytes = 0;
    let mut page = ListPage {
        entries: Vec::new(),
        revision,
        remaining: 0,
    };
    while let Some(row) = rows.next()? {
        if page.entries.len() < limit && bytes < max_bytes {
            let entry = entry(row)?;
            bytes += entry.value.len();
            page.entries.push(entry);
        } else {
            page.remaining += 1;
        }
    }
    Ok(page)
}

/// Whether changes after this revision can still be listed.
pub(super) fn check_readable(
    connection: &Connection,
    asked: Revision,
    newest: Revision,
) -> Result<(), StoreError> {
    check_window(connection, asked, newest.max(latest(connection).map_err(failed)?))
}

fn check_window(connection: &Connection, asked: Revision, newest: Revision) -> Result<(), StoreError> {
    if asked > newest {
        return Err(StoreError::Future { asked, newest });
    }
    let oldest = compacted(connection).map_err(failed)?;
    if asked < oldest {
        return Err(StoreError::Compacted { asked, oldest });
    }
    Ok(())
}

/// At most `limit` changes of the history after a position, those that match, and the position after them. Fewer once they
/// have more than `max_bytes` of values.
pub(super) fn history(
    connection: &mut Connection,
    prefix: &str,
    after: Revision,
    limit: usize,
    max_bytes: usize,
) -> Result<(Vec<Arc<Change>>, Revision), StoreError> {
    let transaction = connection.transaction().map_err(failed)?;
    let oldest = compacted(&transaction).map_err(failed)?;
    if after < oldest {
        return Err(StoreError::Compacted { asked: after, oldest });
    }
    let mut statement = transaction
        .prepare_cached(
            "SELECT revision, key, value, previous_revision, previous FROM history WHERE revision > ?1 \
             ORDER BY revision LIMIT ?2",
        )
        .map_err(failed)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![to_sql(after), limit]).map_err(failed)?;
    let (mut changes, mut position, mut bytes) = (Vec::new(), after, 0);
    while let Some(row) = rows.next().map_err(failed)? {
        let change = change(row).map_err(failed)?;
        position = change.revision;
        if change.key.starts_with(prefix) {
            bytes += change.bytes();
            changes.push(Arc::new(change));
        }
        if bytes > max_bytes {
            break;
        }
    }
    Ok((changes, position))
}

fn change(row: &Row<'_>) -> rusqlite::Result<Change> {
    let key = key(row, 1)?;
    let previous = match (row.get::<_, Option<i64>>(3)?, row.get::<_, Option<Vec<u8>>>(4)?) {
        (Some(revision), Some(value)) => Some(StoredObject {
            key: key.clone(),
            revision: from_sql(revision),
            value: Bytes::from(value),
            integrity: Integrity::Unknown,
        }),
        _ => None,
    };
    Ok(Change {
        revision: from_sql(row.get(0)?),
        value: row.get::<_, Option<Vec<u8>>>(2)?.map(Bytes::from),
        integrity: Integrity::Unknown,
        key,
        previous,
    })
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;

    #[test]
    fn no_read_prepares_its_statement_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut connection =
            super::super::schema::open_writer(&directory.path().join("store")).expect("opens");
        for key in ["/a/1", "/a/2"] {
            connection
                .execute("INSERT INTO current VALUES (?1, 1, x'00', 3)", [key])
                .expect("writes");
        }
        for key in ["/a/1", "/a/2", "/a/3"] {
            get(&mut connection, key).expect("reads");
            let of_one = Range {
                prefix: key.to_owned(),
                ..Range::default()
            };
            range(&mut connection, &of_one).expect("reads");
            current_revision(&connection, key).expect("reads");
        }
        for query in [
            SELECT_ONE,
            SELECT_PRESENT,
            "SELECT revision FROM current WHERE key = ?1",
        ] {
            let statement = connection.prepare_cached(query).expect("prepares");
            assert!(statement.get_status(StatementStatus::Run) > 1, "{query}");
            assert_eq!(statement.get_status(StatementStatus::RePrepare), 0, "{query}");
        }
    }
}
