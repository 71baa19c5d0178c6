//! The cgroups of a node's pods, as a kubelet lays them out: below one root `burstable` and `besteffort`, in each of them and
//! in the root itself (for guaranteed pods) one cgroup per pod, `pod<uid>`.
//!
//! A pod's cgroup has what its containers may use together. A class has a share of the CPU: `besteffort` the least there
//! is, `burstable` as much as its pods request, so that it follows the pods as they come and go.
//!
//! What always holds: nothing outside of the root is changed; a class without pods and a root without classes are removed.
//! Below a pod's cgroup the runtime has its own; other runtimes make them in more hierarchies than are limited here, so
//! removal looks into all that are mounted.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use pulselet_runtime::Resources;

use crate::{
    cgroup::{CgroupError, Hierarchies, REMOVE_PATIENCE, remove_directories},
    mounts::hierarchy_mounts,
    settings::{MIN_SHARES, cpu_shares},
};

/// What a pod's cgroup is called, with its uid.
const POD_PREFIX: &str = "pod";
const BURSTABLE: &str = "burstable";
const BEST_EFFORT: &str = "besteffort";

/// Bytes of a file's name at most.
const MAX_NAME: usize = 255;

/// How often a cgroup is made whose parent is removed at the same moment, because it was empty.
const ATTEMPTS: usize = 5;

/// How a pod stands to others when the machine has too little.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl QosClass {
    const ALL: [Self; 3] = [Self::Guaranteed, Self::Burstable, Self::BestEffort];

    /// By its name in a pod's status; what is not known counts as the class between the others.
    pub fn from_name(name: &str) -> Self {
        match name {
            "Guaranteed" => Self::Guaranteed,
            "BestEffort" => Self::BestEffort,
            _ => Self::Burstable,
        }
    }

    /// `None` if its pods are directly below the root.
    fn directory(self) -> Option<&'static str> {
        match self {
            Self::Guaranteed => None,
            Self::Burstable => Some(BURSTABLE),
            Self::BestEffort => Some(BEST_EFFORT),
        }
    }
}

/// What a pod has a right to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodClaim {
    pub class: QosClass,
    /// Thousandths of a processor that it requests.
    pub cpu_millis: u64,
}

/// Whether a name directly below the root is one that is made here. Runtimes make others there.
pub fn is_of_node(name: &str) -> bool {
    name == BURSTABLE || name == BEST_EFFORT || name.starts_with(POD_PREFIX)
}

/// The cgroups of all pods of a node. Its methods block for as long as the kernel takes.
#[derive(Debug)]
pub struct PodCgroups {
    hierarchies: Hierarchies,
    /// Where hierarchies are mounted, also those that are not used here.
    mounts: Vec<PathBuf>,
    root: PathBuf,
    /// Whoever holds it may make and remove cgroups.
    known: Mutex<KnownPods>,
}

#[derive(Debug, Default)]
struct KnownPods {
    /// By uid.
    claims: BTreeMap<String, PodClaim>,
    /// What classes have of the CPU, as far as it was set since they were made.
    shares: BTreeMap<QosClass, u64>,
}

impl KnownPods {
    fn has_any_of(&self, class: QosClass) -> bool {
        self.claims.values().any(|claim| claim.class == class)
    }
}

impl PodCgroups {
    /// `root` is a path from the roots of the hierarchies on. Fails where it cannot be made.
    pub fn open(root: PathBuf) -> Result<Self, CgroupError> {
        let text = fs::read_to_string("/proc/self/mountinfo").map_err(CgroupError::ReadMounts)?;
        let cgroups = Self::new(Hierarchies::find()?, all_mounts(&text), root);
        cgroups.hierarchies.cgroup(&cgroups.root).create()?;
        cgroups.remove_empty(None);
        Ok(cgroups)
    }

    fn new(hierarchies: Hierarchies, mounts: Vec<PathBuf>, root: PathBuf) -> Self {
        Self {
            hierarchies,
            mounts,
            root,
            known: Mutex::default(),
        }
    }

    /// Makes a pod's cgroup with its limits, or sets them anew. Returns its path from the roots of the hierarchies on.
    pub fn make(&self, uid: &str, claim: PodClaim, limits: &Resources) -> Result<PathBuf, CgroupError> {
        let path = self.path(uid, claim.class)?;
        let mut known = self.known();
        known.claims.insert(uid.to_owned(), claim);
        let made = self.create(&path).and_then(|()| {
            self.set_shares(&mut known)?;
            self.hierarchies.cgroup(&path).change_pod_limits(limits)
        });
        made.map(|()| path)
    }

    /// Takes note of a pod that an earlier agent has made.
    pub fn adopt(&self, uid: &str, claim: PodClaim) {
        self.known().claims.insert(uid.to_owned(), claim);
    }

    /// Gives a pod more where it is to have more, before its containers get it: with version 1 none of them can have more than
    /// their pod. Returns whether it has a cgroup here.
    pub fn raise(&self, uid: &str, claim: PodClaim, limits: &Resources) -> Result<bool, CgroupError> {
        let cgroup = self.hierarchies.cgroup(&self.path(uid, claim.class)?);
        if !cgroup.exists() {
            return Ok(false);
        }
        let (quota, bytes) = cgroup.current_limits();
        let cpu_quota = limits.cpu_quota.filter(|new| quota.is_some_and(|now| *new > now));
        let memory_limit = limits
            .memory_limit
            .filter(|new| bytes.is_some_and(|now| *new > now));
        cgroup.change_pod_limits(&Resources {
            cpu_quota,
            cpu_period: cpu_quota.and(limits.cpu_period),
            memory_limit,
            ..Resources::default()
        })?;
        Ok(true)
    }

    /// Changes what a pod may use. Returns whether it has a cgroup here: those of pods that an older version made have none.
    pub fn change(&self, uid: &str, claim: PodClaim, limits: &Resources) -> Result<bool, CgroupError> {
        let cgroup = self.hierarchies.cgroup(&self.path(uid, claim.class)?);
        if !cgroup.exists() {
            return Ok(false);
        }
        let mut known = self.known();
        known.claims.insert(uid.to_owned(), claim);
        self.set_shares(&mut known)?;
        cgroup.change_pod_limits(limits)?;
        Ok(true)
    }

    /// Removes a pod's cgroup, in which no process is any more.
    pub fn remove(&self, uid: &str) -> Result<(), CgroupError> {
        let claim = self.known().claims.get(uid).copied();
        // One that nobody knows may be anywhere.
        for class in claim.map_or(QosClass::ALL.to_vec(), |claim| vec![claim.class]) {
            // Outside of the lock: a process that was just killed may need a moment to leave.
            self.remove_path(&self.path(uid, class)?, REMOVE_PATIENCE);
        }
        let mut known = self.known();
        known.claims.remove(uid);
        self.tidy(&mut known)
    }

    /// Removes the cgroups of pods that nobody knows, as far as no process is in there, and gives the classes what their
    /// pods request.
    pub fn sweep(&self, is_known: impl Fn(&str) -> bool) -> Result<(), CgroupError> {
        let mut known = self.known();
        for class in QosClass::ALL {
            let parent = self.class_path(class);
            for name in self.children(&parent) {
                let uid = name.strip_prefix(POD_PREFIX);
                if uid.is_some_and(|uid| !known.claims.contains_key(uid) && !is_known(uid)) {
                    self.remove_path(&parent.join(&name), Duration::ZERO);
                }
            }
        }
        // Whoever was here before may have given them something else.
        known.shares.clear();
        self.tidy(&mut known)
    }

    /// Removes all of them in which no process is.
    pub fn remove_all(&self) {
        let mut known = self.known();
        known.shares.clear();
        self.remove_path(&self.root, REMOVE_PATIENCE);
    }

    fn tidy(&self, known: &mut KnownPods) -> Result<(), CgroupError> {
        for class in [QosClass::Burstable, QosClass::BestEffort] {
            if !known.has_any_of(class) {
                self.remove_empty(Some(class));
                known.shares.remove(&class);
            }
        }
        if known.claims.is_empty() {
            self.remove_empty(None);
        }
        self.set_shares(known)
    }

    /// Those of a class, or the root.
    fn remove_empty(&self, class: Option<QosClass>) {
        let path = class.map_or_else(|| self.root.clone(), |class| self.class_path(class));
        for mount in &self.mounts {
            // One that is in use is not removed by the kernel.
            let _ = fs::remove_dir(mount.join(&path));
        }
    }

    fn create(&self, path: &Path) -> Result<(), CgroupError> {
        let cgroup = self.hierarchies.cgroup(path);
        let mut made = cgroup.create();
        for _ in 1..ATTEMPTS {
            if !made.as_ref().is_err_and(CgroupError::is_not_found) {
                break;
            }
            made = cgroup.create();
        }
        made
    }

    /// Classes that are not there have none.
    fn set_shares(&self, known: &mut KnownPods) -> Result<(), CgroupError> {
        let of_burstable = known
            .claims
            .values()
            .filter(|claim| claim.class == QosClass::Burstable);
        let requested = of_burstable.fold(0, |sum: u64, claim| sum.saturating_add(claim.cpu_millis));
        for (class, shares) in [
            (QosClass::Burstable, cpu_shares(requested)),
            (QosClass::BestEffort, MIN_SHARES),
        ] {
            let cgroup = self.hierarchies.cgroup(&self.class_path(class));
            if known.shares.get(&class) != Some(&shares) && cgroup.exists() {
                cgroup.limit_pod(&Resources {
                    cpu_shares: Some(shares),
                    ..Resources::default()
                })?;
                known.shares.insert(class, shares);
            }
        }
        Ok(())
    }

    fn class_path(&self, class: QosClass) -> PathBuf {
        let mut path = self.root.clone();
        path.extend(class.directory());
        path
    }

    fn path(&self, uid: &str, class: QosClass) -> Result<PathBuf, CgroupError> {
        let name = format!("{POD_PREFIX}{uid}");
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if uid.is_empty() || name.len() > MAX_NAME || !uid.bytes().all(is_plain) {
            return Err(CgroupError::Name { uid: uid.to_owned() });
        }
        Ok(self.class_path(class).join(name))
    }

    fn remove_path(&self, path: &Path, patience: Duration) {
        let directories = self.mounts.iter().map(|mount| mount.join(path));
        remove_directories(directories.collect(), patience);
    }

    fn children(&self, path: &Path) -> HashSet<String> {
        let directories = self
            .mounts
            .iter()
            .filter_map(|mount| fs::read_dir(mount.join(path)).ok());
        let entries = directories.flatten().flatten();
        let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        below
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }

    fn known(&self) -> MutexGuard<'_, KnownPods> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Every place where a hierarchy is mounted as a whole or as far as it was delegated.
fn all_mounts(mounts: &str) -> Vec<PathBuf> {
    let mut seen = HashSet::new();
    let places = hierarchy_mounts(mounts).map(|mount| mount.place);
    places.filter(|place| seen.insert(place.clone())).collect()
}

#[cfg(test)]
mod tests;
