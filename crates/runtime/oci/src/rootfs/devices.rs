//! The devices of a container: the few that every container may use, those its pod names, its terminal, and for a
//! privileged container all of the host's.
//!
//! Every device file is made here, with a mode of its own: what a container does to it is not done to the host's.

use std::{
    ffi::OsStr,
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{FileTypeExt, MetadataExt},
        },
    },
    path::{Path, PathBuf},
};

use pulselet_sys::{MountAttributes, set_mount_attributes};
use rustix::{
    fs::{
        AtFlags, CWD, FileType, Gid, Mode, Uid, chown, chownat, fstat, major, makedev, minor, mknodat,
        symlinkat,
    },
    mount::{MountFlags, OpenTreeFlags, mount, open_tree},
    process::umask,
    termios::ttyname,
};

use super::{
    Bind, RootError, clone_tree,
    kernel_files::FreshDirectory,
    lookup::{Links, Missing, RootDir},
};
use crate::spec::ContainerSpec;

/// Character devices every container may use, with their numbers.
const DEVICES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];

/// Anybody may read and write them.
const DEVICE_MODE: u32 = 0o666;

/// Devices of the host that a privileged container gets; no machine has nearly as many.
const MAX_DEVICES: usize = 16_384;

/// Directories below /dev are followed this far.
const MAX_DEVICE_DEPTH: usize = 6;

/// A device of the host that a privileged container gets.
#[derive(Debug)]
pub(super) struct DeviceFile {
    /// Below /dev.
    path: PathBuf,
    kind: FileType,
    mode: u32,
    owner: (u32, u32),
    number: u64,
}

/// A device file to be made.
struct Node {
    kind: FileType,
    number: u64,
    mode: u32,
    owner: (u32, u32),
}

/// The device files of a container, made and not yet mounted.
pub(super) struct Devices {
    /// Those that every container may use, by their names in /dev.
    usual: Vec<(&'static str, OwnedFd)>,
    /// Those that its pod names, and its terminal.
    pub(super) of_pod: Vec<Bind>,
    /// A null device that cannot be written to, to hide files with.
    pub(super) mask: OwnedFd,
}

impl Devices {
    /// For this process alone the file system of the device files is mounted at `place`, where the root is mounted over it: it
    /// goes with the old root, and is not unmounted before, because every unmounting waits for all processors. `host_root` is
    /// the host's number of the container's root, to whom the usual devices belong.
    pub(super) fn make(
        spec: &ContainerSpec,
        place: &Path,
        terminal: Option<BorrowedFd<'_>>,
        host_root: u32,
    ) -> Result<Self, RootError> {
        let console = terminal.map(console_bind).transpose()?;
        // What a mount of one of these files may not do is inherited from this one.
        let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
        let options = Some(c"mode=700,size=64k");
        mount("tmpfs", place, "tmpfs", flags, options).map_err(|errno| RootError::Devices(errno.into()))?;
        // Their modes are as they are said here.
        let usual_mask = umask(Mode::empty());
        let mask = null_device(place).map_err(RootError::Devices)?;
        let mut usual = Vec::new();
        if !spec.confinement.privileged {
            for (name, major, minor) in DEVICES {
                let node = Node::open_to_all(major, minor, host_root);
                usual.push((name, node.make(&place.join(name)).map_err(RootError::Devices)?));
            }
        }
        let mut of_pod = Vec::new();
        for (index, device) in spec.devices.iter().enumerate() {
            let made = like_host(&device.host_path, &place.join(format!("device{index}")));
            let tree = made.map_err(|source| RootError::OpenSource {
                path: device.host_path.clone(),
                source,
            })?;
            let read_only = !device.permissions.contains('w');
            of_pod.push(device_bind(tree, device.container_path.clone(), read_only));
        }
        of_pod.extend(console);
        umask(usual_mask);
        Ok(Self { usual, of_pod, mask })
    }

    /// Mounts the usual ones, and makes the links and, for a privileged container, the device files of the host. With users of
    /// its own a pod gets no rights on the host's devices by that: they belong to whom they belong on the host.
    pub(super) fn fill(
        &self,
        root: &RootDir,
        dev: &FreshDirectory,
        of_host: &[DeviceFile],
        own_users: bool,
    ) -> io::Result<()> {
        for (link, target) in [
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
            ("ptmx", "pts/ptmx"),
        ] {
            symlinkat(target, dev, link)?;
        }
        for (name, tree) in &self.usual {
            dev.attach_file(tree, name)?;
        }
        for device in of_host.iter().filter(|device| device.path != Path::new("ptmx")) {
            device.make(root, own_users)?;
        }
        Ok(())
    }
}

impl DeviceFile {
    fn make(&self, root: &RootDir, own_users: bool) -> io::Result<()> {
        let path = Path::new("/dev").join(&self.path);
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(());
        };
        let parent = root.look_up(parent, Links::Refuse, Missing::MakeDirectory)?;
        let mode = Mode::from_raw_mode(self.mode);
        mknodat(parent.fd.as_fd(), name, self.kind, mode, self.number)?;
        if own_users {
            let (uid, gid) = self.owner;
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            chownat(parent.fd.as_fd(), name, Some(uid), Some(gid), flags)?;
        }
        Ok(())
    }
}

fn device_bind(tree: OwnedFd, target: PathBuf, read_only: bool) -> Bind {
    let attributes = MountAttributes {
        no_suid: true,
        no_exec: true,
        private: true,
        ..MountAttributes::default()
    };
    Bind {
        tree,
        target,
        attributes,
        read_only,
    }
}

impl Node {
    fn open_to_all(major: u32, minor: u32, owner: u32) -> Self {
        Self {
            kind: FileType::CharacterDevice,
            number: makedev(major, minor),
            mode: DEVICE_MODE,
            owner: (owner, owner),
        }
    }

    /// Makes it and returns a detached mount of it. The path is the host's, and the process masks no bits of modes.
    fn make(&self, path: &Path) -> io::Result<OwnedFd> {
        mknodat(CWD, path, self.kind, Mode::from_raw_mode(self.mode), self.number)?;
        // It is root's already.
        if self.owner != (0, 0) {
            let (uid, gid) = self.owner;
            chown(path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        Ok(open_tree(CWD, path, flags)?)
    }
}

/// What takes the place of hidden files. Nothing about it can be changed, from its first mount on.
fn null_device(dir: &Path) -> io::Result<OwnedFd> {
    let null = Node::open_to_all(1, 3, 0).make(&dir.join("mask"))?;
    let stat = fstat(&null)?;
    let is_null = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && (major(stat.st_rdev), minor(stat.st_rdev)) == (1, 3);
    if !is_null {
        return Err(io::Error::other("the null device is something else"));
    }
    let attributes = MountAttributes {
        read_only: true,
        no_suid: true,
        no_exec: true,
        private: true,
        ..MountAttributes::default()
    };
    set_mount_attributes(&null, attributes)?;
    Ok(null)
}

/// A device of the host, as a file of its own. A directory of devices is shown as it is.
fn like_host(host: &Path, path: &Path) -> io::Result<OwnedFd> {
    let metadata = fs::metadata(host)?;
    let kind = FileType::from_raw_mode(metadata.mode());
    match kind {
        FileType::CharacterDevice | FileType::BlockDevice => Node {
            kind,
            number: metadata.rdev(),
            mode: metadata.mode() & 0o777,
            owner: (metadata.uid(), metadata.gid()),
        }
        .make(path),
        _ => clone_tree(host),
    }
}

/// By its path: the descriptor belongs to the mount namespace that was left, which cannot be cloned from.
fn console_bind(terminal: BorrowedFd<'_>) -> Result<Bind, RootError> {
    let path = ttyname(terminal, Vec::new()).map_err(|errno| RootError::OpenSource {
        path: "/dev/console".into(),
        source: errno.into(),
    })?;
    let path = Path::new(OsStr::from_bytes(path.as_bytes()));
    let tree = clone_tree(path).map_err(|source| RootError::OpenSource {
        path: path.to_owned(),
        source,
    })?;
    Ok(Bind {
        tree,
        target: "/dev/console".into(),
        attributes: MountAttributes::default(),
        read_only: false,
    })
}

/// Character and block devices of the host, but for terminals of sessions.
pub(super) fn host_devices() -> Vec<DeviceFile> {
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
                    owner: (metadata.uid(), metadata.gid()),
                    number: metadata.rdev(),
                });
            }
        }
    }
    found
}
