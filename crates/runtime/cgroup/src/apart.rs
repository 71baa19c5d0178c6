//! Cgroups in hierarchies that limit nothing here: freezers, accounts of disks, those of a service manager, version 2 beside version 1.
//!
//! Whoever may make a user namespace can mount every hierarchy in it and there change all from his own cgroup on. In the root
//! that would be all of the machine's. So a container has a cgroup of its own in each of them.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use crate::cgroup::{REMOVE_PATIENCE, remove_directories};

/// Directories below one that are looked into; the kernel allows more.
const MAX_DEPTH: usize = 8;

/// One container's directories in these hierarchies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Apart {
    directories: Vec<PathBuf>,
}

impl Apart {
    pub(crate) const fn new(directories: Vec<PathBuf>) -> Self {
        Self { directories }
    }

    /// Makes them and moves the calling process into those of version 2, which all that it starts has from it: with each process
    /// on its own the kernel would wait long for a lock.
    pub(crate) fn create(&self) -> io::Result<()> {
        for directory in &self.directories {
            fs::create_dir_all(directory)?;
            if !has_tasks(directory) && !is_inside(directory) {
                fs::write(directory.join("cgroup.procs"), "0")?;
            }
        }
        Ok(())
    }

    /// Makes that of version 2, and opens it.
    pub(crate) fn open(&self) -> Option<OwnedFd> {
        let is_version_2 = |directory: &&PathBuf| {
            let hierarchy = directory.parent().and_then(Path::parent);
            hierarchy.is_some_and(|hierarchy| !has_tasks(hierarchy))
        };
        let directory = self.directories.iter().find(is_version_2)?;
        fs::create_dir_all(directory).ok()?;
        Some(fs::File::open(directory).ok()?.into())
    }

    /// Moves the calling process, which has one thread, into the others.
    pub(crate) fn join(&self) -> io::Result<()> {
        for directory in &self.directories {
            match fs::OpenOptions::new().write(true).open(directory.join("tasks")) {
                Ok(mut tasks) => io::Write::write_all(&mut tasks, b"0")?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Lets go what a container has frozen in there itself: frozen processes do not even die.
    pub(crate) fn thaw(&self) {
        for directory in &self.directories {
            thaw_below(directory, MAX_DEPTH);
        }
    }

    /// With what the container has made in them.
    pub(crate) fn remove(&self) {
        remove_directories(self.directories.clone(), REMOVE_PATIENCE);
        for parent in self.directories.iter().filter_map(|directory| directory.parent()) {
            // With the last one.
            let _ = fs::remove_dir(parent);
        }
    }
}

fn has_tasks(directory: &Path) -> bool {
    directory.join("tasks").exists()
}

/// Whether the calling process is in that directory of version 2.
fn is_inside(directory: &Path) -> bool {
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = cgroups.lines().find_map(|line| line.strip_prefix("0::/"));
    own.is_some_and(|own| !own.is_empty() && directory.ends_with(own))
}

fn thaw_below(directory: &Path, depth: usize) {
    let state = directory.join("freezer.state");
    if !state.exists() {
        return;
    }
    let _ = fs::write(state, "THAWED");
    if depth == 0 {
        return;
    }
    let below = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        thaw_below(&entry.path(), depth - 1);
    }
}
