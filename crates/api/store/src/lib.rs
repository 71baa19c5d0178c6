//! Where objects are kept: a map from keys to bytes with one revision counter over all of it.
//!
//! The trait asks for no more than etcd can also give: a range read at a revision, a compare-and-swap, and a watch
//! from a revision. What must always hold: a swap that was answered is durable; revisions only grow; a watch yields every
//! change after its start in order, or fails with [`StoreError::Compacted`].
//!
//! There are two: `sqlite` in a file, which is one server's own, and `etcd` in a cluster that several servers share.
//!
//! The store does not look into values. Kinds, names and rules are the registry's.

mod etcd;
mod identity;
mod sqlite;
mod window;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

pub use etcd::{EtcdConfig, EtcdStore, EtcdTls, ParseEtcdError};
pub use identity::StoreIdentity;
pub use sqlite::{CheckReport, HistoryLimits, SqliteStore, backup, check, restore};

/// A point in the order of all changes. Zero is before the first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A stored value and the change that made it so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    pub key: String,
    pub value: Bytes,
    pub revision: Revision,
    pub integrity: Integrity,
}

impl StoredObject {
    /// What has just been written.
    pub const fn written(key: String, value: Bytes, revision: Revision) -> Self {
        Self {
            key,
            value,
            revision,
            integrity: Integrity::Intact,
        }
    }
}

/// Whether a value is the one that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Integrity {
    /// Its checksum holds, or it never left memory.
    Intact,
    /// Its checksum does not hold.
    Damaged,
    /// It has none: look into it.
    Unknown,
}

/// What to read: keys that begin with `prefix`, in order.
#[derive(Debug, Clone, Default)]
pub struct Range {
    pub prefix: String,
    /// Only keys after this one.
    pub after: Option<String>,
    pub limit: Option<usize>,
    /// Read no more once this many bytes of values were read.
    pub max_bytes: Option<usize>,
    /// Read the state after this change; `None` for the newest state.
    pub at: Option<Revision>,
}

/// The answer to a [`Range`].
#[derive(Debug, Clone)]
pub struct ListPage {
    pub entries: Vec<StoredObject>,
    /// The state that was read.
    pub revision: Revision,
    /// How many more keys there are behind the limit.
    pub remaining: usize,
}

/// What must be true of a key for a swap to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    Absent,
    Present,
    /// Present, and last changed by exactly this change.
    Revision(Revision),
}

impl Expect {
    /// Whether it holds of a key with this revision; `None` if the key is absent.
    fn holds(self, found: Option<Revision>) -> bool {
        match self {
            Self::Absent => found.is_none(),
            Self::Present => found.is_some(),
            Self::Revision(revision) => found == Some(revision),
        }
    }
}

/// One change, and what must hold before it is made.
#[derive(Debug, Clone)]
pub struct Swap {
    pub key: String,
    pub expect: Expect,
    /// The new value; `None` deletes the key.
    pub value: Option<Bytes>,
    /// Conditions on other keys.
    pub guards: Vec<(String, Expect)>,
}

/// How a swap ended.
#[derive(Debug, Clone)]
pub enum Swapped {
    Done(Revision),
    /// The key was not as expected; this is what it holds.
    Conflict(Option<StoredObject>),
    /// A guard did not hold.
    GuardFailed {
        key: String,
    },
}

/// A change as watchers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub key: String,
    pub revision: Revision,
    /// What the key holds now; `None` after a deletion.
    pub value: Option<Bytes>,
    /// That of the value.
    pub integrity: Integrity,
    /// What the key held before; `None` if it was absent.
    pub previous: Option<StoredObject>,
}

impl Change {
    /// Bytes of its values, and of its key.
    pub fn bytes(&self) -> usize {
        let previous = self.previous.as_ref().map_or(0, |entry| entry.value.len());
        self.key.len() + self.value.as_ref().map_or(0, Bytes::len) + previous
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot open the store at {path}: {source}")]
    Open { path: String, source: rusqlite::Error },
    #[error(
        "the store at {path} has format {found}, this program knows {known}: it was written by a newer one; use that"
    )]
    Format { path: String, found: i64, known: i64 },
    #[error("cannot start the writer of the store: {source}")]
    StartWriter { source: std::io::Error },
    #[error("cannot read from the store: {source}")]
    Read { source: rusqlite::Error },
    #[error("cannot write to the store: {message}")]
    Write { message: String },
    /// The file is not the one that was there, or not all of it.
    #[error(
        "the store at {path} does not know its own past: {why}; it would end every pod that it has forgotten"
    )]
    Forgetful { path: String, why: String },
    #[error("cannot write down which store is at {path}: {source}")]
    Identify { path: String, source: std::io::Error },
    #[error("cannot copy the store to {path}: {message}")]
    Copy { path: String, message: String },
    #[error("the store is closed")]
    Closed,
    #[error("cannot read {path}, which the connections to etcd need: {source}")]
    ReadCredential { path: String, source: std::io::Error },
    /// Nothing was changed.
    #[error("cannot reach etcd: {message}")]
    Unreachable { message: String },
    /// Nobody knows whether the change was made.
    #[error("etcd did not say whether the change was made: {message}; look before you try again")]
    Unanswered { message: String },
    #[error("the object is larger than etcd takes")]
    TooLarge,
    #[error("revision {asked} is gone; the oldest that can still be read is {oldest}")]
    Compacted { asked: Revision, oldest: Revision },
    #[error("revision {asked} is not there yet; the newest is {newest}")]
    Future { asked: Revision, newest: Revision },
}

/// Keys and values with a history of changes.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// The value of a key, and the revision at which it was read.
    async fn get(&self, key: &str) -> Result<(Option<StoredObject>, Revision), StoreError>;

    async fn range(&self, range: Range) -> Result<ListPage, StoreError>;

    /// Makes a change if the expectations hold. Durable once it returns.
    async fn swap(&self, swap: Swap) -> Result<Swapped, StoreError>;

    /// Which store this is: the same for as long as it knows what it was told.
    fn identity(&self) -> &str;

    /// Whether other servers change it, too: what one of them remembers may then be old.
    fn is_shared(&self) -> bool;

    /// Why changes cannot be written now; `None` if they can, as far as is known.
    fn trouble(&self) -> Option<String>;

    /// Brings everything into the one file, so that a copy of it is a backup.
    async fn settle(&self) -> Result<(), StoreError>;

    /// Every change after `after` of keys that begin with `prefix`.
    async fn watch(&self, prefix: String, after: Revision) -> Result<Box<dyn Watch>, StoreError>;
}

/// A running watch. It holds a position, not a queue: a slow reader costs no memory.
#[async_trait]
pub trait Watch: fmt::Debug + Send {
    /// Waits for the next changes; never empty. Dropping the future loses nothing.
    async fn next(&mut self) -> Result<Vec<Arc<Change>>, StoreError>;

    /// Every change up to here has been returned or did not concern this watch.
    fn position(&self) -> Revision;
}

/// The first string after all that begin with `prefix`.
fn prefix_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            break;
        }
    }
    end
}
