//! What a shim needs to make a container: the agent decides it all when the container is created, and writes it
//! beside the container's record.
//!
//! Paths of the host are absolute. Nothing here is looked up again in the pod or the image.

use std::path::{Path, PathBuf};

use pulselet_runtime::{Device, Mount, Resources};
use pulselet_shim::record::{self, Durability, RecordError};
use serde::{Deserialize, Serialize};

use crate::seccomp::Filter;

const LAUNCH_FILE: &str = "launch.json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Launch {
    pub(crate) command: Vec<String>,
    /// Complete but for `HOME`, which the user's entry in the image gives if nothing else does.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) working_dir: PathBuf,
    pub(crate) user: UserChoice,
    pub(crate) root: Root,
    /// In the order in which they are made.
    pub(crate) mounts: Vec<Mount>,
    pub(crate) devices: Vec<Device>,
    pub(crate) confinement: Confinement,
    pub(crate) namespaces: Namespaces,
    pub(crate) cgroup: CgroupChoice,
}

/// Who the processes run as, names not yet looked up in the image.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct UserChoice {
    /// A number or a name, optionally with a group: `USER` of an image, or a pod's numbers in the same form.
    pub(crate) user: String,
    /// The pod's own group; wins over that of `user`.
    pub(crate) group: Option<u32>,
    pub(crate) supplemental_groups: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Root {
    /// Directories, the lowest first.
    pub(crate) layers: Vec<PathBuf>,
    /// Directories of the image that its containers must not see.
    pub(crate) hidden: Vec<PathBuf>,
    /// Directories that the image has as volumes: they are made if they are missing, and stay writable in a read-only
    /// root. What is written there goes with the container.
    #[serde(default)]
    pub(crate) volumes: Vec<PathBuf>,
    pub(crate) read_only: bool,
}

/// What the processes may do.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Confinement {
    pub(crate) privileged: bool,
    /// Bits by the kernel's numbers.
    pub(crate) capabilities: u64,
    pub(crate) no_new_privs: bool,
    /// Leaves out the masked and read-only paths below /proc and /sys.
    pub(crate) unmasked: bool,
    pub(crate) seccomp: Option<Filter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Namespaces {
    /// Files that pin the sandbox's; none is the host's.
    pub(crate) network: Option<PathBuf>,
    pub(crate) ipc: Option<PathBuf>,
    pub(crate) uts: Option<PathBuf>,
    pub(crate) processes: Processes,
}

/// Whom a container's processes see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Processes {
    /// Each other.
    Own,
    /// All of the pod; the file pins its namespace.
    Pod(PathBuf),
    /// All of the machine.
    Host,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct CgroupChoice {
    /// Below the root of each hierarchy.
    pub(crate) path: PathBuf,
    pub(crate) resources: Resources,
}

impl Launch {
    pub(crate) fn write(&self, container_dir: &Path) -> Result<(), RecordError> {
        record::write(container_dir, LAUNCH_FILE, self, Durability::Process)
    }

    /// None if the container was never completely made.
    pub(crate) fn read(container_dir: &Path) -> Result<Option<Self>, RecordError> {
        record::read(container_dir, LAUNCH_FILE)
    }
}
