//! The root file system of a container: an overlay of its image's layers and of what the container writes.

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

use super::{ROOT, RootError};
use crate::{confinement::PodUsers, spec::ContainerSpec};

/// What the container writes, and what the kernel needs beside it.
pub(crate) const UPPER: &str = "upper";
const WORK: &str = "work";

/// Views of the image's layers, of a pod that has users of its own.
const LAYERS: &str = "layers";

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

/// Mounts the overlay at [`ROOT`] in the container's directory.
pub(super) fn mount_overlay(
    spec: &ContainerSpec,
    dir: &Path,
    users: Option<&PodUsers>,
) -> Result<(), RootError> {
    let no_dev = !spec.confinement.privileged;
    let mapped = users.map(|users| map_layers(spec, dir, users)).transpose()?;
    let layers = mapped.as_ref().unwrap_or(&spec.root.layers);
    let ancestor = common_ancestor(layers);
    // Options are short of room: layers are named relative to where this process is.
    chdir(ancestor).map_err(|errno| RootError::Overlay(errno.into()))?;
    let names: Vec<&Path> = layers.iter().rev().map(|layer| below(layer, ancestor)).collect();
    match overlay_options(&names, dir) {
        Some(options) => {
            let flags = if no_dev {
                MountFlags::NODEV
            } else {
                MountFlags::empty()
            };
            let root = dir.join(ROOT);
            mount("overlay", root, "overlay", flags, Some(options.as_c_str())).map_err(io::Error::from)
        }
        None => mount_overlay_by_layer(&names, dir, no_dev),
    }
    .map_err(RootError::Overlay)
}

/// Mounts views of the layers in the container's directory, for this process alone, in which files belong to the pod's
/// users; and lets the root belong to theirs. What the container writes is the pod's on disk as well.
fn map_layers(spec: &ContainerSpec, dir: &Path, users: &PodUsers) -> Result<Vec<PathBuf>, RootError> {
    let owner = users.root();
    chown(
        dir.join(UPPER),
        Some(Uid::from_raw(owner)),
        Some(Gid::from_raw(owner)),
    )
    .map_err(|errno| RootError::Overlay(errno.into()))?;
    let map = |(index, layer): (usize, &PathBuf)| {
        let view = dir.join(LAYERS).join(index.to_string());
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
    spec.root.layers.iter().enumerate().map(map).collect()
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
fn overlay_options(layers: &[&Path], dir: &Path) -> Option<CString> {
    let lower: Vec<Vec<u8>> = layers.iter().map(|layer| escaped(layer)).collect();
    let mut options = b"volatile,lowerdir=".to_vec();
    options.extend(lower.join(&b':'));
    for (option, name) in [(&b",upperdir="[..], UPPER), (b",workdir=", WORK)] {
        options.extend_from_slice(option);
        options.extend(escaped(&dir.join(name)));
    }
    if options.len() > MAX_OPTIONS {
        return None;
    }
    CString::new(options).ok()
}

/// The same layer by layer, which needs Linux 6.5.
fn mount_overlay_by_layer(layers: &[&Path], dir: &Path, no_dev: bool) -> io::Result<()> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for layer in layers {
        fsconfig_set_string(context.as_fd(), "lowerdir+", *layer)?;
    }
    fsconfig_set_string(context.as_fd(), "upperdir", dir.join(UPPER))?;
    fsconfig_set_string(context.as_fd(), "workdir", dir.join(WORK))?;
    fsconfig_set_flag(context.as_fd(), "volatile")?;
    fsconfig_create(context.as_fd())?;
    let attributes = if no_dev {
        MountAttrFlags::MOUNT_ATTR_NODEV
    } else {
        MountAttrFlags::empty()
    };
    let tree = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(move_mount(tree.as_fd(), "", CWD, dir.join(ROOT), flags)?)
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
        assert_eq!(overlay_options(&names, Path::new("/c")), None);
        let options = overlay_options(&names[..2], Path::new("/c:d")).expect("is short");
        assert_eq!(
            options.to_str(),
            Ok(r"volatile,lowerdir=0/aaaaaaaa:1/aaaaaaaa,upperdir=/c\:d/upper,workdir=/c\:d/work")
        );
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
