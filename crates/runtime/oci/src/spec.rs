//! The specification of a container: all that its shim needs to make it.
//!
//! The agent decides it when the container is created ([`spec_builder`](crate::spec_builder)) and writes it beside the
//! container's record. Paths of the host are absolute. Nothing here is looked up again in the pod or the image.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pulselet_cgroup::Hierarchies;
use pulselet_runtime::IdRange;
use pulselet_runtime::{Device, Mount, Resources};
use pulselet_shim::record::{self, Durability, RecordError};
use serde::{Deserialize, Serialize};

use crate::{bare_mounts::BareMountsPath, seccomp::Filter};

/// In the container's directory.
const SPEC_FILE: &str = "launch.json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContainerSpec {
    pub(crate) command: Vec<String>,
    /// Complete but for `HOME`, which the user's entry in the image gives if nothing else does.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) working_dir: PathBuf,
    pub(crate) user: UserSpec,
    pub(crate) root: RootfsSpec,
    /// In the order in which they are made.
    pub(crate) mounts: Vec<Mount>,
    /// The layers of the images among them, by the images' ids, the lowest first.
    #[serde(default)]
    pub(crate) mounted_images: BTreeMap<String, Vec<PathBuf>>,
    pub(crate) devices: Vec<Device>,
    pub(crate) confinement: Confinement,
    pub(crate) namespaces: NamespaceSpec,
    pub(crate) cgroup: CgroupSpec,
}

/// Who the processes run as, names not yet looked up in the image.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct UserSpec {
    /// A number or a name, optionally with a group: `USER` of an image, or a pod's numbers in the same form.
    pub(crate) user: String,
    /// The pod's own group; wins over that of `user`.
    pub(crate) group: Option<u32>,
    pub(crate) supplemental_groups: Vec<u32>,
    /// No groups but those above: what the image's group file adds is left out.
    #[serde(default)]
    pub(crate) strict_groups: bool,
    /// Users and groups that there are, from 0 on; `None` if all are there.
    #[serde(default)]
    pub(crate) id_count: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct RootfsSpec {
    /// Directories, the lowest first.
    pub(crate) layers: Vec<PathBuf>,
    /// Files and directories of the topmost layer that containers must not see.
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
    /// What is hidden; `None` if it is what every container does not see.
    #[serde(default)]
    pub(crate) masked_paths: Option<Vec<PathBuf>>,
    /// What cannot be changed; `None` if it is what no container can change.
    #[serde(default)]
    pub(crate) read_only_paths: Option<Vec<PathBuf>>,
    pub(crate) seccomp: Option<Filter>,
    /// The `AppArmor` profile of its programs; `None` if they have none.
    #[serde(default)]
    pub(crate) app_armor: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NamespaceSpec {
    /// Files that pin the sandbox's; `None` is the host's.
    pub(crate) network: Option<PathBuf>,
    pub(crate) ipc: Option<PathBuf>,
    pub(crate) uts: Option<PathBuf>,
    pub(crate) processes: PidNamespaceSource,
    #[serde(default)]
    pub(crate) users: Option<UserNamespaceSpec>,
    /// Whose copy the container's mount namespace begins as; `None` is the host's.
    #[serde(default)]
    pub(crate) bare_mounts: Option<BareMountsPath>,
}

/// The user namespace of a pod that has users of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UserNamespaceSpec {
    /// The file that pins it.
    pub(crate) pin: PathBuf,
    pub(crate) ids: IdRange,
}

/// Which process namespace a container is in, and so whom its processes see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PidNamespaceSource {
    /// One of its own: each other.
    Own,
    /// The pod's: all of the pod. The file pins the namespace.
    Pod(PathBuf),
    /// That of another container of the pod, whose init process has this number on the host.
    Target(i32),
    /// The host's: all of the machine.
    Host,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct CgroupSpec {
    /// Below the root of each hierarchy.
    pub(crate) path: PathBuf,
    /// `None` if the shim has to find them, in a table that grows with the number of pods.
    #[serde(default)]
    pub(crate) hierarchies: Option<Hierarchies>,
    /// Directories in the hierarchies that limit nothing.
    #[serde(default)]
    pub(crate) apart: Vec<PathBuf>,
    pub(crate) resources: Resources,
}

impl ContainerSpec {
    pub(crate) fn write(&self, container_dir: &Path) -> Result<(), RecordError> {
        record::write(container_dir, SPEC_FILE, self, Durability::Process)
    }

    /// Returns `None` if the container was never completely made.
    pub(crate) fn read(container_dir: &Path) -> Result<Option<Self>, RecordError> {
        record::read(container_dir, SPEC_FILE)
    }
}
