//! Namespaces that this thread leaves behind.

use std::io;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Gives the calling thread new namespaces of the named kinds (for process ids: its future children).
///
/// Only namespaces can be asked for; anything else in `flags` is refused, because other threads could tell.
pub fn unshare_namespaces(flags: UnshareFlags) -> io::Result<()> {
    let namespaces = UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWCGROUP;
    if !namespaces.contains(flags) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: what makes the call unsafe is a table of descriptors of one's own, and that flag was refused above.
    Ok(unsafe { unshare_unsafe(flags) }?)
}
