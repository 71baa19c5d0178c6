//! The devices of a container: the few that every container may use, those its pod names, its terminal, and for a
//! privileged container all of the host's.

use std::{
    ffi::OsStr,
    fs, io,
    os::{
        fd::BorrowedFd,
        unix::{
            ffi::OsStrExt,
            fs::{FileTypeExt, MetadataExt, symlink},
        },
    },
    path::{Path, PathBuf},
};

use pulselet_sys::MountAttributes;
use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    termios::ttyname,
};

use super::{Bind, RootError, clone_tree};
use crate::spec::ContainerSpec;

/// Devices every container may use.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

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
    number: u64,
}

/// Opens what is mounted below /dev.
pub(super) fn device_binds(
    spec: &ContainerSpec,
    terminal: Option<BorrowedFd<'_>>,
) -> Result<Vec<Bind>, RootError> {
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
                    number: metadata.rdev(),
                });
            }
        }
    }
    found
}

/// Makes the links and, for a privileged container, the device files below /dev.
pub(super) fn fill_dev(devices: &[DeviceFile]) -> io::Result<()> {
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
