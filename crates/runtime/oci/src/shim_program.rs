//! Keeping the agent's program out of the reach of containers.
//!
//! For a moment every process of a container is a copy of its shim, and a container that is fast enough can open the
//! program file behind such a process. So shims are run from a read-only view of the file that exists nowhere but in a
//! descriptor: whoever opens it through a process can read it at most. The view is mounted nowhere, not even apart: what
//! is not among any mounts nobody can make writable again, whatever he may mount.

use std::{
    io,
    os::fd::{AsRawFd, IntoRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use pulselet_sys::{MountAttributes, set_mount_attributes};
use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    mount::{OpenTreeFlags, open_tree},
};

/// Makes a read-only view of the program and returns its path, which is valid for as long as this process lives and for it alone.
pub(crate) fn read_only_view(program: &Path) -> io::Result<PathBuf> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let view = open_tree(CWD, program, flags)?;
    let attributes = MountAttributes {
        read_only: true,
        no_suid: true,
        no_dev: true,
        ..MountAttributes::default()
    };
    set_mount_attributes(&view, attributes)?;
    let file = openat(CWD, path_of(&view), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    // With its first descriptor the view is unmounted; the file keeps it.
    drop(view);
    let path = path_of(&file);
    // Kept open for ever: a runtime lives as long as its process.
    let _ = file.into_raw_fd();
    Ok(path)
}

fn path_of(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}
