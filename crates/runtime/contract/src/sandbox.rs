//! Sandboxes: what the containers of a pod share.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{PodName, Resources, SandboxId, Seccomp};

/// Which pod something belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct PodIdentity {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

impl PodIdentity {
    /// Namespace and name, which is written `namespace/name`.
    pub fn pod_name(&self) -> PodName {
        PodName::new(self.namespace.as_str(), self.name.as_str())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SandboxConfig {
    pub pod: PodIdentity,
    /// How many sandboxes this pod had before.
    pub attempt: u32,
    /// Empty with the host's network.
    pub hostname: String,
    /// Which of the runtime's ways to run a pod is meant, as a `RuntimeClass` names it; empty for the usual one.
    #[serde(default)]
    pub runtime_handler: String,
    /// Where the logs of the pod's containers are; their own paths are below it.
    pub log_directory: PathBuf,
    pub dns: Option<Dns>,
    pub port_mappings: Vec<PortMapping>,
    pub namespaces: Namespaces,
    pub sysctls: BTreeMap<String, String>,
    pub privileged: bool,
    pub run_as_user: Option<u32>,
    pub run_as_group: Option<u32>,
    pub supplemental_groups: Vec<u32>,
    /// supplementalGroupsPolicy Strict.
    #[serde(default)]
    pub strict_groups: bool,
    pub seccomp: Seccomp,
    /// Limits of the pod as a whole.
    pub resources: Resources,
    /// The cgroup below which the pod's are made, from the root of the hierarchies on; `None` if that is the runtime's own
    /// choice.
    #[serde(default)]
    pub cgroup_parent: Option<PathBuf>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// What goes into resolv.conf.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Dns {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortMapping {
    pub protocol: Protocol,
    pub container_port: u16,
    pub host_port: u16,
    pub host_ip: Option<IpAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Namespaces {
    pub host_network: bool,
    pub host_ipc: bool,
    pub pid: PidNamespace,
    /// hostUsers false: the pod has users of its own, none of which is one of the host's.
    #[serde(default)]
    pub own_users: bool,
    /// With `own_users`: who they are on the host; `None` if the runtime chooses.
    #[serde(default)]
    pub user_ids: Option<IdRange>,
}

/// Users and groups of the host that stand for those from 0 on in a pod's user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct IdRange {
    pub first: u32,
    pub count: u32,
}

impl IdRange {
    /// The number on the host; `None` if the range has no such user or group.
    pub fn on_host(self, inside: u32) -> Option<u32> {
        (inside < self.count).then(|| self.first.checked_add(inside))?
    }

    pub fn overlaps(self, other: Self) -> bool {
        let end = |range: Self| u64::from(range.first) + u64::from(range.count);
        u64::from(self.first) < end(other) && u64::from(other.first) < end(self)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum PidNamespace {
    /// Each container has its own.
    #[default]
    Container,
    /// shareProcessNamespace
    Pod,
    /// hostPID
    Host,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxStatus {
    pub id: SandboxId,
    pub pod: PodIdentity,
    pub attempt: u32,
    pub state: SandboxState,
    pub created_at: Timestamp,
    /// The pod's addresses, the primary one first; empty with the host's network where the runtime does not report them.
    pub addresses: Vec<IpAddr>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// What went through one interface of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceStats {
    pub name: String,
    pub received_bytes: u64,
    pub receive_errors: u64,
    pub sent_bytes: u64,
    pub send_errors: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SandboxState {
    Ready,
    /// Stopped, or broken: no container can run in it any more.
    NotReady,
}
