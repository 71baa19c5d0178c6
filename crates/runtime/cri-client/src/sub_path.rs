//! Paths below a volume, handed to a server that only takes plain paths.
//!
//! A container that shares the volume could put a symbolic link where the path leads, between the moment it was checked
//! and the moment the server mounts it. So the path is looked up once, beneath the volume, and what was found is mounted
//! at a place of our own; that place is what the server is told.
//!
//! Nothing here removes anything recursively: where a mount could not be taken away, its files stay.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pulselet_runtime::{Mount, VolumeRoot};
use rustix::fs::{CWD, FileType, fstat};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};
use thiserror::Error;

#[derive(Debug, Error)]
pub(crate) enum SubPathError {
    #[error("cannot open {path} below its volume: {source}", path = path.display())]
    LookUp { path: PathBuf, source: io::Error },
    #[error("cannot make {path}: {source}", path = path.display())]
    Make { path: PathBuf, source: io::Error },
    #[error("cannot mount {path}: {source}", path = path.display())]
    Mount { path: PathBuf, source: io::Error },
}

/// The mounts below one directory, by sandbox and container.
#[derive(Debug, Clone)]
pub(crate) struct SubPaths {
    root: PathBuf,
}

impl SubPaths {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    fn container(&self, sandbox: &str, name: &str, attempt: u32) -> PathBuf {
        self.root.join(sandbox).join(format!("{name}-{attempt}"))
    }

    /// Replaces sub-paths by places of our own.
    pub(crate) fn resolve(
        &self,
        sandbox: &str,
        name: &str,
        attempt: u32,
        mounts: &[Mount],
    ) -> Result<Vec<Mount>, SubPathError> {
        let directory = self.container(sandbox, name, attempt);
        // A creation that failed may have left some.
        clear(&directory);
        let resolve = |(index, mount): (usize, &Mount)| {
            // The server itself looks up paths in an image.
            let Some(sub_path) = mount.sub_path.as_ref().filter(|_| mount.image.is_none()) else {
                return Ok(mount.clone());
            };
            let place = directory.join(index.to_string());
            bind(&mount.host_path, sub_path, &place)?;
            Ok(Mount {
                host_path: place,
                sub_path: None,
                ..mount.clone()
            })
        };
        mounts.iter().enumerate().map(resolve).collect()
    }

    pub(crate) fn forget_container(&self, sandbox: &str, name: &str, attempt: u32) {
        clear(&self.container(sandbox, name, attempt));
    }

    pub(crate) fn forget_sandbox(&self, sandbox: &str) {
        let directory = self.root.join(sandbox);
        for entry in entries(&directory) {
            clear(&entry);
        }
        // Fails, as it should, while something is left in it.
        let _ = fs::remove_dir(&directory);
    }

    /// Forgets all sandboxes but these.
    pub(crate) fn keep(&self, sandboxes: &[String]) {
        for entry in entries(&self.root) {
            let name = entry.file_name().and_then(|name| name.to_str());
            if let Some(name) = name.filter(|name| !sandboxes.iter().any(|kept| kept == name)) {
                self.forget_sandbox(name);
            }
        }
    }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Takes away the mounts in a directory, and the directory.
fn clear(directory: &Path) {
    for place in entries(directory) {
        match unmount(&place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            // Not a mount: it never became one, or was taken away before.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(error) => {
                tracing::warn!(path = %place.display(), %error, "cannot unmount");
                continue;
            }
        }
        let _ = fs::remove_dir(&place).or_else(|_| fs::remove_file(&place));
    }
    let _ = fs::remove_dir(directory);
}

fn bind(volume: &Path, sub_path: &Path, place: &Path) -> Result<(), SubPathError> {
    let found = VolumeRoot::open(volume).and_then(|root| root.look_up(sub_path));
    let source = found.map_err(|source| SubPathError::LookUp {
        path: volume.join(sub_path),
        source: source.into(),
    })?;
    let make = |source| SubPathError::Make {
        path: place.to_owned(),
        source,
    };
    let mount = |source: Errno| SubPathError::Mount {
        path: place.to_owned(),
        source: source.into(),
    };
    let stat = fstat(&source).map_err(mount)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        fs::create_dir_all(place).map_err(make)?;
    } else {
        fs::create_dir_all(place.parent().unwrap_or(place)).map_err(make)?;
        fs::File::create(place).map_err(make)?;
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(source, "", flags).map_err(mount)?;
    move_mount(tree, "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).map_err(mount)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use pulselet_runtime::Propagation;

    use super::*;

    fn mount(volume: &Path, sub_path: &str) -> Mount {
        Mount {
            volume: "v".into(),
            container_path: "/v".into(),
            host_path: volume.to_owned(),
            image: None,
            sub_path: Some(sub_path.into()),
            read_only: false,
            recursive_read_only: false,
            propagation: Propagation::Private,
        }
    }

    #[test]
    fn a_path_that_leads_out_is_not_mounted() {
        let directory = tempfile::tempdir().expect("a directory");
        let volume = directory.path().join("volume");
        fs::create_dir(&volume).expect("made");
        symlink("/etc", volume.join("link")).expect("linked");
        let places = SubPaths::new(directory.path().join("places"));
        for path in ["link", "link/passwd", "..", "/etc", "none"] {
            let result = places.resolve("s", "app", 0, &[mount(&volume, path)]);
            assert!(matches!(result, Err(SubPathError::LookUp { .. })), "{path}");
        }
    }

    #[test]
    fn what_was_looked_up_stays_whatever_is_put_in_its_place() {
        if !pulselet_testing::requires("root", pulselet_testing::is_root()) {
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let volume = directory.path().join("volume");
        fs::create_dir_all(volume.join("a")).expect("made");
        fs::write(volume.join("a/file"), "mine").expect("written");
        fs::write(volume.join("single"), "one").expect("written");
        let places = SubPaths::new(directory.path().join("places"));
        let mounts = [mount(&volume, "a"), mount(&volume, "single")];
        let resolved = places.resolve("s", "app", 0, &mounts).expect("resolved");
        fs::rename(volume.join("a"), volume.join("b")).expect("renamed");
        symlink("/etc", volume.join("a")).expect("linked");
        let read = |path: PathBuf| fs::read_to_string(path).expect("read");
        assert_eq!(read(resolved[0].host_path.join("file")), "mine");
        assert_eq!(read(resolved[1].host_path.clone()), "one");
        places.keep(&["s".to_owned()]);
        assert_eq!(read(resolved[1].host_path.clone()), "one");
        places.keep(&[]);
        assert!(!directory.path().join("places/s").exists());
        assert_eq!(read(volume.join("b/file")), "mine");
    }
}
