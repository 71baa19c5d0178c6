//! The data directory: which file is where, and the lock that keeps a second agent out.
//!
//! Paths are made here and nowhere else, but for those of volumes, which are `volume`'s. Log paths are those of a
//! kubelet, so that log shippers find them.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pulselet_vocabulary::PodName;
use pulselet_volume::PodDirectory;
use rustix::fs::FlockOperation;
use thiserror::Error;

use crate::container_config::log_path;

/// How often the lock is tried. An agent that was killed while it started a process has left it to that process until its
/// program runs, which is soon.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// Permissions of everybody but the owner, and the mark of a directory that many use.
const OTHERS: u32 = 0o077;
const STICKY: u32 = 0o1000;
/// Longest text read from a lock file, in bytes: a process id and a newline.
const MAX_LOCK_TEXT: u64 = 32;

/// Paths below one data directory.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The socket on which the agent answers `ps`, `logs`, `history`, `stop` and `run --detach`.
    pub fn socket(&self) -> PathBuf {
        self.root.join("pulselet.sock")
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.root.join("node.db")
    }

    /// Room on the disk that is kept for the database.
    pub(crate) fn reserve(&self) -> PathBuf {
        self.root.join("node.reserve")
    }

    /// The directory with the logs of all pods.
    pub(crate) fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    pub(crate) fn stopped(&self) -> PathBuf {
        self.root.join("stopped.json")
    }

    pub(crate) fn objects(&self) -> PathBuf {
        self.root.join("objects.json")
    }

    fn lock(&self) -> PathBuf {
        self.root.join("agent.lock")
    }

    pub(crate) fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }

    /// What one pod owns on this node: its volumes, its hosts file, its termination messages, the spare copy of its state.
    pub(crate) fn pod(&self, uid: &str) -> PathBuf {
        self.pods().join(uid)
    }

    pub(crate) fn spare(&self, uid: &str) -> PathBuf {
        self.pod(uid).join("spare.json")
    }

    pub(crate) fn hosts(&self, uid: &str) -> PathBuf {
        self.pod(uid).join("etc-hosts")
    }

    /// Where the pod's volumes are.
    pub(crate) fn volumes(&self, uid: &str) -> PodDirectory {
        PodDirectory::new(self.pod(uid))
    }

    pub(crate) fn termination_message(&self, uid: &str, container: &str, attempt: u32) -> PathBuf {
        self.pod(uid)
            .join("containers")
            .join(container)
            .join(format!("{attempt}.message"))
    }

    pub(crate) fn pod_logs(&self, namespace: &str, name: &str, uid: &str) -> PathBuf {
        self.logs().join(format!("{namespace}_{name}_{uid}"))
    }

    /// The log of one life of a container.
    pub fn container_log(&self, pod: &PodName, uid: &str, container: &str, attempt: u32) -> PathBuf {
        log_path(&self.pod_logs(&pod.namespace, &pod.name, uid), container, attempt)
    }

    /// Makes the data directory if it is not there; only its owner may look inside. One that was open to others is closed,
    /// unless it is the place of others too.
    fn create(&self) -> Result<(), LayoutError> {
        if self.root.is_dir() && self.is_ours_alone() {
            close_to_others(&self.root, 0o700);
        }
        for directory in [self.root.clone(), self.pods(), self.logs()] {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&directory)
                .map_err(|source| LayoutError::CreateDirectory {
                    path: directory.clone(),
                    source,
                })?;
            if directory != self.root {
                close_to_others(&directory, 0o700);
            }
        }
        for suffix in ["", "-wal", "-shm"] {
            let mut path = self.database().into_os_string();
            path.push(suffix);
            close_to_others(Path::new(&path), 0o600);
        }
        Ok(())
    }

    /// Whether an agent has used the directory before, or nobody has. A directory like `/tmp` has more users.
    fn is_ours_alone(&self) -> bool {
        let is_shared = fs::metadata(&self.root).is_ok_and(|metadata| metadata.mode() & STICKY != 0);
        let is_empty = || fs::read_dir(&self.root).is_ok_and(|mut entries| entries.next().is_none());
        !is_shared && (self.lock().exists() || is_empty())
    }
}

/// Takes the rights of others away from what is there; links are left alone.
fn close_to_others(path: &Path, mode: u32) {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return;
    };
    if metadata.is_symlink() || metadata.mode() & OTHERS == 0 {
        return;
    }
    let path_shown = path.display();
    if let Err(error) = fs::set_permissions(path, Permissions::from_mode(mode)) {
        tracing::warn!(path = %path_shown, %error, "others can look into the agent's data");
    } else {
        tracing::warn!(path = %path_shown, "others could look into the agent's data; they no longer can");
    }
}

/// A data directory that belongs to this process until it is dropped.
///
/// Whatever uses the directory, a runtime among it, is opened after it was claimed: a second agent must not touch
/// what the first one runs.
#[derive(Debug)]
pub struct DataDir {
    layout: Layout,
    lock: DirectoryLock,
}

impl DataDir {
    /// Makes the directory if it is not there, and keeps other agents out of it.
    pub fn claim(root: impl Into<PathBuf>) -> Result<Self, LayoutError> {
        let layout = Layout::new(root);
        layout.create()?;
        let lock = DirectoryLock::acquire(&layout)?;
        Ok(Self { layout, lock })
    }

    pub fn path(&self) -> &Path {
        self.layout.root()
    }

    pub(crate) fn into_parts(self) -> (Layout, DirectoryLock) {
        (self.layout, self.lock)
    }
}

#[derive(Debug, Error)]
pub enum LayoutError {
    #[error("cannot create {path}: {source}; choose another directory with --data-dir", path = path.display())]
    CreateDirectory { path: PathBuf, source: io::Error },
    #[error("cannot open {path}: {source}; choose another directory with --data-dir", path = path.display())]
    OpenLock { path: PathBuf, source: io::Error },
    #[error(
        "another agent{} uses {path}; stop it, or choose another directory with --data-dir",
        holder.map(|pid| format!(" (pid {pid})")).unwrap_or_default(),
        path = path.display()
    )]
    Held { path: PathBuf, holder: Option<u32> },
}

impl LayoutError {
    /// Another agent has the directory.
    pub fn is_held(&self) -> bool {
        match self {
            Self::Held { .. } => true,
            Self::CreateDirectory { .. } | Self::OpenLock { .. } => false,
        }
    }
}

/// Held for as long as the agent lives; the kernel lets go of it when the process dies.
#[derive(Debug)]
pub(crate) struct DirectoryLock(#[expect(dead_code, reason = "held for its lock, never read")] File);

impl DirectoryLock {
    fn acquire(layout: &Layout) -> Result<Self, LayoutError> {
        let path = layout.lock();
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path);
        let mut file = opened.map_err(|source| LayoutError::OpenLock {
            path: path.clone(),
            source,
        })?;
        if !lock(&file) {
            let holder = holder(&mut file);
            let path = layout.root().to_owned();
            return Err(LayoutError::Held { path, holder });
        }
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        if let Err(error) = written {
            // The lock itself is held; only a second agent's message will lack the process id.
            tracing::warn!(path = %path.display(), %error, "cannot write the process id into the lock file");
        }
        Ok(Self(file))
    }
}

fn lock(file: &File) -> bool {
    let mut left = LOCK_TRIES;
    while rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
        left -= 1;
        if left == 0 {
            return false;
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    true
}

fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(MAX_LOCK_TEXT).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_let_go_of_soon_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let first = DataDir::claim(directory.path()).unwrap();
        let holder = std::thread::spawn(move || {
            std::thread::sleep(LOCK_PAUSE * 3);
            drop(first);
        });
        DataDir::claim(directory.path()).unwrap();
        holder.join().unwrap();
    }

    #[test]
    fn a_second_agent_learns_who_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let first = DataDir::claim(directory.path()).unwrap();
        let refused = DataDir::claim(directory.path()).unwrap_err();
        assert!(
            refused
                .to_string()
                .contains(&format!("pid {}", std::process::id()))
        );
        drop(first);
        DataDir::claim(directory.path()).unwrap();
    }

    #[test]
    fn an_unusable_directory_says_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let error = DataDir::claim(file.join("below")).unwrap_err();
        assert!(error.to_string().contains("--data-dir"));
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_data_directory_that_others_could_read_is_closed() {
        let directory = tempfile::tempdir().unwrap();
        drop(DataDir::claim(directory.path()).unwrap());
        let database = directory.path().join("node.db");
        fs::write(&database, "").unwrap();
        for (path, wide) in [
            (directory.path(), 0o755),
            (&directory.path().join("pods"), 0o777),
            (&*database, 0o644),
        ] {
            fs::set_permissions(path, Permissions::from_mode(wide)).unwrap();
        }
        let claimed = DataDir::claim(directory.path()).unwrap();
        let modes = [claimed.path(), &claimed.path().join("pods"), &database].map(mode);
        assert_eq!(modes, [0o700, 0o700, 0o600]);
    }

    #[test]
    fn a_directory_of_others_stays_open() {
        let directory = tempfile::tempdir().unwrap();
        for (name, wide, neighbour) in [("sticky", 0o1777, false), ("used", 0o755, true)] {
            let path = directory.path().join(name);
            fs::create_dir(&path).unwrap();
            if neighbour {
                fs::write(path.join("of-somebody-else"), "").unwrap();
            }
            fs::set_permissions(&path, Permissions::from_mode(wide)).unwrap();
            let claimed = DataDir::claim(&path).unwrap();
            assert_eq!(
                [mode(claimed.path()), mode(&path.join("pods"))],
                [wide, 0o700],
                "{name}"
            );
        }
    }
}
