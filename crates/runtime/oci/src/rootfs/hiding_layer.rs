//! The layer that takes the machine's secrets out of the built-in image.
//!
//! An overlay has nothing where one of its layers says so, and no process inside reaches the layers themselves. So what is
//! hidden is not there, also for who may mount and unmount: there is nothing that could be taken away. The layer lives in
//! memory, is this process's alone until it is part of the overlay, and goes with the container.

use std::{
    collections::{BTreeSet, HashSet},
    fs, io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, XattrFlags, chmodat, chownat,
        fgetxattr, fsetxattr, mkdirat, mknodat, openat, openat2, statat,
    },
    io::Errno,
    mount::{MountAttrFlags, MoveMountFlags, OpenTreeFlags, move_mount, open_tree},
};

use super::kernel_files::KernelMount;

/// Who else may do what with a directory, beside its mode.
const ACCESS_LIST: &str = "system.posix_acl_access";
/// The kernel keeps no longer one.
const MAX_ACCESS_LIST: usize = 64 * 1024;
/// Of a directory that shows nothing of the layers below.
const OPAQUE: &str = "trusted.overlay.opaque";
/// The device number of a file that stands for nothing.
const NOTHING: u64 = 0;
/// Sockets of the machine's services are there, and what else lives as long as the machine is up. Containers have an empty
/// one, as where the machine mounts a file system there.
const RUN: &str = "run";

/// Mounts the layer at a place. What of `hidden` is not below `root`, or only in what is mounted there, needs no hiding: an
/// overlay shows no mounts.
pub(super) fn mount_hiding_layer(root: &Path, hidden: &[PathBuf], place: &Path) -> io::Result<()> {
    let layer = HidingLayer {
        root: open_tree(
            CWD,
            root,
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
        )?,
        tree: KernelMount {
            kind: "tmpfs",
            target: "",
            attributes: MountAttrFlags::empty(),
            options: &[("mode", "755")],
        }
        .detached()?,
        made: HashSet::new(),
    };
    let tree = layer.fill(hidden)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(move_mount(tree.as_fd(), "", CWD, place, flags)?)
}

struct HidingLayer {
    /// The image's files, without what is mounted among them.
    root: OwnedFd,
    /// The layer, detached.
    tree: OwnedFd,
    /// Directories that the layer has.
    made: HashSet<PathBuf>,
}

impl HidingLayer {
    fn fill(mut self, hidden: &[PathBuf]) -> io::Result<OwnedFd> {
        let mut found = BTreeSet::new();
        for path in hidden {
            found.extend(self.find(path)?);
        }
        let emptied = self.find(Path::new(RUN))?;
        let above = |path: &Path| found.contains(path) || emptied.as_deref() == Some(path);
        let outermost = found.iter().filter(|path| !path.ancestors().skip(1).any(above));
        for path in outermost {
            self.hide(path)?;
        }
        if let Some(path) = emptied
            .as_ref()
            .filter(|path| !path.ancestors().any(|path| found.contains(path)))
        {
            self.empty(path)?;
        }
        Ok(self.tree)
    }

    /// Shows a directory, but nothing of what the image has there.
    fn empty(&mut self, path: &Path) -> io::Result<()> {
        self.make_directories(path)?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(&self.tree, path, flags, Mode::empty())?;
        Ok(fsetxattr(&directory, OPAQUE, b"y", XattrFlags::empty())?)
    }

    /// Says that there is nothing. What somebody has removed meanwhile, with what leads to it, needs no hiding.
    fn hide(&mut self, path: &Path) -> io::Result<()> {
        let parent = path.parent().unwrap_or(Path::new(""));
        match self.make_directories(parent) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.find(path)?.is_none() => Ok(()),
            Err(error) => Err(error),
            Ok(()) => Ok(mknodat(
                &self.tree,
                path,
                FileType::CharacterDevice,
                Mode::empty(),
                NOTHING,
            )?),
        }
    }

    /// Where something is among the image's files, from their root; `None` if it is not there.
    fn find(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        let path = path.strip_prefix("/").unwrap_or(path);
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let open = |resolve| {
            openat2(
                &self.root,
                path,
                OFlags::PATH | OFlags::CLOEXEC,
                Mode::empty(),
                resolve,
            )
        };
        match open(inside | ResolveFlags::NO_SYMLINKS) {
            Ok(_) => return Ok(Some(path.to_owned())),
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(Errno::LOOP) => {}
            Err(errno) => return Err(errno.into()),
        }
        // Paths have no links as the machine sees them; below a mount there may be some.
        match open(inside) {
            Ok(file) => {
                let real = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
                Ok(real.strip_prefix("/").ok().map(Path::to_owned))
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes a directory of the layer, with its parents. Programs see the topmost one, so it is like the image's.
    fn make_directories(&mut self, path: &Path) -> io::Result<()> {
        if path == Path::new("") || self.made.contains(path) {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            self.make_directories(parent)?;
        }
        let model = statat(&self.root, path, AtFlags::SYMLINK_NOFOLLOW)?;
        mkdirat(&self.tree, path, Mode::RWXU)?;
        let (user, group) = (Uid::from_raw(model.st_uid), Gid::from_raw(model.st_gid));
        chownat(&self.tree, path, Some(user), Some(group), AtFlags::empty())?;
        chmodat(
            &self.tree,
            path,
            Mode::from_raw_mode(model.st_mode),
            AtFlags::empty(),
        )?;
        self.copy_access_list(path)?;
        self.made.insert(path.to_owned());
        Ok(())
    }

    fn copy_access_list(&self, path: &Path) -> io::Result<()> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let model = openat(&self.root, path, flags, Mode::empty())?;
        let mut list = vec![0; MAX_ACCESS_LIST];
        match fgetxattr(&model, ACCESS_LIST, &mut list[..]) {
            Ok(length) => {
                let own = openat(&self.tree, path, flags, Mode::empty())?;
                Ok(fsetxattr(
                    &own,
                    ACCESS_LIST,
                    &list[..length],
                    XattrFlags::empty(),
                )?)
            }
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another agent's data directory, for example.
    #[test]
    fn what_was_removed_since_it_was_found_needs_no_hiding() {
        if !pulselet_testing::requires("root", pulselet_testing::is_root()) {
            return;
        }
        let (root, place) = (tempfile::tempdir(), tempfile::tempdir());
        let (root, place) = (root.expect("a directory"), place.expect("a directory"));
        let open = |path: &Path| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            openat(CWD, path, flags, Mode::empty()).expect("opens")
        };
        let mut layer = HidingLayer {
            root: open(root.path()),
            tree: open(place.path()),
            made: HashSet::new(),
        };
        layer.hide(Path::new("gone/with/secret")).expect("is gone");
        assert!(!place.path().join("gone/with/secret").exists());
        fs::create_dir(root.path().join("there")).expect("makes");
        fs::write(root.path().join("there/secret"), "").expect("writes");
        layer.hide(Path::new("there/secret")).expect("is hidden");
        assert!(fs::symlink_metadata(place.path().join("there/secret")).is_ok());
    }
}
