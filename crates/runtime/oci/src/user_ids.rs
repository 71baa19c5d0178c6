//! Whether this machine can give pods users of their own.
//!
//! What always holds: a range belongs to one sandbox as long as its record is there, which is longer than any of its
//! processes and files.

use std::{io, os::fd::AsFd, path::Path};

use pulselet_runtime::user_ids::{IDS_PER_POD, POOL_FIRST};
use pulselet_sys::{NamespaceHolder, map_owners};
use rustix::{
    fs::CWD,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags, fsconfig_create, fsmount, fsopen, open_tree,
    },
    thread::UnshareFlags,
};

/// Whether pods below this root can have users of their own; the error says what this machine lacks.
pub(crate) fn check_machine(root: &Path) -> io::Result<()> {
    let holder = NamespaceHolder::start(POOL_FIRST, IDS_PER_POD, UnshareFlags::empty())?;
    let users = holder.namespace("user")?;
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    let in_memory = fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )?;
    map_owners(&in_memory, &users)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    map_owners(open_tree(CWD, root, flags)?, &users)
}
