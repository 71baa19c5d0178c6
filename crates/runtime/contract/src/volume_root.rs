//! How a path below a volume is looked up, the same for whoever makes it and whoever mounts it.
//!
//! Containers that share a volume can replace any part of a path by a symbolic link at any moment, so a path that was
//! checked says nothing about the next look. What always holds: what was opened here is below the volume, whatever
//! containers do meanwhile. It is part of the contract because [`Mount::sub_path`](crate::Mount::sub_path) promises it,
//! for every runtime that isolates.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::{Errno, Result};

/// Attempts to look up one path; one is lost when something is renamed at that moment.
const MAX_LOOK_UPS: usize = 128;

/// The directory of a volume, opened, so that it stays the same whatever is put at its path.
#[derive(Debug)]
pub struct VolumeRoot(OwnedFd);

impl VolumeRoot {
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, path, flags, Mode::empty()).map(Self)
    }

    /// Opens what is at a path below the volume, for finding it only. [`Errno::XDEV`] if a link or `..` leads out of it.
    pub fn look_up(&self, path: &Path) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let mut attempts = 0;
        loop {
            attempts += 1;
            match openat2(&self.0, path, flags, Mode::empty(), beneath) {
                Err(Errno::AGAIN) if attempts < MAX_LOOK_UPS => {}
                opened => return opened,
            }
        }
    }
}

impl AsFd for VolumeRoot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn nothing_leads_out_of_a_volume() {
        let directory = tempfile::tempdir().unwrap();
        let volume = directory.path().join("volume");
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::write(directory.path().join("outside"), "x").unwrap();
        for (target, link) in [("/etc", "absolute"), ("../outside", "up"), ("a/b", "inside")] {
            symlink(target, volume.join(link)).unwrap();
        }
        let root = VolumeRoot::open(&volume).unwrap();
        for path in [
            "absolute",
            "absolute/passwd",
            "up",
            "..",
            "a/../../outside",
            "/etc",
        ] {
            assert_eq!(root.look_up(Path::new(path)).unwrap_err(), Errno::XDEV, "{path}");
        }
        assert_eq!(root.look_up(Path::new("none")).unwrap_err(), Errno::NOENT);
        for path in ["a/b", "inside", "a/../a"] {
            root.look_up(Path::new(path)).unwrap();
        }
    }
}
