//! Whether the containers of a root belong to another directory: then the root is a copy.
//!
//! A shim has its container's directory as its working directory, and the kernel keeps track of that directory when it is
//! moved. So a root that was moved has the shims of its containers, and the shims of a copy's containers are in the
//! original. A shim whose directory was removed belongs to no root. The same holds for the mounts of a sandbox.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
};

use crate::store::{CONTAINERS, SANDBOXES};

/// Device and number of a directory.
type Inode = (u64, u64);

/// The directories in which shims are at work, by the ids of their containers.
#[derive(Debug)]
pub struct LiveShims(BTreeMap<String, BTreeSet<(PathBuf, Inode)>>);

impl LiveShims {
    /// Reads the working directories of all processes that this one may see.
    pub fn find() -> Self {
        let mut found: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            // The link of a removed directory ends in another name. A directory in another mount namespace may have
            // this path only there, so it is asked for by way of the link.
            let link = process.path().join("cwd");
            if let Ok(dir) = fs::read_link(&link)
                && let Some(id) = container_id(&dir)
                && let Some(inode) = inode(&link)
                && is_number(&process.file_name())
            {
                found.entry(id.to_owned()).or_default().insert((dir, inode));
            }
        }
        Self(found)
    }

    /// The directory of a live shim of this container.
    pub fn of(&self, id: &str) -> Option<&Path> {
        self.0.get(id)?.first().map(|(dir, _)| dir.as_path())
    }

    /// A directory of the container that is another one than `dir`, and in which its shim is at work.
    fn other_than(&self, dir: &Path) -> Option<&Path> {
        let id = dir.file_name()?.to_str()?;
        let own = inode(dir);
        let mut dirs = self.0.get(id)?.iter();
        dirs.find(|(_, other)| own != Some(*other))
            .map(|(dir, _)| dir.as_path())
    }
}

/// The directory of a live shim that has the container of `dir`, unless that directory is `dir`.
pub(crate) fn shim_elsewhere(dir: &Path) -> Option<PathBuf> {
    LiveShims::find().other_than(dir).map(Path::to_owned)
}

/// The root to which containers or sandboxes recorded below `root` belong, if that is another one and something of them is
/// alive. A root that does not exist has none.
pub fn live_original(root: &Path) -> io::Result<Option<PathBuf>> {
    let containers = directories(&root.join(CONTAINERS))?;
    let sandboxes = directories(&root.join(SANDBOXES))?;
    if containers.is_empty() && sandboxes.is_empty() {
        return Ok(None);
    }
    let shims = LiveShims::find();
    let mut found = containers.iter().filter_map(|dir| shims.other_than(dir));
    if let Some(dir) = found.next() {
        return Ok(root_of(dir));
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(mounted_elsewhere(&mounts, &sandboxes))
}

/// The root of a mount that is in the directory of one of these sandboxes, but in another root.
fn mounted_elsewhere(mounts: &str, sandboxes: &[PathBuf]) -> Option<PathBuf> {
    let by_id: BTreeMap<_, _> = sandboxes
        .iter()
        .filter_map(|dir| Some((dir.file_name()?, dir)))
        .collect();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    points.map(unescaped).find_map(|point| {
        let dir = point.parent()?;
        let own = by_id.get(dir.file_name()?)?;
        let is_other = inode(dir).is_some_and(|other| inode(own) != Some(other));
        is_other.then(|| root_of(dir)).flatten()
    })
}

/// The root of a container's or a sandbox's directory.
fn root_of(dir: &Path) -> Option<PathBuf> {
    Some(dir.parent()?.parent()?.to_owned())
}

/// The id of the container whose directory this is by its name.
fn container_id(dir: &Path) -> Option<&str> {
    let mut names = dir.components().rev();
    let (Component::Normal(id), Component::Normal(parent)) = (names.next()?, names.next()?) else {
        return None;
    };
    (parent == CONTAINERS).then(|| id.to_str()).flatten()
}

fn is_number(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
}

/// `None` if the directory does not exist, or this process may not ask for it.
fn inode(path: &Path) -> Option<Inode> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// The directories in a directory; none if it does not exist.
fn directories(parent: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths: io::Result<Vec<_>> = entries.map(|entry| entry.map(|it| it.path())).collect();
    Ok(paths?.into_iter().filter(|path| path.is_dir()).collect())
}

/// A path as mountinfo has it: blanks and the like are a backslash and three octal digits.
fn unescaped(path: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let (b'\\', Some(byte)) = (first, byte) {
            bytes.push(byte);
            rest = &tail[3..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    PathBuf::from(<std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(
        bytes,
    ))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A process in the place of a shim, in the directory of a container.
    struct Shim(Child);

    impl Shim {
        fn start(dir: &Path) -> Self {
            let mut command = Command::new("sleep");
            command.arg("1000").current_dir(dir).stdin(Stdio::null());
            Self(command.spawn().expect("starts"))
        }
    }

    impl Drop for Shim {
        fn drop(&mut self) {
            self.0.kill().expect("is ours");
            self.0.wait().expect("is ours");
        }
    }

    fn container(root: &Path, id: &str) -> PathBuf {
        let dir = root.join(CONTAINERS).join(id);
        fs::create_dir_all(&dir).expect("makes");
        dir
    }

    #[test]
    fn a_copy_finds_the_root_of_its_containers() {
        let home = tempfile::tempdir().expect("a directory");
        let home = home.path().canonicalize().expect("exists");
        let [original, copy] = ["original", "copy"].map(|name| home.join(name));
        let id = format!("a-copy-{}", std::process::id());
        let shim = Shim::start(&container(&original, &id));
        container(&copy, &id);
        assert_eq!(live_original(&original).expect("reads"), None);
        assert_eq!(live_original(&copy).expect("reads"), Some(original.clone()));
        drop(shim);
        assert_eq!(live_original(&copy).expect("reads"), None);
        assert_eq!(live_original(&home.join("missing")).expect("reads"), None);
    }

    #[test]
    fn a_moved_root_keeps_its_shims() {
        let home = tempfile::tempdir().expect("a directory");
        let [before, after] = ["before", "after"].map(|name| home.path().join(name));
        let id = format!("moved-{}", std::process::id());
        let _shim = Shim::start(&container(&before, &id));
        fs::rename(&before, &after).expect("moves");
        assert_eq!(live_original(&after).expect("reads"), None);
    }

    #[test]
    fn a_shim_in_a_removed_directory_belongs_to_no_root() {
        let home = tempfile::tempdir().expect("a directory");
        let [original, copy] = ["original", "copy"].map(|name| home.path().join(name));
        let id = format!("removed-{}", std::process::id());
        let _shim = Shim::start(&container(&original, &id));
        container(&copy, &id);
        fs::remove_dir_all(&original).expect("removes");
        assert_eq!(live_original(&copy).expect("reads"), None);
    }

    #[test]
    fn a_mount_of_a_sandbox_names_its_root() {
        let home = tempfile::tempdir().expect("a directory");
        let [original, copy] = ["the original", "copy"].map(|name| home.path().join(name));
        for root in [&original, &copy] {
            fs::create_dir_all(root.join("sandboxes/id")).expect("makes");
        }
        let line = |root: &Path| {
            let root = root.display().to_string().replace(' ', "\\040");
            format!("36 35 0:4 net:[1] {root}/sandboxes/id/net rw - nsfs nsfs rw\n")
        };
        let sandboxes = [copy.join("sandboxes/id")];
        let mounts = line(&copy) + &line(&original);
        assert_eq!(mounted_elsewhere(&mounts, &sandboxes), Some(original));
        assert_eq!(mounted_elsewhere(&line(&copy), &sandboxes), None);
        assert_eq!(
            mounted_elsewhere(&line(&home.path().join("gone")), &sandboxes),
            None
        );
    }
}
