//! The root file system of a container: an overlay of its image's layers and of what the container writes. And images that
//! are volumes: overlays that nobody writes to.

use std::{
    ffi::CString,
    fs, io,
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

use pulselet_sys::map_owners;
use rustix::{
    fs::{CWD, Gid, Uid, chown},
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags,
        fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount, move_mount,
        open_tree,
    },
    process::chdir,
};

use super::{ROOT, RootError, hiding_layer::mount_hiding_layer};
use crate::{confinement::PodUsers, spec::ContainerSpec};

/// What the container writes, and what the kernel needs beside it.
pub(crate) const UPPER: &str = "upper";
const WORK: &str = "work";

/// Views of the image's layers, of a pod that has users of its own.
const LAYERS: &str = "layers";

/// What stands for the layers that an image does not have.
const EMPTY: &str = "empty";
/// Directories that an overlay has when nothing is written.
const MIN_LAYERS: usize = 2;

/// Bytes of mount options that the kernel takes: a page, with its zero byte.
const MAX_OPTIONS: usize = 4095;

/// Makes what the overlay needs in the container's directory. What is there already stays.
pub(super) fn make_directories(dir: &Path) -> io::Result<()> {
    for name in [ROOT, UPPER, WORK] {
        match fs::create_dir(dir.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// What an overlay is made of.
struct Overlay<'a> {
    /// The lowest first.
    layers: &'a [PathBuf],
    /// The directory of what is written; `None` if nothing can be.
    written: Option<&'a Path>,
    target: &'a Path,
    no_dev: bool,
}

/// Mounts the overlay at [`ROOT`] in the container's directory.
pub(super) fn mount_overlay(
    spec: &ContainerSpec,
    dir: &Path,
    users: Option<&PodUsers>,
) -> Result<(), RootError> {
    if let Some(users) = users {
        // What the container writes is the pod's on disk as well.
        let (user, group) = (Uid::from_raw(users.root()), Gid::from_raw(users.root()));
        chown(dir.join(UPPER), Some(user), Some(group)).map_err(|errno| RootError::Overlay(errno.into()))?;
    }
    let target = dir.join(ROOT);
    let mut layers = spec.root.layers.clone();
    if let Some(image) = spec.root.layers.last()
        && !spec.root.hidden.is_empty()
    {
        // The overlay itself comes over it, when it has become a part of that.
        mount_hiding_layer(image, &spec.root.hidden, &target).map_err(RootError::HidingLayer)?;
        layers.push(target.clone());
    }
    let overlay = Overlay {
        layers: &layers_for(users, &layers, &dir.join(LAYERS))?,
        written: Some(dir),
        target: &target,
        no_dev: !spec.confinement.privileged,
    };
    overlay.mount().map_err(RootError::Overlay)
}

/// Mounts the layers of an image below a directory, for this process alone, and returns where its files are. Nobody can
/// write to them.
pub(super) fn mount_image(
    layers: &[PathBuf],
    dir: &Path,
    users: Option<&PodUsers>,
) -> Result<PathBuf, RootError> {
    let target = dir.join(ROOT);
    fs::create_dir_all(&target).map_err(RootError::Overlay)?;
    let mut layers = layers_for(users, layers, &dir.join(LAYERS))?;
    // The kernel makes no overlay of fewer than two directories when nothing is written.
    while layers.len() < MIN_LAYERS {
        let empty = dir.join(EMPTY).join(layers.len().to_string());
        fs::create_dir_all(&empty).map_err(RootError::Overlay)?;
        layers.insert(0, empty);
    }
    let overlay = Overlay {
        layers: &layers,
        written: None,
        target: &target,
        no_dev: true,
    };
    overlay.mount().map_err(RootError::Overlay)?;
    Ok(target)
}

/// The layers, or views of them in which files belong to the pod's users.
fn layers_for(users: Option<&PodUsers>, layers: &[PathBuf], views: &Path) -> Result<Vec<PathBuf>, RootError> {
    match users {
        Some(users) => map_layers(layers, views, users),
        None => Ok(layers.to_vec()),
    }
}

impl Overlay<'_> {
    fn mount(&self) -> io::Result<()> {
        let ancestor = common_ancestor(self.layers);
        // Options are short of room: layers are named relative to where this process is.
        chdir(ancestor)?;
        let layers = self.layers.iter().rev();
        let names: Vec<&Path> = layers.map(|layer| below(layer, ancestor)).collect();
        let Some(options) = overlay_options(&names, self.written) else {
            return self.mount_by_layer(&names);
        };
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::NODEV, self.no_dev);
        flags.set(MountFlags::RDONLY, self.written.is_none());
        Ok(mount(
            "overlay",
            self.target,
            "overlay",
            flags,
            Some(options.as_c_str()),
        )?)
    }

    /// The same layer by layer, which needs Linux 6.5. Layers are topmost first.
    fn mount_by_layer(&self, layers: &[&Path]) -> io::Result<()> {
        let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        for layer in layers {
            fsconfig_set_string(context.as_fd(), "lowerdir+", *layer)?;
        }
        if let Some(dir) = self.written {
            fsconfig_set_string(context.as_fd(), "upperdir", dir.join(UPPER))?;
            fsconfig_set_string(context.as_fd(), "workdir", dir.join(WORK))?;
            fsconfig_set_flag(context.as_fd(), "volatile")?;
        }
        fsconfig_create(context.as_fd())?;
        let mut attributes = MountAttrFlags::empty();
        attributes.set(MountAttrFlags::MOUNT_ATTR_NODEV, self.no_dev);
        attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, self.written.is_none());
        let tree = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        Ok(move_mount(tree.as_fd(), "", CWD, self.target, flags)?)
    }
}

/// Mounts views of layers below a directory, for this process alone, in which files belong to the pod's users.
fn map_layers(layers: &[PathBuf], views: &Path, users: &PodUsers) -> Result<Vec<PathBuf>, RootError> {
    let map = |(index, layer): (usize, &PathBuf)| {
        let view = views.join(index.to_string());
        let mount = || -> io::Result<()> {
            fs::create_dir_all(&view)?;
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            let tree = open_tree(CWD, layer, flags)?;
            map_owners(&tree, &users.namespace)?;
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            Ok(move_mount(tree.as_fd(), "", CWD, &view, flags)?)
        };
        mount().map_err(|source| RootError::MapOwners {
            path: layer.clone(),
            source,
        })?;
        Ok(view)
    };
    layers.iter().enumerate().map(map).collect()
}

/// The longest directory that all layers are below of.
fn common_ancestor(layers: &[PathBuf]) -> &Path {
    let first = layers.first().map_or(Path::new("/"), PathBuf::as_path);
    let mut ancestors = first.ancestors().skip(1);
    ancestors
        .find(|ancestor| layers.iter().all(|layer| layer.starts_with(ancestor)))
        .unwrap_or(Path::new("/"))
}

/// The path of a layer relative to its ancestor.
fn below<'a>(layer: &'a Path, ancestor: &Path) -> &'a Path {
    match layer.strip_prefix(ancestor) {
        Ok(relative) if relative != Path::new("") => relative,
        Ok(_) | Err(_) => layer,
    }
}

/// All options in one text, layers topmost first. Returns `None` if it would be longer than the kernel takes.
fn overlay_options(layers: &[&Path], written: Option<&Path>) -> Option<CString> {
    let lower: Vec<Vec<u8>> = layers.iter().map(|layer| escaped(layer)).collect();
    let mut options = b"lowerdir=".to_vec();
    options.extend(lower.join(&b':'));
    if let Some(dir) = written {
        for (option, name) in [(&b",upperdir="[..], UPPER), (b",workdir=", WORK)] {
            options.extend_from_slice(option);
            options.extend(escaped(&dir.join(name)));
        }
        options.extend_from_slice(b",volatile");
    }
    if options.len() > MAX_OPTIONS {
        return None;
    }
    CString::new(options).ok()
}

/// Colons and commas separate; a backslash before them does not.
fn escaped(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for &byte in path.as_os_str().as_bytes() {
        if matches!(byte, b'\\' | b':' | b',') {
            bytes.push(b'\\');
        }
        bytes.push(byte);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_in_paths_are_escaped() {
        assert_eq!(escaped(Path::new("/a:b,c\\d")), br"/a\:b\,c\\d");
    }

    #[test]
    fn options_that_are_too_long_are_not_cut() {
        let layers: Vec<PathBuf> = (0..500).map(|n| PathBuf::from(format!("{n}/aaaaaaaa"))).collect();
        let names: Vec<&Path> = layers.iter().map(PathBuf::as_path).collect();
        assert_eq!(overlay_options(&names, Some(Path::new("/c"))), None);
        let options = overlay_options(&names[..2], Some(Path::new("/c:d"))).expect("is short");
        assert_eq!(
            options.to_str(),
            Ok(r"lowerdir=0/aaaaaaaa:1/aaaaaaaa,upperdir=/c\:d/upper,workdir=/c\:d/work,volatile")
        );
        let unwritten = overlay_options(&names[..2], None).expect("is short");
        assert_eq!(unwritten.to_str(), Ok("lowerdir=0/aaaaaaaa:1/aaaaaaaa"));
    }

    #[test]
    fn layers_are_named_relative_to_their_common_ancestor() {
        let paths = |texts: &[&str]| -> Vec<PathBuf> { texts.iter().map(PathBuf::from).collect() };
        for (layers, ancestor, name) in [
            (&["/s/layers/a/fs", "/s/layers/b/fs"][..], "/s/layers", "a/fs"),
            (&["/s/layers/a/fs"], "/s/layers/a", "fs"),
            (&["/"], "/", "/"),
            (&["/x", "/y/z"], "/", "x"),
        ] {
            let layers = paths(layers);
            let found = common_ancestor(&layers);
            assert_eq!(
                (found, below(&layers[0], found)),
                (Path::new(ancestor), Path::new(name))
            );
        }
    }
}
