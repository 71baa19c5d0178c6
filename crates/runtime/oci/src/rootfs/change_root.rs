//! Makes a directory the root of this process and of all that it becomes, in a mount namespace of its own.
//!
//! Usually the old root is exchanged for the new one and let go of: afterwards the namespace has nothing of the host.
//! The root that the kernel made first, in memory, can be neither exchanged nor let go of. A machine that runs from it
//! has the new root put over it instead, and everything else that was mounted is taken away. What is covered cannot be
//! reached, as [`covers_host`] says, but by who may take mounts away.

use std::{
    borrow::Cow,
    fs::File,
    io::{self, Read as _, Seek as _},
    path::{Path, PathBuf},
};

use rustix::{
    io::Errno,
    mount::{UnmountFlags, mount_move, unmount},
    process::{chdir, chroot, pivot_root},
};

use crate::mount_table;

/// Rounds of taking away what was mounted; each takes at least one mount.
const MAX_ROUNDS: usize = 4096;

/// Makes a directory on which something is mounted the root.
pub(crate) fn change_root(root: &Path) -> io::Result<()> {
    chdir(root)?;
    match pivot_root(".", ".") {
        // The old root is over the new one now: no directory for it was needed.
        Ok(()) => unmount(".", UnmountFlags::DETACH)?,
        Err(Errno::INVAL) if covers_host()? => cover_root()?,
        Err(errno) => return Err(errno.into()),
    }
    Ok(chdir("/")?)
}

/// Whether the host's files stay below the new root of a container, where only who may take mounts away finds them.
pub(crate) fn covers_host() -> io::Result<bool> {
    Ok(is_initial(&std::fs::read_to_string("/proc/self/mountinfo")?))
}

/// The initial root is mounted on nothing, so it has its own number for its parent's.
fn is_initial(mounts: &str) -> bool {
    mounts.lines().any(|line| {
        let words: Vec<&str> = line.split(' ').take(5).collect();
        matches!(words[..], [own, parent, _, _, "/"] if own == parent)
    })
}

/// Puts the working directory over the root. Paths lead through the old root until the last step.
fn cover_root() -> io::Result<()> {
    let mut mounts = File::open("/proc/self/mountinfo")?;
    mount_move(".", "/")?;
    for _ in 0..MAX_ROUNDS {
        let mut text = String::new();
        mounts.rewind()?;
        mounts.read_to_string(&mut text)?;
        let Some(last) = last_below_root(&text) else {
            return Ok(chroot(".")?);
        };
        unmount(last, UnmountFlags::DETACH)?;
    }
    Err(io::Error::other(
        "what the machine has mounted cannot be taken away",
    ))
}

/// The mount that came last; it goes with all that is mounted on it.
fn last_below_root(mounts: &str) -> Option<PathBuf> {
    let mut targets = mounts.lines().rev().filter_map(mount_table::target);
    targets
        .find(|target| target != Path::new("/"))
        .map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_MEMORY: &str = "1 1 0:2 / / rw - rootfs none rw\n\
        20 1 0:20 / /proc rw - proc proc rw\n\
        30 1 0:30 / /srv/a\\040b rw - tmpfs tmpfs rw\n\
        40 1 0:40 / / rw - overlay overlay rw\n";

    #[test]
    fn the_initial_root_is_mounted_on_nothing() {
        assert!(is_initial(IN_MEMORY));
        let on_disk = "25 1 254:0 / / rw - ext4 /dev/vda rw\n26 25 0:20 / /proc rw - proc proc rw\n";
        assert!(!is_initial(on_disk));
        assert!(!is_initial("") && !is_initial("nonsense"));
    }

    #[test]
    fn all_but_the_roots_is_taken_away_the_last_first() {
        assert_eq!(last_below_root(IN_MEMORY), Some("/srv/a b".into()));
        let roots = "1 1 0:2 / / rw - rootfs none rw\n40 1 0:40 / / rw - overlay overlay rw\n";
        assert_eq!(last_below_root(roots), None);
    }
}
