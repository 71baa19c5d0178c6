//! The table of mounts, as far as hierarchies of cgroups are in it.

use std::path::{Path, PathBuf};

/// A place where a hierarchy is mounted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HierarchyMount<'a> {
    /// Which hierarchy it is: one may be mounted in several places.
    device: &'a str,
    /// Whether all of it is mounted, and not only what was delegated.
    is_whole: bool,
    pub(crate) place: PathBuf,
}

/// All lines about hierarchies, of either version.
pub(crate) fn hierarchy_mounts(table: &str) -> impl Iterator<Item = HierarchyMount<'_>> {
    table.lines().filter_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        let mut front = front.split(' ').skip(2);
        let (device, root, place) = (front.next()?, front.next()?, front.next()?);
        matches!(back.split(' ').next()?, "cgroup" | "cgroup2").then(|| HierarchyMount {
            device,
            is_whole: root == "/",
            place: place.into(),
        })
    })
}

/// One place for each hierarchy that is at none of `used`, the one with all of it if there is one. In a hierarchy that is
/// used a process has its cgroup already, wherever else it is mounted.
pub(crate) fn other_mounts(table: &str, used: &[&Path]) -> Vec<PathBuf> {
    let mut found: Vec<HierarchyMount<'_>> = hierarchy_mounts(table).collect();
    let is_used = |mount: &HierarchyMount<'_>| used.contains(&mount.place.as_path());
    let used: Vec<&str> = found
        .iter()
        .filter(|mount| is_used(mount))
        .map(|mount| mount.device)
        .collect();
    found.retain(|mount| !used.contains(&mount.device));
    found.sort_by_key(|mount| (mount.device, !mount.is_whole));
    found.dedup_by_key(|mount| mount.device);
    found.into_iter().map(|mount| mount.place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
        32 30 0:28 / /sys/fs/cgroup/systemd rw shared:1 - cgroup cgroup rw,name=systemd\n\
        33 30 0:29 /a /shown rw - cgroup2 cgroup2 rw\n\
        34 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
        35 30 0:30 /b /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n\
        36 30 0:31 / /proc rw - proc proc rw\n\
        37 30 0:27 / /srv/chroot/sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
        38 30 0:28 / /srv/chroot/sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n";

    #[test]
    fn every_hierarchy_that_is_not_used_is_found_once() {
        let found = other_mounts(TABLE, &[Path::new("/sys/fs/cgroup/cpu")]);
        let expected = ["systemd", "unified", "freezer"];
        assert_eq!(found, expected.map(|name| Path::new("/sys/fs/cgroup").join(name)));
    }
}
