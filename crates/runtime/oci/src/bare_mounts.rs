//! A mount namespace with little in it: the machine's root, the kernel's own file systems, and what leads to the agent's data.
//!
//! The mount namespace of a container begins as a copy of the one that its first process is in, and every pod has mounts on
//! the host. To copy those, only to let go of them, would make each container cost more the more pods there are. So the agent
//! makes this one when it starts, and who becomes a container enters it first. It is there for as long as the agent has it open.
//!
//! What always holds: nothing depends on it. Who cannot enter it, or does not find in it what it needs, goes on among the
//! host's mounts. What is mounted on the host later is not in it: volumes are opened before it is entered.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    path::{Path, PathBuf},
};

use pulselet_sys::unshare_namespaces;
use rustix::{
    fs::{CWD, fstatfs},
    mount::{MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount_change, move_mount, open_tree},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
};
use serde::{Deserialize, Serialize};

use crate::{mount_table, rootfs, sandbox::NSFS_MAGIC};

/// File systems of the kernel, with what is mounted below them: devices, terminals, cgroups.
const OF_KERNEL: [&str; 3] = ["/dev", "/proc", "/sys"];

/// The namespace, held by the agent.
#[derive(Debug)]
pub(crate) struct BareMounts {
    namespace: File,
    inode: u64,
}

/// Where a shim finds the namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BareMountsPath {
    path: PathBuf,
    /// The kernel's number of the namespace: the path may be another process's by now.
    inode: u64,
}

impl BareMounts {
    /// Makes it. In it `needed`, directories of the host, are what they are on the host. May block, for milliseconds.
    pub(crate) fn make(needed: &[&Path]) -> io::Result<Self> {
        if rootfs::covers_host()? {
            return Err(io::Error::other("the machine's root cannot be changed"));
        }
        // Namespaces are those of a thread; this one must keep its own.
        let namespace = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("mounts".into())
                .spawn_scoped(scope, || make_in_thread(needed))?;
            thread.join().expect("making a namespace does not panic")
        })?;
        let inode = namespace.metadata()?.ino();
        Ok(Self { namespace, inode })
    }

    /// For children of this process.
    pub(crate) fn path(&self) -> BareMountsPath {
        let descriptor = self.namespace.as_raw_fd();
        BareMountsPath {
            path: format!("/proc/{}/fd/{descriptor}", std::process::id()).into(),
            inode: self.inode,
        }
    }
}

impl BareMountsPath {
    /// Returns `None` if it is gone with the agent that made it.
    pub(crate) fn open(&self) -> Option<File> {
        let file = File::open(&self.path).ok()?;
        let is_namespace = fstatfs(&file).is_ok_and(|it| it.f_type == NSFS_MAGIC);
        let is_same = file.metadata().is_ok_and(|it| it.ino() == self.inode);
        (is_namespace && is_same).then_some(file)
    }
}

/// Enters the namespace, if all of `needed` is in it. Returns whether it did; otherwise everything is as it was.
pub(crate) fn enter(namespace: &File, needed: &[&Path]) -> io::Result<bool> {
    let own = File::open("/proc/thread-self/ns/mnt")?;
    // What is missing is missed later, by who needs it.
    let Ok(before) = identities(needed) else {
        return Ok(false);
    };
    let mounts = Some(LinkNameSpaceType::Mount);
    if move_into_link_name_space(namespace.as_fd(), mounts).is_err() {
        return Ok(false);
    }
    if identities(needed).is_ok_and(|after| after == before) {
        return Ok(true);
    }
    move_into_link_name_space(own.as_fd(), mounts)?;
    Ok(false)
}

/// By which it is known whether paths lead to the same files.
fn identities(paths: &[&Path]) -> io::Result<Vec<(u64, u64)>> {
    let identity = |path: &&Path| fs::metadata(path).map(|it| (it.dev(), it.ino()));
    paths.iter().map(identity).collect()
}

fn make_in_thread(needed: &[&Path]) -> io::Result<File> {
    let place = *needed.first().ok_or(io::ErrorKind::InvalidInput)?;
    let paths: Vec<&Path> = needed.iter().copied().chain([Path::new("/")]).collect();
    let before = identities(&paths)?;
    unshare_namespaces(UnshareFlags::NEWNS)?;
    // Nothing that is done here is done on the host, and what is done there later does not come here.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let table = fs::read_to_string("/proc/thread-self/mountinfo")?;
    let mut kept = Vec::new();
    for target in kept_targets(&table, needed) {
        let recursive = if is_of_kernel(&target) {
            OpenTreeFlags::AT_RECURSIVE
        } else {
            OpenTreeFlags::empty()
        };
        kept.push((clone(&target, recursive)?, target));
    }
    attach(&clone(Path::new("/"), OpenTreeFlags::empty())?, place)?;
    rootfs::change_root(place)?;
    for (tree, target) in &kept {
        attach(tree, target)?;
    }
    let namespace = File::open("/proc/thread-self/ns/mnt")?;
    // A shim has the root of the namespace, which is not the agent's where that was given another one.
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))?;
    if identities(&paths)? == before {
        Ok(namespace)
    } else {
        Err(io::Error::other("the agent's files are elsewhere in it"))
    }
}

fn clone(path: &Path, recursive: OpenTreeFlags) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | recursive;
    Ok(open_tree(CWD, path, flags)?)
}

fn attach(tree: &OwnedFd, target: &Path) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(move_mount(tree.as_fd(), "", CWD, target, flags)?)
}

/// Where something is mounted that is needed, but for the root; what is mounted on another comes after it.
fn kept_targets(table: &str, needed: &[&Path]) -> BTreeSet<PathBuf> {
    let is_kept = |target: &Path| {
        let leads_to_needed = || needed.iter().any(|path| path.starts_with(target));
        let is_below_kernel = OF_KERNEL.iter().any(|path| target.starts_with(path));
        is_of_kernel(target) || (leads_to_needed() && !is_below_kernel)
    };
    let targets = table.lines().filter_map(mount_table::target);
    targets
        .filter(|target| target.as_ref() != Path::new("/") && is_kept(target))
        .map(std::borrow::Cow::into_owned)
        .collect()
}

fn is_of_kernel(target: &Path) -> bool {
    OF_KERNEL.iter().any(|path| target == Path::new(path))
}

#[cfg(test)]
mod tests {
    use rustix::mount::{MountFlags, mount};

    use super::*;

    /// Runs a test in a mount namespace of its own.
    fn in_namespace(test: impl FnOnce() + Send) {
        if !pulselet_testing::requires("root", pulselet_testing::is_root()) {
            return;
        }
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                unshare_namespaces(UnshareFlags::NEWNS).expect("has a namespace");
                let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
                mount_change("/", private).expect("is private");
                test();
            });
            thread.join().expect("does not panic");
        });
    }

    fn mount_memory(path: &Path) {
        fs::create_dir_all(path).expect("makes");
        mount("tmpfs", path, "tmpfs", MountFlags::empty(), None).expect("mounts");
    }

    fn mounts() -> usize {
        let table = fs::read_to_string("/proc/thread-self/mountinfo").expect("reads");
        table.lines().count()
    }

    #[test]
    fn what_leads_to_the_data_is_kept_and_pods_mounts_are_not() {
        in_namespace(|| {
            let directory = tempfile::tempdir().expect("a directory");
            let data = directory.path().join("data");
            mount_memory(&data);
            fs::write(data.join("file"), "agent's").expect("writes");
            for pod in 0..50 {
                mount_memory(&data.join(format!("pod-{pod}")));
            }
            let made = BareMounts::make(&[&data]).expect("is made");
            let (of_host, later) = (mounts(), directory.path().join("later"));
            mount_memory(&later);
            let namespace = made.path().open().expect("the agent has it");
            assert!(
                !enter(&namespace, &[&data, &later]).expect("looks"),
                "something is missing in it"
            );
            assert_eq!(mounts(), of_host + 1, "back among the host's");
            assert!(enter(&namespace, &[&data]).expect("enters"));
            assert!(mounts() + 50 <= of_host, "{} of {of_host}", mounts());
            assert_eq!(fs::read_to_string(data.join("file")).expect("reads"), "agent's");
            let gone = BareMountsPath {
                inode: made.inode + 1,
                ..made.path()
            };
            assert!(gone.open().is_none(), "another namespace has its place");
        });
    }

    #[test]
    fn parents_come_first_and_what_is_mounted_for_others_is_left_out() {
        let table = "1 1 8:1 / / rw - ext4 a rw\n2 1 0:2 / /proc rw - proc p rw\n3 1 0:3 / /dev rw - devtmpfs d rw\n\
            4 3 0:4 / /dev/pts rw - devpts d rw\n5 1 8:2 / /data/agent rw - ext4 b rw\n6 1 8:3 / /data rw - ext4 c rw\n\
            7 5 0:7 / /data/agent/oci/sandboxes/1/net rw - nsfs n rw\n8 1 8:4 / /mnt/usb rw - vfat u rw\n";
        let kept = kept_targets(table, &[Path::new("/data/agent/oci")]);
        let expected = ["/data", "/data/agent", "/dev", "/proc"].map(PathBuf::from);
        assert!(kept.iter().eq(&expected), "{kept:?}");
    }
}
