//! Directories below a volume, made where containers may be renaming at the same time.
//!
//! Every step is taken on descriptors and looked up from the volume's root, so that no symbolic link leads a step out
//! of it. What is at the path afterwards is not promised: whoever mounts it looks it up again, in the same way.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use pulselet_runtime::VolumeRoot;
use rustix::fs::{Mode, OFlags, fchmod, fstat, mkdirat, openat};
use rustix::io::Errno;

/// Tries of one step. Each needs a container that changed the path at that moment, or a link to nothing.
const MAX_TRIES: usize = 16;

/// The bits a new directory has from its volume: everyone's, that files below belong to its group, and that only owners
/// may remove them.
const INHERITED_MODE: u32 = 0o3777;

#[derive(Debug)]
pub(crate) enum SubPathError {
    /// It has `..`, or a link leads out of the volume.
    LeadsOut,
    Make {
        path: PathBuf,
        source: io::Error,
    },
}

/// Makes what is missing of a path below a volume, as directories with the volume's own mode.
pub(crate) fn make(root: &Path, sub_path: &Path) -> Result<(), SubPathError> {
    let failed = |source: Errno| match source {
        Errno::XDEV => SubPathError::LeadsOut,
        _ => SubPathError::Make {
            path: root.join(sub_path),
            source: source.into(),
        },
    };
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if !sub_path.components().all(plain) {
        return Err(SubPathError::LeadsOut);
    }
    let root = VolumeRoot::open(root).map_err(failed)?;
    let mode = Mode::from_raw_mode(fstat(&root).map_err(failed)?.st_mode & INHERITED_MODE);
    let mut so_far = PathBuf::new();
    let mut parent = None;
    for part in sub_path.components() {
        so_far.push(part);
        let above = parent.as_ref().map_or(root.as_fd(), OwnedFd::as_fd);
        let step = Step {
            root: &root,
            above,
            path: &so_far,
            name: Path::new(part.as_os_str()),
        };
        parent = Some(step.open_or_make(mode).map_err(failed)?);
    }
    Ok(())
}

/// One more part of a path.
struct Step<'a> {
    root: &'a VolumeRoot,
    above: BorrowedFd<'a>,
    /// From the root.
    path: &'a Path,
    /// In the directory above.
    name: &'a Path,
}

impl Step<'_> {
    fn open_or_make(&self, mode: Mode) -> rustix::io::Result<OwnedFd> {
        let mut last = Errno::AGAIN;
        for _ in 0..MAX_TRIES {
            match self.root.look_up(self.path) {
                Err(Errno::NOENT) => self.make(mode)?,
                Err(Errno::AGAIN) => {}
                opened => return opened,
            }
            last = Errno::NOENT;
        }
        Err(last)
    }

    /// Something that is there already, a link to nothing for example, is left as it is.
    fn make(&self, mode: Mode) -> rustix::io::Result<()> {
        match mkdirat(self.above, self.name, mode) {
            Err(Errno::EXIST) => return Ok(()),
            result => result?,
        }
        // The process's mask took bits away.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(self.above, self.name, flags, Mode::empty()) {
            Ok(directory) => fchmod(directory, mode),
            // Renamed away meanwhile: not ours any more.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{CWD, RenameFlags, renameat_with};

    use super::*;

    #[test]
    fn nothing_is_made_outside_while_a_link_comes_and_goes() {
        let directory = tempfile::tempdir().expect("a directory");
        let [volume, outside] = ["volume", "outside"].map(|name| directory.path().join(name));
        fs::create_dir_all(volume.join("a")).expect("makes");
        fs::create_dir(&outside).expect("makes");
        symlink(&outside, volume.join("link")).expect("links");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let [a, link] = ["a", "link"].map(|name| volume.join(name));
                while !done.load(Ordering::Relaxed) {
                    renameat_with(CWD, &a, CWD, &link, RenameFlags::EXCHANGE).expect("swaps");
                }
            });
            for number in 0..500 {
                // Whether it could be made depends on the moment.
                let _ = make(&volume, &Path::new("a").join(number.to_string()));
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(fs::read_dir(&outside).expect("lists").count(), 0);
    }
}
