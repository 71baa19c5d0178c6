//! The directories below the root, and the records the agent keeps in them.
//!
//! ```text
//! sandboxes/<id>/sandbox.json     what was asked for; its state and addresses
//! containers/<id>/container.json  what was asked for
//!                 life.json, exit.json, shim.lock, shim.sock    the shim's
//! ```
//! In both, the kind of container may keep more. A directory counts from the moment its record is in it, and no longer
//! once the record is removed: whenever the agent dies, the next one finds whole objects, and remains it can delete.
//!
//! Records are not waited for on the disk. What they describe ends with the machine, and an agent of a later boot asks
//! them only what to clear away: one that a power cut left empty is removed with its directory. What must outlive the
//! machine is in the agent's own database; what a kind of container leaves outside of this root and on the disk, it
//! records there first, with [`sync_sandbox`].

use std::{
    fs, io,
    net::IpAddr,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use pulselet_durable::remove_tree;
use pulselet_runtime::{
    BoxError, ContainerConfig, ContainerId, IdRange, LogLimits, SandboxConfig, SandboxId, SandboxState,
    Signal,
};
use pulselet_shim::{
    LOG_FILE_SIZE, LOG_FILES, ShimConfig,
    record::{self, Durability, RecordError},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use pulselet_shim::record::CONTAINER_FILE;
pub const SANDBOX_FILE: &str = "sandbox.json";

/// The directories of sandboxes and of containers, below a root.
pub(crate) const SANDBOXES: &str = "sandboxes";
pub(crate) const CONTAINERS: &str = "containers";

/// Bytes of randomness in an id.
const ID_BYTES: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRecord {
    pub id: ContainerId,
    pub sandbox: SandboxId,
    /// In which boot of the machine it was made.
    pub boot_id: String,
    pub created_at: Timestamp,
    /// The effective one.
    pub stop_signal: Signal,
    pub config: ContainerConfig,
    /// Of its log; `None` if nobody has set any, and the usual ones apply.
    #[serde(default)]
    pub log_limits: Option<LogLimits>,
}

impl ContainerRecord {
    /// What the container's shim needs to know besides how to launch. `dir` is the container's directory.
    pub fn shim_config(&self, dir: &Path) -> ShimConfig {
        let limits = self.log_limits.unwrap_or(LogLimits {
            file_size: LOG_FILE_SIZE,
            files: LOG_FILES,
        });
        ShimConfig {
            dir: dir.to_owned(),
            log_path: self.config.log_path.clone(),
            log_file_size: if self.config.log_rotated_by_caller {
                u64::MAX
            } else {
                limits.file_size
            },
            log_files: limits.files,
            stop_signal: self.stop_signal,
            stdin: self.config.stdin,
            stdin_once: self.config.stdin_once,
            tty: self.config.tty,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxRecord {
    pub id: SandboxId,
    pub boot_id: String,
    pub created_at: Timestamp,
    pub state: SandboxState,
    /// The pod's; taken as long as the sandbox is there.
    pub addresses: Vec<IpAddr>,
    /// The same of a pod that has users of its own; `None` if its users are the host's.
    #[serde(default)]
    pub user_ids: Option<IdRange>,
    pub config: SandboxConfig,
}

/// What a sandbox has that no other may have at the same time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Assignment {
    pub addresses: Vec<IpAddr>,
    pub user_ids: Option<IdRange>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("cannot make {path}: {source}")]
    MakeDirectory { path: PathBuf, source: io::Error },
    #[error("cannot read {path}: {source}")]
    List { path: PathBuf, source: io::Error },
    #[error("cannot remove {path}: {source}")]
    Remove { path: PathBuf, source: io::Error },
    #[error("cannot prepare {path}: {source}")]
    Prepare { path: PathBuf, source: BoxError },
    #[error("cannot tell which boot of the machine this is: {0}")]
    BootId(io::Error),
    #[error("no random numbers: {0}")]
    Random(io::Error),
    #[error(transparent)]
    Record(#[from] RecordError),
}

#[derive(Debug, Clone)]
pub(crate) struct Store {
    sandboxes: PathBuf,
    containers: PathBuf,
    pub(crate) boot_id: String,
}

/// A directory with its record, or why that cannot be read.
pub(crate) struct Found<T> {
    pub(crate) dir: PathBuf,
    pub(crate) record: Result<T, RecordError>,
}

impl<T> Found<T> {
    /// The error of a record that may be readable later.
    pub(crate) fn unless_unreadable(self) -> Result<Self, StoreError> {
        match self.record {
            Err(
                error @ (RecordError::Read { .. } | RecordError::Write { .. } | RecordError::Newer { .. }),
            ) => Err(error.into()),
            record @ (Ok(_) | Err(RecordError::Parse { .. })) => Ok(Self { record, ..self }),
        }
    }
}

impl Store {
    /// Makes the directories if they are missing and deletes remains. Nothing is changed if one of the records is of a format
    /// that is not known yet.
    pub(crate) fn open(root: &Path) -> Result<Self, StoreError> {
        let root = std::path::absolute(root).map_err(|source| StoreError::MakeDirectory {
            path: root.to_owned(),
            source,
        })?;
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(StoreError::BootId)?;
        let store = Self {
            sandboxes: root.join(SANDBOXES),
            containers: root.join(CONTAINERS),
            boot_id: boot_id.trim().to_owned(),
        };
        refuse_newer(&store.sandboxes)?;
        refuse_newer(&store.containers)?;
        make_private_directory(&store.sandboxes)?;
        make_private_directory(&store.containers)?;
        delete_remains(&store.sandboxes, SANDBOX_FILE)?;
        delete_remains(&store.containers, CONTAINER_FILE)?;
        Ok(store)
    }

    pub(crate) fn container_dir(&self, id: &ContainerId) -> PathBuf {
        self.containers.join(id.as_str())
    }

    /// As long as the directories of containers are, and none of them.
    pub(crate) fn any_container_dir(&self) -> PathBuf {
        self.containers.join("-".repeat(2 * ID_BYTES))
    }

    pub(crate) fn sandbox_dir(&self, id: &SandboxId) -> PathBuf {
        self.sandboxes.join(id.as_str())
    }

    /// The record comes last: what `prepare` makes in the directory is there when the container is.
    pub(crate) fn put_container(
        &self,
        record: &ContainerRecord,
        prepare: impl FnOnce(&Path) -> Result<(), BoxError>,
    ) -> Result<(), StoreError> {
        let dir = self.container_dir(&record.id);
        let made = make_private_directory(&dir).and_then(|()| {
            prepare(&dir).map_err(|source| StoreError::Prepare {
                path: dir.clone(),
                source,
            })?;
            Ok(record::write(&dir, CONTAINER_FILE, record, Durability::Process)?)
        });
        if made.is_err() {
            // On a full disk it would stay, and take room, until the next start.
            let _ = remove_tree(&dir);
        }
        made
    }

    /// A record that `outlives_machine` is on the disk when this returns.
    pub(crate) fn put_sandbox(
        &self,
        record: &SandboxRecord,
        outlives_machine: impl FnOnce(&Path) -> bool,
    ) -> Result<(), StoreError> {
        let dir = self.sandbox_dir(&record.id);
        let is_new = !dir.exists();
        let made = make_private_directory(&dir).and_then(|()| {
            let durability = if outlives_machine(&dir) {
                Durability::Disk
            } else {
                Durability::Process
            };
            Ok(record::write(&dir, SANDBOX_FILE, record, durability)?)
        });
        if made.is_err() && is_new {
            let _ = remove_tree(&dir);
        }
        made
    }

    pub(crate) fn containers(&self) -> Result<Vec<Found<ContainerRecord>>, StoreError> {
        found(&self.containers, CONTAINER_FILE)
    }

    pub(crate) fn sandboxes(&self) -> Result<Vec<Found<SandboxRecord>>, StoreError> {
        found(&self.sandboxes, SANDBOX_FILE)
    }

    pub(crate) fn remove_container(&self, id: &ContainerId) -> Result<(), StoreError> {
        remove(&self.container_dir(id), CONTAINER_FILE)
    }

    /// Removes a directory whose record cannot be read.
    pub(crate) fn remove_damaged_container(dir: &Path) -> Result<(), StoreError> {
        remove(dir, CONTAINER_FILE)
    }

    /// As for containers.
    pub(crate) fn remove_damaged_sandbox(dir: &Path) -> Result<(), StoreError> {
        remove(dir, SANDBOX_FILE)
    }

    pub(crate) fn remove_sandbox(&self, id: &SandboxId) -> Result<(), StoreError> {
        remove(&self.sandbox_dir(id), SANDBOX_FILE)
    }
}

/// The containers below a root, for somebody who is not their agent: nothing is changed. A root that is not there has
/// none.
pub fn container_records(root: &Path) -> io::Result<Vec<ContainerRecord>> {
    let containers = root.join(CONTAINERS);
    if !containers.try_exists()? {
        return Ok(Vec::new());
    }
    let found = found(&containers, CONTAINER_FILE).map_err(io::Error::other)?;
    found
        .into_iter()
        .map(|found| found.record.map_err(io::Error::other))
        .collect()
}

/// Brings the record of a sandbox to the disk: an agent of a later boot will find it. `dir` is the sandbox's.
pub fn sync_sandbox(dir: &Path) -> Result<(), RecordError> {
    record::sync(dir, SANDBOX_FILE)
}

/// An id that no other object ever had.
pub(crate) fn new_id() -> Result<String, StoreError> {
    let mut bytes = [0_u8; ID_BYTES];
    let mut filled = 0;
    while filled < ID_BYTES {
        let rest = &mut bytes[filled..];
        filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| StoreError::Random(errno.into()))?;
    }
    Ok(bytes
        .iter()
        .fold(String::with_capacity(2 * ID_BYTES), |mut id, byte| {
            id.push(char::from_digit(u32::from(byte >> 4), 16).expect("four bits are a digit"));
            id.push(char::from_digit(u32::from(byte & 15), 16).expect("four bits are a digit"));
            id
        }))
}

fn remove(dir: &Path, record: &str) -> Result<(), StoreError> {
    let gone = |result: io::Result<()>| match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    };
    gone(fs::remove_file(dir.join(record)))
        .and_then(|()| gone(remove_tree(dir)))
        .map_err(|source| StoreError::Remove {
            path: dir.to_owned(),
            source,
        })
}

fn refuse_newer(parent: &Path) -> Result<(), StoreError> {
    if !parent.is_dir() {
        return Ok(());
    }
    for dir in directories(parent)? {
        record::refuse_newer(&dir)?;
    }
    Ok(())
}

/// Deletes what an agent was removing, or had only begun to make, when it died.
fn delete_remains(parent: &Path, record: &str) -> Result<(), StoreError> {
    for dir in directories(parent)?
        .iter()
        .filter(|dir| !dir.join(record).exists())
    {
        if let Err(error) = remove_tree(dir) {
            // They are in nobody's way, and the next start tries again.
            tracing::warn!(dir = %dir.display(), %error, "the remains of an object cannot be deleted");
        }
    }
    Ok(())
}

fn make_private_directory(path: &Path) -> Result<(), StoreError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| StoreError::MakeDirectory {
            path: path.to_owned(),
            source,
        })
}

fn found<T: DeserializeOwned>(parent: &Path, name: &str) -> Result<Vec<Found<T>>, StoreError> {
    let read = |dir: PathBuf| {
        let record = record::read(&dir, name).transpose()?;
        Some(Found { dir, record })
    };
    Ok(directories(parent)?.into_iter().filter_map(read).collect())
}

fn directories(parent: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let failed = |source| StoreError::List {
        path: parent.to_owned(),
        source,
    };
    let mut directories = Vec::new();
    for entry in fs::read_dir(parent).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_type().map_err(failed)?.is_dir() {
            directories.push(entry.path());
        }
    }
    Ok(directories)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(store: &Store, id: &str) -> SandboxRecord {
        SandboxRecord {
            id: SandboxId::new(id),
            boot_id: store.boot_id.clone(),
            created_at: Timestamp::UNIX_EPOCH,
            state: SandboxState::Ready,
            addresses: Vec::new(),
            user_ids: None,
            config: SandboxConfig::default(),
        }
    }

    /// What the program wrote before records had a format.
    fn first_format() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testing/data/first-format/records")
    }

    /// A root with the records of the first format in it.
    fn old_root() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        for (from, to) in [
            ("exited", "containers/bb3617304cc3d78fda8fd1bf8739bd67"),
            ("running", "containers/99603dca276ab76530e5ce71a205d51f"),
            ("sandbox", "sandboxes/a9631f3c4d60533474a2bed86631871c"),
        ] {
            let to = root.path().join(to);
            fs::create_dir_all(&to).expect("a directory");
            for entry in fs::read_dir(first_format().join(from)).expect("lists").flatten() {
                fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
            }
        }
        root
    }

    #[test]
    fn records_of_the_first_format_are_read() {
        let root = old_root();
        let store = Store::open(root.path()).expect("opens");
        let mut containers: Vec<_> = store
            .containers()
            .expect("lists")
            .into_iter()
            .map(|found| found.record.expect("it can be read"))
            .collect();
        containers.sort_by_key(|record| record.config.attempt);
        let signals: Vec<_> = containers
            .iter()
            .map(|record| record.stop_signal.name())
            .collect();
        assert_eq!(signals, ["SIGUSR1", "SIGUSR1"]);
        assert_eq!(containers[0].config.name, "app");
        let exit = record::read_exit(&store.container_dir(&containers[0].id)).expect("reads");
        assert_eq!(exit.expect("it has left").code, 0);
        assert_eq!(store.sandboxes().expect("lists").len(), 1);
    }

    #[test]
    fn a_newer_record_stops_everything_and_changes_nothing() {
        let root = old_root();
        let dir = root.path().join("containers/99603dca276ab76530e5ce71a205d51f");
        let newer = r#"{"format":9,"record":{"new":true}}"#;
        fs::write(dir.join(CONTAINER_FILE), newer).expect("writes");
        // Remains, which an agent that knows the format deletes.
        let remains = root.path().join("containers/0000");
        fs::create_dir(&remains).expect("a directory");
        let error = Store::open(root.path()).expect_err("it is newer").to_string();
        assert!(
            error.contains("container.json has format 9, this program knows 1"),
            "{error}"
        );
        assert!(remains.is_dir(), "nothing was deleted");
        assert_eq!(
            fs::read_to_string(dir.join(CONTAINER_FILE)).expect("reads"),
            newer
        );
    }

    #[test]
    fn ids_are_long_and_differ() {
        let (a, b) = (new_id().expect("random"), new_id().expect("random"));
        assert_eq!(a.len(), 32);
        assert_ne!(a, b);
        assert!(a.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }

    #[test]
    fn directories_without_a_record_go_at_the_next_start() {
        let root = tempfile::tempdir().expect("a directory");
        let store = Store::open(root.path()).expect("opens");
        let record = sandbox(&store, "whole");
        store.put_sandbox(&record, |_| false).expect("writes");
        fs::create_dir(store.sandboxes.join("half")).expect("makes");
        fs::create_dir_all(store.containers.join("half/y")).expect("makes");
        let store = Store::open(root.path()).expect("opens again");
        let found: Vec<_> = store
            .sandboxes()
            .expect("lists")
            .into_iter()
            .map(|f| f.record.expect("reads"))
            .collect();
        assert_eq!(found, [record]);
        assert!(!store.sandboxes.join("half").exists());
        assert!(!store.containers.join("half").exists());
    }

    #[test]
    fn records_are_read_without_an_agent() {
        let root = tempfile::tempdir().expect("a directory");
        assert_eq!(container_records(root.path()).expect("reads"), []);
        let store = Store::open(root.path()).expect("opens");
        fs::create_dir(store.containers.join("half")).expect("makes");
        let record = ContainerRecord {
            id: ContainerId::new("whole"),
            sandbox: SandboxId::new("a"),
            boot_id: store.boot_id.clone(),
            created_at: Timestamp::UNIX_EPOCH,
            stop_signal: Signal::TERM,
            config: ContainerConfig::default(),
            log_limits: None,
        };
        store.put_container(&record, |_| Ok(())).expect("writes");
        assert_eq!(container_records(root.path()).expect("reads"), [record]);
        assert!(store.containers.join("half").exists(), "nothing is changed");
    }

    #[test]
    fn what_cannot_be_made_leaves_nothing() {
        let root = tempfile::tempdir().expect("a directory");
        let store = Store::open(root.path()).expect("opens");
        let record = ContainerRecord {
            id: ContainerId::new("half"),
            sandbox: SandboxId::new("a"),
            boot_id: store.boot_id.clone(),
            created_at: Timestamp::UNIX_EPOCH,
            stop_signal: Signal::TERM,
            config: ContainerConfig::default(),
            log_limits: None,
        };
        let full = store.put_container(&record, |dir| {
            fs::write(dir.join("spec.json"), b"{").expect("writes");
            Err("the disk is full".into())
        });
        full.expect_err("it is not made");
        assert_eq!(fs::read_dir(&store.containers).expect("lists").count(), 0);
    }

    #[test]
    fn removing_what_is_gone_is_no_error() {
        let root = tempfile::tempdir().expect("a directory");
        let store = Store::open(root.path()).expect("opens");
        store
            .put_sandbox(&sandbox(&store, "a"), |_| false)
            .expect("writes");
        store.remove_sandbox(&SandboxId::new("a")).expect("removes");
        store.remove_sandbox(&SandboxId::new("a")).expect("is gone");
        assert_eq!(fs::read_dir(&store.sandboxes).expect("lists").count(), 0);
    }
}
