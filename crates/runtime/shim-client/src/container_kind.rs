//! In what the containers of the built-in runtimes differ for the agent.

use std::{fmt, os::fd::OwnedFd, path::Path};

use rustix::process::Pid;

use crate::store::ContainerRecord;

/// One kind of container with a shim. All of it may block, and may be called again after it has succeeded.
pub trait ContainerKind: fmt::Debug + Send + Sync + 'static {
    /// Sends SIGKILL to what still runs of a container whose shim is gone. Returns whether nothing is left; otherwise
    /// it is called again in a moment.
    fn kill_leftovers(&self, record: &ContainerRecord, dir: &Path) -> bool;

    /// The same for a container whose record cannot be read: all that is known of it is its id and its directory.
    fn kill_unrecorded(&self, id: &str, dir: &Path) -> bool;

    /// The processes of a container, as the machine numbers them. Its shim is not among them.
    fn processes(&self, record: &ContainerRecord, dir: &Path) -> Vec<Pid>;

    /// Takes away what a container without processes has left outside of its directory. Usually its shim has done
    /// that.
    fn clean_up(&self, record: &ContainerRecord, dir: &Path);

    /// The open directory of a cgroup of version 2 in which the shim of a container begins; `None` if where the agent is. Should
    /// it not come to that, the shim goes there itself.
    fn starts_in(&self, id: &str) -> Option<OwnedFd> {
        let _ = id;
        None
    }

    /// Whether a sandbox has something on the disk that only its record can tell to take away. Such a record is on the disk
    /// whenever it has changed; others end with the machine, as what they describe does. `dir` is the sandbox's.
    fn outlives_machine(&self, dir: &Path) -> bool {
        let _ = dir;
        false
    }
}
