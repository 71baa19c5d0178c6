//! Removing a tree of files that somebody else has made, however deep it is.
//!
//! Containers make directories in each other by the ten thousand, deeper than any path can say, than a process has
//! descriptors and than a thread has stack. So nothing here recurses or holds more than three descriptors: a directory that is
//! not empty is moved up to the top, and only directories at the top are looked into.
//!
//! What always holds: no link is followed, and nothing is removed that is mounted below the tree.

use std::fs;
use std::io;
use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, CWD, Dir, DirEntry, FileType, Mode, OFlags, RenameFlags, openat, renameat_with, unlinkat,
};
use rustix::io::Errno;

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Removes a directory with everything in it. What is gone already, or is removed by somebody else meanwhile, is no error but
/// for the directory itself.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let top = openat(CWD, path, DIRECTORY, Mode::empty())?;
    let mut removal = Removal { top, lifted: 0 };
    while removal.empty_top()? {}
    fs::remove_dir(path)
}

struct Removal {
    top: OwnedFd,
    /// Directories that were moved to the top, which have their number for a name.
    lifted: u64,
}

impl Removal {
    /// Removes what is in the top, but for what is moved there meanwhile. Returns whether there was anything.
    fn empty_top(&mut self) -> io::Result<bool> {
        let mut any = false;
        for entry in Dir::read_from(&self.top)? {
            let entry = entry?;
            if is_self_or_parent(&entry) {
                continue;
            }
            any = true;
            if remove(&self.top, &entry)? {
                continue;
            }
            match openat(&self.top, entry.file_name(), DIRECTORY, Mode::empty()) {
                Err(Errno::NOENT) => {}
                opened => self.empty(&opened?)?,
            }
            gone(unlinkat(&self.top, entry.file_name(), AtFlags::REMOVEDIR))?;
        }
        Ok(any)
    }

    /// Removes what is in a directory of the top. Directories with something in them go to the top.
    fn empty(&mut self, directory: &OwnedFd) -> io::Result<()> {
        loop {
            let mut any = false;
            for entry in Dir::read_from(directory)? {
                let entry = entry?;
                if is_self_or_parent(&entry) {
                    continue;
                }
                any = true;
                if !remove(directory, &entry)? {
                    self.lift(directory, &entry)?;
                }
            }
            if !any {
                return Ok(());
            }
        }
    }

    fn lift(&mut self, from: &OwnedFd, entry: &DirEntry) -> io::Result<()> {
        loop {
            let name = format!(".removed-{}", self.lifted);
            self.lifted += 1;
            let flags = RenameFlags::NOREPLACE;
            match renameat_with(from, entry.file_name(), &self.top, name, flags) {
                // Somebody who died here has left it, or somebody else is at it.
                Err(Errno::EXIST) => {}
                moved => return gone(moved),
            }
        }
    }
}

/// Removes a file, or a directory if it is empty. Returns whether it is gone.
fn remove(directory: &OwnedFd, entry: &DirEntry) -> io::Result<bool> {
    let name = entry.file_name();
    if entry.file_type() != FileType::Directory {
        match unlinkat(directory, name, AtFlags::empty()) {
            // A file system that does not say what its entries are.
            Err(Errno::ISDIR | Errno::PERM) if entry.file_type() == FileType::Unknown => {}
            removed => return gone(removed).map(|()| true),
        }
    }
    match unlinkat(directory, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        removed => gone(removed).map(|()| true),
    }
}

fn gone(removed: rustix::io::Result<()>) -> io::Result<()> {
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn is_self_or_parent(entry: &DirEntry) -> bool {
    matches!(entry.file_name().to_bytes(), b"." | b"..")
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::mkdirat;

    use super::*;

    /// Makes directories in each other, and returns the innermost.
    pub(crate) fn make_deep(top: &Path, depth: usize) -> OwnedFd {
        let mut here = openat(CWD, top, DIRECTORY, Mode::empty()).expect("opens");
        for _ in 0..depth {
            mkdirat(&here, "d", Mode::RWXU).expect("makes");
            here = openat(&here, "d", DIRECTORY, Mode::empty()).expect("opens");
        }
        here
    }

    /// With one frame, or one descriptor, for every directory this ends the process, or fails.
    #[test]
    fn a_tree_of_any_depth_is_removed() {
        let home = tempfile::tempdir().expect("a directory");
        let tree = home.path().join("tree");
        fs::create_dir(&tree).expect("makes");
        let deepest = make_deep(&tree, 10_000);
        rustix::fs::symlinkat("/etc", &deepest, "link").expect("links");
        drop(deepest);
        remove_tree(&tree).expect("is removed");
        assert!(!tree.exists());
    }

    #[test]
    fn links_lead_nowhere_and_names_that_are_taken_do_no_harm() {
        let home = tempfile::tempdir().expect("a directory");
        let [tree, outside] = ["tree", "outside"].map(|name| home.path().join(name));
        for directory in ["a/b/c/d", "a/e", ".removed-0/x/y", ".removed-1"] {
            fs::create_dir_all(tree.join(directory)).expect("makes");
        }
        fs::create_dir(&outside).expect("makes");
        fs::write(outside.join("precious"), "").expect("writes");
        for link in ["link", "a/b/link", "a/b/c/link"] {
            symlink(&outside, tree.join(link)).expect("links");
            fs::write(tree.join(link).with_extension("file"), "").expect("writes");
        }
        remove_tree(&tree).expect("is removed");
        assert!(!tree.exists() && outside.join("precious").exists());
        assert!(remove_tree(&tree).is_err(), "it is gone");
        symlink(&outside, &tree).expect("links");
        assert!(remove_tree(&tree).is_err(), "a link is no directory");
        assert!(outside.join("precious").exists());
    }
}
