//! Containers: what a runtime is asked to run and what it reports.
//!
//! A container here is one life: a restarted container is a new one, with the next attempt.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{ContainerId, PidNamespace, PodIdentity, SandboxId, Signal};

/// What a container that is not privileged does not see, because it would show the host. A kubelet hides the same.
pub const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// What it cannot change, because that would change the host.
pub const READ_ONLY_PATHS: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent switches, most of them under their Kubernetes names"
)]
pub struct ContainerConfig {
    pub pod: PodIdentity,
    pub name: String,
    /// The restart count of this life.
    pub attempt: u32,
    /// As the pod names it.
    pub image: String,
    /// What [`ImageSummary::id`](crate::ImageSummary::id) said after pulling; empty where images are not used.
    pub image_id: String,
    /// Replaces the image's entrypoint; empty keeps it.
    pub command: Vec<String>,
    /// Replaces the image's arguments; empty keeps them, unless `command` is given.
    pub args: Vec<String>,
    pub working_dir: Option<String>,
    /// Expanded; the last of equal names wins.
    pub env: Vec<EnvVar>,
    pub mounts: Vec<Mount>,
    pub devices: Vec<Device>,
    /// The log file, absolute.
    pub log_path: PathBuf,
    /// The caller bounds the log's size: it moves the file away and says so with `reopen_log`. Otherwise the runtime does.
    #[serde(default)]
    pub log_rotated_by_caller: bool,
    pub stdin: bool,
    /// Close stdin when the first attached client leaves.
    pub stdin_once: bool,
    pub tty: bool,
    pub resources: Resources,
    pub security: SecurityContext,
    /// `None` if the image's applies, or SIGTERM if it has none.
    pub stop_signal: Option<Signal>,
    /// A running container of the same pod whose processes this one is to see, in that one's process namespace. Without
    /// meaning where the containers of the sandbox share a process namespace anyway.
    #[serde(default)]
    pub pid_target: Option<ContainerId>,
    /// Which process namespace it has; `None` if it is as the sandbox says. That of the pod is there only in a sandbox that
    /// shares it.
    #[serde(default)]
    pub pid_namespace: Option<PidNamespace>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

impl ContainerConfig {
    /// The ids of the images that it needs: its own, and those it mounts.
    pub fn image_ids(&self) -> impl Iterator<Item = &str> {
        let mounted = self.mounts.iter().filter_map(|mount| mount.image.as_ref());
        let mounted = mounted.map(|image| image.id.as_str());
        std::iter::once(self.image_id.as_str()).chain(mounted)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvVar {
    pub name: String,
    pub value: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The volume's name in the pod; empty for files the node itself provides.
    pub volume: String,
    pub container_path: PathBuf,
    /// The volume, or a file of the node. Exists. Empty for the files of an image.
    pub host_path: PathBuf,
    /// The image whose files are shown in place of the host's, read-only; `None` if they are the host's.
    #[serde(default)]
    pub image: Option<MountedImage>,
    /// What of the volume is mounted: a relative path without `..` that existed when the node looked. Containers that
    /// share the volume can replace any part of it by a symbolic link, so a runtime that isolates looks it up again
    /// at the mount, with [`VolumeRoot`](crate::VolumeRoot).
    pub sub_path: Option<PathBuf>,
    pub read_only: bool,
    /// With `read_only`: so is everything that is mounted below it.
    #[serde(default)]
    pub recursive_read_only: bool,
    pub propagation: Propagation,
}

impl Mount {
    /// The path on the host, for runtimes whose containers can go anywhere on it, and for people.
    pub fn source(&self) -> PathBuf {
        let whole = match &self.image {
            Some(image) => Path::new(&image.reference),
            None => &self.host_path,
        };
        match &self.sub_path {
            Some(path) => whole.join(path),
            None => whole.to_owned(),
        }
    }
}

/// An image that is a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountedImage {
    /// As the pod names it.
    pub reference: String,
    /// What [`ImageSummary::id`](crate::ImageSummary::id) said after pulling.
    pub id: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Propagation {
    #[default]
    Private,
    HostToContainer,
    Bidirectional,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub host_path: PathBuf,
    pub container_path: PathBuf,
    /// Of `rwm`.
    pub permissions: String,
}

/// What a container has written to its own layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WritableLayer {
    /// On the disk.
    pub bytes: u64,
    /// Files and directories.
    pub inodes: u64,
}

/// Limits as cgroups have them; `None` if there is no limit of its own.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Resources {
    pub cpu_shares: Option<u64>,
    /// Microseconds per period.
    pub cpu_quota: Option<i64>,
    /// Microseconds.
    pub cpu_period: Option<u64>,
    /// Bytes.
    pub memory_limit: Option<u64>,
    /// Bytes of memory and swap together; `None` if there is no swap beside the memory limit.
    #[serde(default)]
    pub memory_swap_limit: Option<u64>,
    pub pids_limit: Option<u64>,
    pub cpuset_cpus: Option<String>,
    pub cpuset_mems: Option<String>,
    pub oom_score_adj: Option<i32>,
    /// Files of a unified cgroup and what is written to them, after everything above.
    #[serde(default)]
    pub unified: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent switches under their Kubernetes names"
)]
pub struct SecurityContext {
    pub privileged: bool,
    pub run_as_user: Option<u32>,
    /// From the image's USER, where that is a name.
    pub run_as_username: Option<String>,
    pub run_as_group: Option<u32>,
    /// With the pod's fsGroup.
    pub supplemental_groups: Vec<u32>,
    /// supplementalGroupsPolicy Strict: the groups above and no others, whatever the image's /etc/group says.
    #[serde(default)]
    pub strict_groups: bool,
    pub read_only_root: bool,
    pub no_new_privs: bool,
    pub capabilities: Capabilities,
    pub seccomp: Seccomp,
    /// `None` if the pod says nothing: the runtime's own choice applies.
    #[serde(default)]
    pub app_armor: Option<AppArmor>,
    /// procMount Unmasked: no masked and read-only paths.
    pub unmasked_proc: bool,
    /// What the container does not see; `None` if it is [`MASKED_PATHS`], or nothing with `unmasked_proc` or `privileged`.
    #[serde(default)]
    pub masked_paths: Option<Vec<PathBuf>>,
    /// What it cannot change; `None` if it is [`READ_ONLY_PATHS`], or nothing as above.
    #[serde(default)]
    pub read_only_paths: Option<Vec<PathBuf>>,
}

/// Changes to the runtime's default set, names without `CAP_`; `ALL` is every capability.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Capabilities {
    pub add: Vec<String>,
    pub drop: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Seccomp {
    #[default]
    Unconfined,
    RuntimeDefault,
    /// A profile file on the host, absolute.
    Localhost(PathBuf),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppArmor {
    Unconfined,
    RuntimeDefault,
    /// The name of a profile that is loaded on the host.
    Localhost(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerStatus {
    pub id: ContainerId,
    pub sandbox: SandboxId,
    pub pod: PodIdentity,
    pub name: String,
    pub attempt: u32,
    pub created_at: Timestamp,
    pub state: ContainerState,
    /// As the pod names it.
    pub image: String,
    pub image_id: String,
    /// The effective signal; `None` if the runtime does not report it.
    pub stop_signal: Option<Signal>,
    /// Who its first process began as; `None` before its start, and if the runtime does not report it.
    #[serde(default)]
    pub user: Option<ContainerUser>,
    pub log_path: PathBuf,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// The ids of a process as the container sees them, also where it has a user namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerUser {
    pub uid: u32,
    pub gid: u32,
    /// All groups that the process is given, `gid` too where the runtime puts it among them.
    pub supplemental_groups: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerState {
    Created,
    Running {
        started_at: Timestamp,
    },
    Exited(ContainerExit),
    /// The runtime does not know, for example because the shim does not answer.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerExit {
    /// `None` if it never ran.
    pub started_at: Option<Timestamp>,
    pub finished_at: Timestamp,
    /// The program's own, or one of [`exit_code`](crate::exit_code): that of the signal that ended it, or `UNKNOWN` if nobody
    /// saw the end.
    pub code: i32,
    pub reason: ExitCause,
    /// What went wrong, for a person; often empty.
    pub message: String,
    /// Whether SIGKILL had to follow the stop signal; `None` if the runtime does not report it.
    pub killed_after_grace: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitCause {
    Completed,
    Error,
    OomKilled,
    /// It could not be started; `message` says why.
    StartError,
    /// The end was not observed: the shim died, or the machine restarted.
    Unknown,
    /// A remote runtime's own word.
    Other(String),
}

impl ExitCause {
    /// The word in a pod's status.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Completed => "Completed",
            Self::Error => "Error",
            Self::OomKilled => "OOMKilled",
            Self::StartError => "StartError",
            Self::Unknown => "ContainerStatusUnknown",
            Self::Other(word) => word,
        }
    }
}

/// Which containers to list; an empty filter lists all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerFilter {
    pub sandbox: Option<SandboxId>,
    pub pod_uid: Option<String>,
}

impl ContainerFilter {
    /// Whether a container of this sandbox and pod is meant.
    pub fn matches(&self, sandbox: &SandboxId, pod: &PodIdentity) -> bool {
        self.sandbox.as_ref().is_none_or(|wanted| wanted == sandbox)
            && self.pod_uid.as_ref().is_none_or(|uid| *uid == pod.uid)
    }
}

/// What a container used so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContainerStats {
    /// Nanoseconds of CPU since its start.
    pub cpu_nanos: u64,
    /// Bytes that cannot be reclaimed easily.
    pub memory_working_set: u64,
    /// Bytes in all, caches included.
    pub memory_usage: u64,
    /// Bytes that belong to processes and to no file.
    pub memory_anonymous: u64,
    pub page_faults: u64,
    pub major_page_faults: u64,
    /// Bytes; `None` if there is no account of swap.
    pub swap_usage: Option<u64>,
    pub processes: u64,
}
