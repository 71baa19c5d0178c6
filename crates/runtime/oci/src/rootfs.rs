//! A container's view of files: its root from the image's layers, the kernel's file systems, devices and volumes.
//!
//! Runs in the container's init process, in a mount namespace of its own, so that nothing of it is ever mounted on the
//! host and all of it goes with the container's last process. What comes from the host is opened before the root
//! changes and attached after: targets are looked up inside the new root, where a symbolic link of the image leads
//! nowhere else.
//!
//! Unless the container is privileged no mount it can write to lets device files be used; those it may use are mounts
//! of their own. So a container that makes a device file gains nothing by it.

mod devices;
mod overlay;

use std::{
    ffi::CStr,
    fs::{self, File},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use pulselet_runtime::{MASKED_PATHS, Mount, Propagation, READ_ONLY_PATHS, VolumeRoot};
use pulselet_sys::{MountAttributes, set_mount_attributes};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, fstat, open},
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_change,
        move_mount, open_tree, unmount,
    },
    process::{chdir, pivot_root},
};

use crate::{cgroup::Cgroup, shim::Container, spec::ContainerSpec};

/// The mount point of the root, in the container's directory.
const ROOT: &str = "root";

#[derive(Debug, thiserror::Error)]
pub(crate) enum RootError {
    /// The pod's fault.
    #[error("cannot mount {path}: {source}", path = path.display())]
    OpenSource { path: PathBuf, source: io::Error },
    /// The pod's or the image's fault.
    #[error("cannot mount at {path}: {source}", path = path.display())]
    Attach { path: PathBuf, source: io::Error },
    #[error("cannot mount the root file system: {0}")]
    Overlay(io::Error),
    #[error("cannot change the root: {0}")]
    Pivot(io::Error),
    #[error("cannot mount {what}: {source}")]
    Kernel { what: &'static str, source: io::Error },
    #[error("cannot hide {path}: {source}", path = path.display())]
    Hide { path: PathBuf, source: io::Error },
    #[error("cannot make the root read-only: {0}")]
    ReadOnlyRoot(io::Error),
}

/// Something of the host, detached, and where it goes.
struct Bind {
    tree: OwnedFd,
    target: PathBuf,
    attributes: MountAttributes,
    read_only: bool,
}

/// Builds the root and makes it this process's. `terminal` is the container's terminal.
pub(crate) fn enter(container: &Container, terminal: Option<BorrowedFd<'_>>) -> Result<(), RootError> {
    let Container { dir, spec, cgroup } = container;
    let privileged = spec.confinement.privileged;
    let device_binds = devices::device_binds(spec, terminal)?;
    let host_devices = if privileged {
        devices::host_devices()
    } else {
        Vec::new()
    };
    let groups = cgroup_binds(cgroup, privileged)?;
    let volumes = volume_binds(spec)?;
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", slave).map_err(|errno| RootError::Pivot(errno.into()))?;
    overlay::mount_overlay(spec, dir)?;
    change_root(&dir.join(ROOT))?;
    mount_kernel_files(privileged)?;
    devices::fill_dev(&host_devices).map_err(|source| RootError::Kernel { what: "/dev", source })?;
    mount_cgroup_root(cgroup, privileged)?;
    for path in &spec.root.volumes {
        keep_writable(path).map_err(|source| RootError::Attach {
            path: path.clone(),
            source,
        })?;
    }
    for bind in device_binds.into_iter().chain(groups).chain(volumes) {
        attach(&bind).map_err(|source| RootError::Attach {
            path: bind.target.clone(),
            source,
        })?;
    }
    for path in &spec.root.hidden {
        hide(path)?;
    }
    if !privileged && !spec.confinement.unmasked {
        MASKED_PATHS.iter().try_for_each(|path| hide(Path::new(path)))?;
        READ_ONLY_PATHS
            .iter()
            .try_for_each(|path| protect(Path::new(path)))?;
    }
    if spec.root.read_only {
        make_root_read_only().map_err(RootError::ReadOnlyRoot)?;
    }
    Ok(())
}

fn clone_tree(path: &Path) -> io::Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    Ok(open_tree(CWD, path, flags)?)
}

/// What a mount shows. Below a volume nothing leads out of it, whatever containers that share it do meanwhile.
fn clone_source(mount: &Mount) -> io::Result<OwnedFd> {
    let Some(sub_path) = &mount.sub_path else {
        return clone_tree(&mount.host_path);
    };
    let source = VolumeRoot::open(&mount.host_path)?.look_up(sub_path)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    Ok(open_tree(source, "", flags)?)
}

/// With version 1, the container's own directory in each hierarchy.
fn cgroup_binds(cgroup: &Cgroup, privileged: bool) -> Result<Vec<Bind>, RootError> {
    if cgroup.is_v2() {
        return Ok(Vec::new());
    }
    let inside = |(_, target): &(PathBuf, PathBuf)| target.starts_with("/sys/fs/cgroup");
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

fn volume_binds(spec: &ContainerSpec) -> Result<Vec<Bind>, RootError> {
    let bind = |mount: &Mount| {
        let tree = clone_source(mount).map_err(|source| RootError::OpenSource {
            path: mount.source(),
            source,
        })?;
        let attributes = MountAttributes {
            // With what is mounted below it; otherwise `attach` makes the volume's own mount read-only.
            read_only: mount.read_only && mount.recursive_read_only,
            no_dev: !spec.confinement.privileged,
            slave: mount.propagation == Propagation::HostToContainer,
            private: mount.propagation == Propagation::Private,
            recursive: true,
            ..MountAttributes::default()
        };
        Ok(Bind {
            tree,
            target: mount.container_path.clone(),
            attributes,
            read_only: mount.read_only,
        })
    };
    spec.mounts.iter().map(bind).collect()
}

/// The old root is put over the new one and then let go of: no directory for it is needed.
fn change_root(root: &Path) -> Result<(), RootError> {
    let change = || -> rustix::io::Result<()> {
        chdir(root)?;
        pivot_root(".", ".")?;
        unmount(".", UnmountFlags::DETACH)?;
        chdir("/")
    };
    change().map_err(|errno| RootError::Pivot(errno.into()))
}

fn mount_kernel_files(privileged: bool) -> Result<(), RootError> {
    let plain = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let dev = if privileged {
        MountFlags::NOSUID
    } else {
        MountFlags::NOSUID | MountFlags::NODEV
    };
    let sys = if privileged {
        plain
    } else {
        plain | MountFlags::RDONLY
    };
    let pts = c"newinstance,ptmxmode=0666,mode=0620,gid=5";
    kernel_mount("proc", "/proc", plain, None)?;
    kernel_mount("tmpfs", "/dev", dev, Some(c"mode=755,size=65536k"))?;
    kernel_mount(
        "devpts",
        "/dev/pts",
        MountFlags::NOSUID | MountFlags::NOEXEC,
        Some(pts),
    )?;
    kernel_mount("mqueue", "/dev/mqueue", plain, None)?;
    kernel_mount("sysfs", "/sys", sys, None)
}

fn kernel_mount(
    kind: &'static str,
    target: &'static str,
    flags: MountFlags,
    options: Option<&CStr>,
) -> Result<(), RootError> {
    let failed = |source| RootError::Kernel { what: target, source };
    fs::create_dir_all(target).map_err(failed)?;
    mount(kind, target, kind, flags, options).map_err(|errno| failed(errno.into()))
}

fn mount_cgroup_root(cgroup: &Cgroup, privileged: bool) -> Result<(), RootError> {
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    if !privileged && cgroup.is_v2() {
        flags |= MountFlags::RDONLY;
    }
    let (kind, options) = if cgroup.is_v2() {
        ("cgroup2", None)
    } else {
        ("tmpfs", Some(c"mode=755,size=64k"))
    };
    let what = "/sys/fs/cgroup";
    mount(kind, what, kind, flags, options).map_err(|errno| RootError::Kernel {
        what,
        source: errno.into(),
    })
}

/// Makes the target if it is missing, as a directory or file like its source, and mounts there.
fn attach(bind: &Bind) -> io::Result<()> {
    let is_directory = FileType::from_raw_mode(fstat(&bind.tree)?.st_mode) == FileType::Directory;
    if is_directory {
        fs::create_dir_all(&bind.target)?;
    } else {
        if let Some(parent) = bind.target.parent() {
            fs::create_dir_all(parent)?;
        }
        if !bind.target.exists() {
            File::create(&bind.target)?;
        }
    }
    set_mount_attributes(&bind.tree, bind.attributes)?;
    if bind.read_only {
        let read_only = MountAttributes {
            read_only: true,
            ..MountAttributes::default()
        };
        set_mount_attributes(&bind.tree, read_only)?;
    }
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS;
    Ok(move_mount(bind.tree.as_fd(), "", CWD, &bind.target, flags)?)
}

/// Makes a directory of the root a mount of its own: a root that becomes read-only leaves it as it is.
fn keep_writable(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    let tree = clone_tree(path)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS;
    Ok(move_mount(tree.as_fd(), "", CWD, path, flags)?)
}

/// Puts something empty over a path, if it is there.
fn hide(path: &Path) -> Result<(), RootError> {
    let hidden = || -> io::Result<()> {
        if fs::symlink_metadata(path)?.is_dir() {
            let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            return Ok(mount(
                "tmpfs",
                path,
                "tmpfs",
                flags,
                Some(c"size=0,nr_inodes=2,mode=555"),
            )?);
        }
        let null = clone_tree(Path::new("/dev/null"))?;
        Ok(move_mount(
            null.as_fd(),
            "",
            CWD,
            path,
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
        )?)
    };
    match hidden() {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(RootError::Hide {
            path: path.to_owned(),
            source,
        }),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Makes a path read-only, if it is there.
fn protect(path: &Path) -> Result<(), RootError> {
    let protected = || -> io::Result<()> {
        let tree = clone_tree(path)?;
        let read_only = MountAttributes {
            read_only: true,
            recursive: true,
            ..MountAttributes::default()
        };
        set_mount_attributes(&tree, read_only)?;
        Ok(move_mount(
            tree.as_fd(),
            "",
            CWD,
            path,
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
        )?)
    };
    match protected() {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(RootError::Hide {
            path: path.to_owned(),
            source,
        }),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn make_root_read_only() -> io::Result<()> {
    let root = open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let read_only = MountAttributes {
        read_only: true,
        ..MountAttributes::default()
    };
    set_mount_attributes(&root, read_only)
}
