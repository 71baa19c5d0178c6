//! Changing the attributes of a mount, which rustix does not offer.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

/// What a mount allows, and where mounts below it appear.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "the kernel's independent switches")]
pub struct MountAttributes {
    pub read_only: bool,
    pub no_suid: bool,
    pub no_dev: bool,
    pub no_exec: bool,
    /// Mounts made elsewhere below it appear in it, but not the other way round.
    pub slave: bool,
    /// No mounts appear in either direction.
    pub private: bool,
    /// Also for the mounts below it.
    pub recursive: bool,
}

/// Sets the attributes that are true; the others stay as they are. `mount` is a descriptor of the mount's root.
pub fn set_mount_attributes(mount: impl AsFd, attributes: MountAttributes) -> io::Result<()> {
    let bit = |wanted: bool, bit: u64| if wanted { bit } else { 0 };
    let arguments = libc::mount_attr {
        attr_set: bit(attributes.read_only, libc::MOUNT_ATTR_RDONLY)
            | bit(attributes.no_suid, libc::MOUNT_ATTR_NOSUID)
            | bit(attributes.no_dev, libc::MOUNT_ATTR_NODEV)
            | bit(attributes.no_exec, libc::MOUNT_ATTR_NOEXEC),
        attr_clr: 0,
        propagation: bit(attributes.slave, libc::MS_SLAVE) | bit(attributes.private, libc::MS_PRIVATE),
        userns_fd: 0,
    };
    let recursive = if attributes.recursive {
        libc::AT_RECURSIVE
    } else {
        0
    };
    change(mount, arguments, recursive)
}

/// Shows the owners of files by way of a detached mount as the users of a user namespace: what belongs to 0 on disk
/// belongs to 0 in there, and what is made by way of it by 0 in there belongs to 0 on disk. Mounts below it stay as they
/// are. A file system that cannot do that is an error.
pub fn map_owners(mount: impl AsFd, user_namespace: impl AsFd) -> io::Result<()> {
    let number = user_namespace.as_fd().as_raw_fd();
    let arguments = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: u64::try_from(number).map_err(|_| io::ErrorKind::InvalidInput)?,
    };
    change(mount, arguments, 0)
}

fn change(mount: impl AsFd, arguments: libc::mount_attr, recursive: libc::c_int) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | recursive;
    // SAFETY: the path is an empty string that ends with its zero byte, the structure is initialised and lives through
    // the call, and its size is given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const arguments,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
