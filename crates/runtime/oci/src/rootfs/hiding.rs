//! What hides and protects the kernel's files that show or change the host.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use pulselet_runtime::{MASKED_PATHS, READ_ONLY_PATHS};
use pulselet_sys::{MountAttributes, set_mount_attributes};
use rustix::{
    fs::{FileType, fstat},
    mount::{MountAttrFlags, OpenTreeFlags},
};

use super::{
    RootError, attach_to, clone_opened,
    kernel_files::KernelMount,
    lookup::{Links, Missing, RootDir, Target},
};
use crate::spec::{Confinement, ContainerSpec};

/// Hides and protects what shows or changes the host. `null` is a detached mount of a device file.
pub(super) fn protect_kernel_files(
    root: &RootDir,
    spec: &ContainerSpec,
    null: OwnedFd,
) -> Result<(), RootError> {
    let mut mask = Mask {
        root,
        file: Cover::new(null),
        directory: None,
    };
    if !spec.confinement.privileged && !spec.confinement.unmasked {
        let Confinement {
            masked_paths,
            read_only_paths,
            ..
        } = &spec.confinement;
        for path in paths_or(masked_paths.as_deref(), &MASKED_PATHS) {
            mask.hide(&path, links_at(&path))?;
        }
        for path in paths_or(read_only_paths.as_deref(), &READ_ONLY_PATHS) {
            protect(root, &path)?;
        }
    }
    Ok(())
}

fn paths_or(given: Option<&[PathBuf]>, default: &[&str]) -> Vec<PathBuf> {
    given.map_or_else(
        || default.iter().map(PathBuf::from).collect(),
        <[PathBuf]>::to_vec,
    )
}

/// The kernel's own files are what their paths say; an image may have links anywhere else.
fn links_at(path: &Path) -> Links {
    if path.starts_with("/proc") || path.starts_with("/sys") {
        Links::Refuse
    } else {
        Links::Follow
    }
}

/// Something empty that is put over others. Once it is mounted somewhere it can be cloned.
struct Cover {
    tree: OwnedFd,
    attached: bool,
}

impl Cover {
    const fn new(tree: OwnedFd) -> Self {
        Self {
            tree,
            attached: false,
        }
    }

    fn put_over(&mut self, target: &Target) -> io::Result<()> {
        if self.attached {
            return attach_to(&clone_opened(&self.tree, OpenTreeFlags::empty())?, target);
        }
        attach_to(&self.tree, target)?;
        self.attached = true;
        Ok(())
    }
}

/// What hides files and directories.
struct Mask<'a> {
    root: &'a RootDir,
    file: Cover,
    /// Made when it is needed.
    directory: Option<Cover>,
}

impl Mask<'_> {
    /// Puts something empty over a path, if it is there.
    fn hide(&mut self, path: &Path, links: Links) -> Result<(), RootError> {
        let mut hidden = || -> io::Result<()> {
            let target = self.root.look_up(path, links, Missing::Refuse)?;
            if FileType::from_raw_mode(fstat(&target.fd)?.st_mode) != FileType::Directory {
                return self.file.put_over(&target);
            }
            let directory = match &mut self.directory {
                Some(directory) => directory,
                none => none.insert(Cover::new(empty_directory()?)),
            };
            directory.put_over(&target)
        };
        unless_missing(path, hidden())
    }
}

fn empty_directory() -> io::Result<OwnedFd> {
    let mount = KernelMount {
        kind: "tmpfs",
        target: "",
        attributes: MountAttrFlags::MOUNT_ATTR_RDONLY
            | MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC,
        options: &[("size", "0"), ("nr_inodes", "2"), ("mode", "555")],
    };
    mount.detached()
}

/// Makes a path read-only, if it is there.
fn protect(root: &RootDir, path: &Path) -> Result<(), RootError> {
    let protected = || -> io::Result<()> {
        let target = root.look_up(path, links_at(path), Missing::Refuse)?;
        let tree = clone_opened(&target.fd, OpenTreeFlags::AT_RECURSIVE)?;
        let read_only = MountAttributes {
            read_only: true,
            recursive: true,
            ..MountAttributes::default()
        };
        set_mount_attributes(&tree, read_only)?;
        attach_to(&tree, &target)
    };
    unless_missing(path, protected())
}

fn unless_missing(path: &Path, result: io::Result<()>) -> Result<(), RootError> {
    match result {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(RootError::Hide {
            path: path.to_owned(),
            source,
        }),
        Ok(()) | Err(_) => Ok(()),
    }
}
