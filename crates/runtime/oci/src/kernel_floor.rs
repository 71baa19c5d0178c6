//! Whether the kernel is new enough for containers, asked once at the start: otherwise each of them would fail, by the name
//! of a system call.
//!
//! The newest call without which nothing works is `mount_setattr`, by which mounts become read-only before anybody sees
//! them. Where it is, the others are too: `close_range` with its flag (Linux 5.11), `openat2` (5.6), `clone3` (5.3), and the
//! calls of detached mounts (5.2). What came later is used where it is there: `cgroup.kill` (5.14), and owners mapped in
//! memory file systems (6.3), without which pods with users of their own are refused.

use std::io;

use pulselet_sys::{MountAttributes, set_mount_attributes};
use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    io::Errno,
    system::uname,
};

/// The first release that has all of it.
pub(crate) const OLDEST: &str = "5.12";

/// The release of this kernel if it lacks what every container needs.
pub(crate) fn too_old() -> Option<String> {
    let changed = openat(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(io::Error::from)
        // It is asked to change nothing.
        .and_then(|root| set_mount_attributes(root, MountAttributes::default()));
    lacks_call(&changed).then(|| uname().release().to_string_lossy().into_owned())
}

fn lacks_call(answer: &io::Result<()>) -> bool {
    let code = answer.as_ref().err().and_then(io::Error::raw_os_error);
    code == Some(Errno::NOSYS.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_call_that_is_not_there_makes_a_kernel_too_old() {
        assert!(lacks_call(&Err(Errno::NOSYS.into())));
        assert!(!lacks_call(&Err(Errno::PERM.into())));
        assert!(!lacks_call(&Ok(())));
    }

    #[test]
    fn this_kernel_is_new_enough() {
        assert_eq!(too_old(), None);
    }
}
