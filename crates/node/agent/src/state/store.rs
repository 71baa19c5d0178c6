//! The node's memory on disk: one `SQLite` file, one thread that writes it.
//!
//! The agent hands over one [`Batch`] at a time and is notified when it is committed; what gathers meanwhile goes into the
//! next, so commits are few under load and immediate without. A batch that cannot be written (a full disk) is tried
//! again until it can: nothing is dropped. Room is kept for that, and given up when it is needed. A file that is not a
//! database is kept aside, and the spare copies beside it take its place, as they do if there is no file. On a disk so full that the database cannot even be opened for writing, it is read as it is, and opened later.
//! What the rows mean is left to others.

mod schema;
mod spare;
mod writer;

use std::path::{Path, PathBuf};

use pulselet_durable::Reserve;
use pulselet_engine::time::Time;
use pulselet_vocabulary::PodName;
use rusqlite::{Connection, ErrorCode, params};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::state::clock::{Base, Clock, Continuity};
use crate::state::layout::Layout;
pub(crate) use spare::{Spare, load as load_spare};
use writer::{Database, Lacks};
pub(crate) use writer::{Note, Writer};

/// Kills remembered per container, the newest ones.
pub(crate) const KILLS_PER_CONTAINER: u32 = 50;
/// Kills remembered in all, finished pods included: a few megabytes at most.
pub(crate) const KILLS_IN_ALL: u32 = 5_000;
/// Distinct events remembered per pod, the newest ones.
pub(crate) const EVENTS_PER_POD: u32 = 200;

/// Everything that is committed together.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) number: u64,
    /// How far the time line has come.
    pub(crate) now: Time,
    pub(crate) writes: Vec<Write>,
}

#[derive(Debug)]
pub(crate) enum Write {
    Record {
        uid: String,
        body: Vec<u8>,
    },
    Spec {
        uid: String,
        generation: u32,
        body: Vec<u8>,
    },
    ForgetSpec {
        uid: String,
        generation: u32,
    },
    /// The pod is gone; its kills stay.
    Forget {
        uid: String,
    },
    Event(EventRow),
    Kill(KillRow),
    /// Kept beside the database, for the day on which that cannot be read.
    Spare {
        uid: String,
        body: Vec<u8>,
    },
}

/// An event, as it happened once; equal ones are counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventRow {
    #[serde(skip)]
    pub(crate) uid: String,
    /// Empty where it concerns the pod.
    pub container: String,
    /// Normal or Warning.
    #[serde(rename = "type")]
    pub severity: String,
    pub reason: String,
    pub message: String,
    pub count: u32,
    /// Seconds since 1970, as the wall clock had them.
    pub first: i64,
    pub last: i64,
}

/// A kill and what led to it: event lines, one a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KillRow {
    pub(crate) uid: String,
    /// namespace/name
    pub(crate) pod: String,
    pub(crate) container: String,
    pub(crate) attempt: u32,
    /// Engine time of the decision.
    pub(crate) at: Time,
    pub(crate) lines: String,
}

/// One pod as the last agent left it.
#[derive(Debug)]
pub(crate) struct StoredPod {
    pub(crate) uid: String,
    pub(crate) record: Vec<u8>,
    pub(crate) specs: Vec<(u32, Vec<u8>)>,
    /// It is a spare copy: the database may not have it.
    pub(crate) is_spare: bool,
}

/// What an agent finds when it starts.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) writer: Writer,
    pub(crate) clock: Clock,
    pub(crate) continuity: Continuity,
    pub(crate) pods: Vec<StoredPod>,
    /// Where an unreadable database was put.
    pub(crate) kept_aside: Option<PathBuf>,
}

#[derive(Debug, Error)]
pub enum NodeStoreError {
    #[error("cannot open the state in {path}: {source}; is the disk full or read-only?", path = path.display())]
    Open { path: PathBuf, source: rusqlite::Error },
    #[error("cannot read the state in {path}: {source}", path = path.display())]
    Read { path: PathBuf, source: rusqlite::Error },
    #[error(
        "the state in {path} has format {found}, this program knows {known}: it was written by a newer one; use that",
        path = path.display()
    )]
    Newer { path: PathBuf, found: i64, known: i64 },
    #[error("cannot keep the unreadable state {path} aside: {source}", path = path.display())]
    KeepAside { path: PathBuf, source: std::io::Error },
    #[error("cannot start the thread that writes the state: {source}")]
    Thread { source: std::io::Error },
}

/// Opens the store of a data directory, in whatever state it is.
pub(crate) fn open(layout: &Layout) -> Result<Opened, NodeStoreError> {
    let path = layout.database();
    let known = schema::FORMAT;
    if let Some(found) = schema::format_of(&path).filter(|found| *found > known) {
        return Err(NodeStoreError::Newer { path, found, known });
    }
    let mut reserve = Reserve::take(layout.reserve());
    let mut kept_aside = None;
    let mut loaded = load(&path);
    if loaded.as_ref().is_err_and(is_full) && reserve.give_up() {
        loaded = load(&path);
    }
    if loaded.as_ref().is_err_and(is_corrupt) {
        kept_aside = Some(keep_aside(&path)?);
        loaded = load(&path);
    }
    let (connection, contents) = match loaded {
        Ok((connection, contents)) => (Some(connection), contents),
        Err(error) if is_full(&error) => (None, read_full_disk(&path, &error)?),
        Err(source) => return Err(NodeStoreError::Open { path, source }),
    };
    let Contents { base, last, mut pods } = contents;
    if kept_aside.is_some() || base.is_none() {
        pods = spare::load_all(layout);
    }
    let (clock, base, continuity) = Clock::resume(base.as_ref(), last);
    let database = Database {
        path,
        connection,
        reserve,
        base,
        lacks: Lacks::Base,
    };
    let writer =
        Writer::start(database, layout.clone()).map_err(|source| NodeStoreError::Thread { source })?;
    Ok(Opened {
        writer,
        clock,
        continuity,
        pods,
        kept_aside,
    })
}

/// The state on a disk that has no room to open it for writing: what the last agent left when it closed the file.
fn read_full_disk(path: &Path, error: &rusqlite::Error) -> Result<Contents, NodeStoreError> {
    tracing::error!(
        path = %path.display(),
        %error,
        "the node's state cannot be opened for writing; going on with what is there: make room on the disk"
    );
    let read = || read_contents(&schema::open_unchanged(path)?);
    read().map_err(|source| NodeStoreError::Open {
        path: path.to_owned(),
        source,
    })
}

/// What a database holds of the last agent.
#[derive(Debug)]
struct Contents {
    base: Option<Base>,
    last: Time,
    pods: Vec<StoredPod>,
}

fn load(path: &Path) -> rusqlite::Result<(Connection, Contents)> {
    let connection = schema::open(path)?;
    let contents = read_contents(&connection)?;
    Ok((connection, contents))
}

fn read_contents(connection: &Connection) -> rusqlite::Result<Contents> {
    let base = schema::meta(connection, schema::BASE)?.and_then(|text| serde_json::from_str(&text).ok());
    let last = schema::meta(connection, schema::LAST)?
        .and_then(|text| text.parse().ok())
        .unwrap_or_default();
    let mut pods = Vec::new();
    let mut rows = connection.prepare("SELECT uid, record FROM pods ORDER BY rowid")?;
    let mut specs =
        connection.prepare("SELECT generation, body FROM specs WHERE uid = ? ORDER BY generation")?;
    for row in rows.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))? {
        let (uid, record) = row?;
        let specs = specs.query_map([&uid], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let specs = specs.collect::<rusqlite::Result<_>>()?;
        pods.push(StoredPod {
            uid,
            record,
            specs,
            is_spare: false,
        });
    }
    Ok(Contents {
        base,
        last: Time::from_micros(last),
        pods,
    })
}

/// Whether the disk has no room. `SQLite` reports that in several ways, depending on which file it could not extend.
fn is_full(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(
        code,
        Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure | ErrorCode::CannotOpen)
    )
}

/// Whether the file is no database, one with other tables than ours, or one whose texts are damaged.
fn is_corrupt(error: &rusqlite::Error) -> bool {
    let foreign = matches!(
        error,
        rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::Utf8Error(..)
            | rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::SqlInputError { .. }
    );
    // What is asked of it never changes: what it does not understand is a table or a column that it has no more.
    let not_understood = error
        .sqlite_error()
        .is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_ERROR);
    let code = error.sqlite_error_code();
    foreign || not_understood || matches!(code, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

/// Renames the file and what `SQLite` keeps beside it.
fn keep_aside(path: &Path) -> Result<PathBuf, NodeStoreError> {
    let stamp = jiff::Timestamp::now().as_millisecond();
    let with = |suffix: &str, tail: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(tail);
        name.push(suffix);
        PathBuf::from(name)
    };
    let aside = format!(".corrupt-{stamp}");
    for tail in ["", "-wal", "-shm"] {
        let from = with("", tail);
        match std::fs::rename(&from, with(&aside, tail)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(NodeStoreError::KeepAside {
                    path: from,
                    source: error,
                });
            }
            _ => {}
        }
    }
    Ok(with(&aside, ""))
}

/// Reads beside the writer, for requests. Every call blocks.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    path: PathBuf,
}

impl Reader {
    pub(crate) fn new(layout: &Layout) -> Self {
        Self {
            path: layout.database(),
        }
    }

    fn connect(&self) -> rusqlite::Result<Connection> {
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY | rusqlite::OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(schema::BUSY_TIMEOUT)?;
        Ok(connection)
    }

    /// The records of kills as event lines, those of one kill together, in order of the kills. Without
    /// a name, those of all pods.
    pub(crate) fn kills(
        &self,
        pod: Option<&PodName>,
        container: Option<&str>,
    ) -> Result<String, NodeStoreError> {
        let read = || {
            let connection = self.connect()?;
            let mut statement = connection.prepare(
                "SELECT lines FROM kills
                 WHERE (?1 IS NULL OR pod = ?1) AND (?2 IS NULL OR container = ?2) ORDER BY at, rowid",
            )?;
            let pod = pod.map(ToString::to_string);
            let kills = statement.query_map(params![pod, container], |row| row.get::<_, String>(0))?;
            kills.collect::<rusqlite::Result<String>>()
        };
        read().map_err(|source| self.failed(source))
    }

    /// The events of a pod, oldest first.
    pub(crate) fn events(&self, uid: &str) -> Result<Vec<EventRow>, NodeStoreError> {
        let read = || {
            let connection = self.connect()?;
            let mut statement = connection.prepare(
                "SELECT container, severity, reason, message, count, first, last FROM events
                 WHERE uid = ? ORDER BY last, rowid",
            )?;
            let events = statement.query_map([uid], |row| {
                Ok(EventRow {
                    uid: uid.to_owned(),
                    container: row.get(0)?,
                    severity: row.get(1)?,
                    reason: row.get(2)?,
                    message: row.get(3)?,
                    count: row.get(4)?,
                    first: row.get(5)?,
                    last: row.get(6)?,
                })
            })?;
            events.collect::<rusqlite::Result<_>>()
        };
        read().map_err(|source| self.failed(source))
    }

    fn failed(&self, source: rusqlite::Error) -> NodeStoreError {
        NodeStoreError::Read {
            path: self.path.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(message: &str, last: i64) -> Write {
        Write::Event(EventRow {
            uid: "u".into(),
            container: "app".into(),
            severity: "Warning".into(),
            reason: "Unhealthy".into(),
            message: message.into(),
            count: 1,
            first: last,
            last,
        })
    }

    fn kill(attempt: u32, lines: &str) -> Write {
        Write::Kill(KillRow {
            uid: "u".into(),
            pod: "default/web".into(),
            container: "app".into(),
            attempt,
            at: Time::from_micros(attempt.into()),
            lines: lines.into(),
        })
    }

    /// Writes to a file that turns out to be damaged: it is begun anew, with what the spare copy has.
    fn commit_costs_no_pod(damage: impl FnOnce(&Path) -> Option<Connection>) {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        let body = r#"{"uid": "u", "record": {"kept": true}, "specs": [[0, {}]]}"#;
        std::fs::create_dir_all(layout.pod("u")).unwrap();
        std::fs::write(layout.spare("u"), body).unwrap();
        let connection = damage(&layout.database());
        let (_, base, _) = Clock::resume(None, Time::ZERO);
        let mut database = Database {
            path: layout.database(),
            connection,
            reserve: Reserve::found(layout.reserve()),
            base,
            lacks: Lacks::Base,
        };
        let batch = Batch {
            number: 1,
            now: Time::from_micros(7),
            writes: vec![event("seen", 1)],
        };
        database.commit(&layout, &batch).unwrap();
        let (_, contents) = load(&layout.database()).unwrap();
        assert_eq!(contents.pods[0].record, br#"{"kept": true}"#);
        assert!(contents.base.is_some() && contents.pods[0].specs.len() == 1);
    }

    /// The disk was full at the start, so that the damage shows when the file is opened to be written.
    #[test]
    fn damage_that_shows_when_the_state_is_written_costs_no_pod() {
        commit_costs_no_pod(|path| {
            std::fs::write(path, [0xff; 8192]).unwrap();
            None
        });
    }

    /// A flipped byte in the text by which the file describes its own tables.
    #[test]
    fn a_table_that_has_lost_a_column_costs_no_pod() {
        commit_costs_no_pod(|path| {
            let connection = schema::open(path).unwrap();
            connection
                .execute_batch("ALTER TABLE events RENAME COLUMN count TO coent")
                .unwrap();
            Some(connection)
        });
    }

    fn record(body: &str) -> Write {
        Write::Record {
            uid: "u".into(),
            body: body.into(),
        }
    }

    /// Writes each batch, and returns what the next agent finds.
    async fn after(directory: &Path, batches: Vec<Vec<Write>>) -> (Opened, Reader) {
        let layout = Layout::new(directory);
        let mut opened = open(&layout).unwrap();
        for (number, writes) in (0..).zip(batches) {
            opened.writer.submit(Batch {
                number,
                now: Time::from_micros(number),
                writes,
            });
            assert!(matches!(opened.writer.note().await, Note::Committed { number: done } if done == number));
        }
        drop(opened);
        (open(&layout).unwrap(), Reader::new(&layout))
    }

    #[tokio::test]
    async fn equal_events_are_counted_and_old_ones_make_room() {
        let directory = tempfile::tempdir().unwrap();
        let many = (0..i64::from(EVENTS_PER_POD) + 50).map(|n| event(&format!("failure {n}"), n));
        let batches = vec![
            vec![event("refused", 1_000), event("refused", 1_001)],
            many.collect(),
            vec![event("refused", 1_002)],
        ];
        let (_opened, reader) = after(directory.path(), batches).await;
        let events = reader.events("u").unwrap();
        assert_eq!(events.len(), usize::try_from(EVENTS_PER_POD).unwrap());
        let newest = events.last().unwrap();
        assert_eq!((newest.count, newest.first, newest.last), (3, 1_000, 1_002));
        assert!(events.iter().all(|event| event.message != "failure 0"));
    }

    #[tokio::test]
    async fn kills_outlive_their_pod_and_are_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let forget = Write::Forget { uid: "u".into() };
        let mut writes = vec![record("{}"), kill(0, "begun\n"), kill(0, "begun\nended\n")];
        writes.extend((1..=KILLS_PER_CONTAINER).map(|n| kill(n, &format!("kill {n}\n"))));
        let (opened, reader) = after(directory.path(), vec![writes, vec![forget]]).await;
        assert!(opened.pods.is_empty());
        let kills = reader
            .kills(Some(&PodName::new("default", "web")), Some("app"))
            .unwrap();
        assert_eq!(
            kills.lines().count(),
            usize::try_from(KILLS_PER_CONTAINER).unwrap()
        );
        assert!(kills.starts_with("kill 1\n"));
        assert_eq!(
            reader
                .kills(Some(&PodName::new("default", "other")), None)
                .unwrap(),
            ""
        );
    }

    #[tokio::test]
    async fn pods_come_back_with_their_manifests_and_the_line_of_time_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let spec = |generation| Write::Spec {
            uid: "u".into(),
            generation,
            body: format!("{{\"n\":{generation}}}").into(),
        };
        let dropped = Write::ForgetSpec {
            uid: "u".into(),
            generation: 0,
        };
        let batches = vec![vec![spec(0), record("1")], vec![spec(1), dropped, record("2")]];
        let (opened, _) = after(directory.path(), batches).await;
        let pod = &opened.pods[0];
        assert_eq!((pod.uid.as_str(), pod.record.as_slice()), ("u", b"2".as_slice()));
        assert_eq!(pod.specs, [(1, b"{\"n\":1}".to_vec())]);
        assert_eq!(opened.continuity, Continuity::SameBoot);
        assert!(opened.kept_aside.is_none());
    }

    /// What a database is with one change that no agent would make.
    async fn spares_are_used_after(change: &str) {
        let directory = tempfile::tempdir().unwrap();
        let spare = br#"{"uid":"u","record":{"a":1},"specs":[[0,{"b":2}]]}"#;
        let write = Write::Spare {
            uid: "u".into(),
            body: spare.to_vec(),
        };
        let (opened, _) = after(directory.path(), vec![vec![record("{}"), write]]).await;
        drop(opened);
        let path = Layout::new(directory.path()).database();
        Connection::open(&path).unwrap().execute_batch(change).unwrap();
        let opened = open(&Layout::new(directory.path())).unwrap();
        assert!(opened.kept_aside.is_some_and(|aside| aside.exists()));
        assert_eq!(opened.pods[0].record, br#"{"a":1}"#);
        assert_eq!(opened.pods[0].specs, [(0, br#"{"b":2}"#.to_vec())]);
    }

    #[tokio::test]
    async fn a_database_of_another_kind_is_kept_aside_and_spares_are_used() {
        spares_are_used_after("DROP TABLE pods; CREATE TABLE pods (something INTEGER)").await;
    }

    #[tokio::test]
    async fn a_text_with_a_flipped_byte_is_damage_as_any_other() {
        spares_are_used_after("UPDATE pods SET uid = CAST(x'75ff' AS TEXT)").await;
    }
}
