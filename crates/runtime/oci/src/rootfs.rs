//! A container's view of files: its root from the image's layers, the kernel's file systems, devices and volumes.
//!
//! Runs in the container's init process, in a mount namespace of its own, so that nothing of it is ever mounted on the
//! host and all of it goes with the container's last process. What comes from the host is opened before the root
//! changes and attached after: targets are looked up inside the new root, where a symbolic link of the image leads
//! nowhere else.
//!
//! Unless the container is privileged no mount it can write to lets device files be used; those it may use are mounts
//! of their own. So a container that makes a device file gains nothing by it.

use std::{
    ffi::{CStr, CString, OsStr},
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{FileTypeExt, MetadataExt, symlink},
        },
    },
    path::{Path, PathBuf},
};

use pulselet_runtime::{MASKED_PATHS, Mount, Propagation, READ_ONLY_PATHS};
use pulselet_sys::{MountAttributes, set_mount_attributes};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, mknodat, open, openat2},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
        OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
        fsopen, mount, mount_change, move_mount, open_tree, unmount,
    },
    process::{chdir, pivot_root},
    termios::ttyname,
};

use crate::{cgroup::Cgroup, shim::Container, spec::ContainerSpec};

/// The mount point of the root, in the container's directory.
const ROOT: &str = "root";
/// What the container writes, and what the kernel needs beside it.
const UPPER: &str = "upper";
const WORK: &str = "work";

/// Bytes of mount options that the kernel takes: a page, with its zero byte.
const MAX_OPTIONS: usize = 4095;

/// Devices every container may use.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Devices of the host that a privileged container gets; no machine has nearly as many.
const MAX_DEVICES: usize = 16_384;

/// Directories below /dev are followed this far.
const MAX_DEVICE_DEPTH: usize = 6;

/// Tries to look up a path below a volume; one is lost when something is renamed at that moment.
const MAX_LOOK_UPS: usize = 128;

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

struct DeviceFile {
    /// Below /dev.
    path: PathBuf,
    kind: FileType,
    mode: u32,
    number: u64,
}

/// Builds the root and makes it this process's. `terminal` is the container's terminal.
pub(crate) fn enter(container: &Container, terminal: Option<BorrowedFd<'_>>) -> Result<(), RootError> {
    let Container { dir, spec, cgroup } = container;
    let privileged = spec.confinement.privileged;
    let devices = device_binds(spec, terminal)?;
    let all_devices = if privileged { host_devices() } else { Vec::new() };
    let groups = cgroup_binds(cgroup, privileged)?;
    let volumes = volume_binds(spec)?;
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", slave).map_err(|errno| RootError::Pivot(errno.into()))?;
    mount_overlay(spec, dir)?;
    change_root(&dir.join(ROOT))?;
    mount_kernel_files(privileged)?;
    fill_dev(&all_devices).map_err(|source| RootError::Kernel { what: "/dev", source })?;
    mount_cgroup_root(cgroup, privileged)?;
    for path in &spec.root.volumes {
        keep_writable(path).map_err(|source| RootError::Attach {
            path: path.clone(),
            source,
        })?;
    }
    for bind in devices.into_iter().chain(groups).chain(volumes) {
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
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let volume = open(&mount.host_path, flags | OFlags::DIRECTORY, Mode::empty())?;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let mut tries = 0;
    let source = loop {
        tries += 1;
        match openat2(&volume, sub_path, flags, Mode::empty(), beneath) {
            Err(Errno::AGAIN) if tries < MAX_LOOK_UPS => {}
            opened => break opened?,
        }
    };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    Ok(open_tree(source, "", flags)?)
}

fn device_binds(spec: &ContainerSpec, terminal: Option<BorrowedFd<'_>>) -> Result<Vec<Bind>, RootError> {
    let bind = |host: &Path, target: PathBuf, read_only| {
        let tree = clone_tree(host).map_err(|source| RootError::OpenSource {
            path: host.to_owned(),
            source,
        })?;
        let attributes = MountAttributes {
            no_suid: true,
            no_exec: true,
            private: true,
            ..MountAttributes::default()
        };
        Ok(Bind {
            tree,
            target,
            attributes,
            read_only,
        })
    };
    let mut binds = Vec::new();
    if !spec.confinement.privileged {
        for name in DEVICES {
            let path = Path::new("/dev").join(name);
            binds.push(bind(&path, path.clone(), false)?);
        }
    }
    for device in &spec.devices {
        let read_only = !device.permissions.contains('w');
        binds.push(bind(&device.host_path, device.container_path.clone(), read_only)?);
    }
    if let Some(terminal) = terminal {
        // By its path: the descriptor belongs to the mount namespace that was left, which cannot be cloned from.
        let path = ttyname(terminal, Vec::new()).map_err(|errno| RootError::OpenSource {
            path: "/dev/console".into(),
            source: errno.into(),
        })?;
        let path = Path::new(OsStr::from_bytes(path.as_bytes()));
        let tree = clone_tree(path).map_err(|source| RootError::OpenSource {
            path: path.to_owned(),
            source,
        })?;
        binds.push(Bind {
            tree,
            target: "/dev/console".into(),
            attributes: MountAttributes::default(),
            read_only: false,
        });
    }
    Ok(binds)
}

/// Character and block devices of the host, but for terminals of sessions.
fn host_devices() -> Vec<DeviceFile> {
    let mut found = Vec::new();
    let mut pending = vec![(PathBuf::from("/dev"), 0)];
    while let Some((directory, depth)) = pending.pop() {
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
        for entry in entries {
            let path = entry.path();
            let Ok(metadata) = fs::symlink_metadata(&path) else {
                continue;
            };
            let kind = metadata.file_type();
            let elsewhere = ["/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/console"];
            if elsewhere.iter().any(|other| path == Path::new(other)) || found.len() >= MAX_DEVICES {
                continue;
            }
            if kind.is_dir() && depth < MAX_DEVICE_DEPTH {
                pending.push((path, depth + 1));
            } else if kind.is_char_device() || kind.is_block_device() {
                found.push(DeviceFile {
                    path: path.strip_prefix("/dev").unwrap_or(&path).to_owned(),
                    kind: if kind.is_char_device() {
                        FileType::CharacterDevice
                    } else {
                        FileType::BlockDevice
                    },
                    mode: metadata.mode() & 0o777,
                    number: metadata.rdev(),
                });
            }
        }
    }
    found
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

fn mount_overlay(spec: &ContainerSpec, dir: &Path) -> Result<(), RootError> {
    for name in [ROOT, UPPER, WORK] {
        match fs::create_dir(dir.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(RootError::Overlay(error));
            }
            Ok(()) | Err(_) => {}
        }
    }
    let no_dev = !spec.confinement.privileged;
    let layers = &spec.root.layers;
    let ancestor = common_ancestor(layers);
    // Options are short of room: layers are named relative to where this process is.
    chdir(ancestor).map_err(|errno| RootError::Overlay(errno.into()))?;
    let names: Vec<&Path> = layers.iter().rev().map(|layer| below(layer, ancestor)).collect();
    match overlay_options(&names, dir) {
        Some(options) => {
            let flags = if no_dev {
                MountFlags::NODEV
            } else {
                MountFlags::empty()
            };
            let root = dir.join(ROOT);
            mount("overlay", root, "overlay", flags, Some(options.as_c_str())).map_err(io::Error::from)
        }
        None => mount_overlay_by_layer(&names, dir, no_dev),
    }
    .map_err(RootError::Overlay)
}

/// The longest directory that all layers are below of.
fn common_ancestor(layers: &[PathBuf]) -> &Path {
    let first = layers.first().map_or(Path::new("/"), PathBuf::as_path);
    let mut ancestors = first.ancestors().skip(1);
    ancestors
        .find(|ancestor| layers.iter().all(|layer| layer.starts_with(ancestor)))
        .unwrap_or(Path::new("/"))
}

/// The path of a layer relative to its ancestor.
fn below<'a>(layer: &'a Path, ancestor: &Path) -> &'a Path {
    match layer.strip_prefix(ancestor) {
        Ok(relative) if relative != Path::new("") => relative,
        Ok(_) | Err(_) => layer,
    }
}

/// All options in one text, layers topmost first; none if it would be longer than the kernel takes.
fn overlay_options(layers: &[&Path], dir: &Path) -> Option<CString> {
    let lower: Vec<Vec<u8>> = layers.iter().map(|layer| escaped(layer)).collect();
    let mut options = b"volatile,lowerdir=".to_vec();
    options.extend(lower.join(&b':'));
    for (option, name) in [(&b",upperdir="[..], UPPER), (b",workdir=", WORK)] {
        options.extend_from_slice(option);
        options.extend(escaped(&dir.join(name)));
    }
    if options.len() > MAX_OPTIONS {
        return None;
    }
    CString::new(options).ok()
}

/// The same layer by layer, which needs Linux 6.5.
fn mount_overlay_by_layer(layers: &[&Path], dir: &Path, no_dev: bool) -> io::Result<()> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for layer in layers {
        fsconfig_set_string(context.as_fd(), "lowerdir+", *layer)?;
    }
    fsconfig_set_string(context.as_fd(), "upperdir", dir.join(UPPER))?;
    fsconfig_set_string(context.as_fd(), "workdir", dir.join(WORK))?;
    fsconfig_set_flag(context.as_fd(), "volatile")?;
    fsconfig_create(context.as_fd())?;
    let attributes = if no_dev {
        MountAttrFlags::MOUNT_ATTR_NODEV
    } else {
        MountAttrFlags::empty()
    };
    let tree = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(move_mount(tree.as_fd(), "", CWD, dir.join(ROOT), flags)?)
}

/// Colons and commas separate; a backslash before them does not.
fn escaped(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for &byte in path.as_os_str().as_bytes() {
        if matches!(byte, b'\\' | b':' | b',') {
            bytes.push(b'\\');
        }
        bytes.push(byte);
    }
    bytes
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

fn fill_dev(devices: &[DeviceFile]) -> io::Result<()> {
    for (link, target) in [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
        ("/dev/ptmx", "pts/ptmx"),
    ] {
        symlink(target, link)?;
    }
    for device in devices.iter().filter(|device| device.path != Path::new("ptmx")) {
        let path = Path::new("/dev").join(&device.path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        mknodat(
            CWD,
            &path,
            device.kind,
            Mode::from_raw_mode(device.mode),
            device.number,
        )?;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_in_paths_are_escaped() {
        assert_eq!(escaped(Path::new("/a:b,c\\d")), br"/a\:b\,c\\d");
    }

    #[test]
    fn options_that_are_too_long_are_not_cut() {
        let layers: Vec<PathBuf> = (0..500).map(|n| PathBuf::from(format!("{n}/aaaaaaaa"))).collect();
        let names: Vec<&Path> = layers.iter().map(PathBuf::as_path).collect();
        assert_eq!(overlay_options(&names, Path::new("/c")), None);
        let options = overlay_options(&names[..2], Path::new("/c:d")).expect("is short");
        assert_eq!(
            options.to_str(),
            Ok(r"volatile,lowerdir=0/aaaaaaaa:1/aaaaaaaa,upperdir=/c\:d/upper,workdir=/c\:d/work")
        );
    }

    #[test]
    fn layers_are_named_relative_to_their_common_ancestor() {
        let paths = |texts: &[&str]| -> Vec<PathBuf> { texts.iter().map(PathBuf::from).collect() };
        for (layers, ancestor, name) in [
            (&["/s/layers/a/fs", "/s/layers/b/fs"][..], "/s/layers", "a/fs"),
            (&["/s/layers/a/fs"], "/s/layers/a", "fs"),
            (&["/"], "/", "/"),
            (&["/x", "/y/z"], "/", "x"),
        ] {
            let layers = paths(layers);
            let found = common_ancestor(&layers);
            assert_eq!(
                (found, below(&layers[0], found)),
                (Path::new(ancestor), Path::new(name))
            );
        }
    }
}
