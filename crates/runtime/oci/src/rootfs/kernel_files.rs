//! The file systems of the kernel that every container has: /proc, /dev, /sys and what shows its cgroups.
//!
//! Each is mounted on what was found at its path in the root. What goes below one of them right after that needs no search:
//! see [`FreshDirectory`].

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

use pulselet_cgroup::Cgroup;
use pulselet_sys::{MountAttributes, set_mount_attributes};
use rustix::{
    fs::{CWD, Mode, PROC_SUPER_MAGIC, fstat, fstatfs, mkdirat},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
        fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
    },
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use super::{
    Bind, RootError, attach, attach_to, clone_tree, look_up,
    lookup::{Links, Missing, RootDir, make_file},
};
use crate::{
    sandbox::PROC,
    spec::{ContainerSpec, PidNamespaceSource},
};

/// The group that terminals belong to.
const TERMINAL_GROUP: u32 = 5;

/// The inode number of the root of every proc file system.
const PROC_ROOT_INODE: u64 = 1;

/// Where a container sees its cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// What the kernel mounts for a container by itself.
pub(super) struct KernelMount<'a> {
    pub(super) kind: &'static str,
    pub(super) target: &'static str,
    pub(super) attributes: MountAttrFlags,
    /// With an empty value an option is a flag.
    pub(super) options: &'a [(&'static str, &'a str)],
}

/// The root of a file system that was mounted by this process a moment ago. Nothing of an image, a volume or another process is
/// in it, so a name in it is what the kernel or this process has put there.
pub(super) struct FreshDirectory(OwnedFd);

impl FreshDirectory {
    /// Mounts something at a name that is there.
    fn attach(&self, tree: &OwnedFd, name: &Path) -> io::Result<()> {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        Ok(move_mount(tree.as_fd(), "", self.0.as_fd(), name, flags)?)
    }

    fn attach_directory(&self, tree: &OwnedFd, name: impl AsRef<Path>) -> io::Result<()> {
        mkdirat(&self.0, name.as_ref(), Mode::from_raw_mode(0o755))?;
        self.attach(tree, name.as_ref())
    }

    pub(super) fn attach_file(&self, tree: &OwnedFd, name: &str) -> io::Result<()> {
        make_file(self.0.as_fd(), name.as_ref())?;
        self.attach(tree, Path::new(name))
    }
}

impl AsFd for FreshDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl KernelMount<'_> {
    /// Mounts it at its place in the root. An image that has a link there is refused.
    fn make(&self, root: &RootDir) -> Result<FreshDirectory, RootError> {
        let target = look_up(
            root,
            Path::new(self.target),
            Links::Refuse,
            Missing::MakeDirectory,
        )?;
        let mounted = self.detached().and_then(|tree| {
            attach_to(&tree, &target)?;
            Ok(FreshDirectory(tree))
        });
        mounted.map_err(|source| self.failed(source))
    }

    /// Mounts it at a name of a directory, made for it.
    fn make_below(&self, parent: &FreshDirectory, name: &str) -> Result<(), RootError> {
        let mounted = self
            .detached()
            .and_then(|tree| parent.attach_directory(&tree, name));
        mounted.map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> RootError {
        RootError::Kernel {
            what: self.target,
            source,
        }
    }

    pub(super) fn detached(&self) -> io::Result<OwnedFd> {
        let context = fsopen(self.kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (name, value) in self.options {
            if value.is_empty() {
                fsconfig_set_flag(context.as_fd(), *name)?;
            } else {
                fsconfig_set_string(context.as_fd(), *name, *value)?;
            }
        }
        fsconfig_create(context.as_fd())?;
        Ok(fsmount(
            context.as_fd(),
            FsMountFlags::FSMOUNT_CLOEXEC,
            self.attributes,
        )?)
    }
}

/// Does something among the mounts of another process, and comes back. A mount can only be copied from among one's own.
fn in_mounts_of<T>(pid: i32, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let mounts = Some(LinkNameSpaceType::Mount);
    let own = File::open("/proc/self/ns/mnt")?;
    let theirs = File::open(format!("/proc/{pid}/ns/mnt"))?;
    move_into_link_name_space(theirs.as_fd(), mounts)?;
    let done = work();
    move_into_link_name_space(own.as_fd(), mounts)?;
    done
}

/// The files of the process namespace that the container shares with others, detached; `None` if it has one of its own.
/// This process is not in it and cannot mount them anew.
pub(super) fn shared_proc(spec: &ContainerSpec) -> Result<Option<OwnedFd>, RootError> {
    let path = match &spec.namespaces.processes {
        PidNamespaceSource::Own => return Ok(None),
        PidNamespaceSource::Pod(pin) => pin.with_file_name(PROC),
        PidNamespaceSource::Host | PidNamespaceSource::Target(_) => "/proc".into(),
    };
    let open = || -> io::Result<OwnedFd> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = match spec.namespaces.processes {
            PidNamespaceSource::Target(pid) => in_mounts_of(pid, || {
                match open_tree(CWD, &path, flags) {
                    // What hides files there is locked, and comes along.
                    Err(Errno::INVAL) => Ok(open_tree(CWD, &path, flags | OpenTreeFlags::AT_RECURSIVE)?),
                    opened => Ok(opened?),
                }
            })?,
            PidNamespaceSource::Own | PidNamespaceSource::Pod(_) | PidNamespaceSource::Host => {
                open_tree(CWD, &path, flags)?
            }
        };
        if !is_proc_root(&tree) {
            return Err(io::Error::other("it is not the root of a proc file system"));
        }
        let attributes = MountAttributes {
            no_suid: true,
            no_dev: true,
            no_exec: true,
            private: true,
            ..MountAttributes::default()
        };
        set_mount_attributes(&tree, attributes)?;
        Ok(tree)
    };
    open().map(Some).map_err(|source| RootError::Kernel {
        what: "/proc",
        source,
    })
}

pub(super) fn is_proc_root(tree: &OwnedFd) -> bool {
    let is_proc = fstatfs(tree).is_ok_and(|stat| stat.f_type == PROC_SUPER_MAGIC);
    is_proc && fstat(tree).is_ok_and(|stat| stat.st_ino == PROC_ROOT_INODE)
}

/// Mounts /proc: a view of the given one, or this process namespace's own.
pub(super) fn mount_proc(root: &RootDir, shared: Option<OwnedFd>) -> Result<(), RootError> {
    let own = KernelMount {
        kind: "proc",
        target: "/proc",
        attributes: MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC,
        options: &[],
    };
    let Some(tree) = shared else {
        return own.make(root).map(drop);
    };
    let target = look_up(root, Path::new(own.target), Links::Refuse, Missing::MakeDirectory)?;
    attach_to(&tree, &target).map_err(|source| RootError::Kernel {
        what: own.target,
        source,
    })
}

/// Mounts /dev, empty but for what the kernel has there. `host_root` is the host's number of the container's root.
pub(super) fn mount_dev(
    root: &RootDir,
    privileged: bool,
    host_root: u32,
) -> Result<FreshDirectory, RootError> {
    let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID;
    if !privileged {
        attributes |= MountAttrFlags::MOUNT_ATTR_NODEV;
    }
    let dev = KernelMount {
        kind: "tmpfs",
        target: "/dev",
        attributes,
        options: &[("mode", "755"), ("size", "65536k")],
    };
    let dev = dev.make(root)?;
    let terminal_group = host_root.saturating_add(TERMINAL_GROUP).to_string();
    let terminals = KernelMount {
        kind: "devpts",
        target: "/dev/pts",
        attributes: MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC,
        options: &[
            ("newinstance", ""),
            ("ptmxmode", "0666"),
            ("mode", "0620"),
            ("gid", &terminal_group),
        ],
    };
    terminals.make_below(&dev, "pts")?;
    let queues = KernelMount {
        kind: "mqueue",
        target: "/dev/mqueue",
        attributes: plain(),
        options: &[],
    };
    queues.make_below(&dev, "mqueue")?;
    Ok(dev)
}

pub(super) fn mount_sys(root: &RootDir, privileged: bool) -> Result<FreshDirectory, RootError> {
    let mut attributes = plain();
    if !privileged {
        attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
    }
    let sys = KernelMount {
        kind: "sysfs",
        target: "/sys",
        attributes,
        options: &[],
    };
    sys.make(root)
}

/// With version 1, `binds` are the container's own directories in each hierarchy.
pub(super) fn mount_cgroups(
    root: &RootDir,
    sys: &FreshDirectory,
    cgroup: &Cgroup,
    privileged: bool,
    binds: &[Bind],
) -> Result<(), RootError> {
    let mut attributes = plain();
    if !privileged && cgroup.is_v2() {
        attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
    }
    let (kind, options): (_, &[_]) = if cgroup.is_v2() {
        ("cgroup2", &[])
    } else {
        ("tmpfs", &[("mode", "755"), ("size", "64k")])
    };
    let mount = KernelMount {
        kind,
        target: CGROUPS,
        attributes,
        options,
    };
    let mounted = mount.detached().and_then(|tree| {
        sys.attach(&tree, Path::new("fs/cgroup"))?;
        Ok(FreshDirectory(tree))
    });
    let hierarchies = mounted.map_err(|source| mount.failed(source))?;
    for bind in binds {
        let Some(name) = only_name_below(Path::new(CGROUPS), &bind.target) else {
            attach(root, bind, |_| Ok(()))?;
            continue;
        };
        let attached = bind
            .set_attributes()
            .and_then(|()| hierarchies.attach_directory(&bind.tree, name));
        attached.map_err(|source| mount.failed(source))?;
    }
    Ok(())
}

/// The rest of a path that is one name below a directory.
fn only_name_below<'a>(directory: &Path, path: &'a Path) -> Option<&'a Path> {
    let rest = path.strip_prefix(directory).ok()?;
    let mut components = rest.components();
    let only = matches!(
        (components.next(), components.next()),
        (Some(Component::Normal(_)), None)
    );
    only.then_some(rest)
}

fn plain() -> MountAttrFlags {
    MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC
}

/// With version 1, the container's own directory in each hierarchy.
pub(super) fn cgroup_binds(cgroup: &Cgroup, privileged: bool) -> Result<Vec<Bind>, RootError> {
    if cgroup.is_v2() {
        return Ok(Vec::new());
    }
    let inside = |(_, target): &(PathBuf, PathBuf)| target.starts_with(CGROUPS);
    let bind = |(directory, target): (PathBuf, PathBuf)| {
        let tree = clone_tree(&directory).map_err(|source| RootError::OpenSource {
            path: directory,
            source,
        })?;
        let attributes = MountAttributes {
            no_suid: true,
            no_dev: true,
            no_exec: true,
            private: true,
            ..MountAttributes::default()
        };
        Ok(Bind {
            tree,
            target,
            attributes,
            read_only: !privileged,
        })
    };
    cgroup.views().into_iter().filter(inside).map(bind).collect()
}
