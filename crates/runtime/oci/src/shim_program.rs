//! Keeping the agent's program out of the reach of containers.
//!
//! For a moment every process of a container is a copy of its shim, and a container that is fast enough can open the
//! program file behind such a process. So shims are run from a read-only view of the file that exists nowhere but in a
//! descriptor: whoever opens it through a process can read it at most.

use std::{
    io,
    os::fd::{AsRawFd, IntoRawFd},
    path::{Path, PathBuf},
};

use pulselet_sys::{MountAttributes, set_mount_attributes};
use rustix::{
    fs::CWD,
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
    let path = PathBuf::from(format!("/proc/self/fd/{}", view.as_raw_fd()));
    // Kept open for ever: a runtime lives as long as its process.
    let _ = view.into_raw_fd();
    Ok(path)
}
