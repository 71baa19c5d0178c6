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
    let flags = libc::AT_EMPTY_PATH
        | if attributes.recursive {
            libc::AT_RECURSIVE
        } else {
            0
        };
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
