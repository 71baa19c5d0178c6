//! One cgroup: limits, membership, killing, accounts.
//!
//! Both versions of the interface are known. With version 1 a cgroup is one directory in each controller's hierarchy,
//! with version 2 one directory in the only hierarchy. Where a machine has both, a controller is used where it is.
//!
//! A process joins by itself, and with version 1 by way of the `tasks` file: for a process with one thread the kernel
//! then takes no machine-wide lock, whose wait (ten milliseconds here) an exec probe every second would feel.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs::{self, File},
    io::{self, Write as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use pulselet_runtime::{ContainerStats, Resources, Signal};
use pulselet_sys::{Pid, attach_device_filter, process_id, send_signal};
use serde::{Deserialize, Serialize};

use crate::{
    apart::Apart,
    device_access::{self, DeviceRule},
    mounts::other_mounts,
    settings::{v1_settings, v2_settings},
};

/// Between two rounds of killing.
const KILL_INTERVAL: Duration = Duration::from_millis(2);
/// How long a process may take to leave a cgroup that is removed.
pub(crate) const REMOVE_PATIENCE: Duration = Duration::from_secs(2);

/// Processes of a container at most, where its pod gives no number: enough for any server, not enough to starve the
/// machine of process ids.
const DEFAULT_PIDS_LIMIT: u64 = 4096;

/// Controllers of version 1 that containers use, by their names as mount options.
const V1_CONTROLLERS: [&str; 6] = ["cpu", "cpuacct", "memory", "pids", "cpuset", "devices"];

/// Controllers of version 2 that are handed down to containers where the machine has them.
const V2_CONTROLLERS: [&str; 4] = ["cpu", "memory", "pids", "cpuset"];

/// With version 1 a cgroup without a limit has one that no machine reaches.
const UNLIMITED: u64 = 1 << 60;

/// Directories below one cgroup that are removed with it; more are somebody else's mistake.
const MAX_DEPTH: usize = 8;

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("none are mounted here that can be used; `mount -t cgroup2 cgroup2 /sys/fs/cgroup` does that")]
    NoHierarchy,
    #[error("cannot read the mounts: {0}")]
    ReadMounts(io::Error),
    #[error("cannot make cgroup {path}: {source}", path = path.display())]
    Create { path: PathBuf, source: io::Error },
    #[error("cannot set {file}: {source}", file = file.display())]
    Limit { file: PathBuf, source: io::Error },
    #[error("{file:?} is no file of this machine's cgroups: only version 2 has limits by such names")]
    Unified { file: String },
    #[error("{uid:?} cannot be part of a cgroup's name: give the pod another uid")]
    Name { uid: String },
    #[error("cannot keep {path} from the host's devices: {source}", path = path.display())]
    Devices { path: PathBuf, source: io::Error },
}

impl CgroupError {
    /// Whether a parent was not there.
    pub(crate) fn is_not_found(&self) -> bool {
        match self {
            Self::Create { source, .. } | Self::Limit { source, .. } => {
                source.kind() == io::ErrorKind::NotFound
            }
            Self::NoHierarchy
            | Self::ReadMounts(_)
            | Self::Unified { .. }
            | Self::Name { .. }
            | Self::Devices { .. } => false,
        }
    }
}

/// Where the hierarchies are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hierarchies {
    /// The controllers that are there, each with its mount.
    V1(Vec<(String, PathBuf)>),
    V2(PathBuf),
}

/// One cgroup, in all hierarchies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup {
    hierarchies: Hierarchies,
    path: PathBuf,
    /// Of a container.
    apart: Apart,
}

impl Hierarchies {
    pub fn find() -> Result<Self, CgroupError> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(CgroupError::ReadMounts)?;
        Self::find_in(&mounts, |root| {
            fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default()
        })
    }

    fn find_in(mounts: &str, controllers: impl Fn(&Path) -> String) -> Result<Self, CgroupError> {
        let mut v1 = Vec::new();
        let mut v2 = None;
        for line in mounts.lines() {
            let Some((front, back)) = line.split_once(" - ") else {
                continue;
            };
            let mount = PathBuf::from(front.split(' ').nth(4).unwrap_or_default());
            let mut back = back.split(' ');
            match (back.next(), back.nth(1)) {
                (Some("cgroup"), Some(options)) => {
                    let here = V1_CONTROLLERS
                        .into_iter()
                        .filter(|name| options.split(',').any(|option| option == *name));
                    for name in here {
                        if !v1.iter().any(|(known, _)| known == name) {
                            v1.push((name.to_owned(), mount.clone()));
                        }
                    }
                }
                (Some("cgroup2"), _) => v2 = v2.or(Some(mount)),
                _ => {}
            }
        }
        match v2 {
            Some(root) if controllers(&root).split(' ').any(|name| name.trim() == "memory") => {
                Ok(Self::V2(root))
            }
            _ if v1.is_empty() => Err(CgroupError::NoHierarchy),
            _ => Ok(Self::V1(v1)),
        }
    }

    /// The cgroup of that path below the root; it need not be there.
    pub fn cgroup(&self, path: &Path) -> Cgroup {
        Cgroup {
            hierarchies: self.clone(),
            path: path.to_owned(),
            apart: Apart::default(),
        }
    }

    /// That of a container, which has others in the hierarchies that limit nothing: at `apart`.
    pub fn container_cgroup(&self, path: &Path, apart: &[PathBuf]) -> Cgroup {
        Cgroup {
            apart: Apart::new(apart.to_vec()),
            ..self.cgroup(path)
        }
    }

    /// Where hierarchies are mounted that limit nothing.
    pub fn mounts_apart(&self) -> Result<Vec<PathBuf>, CgroupError> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(CgroupError::ReadMounts)?;
        Ok(other_mounts(&mounts, &self.mounts()))
    }

    pub(crate) fn mounts(&self) -> Vec<&Path> {
        match self {
            Self::V1(controllers) => {
                let mut seen = HashSet::new();
                let mounts = controllers.iter().map(|(_, mount)| mount.as_path());
                mounts.filter(|mount| seen.insert(*mount)).collect()
            }
            Self::V2(root) => vec![root.as_path()],
        }
    }
}

impl Cgroup {
    pub fn is_v2(&self) -> bool {
        matches!(self.hierarchies, Hierarchies::V2(_))
    }

    /// Its directory in each hierarchy, with the path of the hierarchy as containers are to see it.
    pub fn views(&self) -> Vec<(PathBuf, PathBuf)> {
        let mounts = self.hierarchies.mounts().into_iter();
        mounts
            .map(|mount| (mount.join(&self.path), mount.to_owned()))
            .collect()
    }

    fn directories(&self) -> Vec<PathBuf> {
        self.views().into_iter().map(|(directory, _)| directory).collect()
    }

    /// Makes it, with its parents. What is there already stays.
    pub fn create(&self) -> Result<(), CgroupError> {
        for mount in self.hierarchies.mounts() {
            // The parents are usually there, with all that they hand down.
            if self.is_v2() || !self.create_in_parent(mount)? {
                self.create_step_by_step(mount)?;
            }
        }
        self.apart.create().map_err(|source| CgroupError::Create {
            path: self.path.clone(),
            source,
        })
    }

    /// With version 1. Returns whether the parent was there and had what it hands down.
    fn create_in_parent(&self, mount: &Path) -> Result<bool, CgroupError> {
        let directory = mount.join(&self.path);
        match make_directory(&directory) {
            Err(CgroupError::Create { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(false);
            }
            made => made?,
        }
        let is_cpuset = self
            .directory_of_v1("cpuset")
            .is_some_and(|cpuset| cpuset.starts_with(mount));
        let inherits = || {
            let parent = directory.parent();
            parent.is_some_and(|parent| inherit_cpuset(parent, &directory))
        };
        Ok(!is_cpuset || inherits())
    }

    fn create_step_by_step(&self, mount: &Path) -> Result<(), CgroupError> {
        let mut directory = mount.to_owned();
        for part in self.path.components() {
            self.hand_down(&directory);
            let parent = directory.clone();
            directory.push(part);
            make_directory(&directory)?;
            if !self.is_v2() {
                inherit_cpuset(&parent, &directory);
            }
        }
        Ok(())
    }

    /// With version 2 a parent says which controllers its children have. One it does not have itself is refused, and
    /// then the limit that needs it fails.
    fn hand_down(&self, parent: &Path) {
        if !self.is_v2() {
            return;
        }
        let file = parent.join("cgroup.subtree_control");
        let all = V2_CONTROLLERS.map(|name| format!("+{name}"));
        if fs::write(&file, all.join(" ")).is_err() {
            for name in all {
                let _ = fs::write(&file, name);
            }
        }
    }

    /// The limits of a container: those given, and a number of processes in any case.
    pub fn limit(&self, resources: &Resources) -> Result<(), CgroupError> {
        let pids_limit = resources.pids_limit.or(Some(DEFAULT_PIDS_LIMIT));
        self.limit_pod(&Resources {
            pids_limit,
            ..resources.clone()
        })?;
        self.end_as_a_whole(resources);
        Ok(())
    }

    /// With version 2 a container that has too little memory ends with all of its processes; the others of its pod do not.
    fn end_as_a_whole(&self, resources: &Resources) {
        if let Some(directory) = self
            .directory("memory")
            .filter(|_| self.is_v2() && resources.memory_limit.is_some())
        {
            let _ = fs::write(directory.join("memory.oom.group"), "1");
        }
    }

    /// The limits of a pod as a whole: those given.
    pub fn limit_pod(&self, resources: &Resources) -> Result<(), CgroupError> {
        let mut settings = match &self.hierarchies {
            Hierarchies::V1(_) => v1_settings(resources),
            Hierarchies::V2(_) => v2_settings(resources),
        };
        settings.extend(
            resources
                .pids_limit
                .map(|limit| ("pids", "pids.max", limit.to_string())),
        );
        for (controller, file, value) in settings {
            self.set(controller, file, &value)?;
        }
        self.bound_swap(resources);
        self.set_unified(&resources.unified)
    }

    /// The limits of a container that runs. With version 1 the limit of memory cannot pass that of memory and swap, which
    /// therefore has to rise first and fall last.
    pub fn change_limits(&self, resources: &Resources) -> Result<(), CgroupError> {
        self.bound_swap(resources);
        self.limit(resources)
    }

    /// The same for a pod as a whole.
    pub fn change_pod_limits(&self, resources: &Resources) -> Result<(), CgroupError> {
        self.bound_swap(resources);
        self.limit_pod(resources)
    }

    /// The quota and the bytes that it has now; `None` where it has no limit, or none that can be read.
    pub(crate) fn current_limits(&self) -> (Option<i64>, Option<u64>) {
        let read = |controller: &str, file: &str| {
            let text = fs::read_to_string(self.directory(controller)?.join(file)).ok()?;
            Some(text.split_whitespace().next()?.to_owned())
        };
        let (quota, bytes) = if self.is_v2() {
            (read("cpu", "cpu.max"), read("memory", "memory.max"))
        } else {
            (
                read("cpu", "cpu.cfs_quota_us"),
                read("memory", "memory.limit_in_bytes"),
            )
        };
        let quota = quota
            .and_then(|text| text.parse().ok())
            .filter(|quota| *quota > 0);
        let bytes = bytes.and_then(|text| text.parse().ok());
        (quota, bytes.filter(|bytes| *bytes < UNLIMITED))
    }

    /// Whether it is there, in any hierarchy.
    pub fn exists(&self) -> bool {
        self.directories().iter().any(|directory| directory.exists())
    }

    fn set(&self, controller: &str, file: &str, value: &str) -> Result<(), CgroupError> {
        let Some(directory) = self.directory(controller) else {
            return Ok(());
        };
        let file = directory.join(file);
        fs::write(&file, value).map_err(|source| CgroupError::Limit { file, source })
    }

    /// Files by their own names, which only version 2 has.
    fn set_unified(&self, files: &BTreeMap<String, String>) -> Result<(), CgroupError> {
        for (file, value) in files {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._".contains(&byte);
            if !self.is_v2() || !file.bytes().all(is_plain) || !file.contains('.') {
                return Err(CgroupError::Unified { file: file.clone() });
            }
            self.set("memory", file, value)?;
        }
        Ok(())
    }

    /// Allows only these devices, for good. With version 1 a machine may have no controller for that.
    pub fn limit_devices(&self, rules: &[DeviceRule]) -> Result<(), CgroupError> {
        let Some(directory) = self.directory("devices") else {
            return Ok(());
        };
        let limited = if self.is_v2() {
            File::open(&directory)
                .and_then(|cgroup| attach_device_filter(cgroup, &device_access::program(rules)))
        } else {
            allow_devices(&directory, rules)
        };
        limited.map_err(|source| CgroupError::Devices {
            path: directory,
            source,
        })
    }

    /// Memory that is swapped out is not to come on top of the limit, unless the pod may have some. Kernels without an account of swap have no file
    /// for it.
    fn bound_swap(&self, resources: &Resources) {
        let (Some(limit), Some(directory)) = (resources.memory_limit, self.directory("memory")) else {
            return;
        };
        let together = resources.memory_swap_limit.unwrap_or(limit);
        if self.is_v2() {
            let swap = match together {
                u64::MAX => "max".to_owned(),
                bytes => bytes.saturating_sub(limit).to_string(),
            };
            let _ = fs::write(directory.join("memory.swap.max"), swap);
        } else {
            let bytes = match together {
                u64::MAX => "-1".to_owned(),
                bytes => bytes.to_string(),
            };
            let _ = fs::write(directory.join("memory.memsw.limit_in_bytes"), bytes);
        }
    }

    fn directory(&self, controller: &str) -> Option<PathBuf> {
        match &self.hierarchies {
            Hierarchies::V1(_) => self.directory_of_v1(controller),
            Hierarchies::V2(root) => Some(root.join(&self.path)),
        }
    }

    fn directory_of_v1(&self, controller: &str) -> Option<PathBuf> {
        let Hierarchies::V1(controllers) = &self.hierarchies else {
            return None;
        };
        let (_, mount) = controllers.iter().find(|(name, _)| *name == controller)?;
        Some(mount.join(&self.path))
    }

    /// Moves the calling process, which has one thread, into it.
    pub fn join(&self) -> io::Result<()> {
        let file = if self.is_v2() { "cgroup.procs" } else { "tasks" };
        for directory in self.directories() {
            fs::write(directory.join(file), "0")?;
        }
        self.apart.join()
    }

    /// Sends SIGKILL to all in it. Returns how many there were; called again until there are none.
    pub fn kill(&self) -> usize {
        if self.is_v2() {
            let members = self.members();
            let killed = self
                .directories()
                .iter()
                .all(|directory| fs::write(directory.join("cgroup.kill"), "1").is_ok());
            if killed {
                return members.len();
            }
        }
        let members = self.members();
        for pid in &members {
            let _ = send_signal(*pid, Signal::KILL.number());
        }
        self.thaw();
        members.len()
    }

    /// With version 1 frozen processes do not even die. Version 2 kills them as they are.
    pub fn thaw(&self) {
        self.apart.thaw();
        if let Some(directory) = self.directory("freezer").filter(|_| !self.is_v2()) {
            let _ = fs::write(directory.join("freezer.state"), "THAWED");
        }
    }

    /// Kills all in it again and again. Returns whether none is left.
    pub fn kill_until_empty(&self, patience: Duration) -> bool {
        let give_up = Instant::now() + patience;
        while self.kill() > 0 {
            if Instant::now() > give_up {
                return false;
            }
            std::thread::sleep(KILL_INTERVAL);
        }
        true
    }

    pub fn members(&self) -> HashSet<Pid> {
        let mut members = HashSet::new();
        for directory in self.directories() {
            let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
            members.extend(text.lines().filter_map(|line| process_id(line.parse().ok()?)));
        }
        members
    }

    /// Whether the kernel has killed a process in it for want of memory.
    pub fn oom_killed(&self) -> bool {
        let file = if self.is_v2() {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        self.directory("memory")
            .and_then(|directory| fs::read_to_string(directory.join(file)).ok())
            .and_then(|text| field(&text, "oom_kill"))
            .is_some_and(|count| count > 0)
    }

    /// Returns `None` if the cgroup is not there (any more).
    pub fn stats(&self) -> Option<ContainerStats> {
        let memory = self.directory("memory")?;
        let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let (usage, inactive, anonymous) = if self.is_v2() {
            ("memory.current", "inactive_file", "anon")
        } else {
            ("memory.usage_in_bytes", "total_inactive_file", "total_rss")
        };
        let memory_usage = number(memory.join(usage))?;
        let details = fs::read_to_string(memory.join("memory.stat")).ok()?;
        let cpu_nanos = if self.is_v2() {
            let text = fs::read_to_string(self.directory("cpu")?.join("cpu.stat")).ok()?;
            field(&text, "usage_usec")?.saturating_mul(1000)
        } else {
            number(self.directory("cpuacct")?.join("cpuacct.usage"))?
        };
        Some(ContainerStats {
            cpu_nanos,
            memory_working_set: memory_usage.saturating_sub(field(&details, inactive).unwrap_or(0)),
            memory_usage,
            memory_anonymous: field(&details, anonymous).unwrap_or(0),
            page_faults: field(&details, self.counter("pgfault")).unwrap_or(0),
            major_page_faults: field(&details, self.counter("pgmajfault")).unwrap_or(0),
            swap_usage: if self.is_v2() {
                number(memory.join("memory.swap.current"))
            } else {
                field(&details, "total_swap")
            },
            processes: self
                .directory("pids")
                .and_then(|pids| number(pids.join("pids.current")))
                .unwrap_or(0),
        })
    }

    /// A counter of `memory.stat`, with what is below the cgroup.
    fn counter(&self, name: &'static str) -> &'static str {
        match name {
            "pgfault" if !self.is_v2() => "total_pgfault",
            "pgmajfault" if !self.is_v2() => "total_pgmajfault",
            same => same,
        }
    }

    /// Removes it and what is below it, as far as no process is in there. One that was just killed needs a moment to
    /// leave.
    pub fn remove(&self) {
        remove_directories(self.directories(), REMOVE_PATIENCE);
    }

    /// Makes a container's in the hierarchies that limit nothing, and opens that of version 2; `None` if there is none.
    pub fn open_apart(&self) -> Option<OwnedFd> {
        self.apart.open()
    }

    /// Removes a container's in the hierarchies that limit nothing. Its shim is in some of them and must have ended.
    pub fn remove_apart(&self) {
        self.apart.remove();
    }

    pub fn remove_if_empty(&self) {
        for directory in self.directories() {
            let _ = fs::remove_dir(directory);
        }
    }

    /// The paths of all that are below it, up to `depth` levels.
    pub fn descendants(&self, depth: usize) -> BTreeSet<PathBuf> {
        let mut found = BTreeSet::new();
        for name in self.children().into_iter().filter(|_| depth > 0) {
            let child = self.hierarchies.cgroup(&self.path.join(name));
            found.extend(child.descendants(depth - 1));
            found.insert(child.path);
        }
        found
    }

    /// Kills all that is in it and in those below it, then removes them. Returns whether no process is left.
    pub fn kill_and_remove(&self, patience: Duration) -> bool {
        let below = self.descendants(MAX_DEPTH).into_iter();
        let cgroups = below.map(|path| self.hierarchies.cgroup(&path));
        let all = cgroups.chain([self.clone()]);
        let left = all.filter(|cgroup| !cgroup.kill_until_empty(patience)).count();
        self.remove();
        left == 0
    }

    /// The names of those directly below it.
    pub fn children(&self) -> HashSet<String> {
        self.directories()
            .iter()
            .filter_map(|directory| fs::read_dir(directory).ok())
            .flatten()
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }
}

fn allow_devices(directory: &Path, rules: &[DeviceRule]) -> io::Result<()> {
    fs::write(directory.join("devices.deny"), "a")?;
    let mut allow = File::options()
        .write(true)
        .open(directory.join("devices.allow"))?;
    for rule in rules {
        // The kernel takes one rule a call.
        match allow.write_all(rule.to_string().as_bytes()) {
            // What is refused to all of the machine's containers is refused to this one.
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

fn make_directory(path: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(path) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => Err(CgroupError::Create {
            path: path.to_owned(),
            source,
        }),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// With version 1 a new cpuset has no processors, and nothing can join it before it has. Returns whether it has now.
fn inherit_cpuset(parent: &Path, child: &Path) -> bool {
    let read = |path: PathBuf| fs::read_to_string(path).map(|text| text.trim().to_owned());
    ["cpuset.cpus", "cpuset.mems"].into_iter().all(|file| {
        if read(child.join(file)).is_ok_and(|own| !own.is_empty()) {
            return true;
        }
        let inherited = read(parent.join(file)).unwrap_or_default();
        !inherited.is_empty() && fs::write(child.join(file), inherited).is_ok()
    })
}

/// Removes cgroups with what is below them, as far as no process is in there until patience ends.
pub(crate) fn remove_directories(mut left: Vec<PathBuf>, patience: Duration) {
    let give_up = Instant::now() + patience;
    loop {
        left.retain(|directory| !remove_tree(directory, MAX_DEPTH));
        if left.is_empty() || Instant::now() > give_up {
            return;
        }
        std::thread::sleep(KILL_INTERVAL);
    }
}

/// Returns whether it is gone.
fn remove_tree(directory: &Path, depth: usize) -> bool {
    // Most have nothing below them.
    if remove_one(directory) {
        return true;
    }
    if depth > 0
        && let Ok(entries) = fs::read_dir(directory)
    {
        for entry in entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        {
            remove_tree(&entry.path(), depth - 1);
        }
    }
    remove_one(directory)
}

fn remove_one(directory: &Path) -> bool {
    match fs::remove_dir(directory) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// The number after a name, in files of one name and number a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(key, _)| *key == name)
        .and_then(|(_, value)| value.trim().parse().ok())
}

#[cfg(test)]
mod tests;
