//! A cgroup per container, used for one thing: killing all its processes at one stroke.
//!
//! It lies below the cgroup of the agent in the unified hierarchy, which is there also where version 1 controllers are
//! used. Where it cannot be made (no right to, no such hierarchy) the container does without, and the shim's walk
//! over all descendants does the work alone.

use std::{
    fs::{self, File},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use pulselet_runtime::Signal;
use pulselet_shim::record::{self, Durability};
use pulselet_sys::{Pid, process_id, send_signal};
use serde::{Deserialize, Serialize};

const CGROUP_FILE: &str = "cgroup.json";
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes the cgroup and notes it in the container's directory, where whoever cleans up later finds it.
    pub(crate) fn create(container_dir: &Path, id: &str) -> Option<Self> {
        let cgroup = Self {
            path: own_cgroup()?.join(format!("pulselet-{id}")),
        };
        // Noted first: a note without a cgroup does no harm.
        record::write(container_dir, CGROUP_FILE, &cgroup, Durability::Process).ok()?;
        fs::create_dir(&cgroup.path).ok()?;
        Some(cgroup)
    }

    /// The cgroup of a container, if it has one.
    pub(crate) fn find(container_dir: &Path) -> Option<Self> {
        record::read::<Self>(container_dir, CGROUP_FILE)
            .ok()
            .flatten()
            .filter(|cgroup| cgroup.path.is_dir())
    }

    /// Whoever writes 0 to this joins.
    pub(crate) fn entrance(&self) -> io::Result<OwnedFd> {
        Ok(File::options()
            .write(true)
            .open(self.path.join("cgroup.procs"))?
            .into())
    }

    /// Sends SIGKILL to all that is in it.
    pub(crate) fn kill(&self) {
        if fs::write(self.path.join("cgroup.kill"), "1").is_ok() {
            return;
        }
        // Kernels before 5.14.
        for pid in self.members() {
            let _ = send_signal(pid, Signal::KILL.number());
        }
    }

    pub(crate) fn members(&self) -> Vec<Pid> {
        let list = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        list.lines()
            .filter_map(|line| process_id(line.parse().ok()?))
            .collect()
    }

    /// Works once nobody is in it any more.
    pub(crate) fn remove(&self) {
        let _ = fs::remove_dir(&self.path);
    }
}

/// The directory of the cgroup this process is in.
fn own_cgroup() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let memberships = fs::read_to_string("/proc/self/cgroup").ok()?;
    own_cgroup_in(&mounts, &memberships)
}

fn own_cgroup_in(mounts: &str, memberships: &str) -> Option<PathBuf> {
    let own = memberships.lines().find_map(|line| line.strip_prefix("0::/"))?;
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        if kind.split(' ').next()? != "cgroup2" {
            return None;
        }
        let mut fields = mount.split(' ').skip(3);
        // A mount of a part of the hierarchy shows only what is below that part.
        let root = fields.next()?.trim_start_matches('/');
        let mount_point = fields.next()?;
        Some(Path::new(mount_point).join(Path::new(own).strip_prefix(root).ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_hierarchy_is_found_in_both_layouts() {
        let hybrid = "30 22 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      31 22 0:27 / /sys/fs/cgroup/unified rw,relatime shared:1 - cgroup2 cgroup2 rw\n";
        let found = own_cgroup_in(hybrid, "4:memory:/x\n0::/\n");
        assert_eq!(found.as_deref(), Some(Path::new("/sys/fs/cgroup/unified/")));
        let pure = "31 22 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let found = own_cgroup_in(pure, "0::/system.slice/pulselet.service\n");
        assert_eq!(
            found.as_deref(),
            Some(Path::new("/sys/fs/cgroup/system.slice/pulselet.service"))
        );
    }

    #[test]
    fn a_partial_mount_shows_its_part() {
        let part = "31 22 0:27 /outer /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(
            own_cgroup_in(part, "0::/outer/inner\n").as_deref(),
            Some(Path::new("/sys/fs/cgroup/inner"))
        );
        assert_eq!(own_cgroup_in(part, "0::/elsewhere\n"), None);
        assert_eq!(own_cgroup_in("", "0::/\n"), None);
    }
}
