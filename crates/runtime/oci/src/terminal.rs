//! Terminals of a running container's own: made in its /dev/pts, so that programs find them under their names.
//!
//! What always holds: nothing is opened that is not the multiplexer of a file system of terminals, whatever the container has
//! put in its place; and the process is among the host's mounts again when it goes on.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, fstatfs, major, minor, open, openat2},
    process::fchdir,
    thread::{
        LinkNameSpaceType, ThreadNameSpaceType, move_into_link_name_space, move_into_thread_name_spaces,
    },
};

const MULTIPLEXER: &str = "/dev/pts/ptmx";
/// The multiplexer's number as a device.
const MULTIPLEXER_DEVICE: (u32, u32) = (5, 2);
/// What the kernel says of a file system of terminals.
const DEVPTS_MAGIC: rustix::fs::FsWord = 0x1cd1;

/// Opens the multiplexer of the container that this init process is in. It is called in a process with one thread, which is
/// seen in the container by nobody: only its mounts are entered, and left again at once.
pub(crate) fn open_multiplexer(init: &OwnedFd) -> io::Result<OwnedFd> {
    let mounts = File::open("/proc/self/ns/mnt")?;
    let directory = open(
        ".",
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    move_into_thread_name_spaces(init.as_fd(), ThreadNameSpaceType::MOUNT)?;
    let found = find();
    move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))
        .expect("this process came from there, with the same rights");
    fchdir(&directory)?;
    let found = found?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    Ok(open(path, flags, Mode::empty())?)
}

/// The multiplexer, not opened for anything yet: opening some other device could do something.
fn find() -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let found = openat2(CWD, MULTIPLEXER, flags, Mode::empty(), resolve)?;
    let stat = fstat(&found)?;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    let number = (major(stat.st_rdev), minor(stat.st_rdev));
    if is_device && number == MULTIPLEXER_DEVICE && fstatfs(&found)?.f_type == DEVPTS_MAGIC {
        Ok(found)
    } else {
        Err(io::Error::other("it is not a multiplexer of terminals"))
    }
}
