//! How much of a disk is taken.
//!
//! What is measured belongs to containers, which may make trees deeper than any path can say, and swap directories for
//! links meanwhile. So the way down and up again is taken by descriptors, of which two are open at a time.

use std::collections::HashSet;
use std::ffi::CString;
use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat};

/// Files and directories that are looked at; whoever has more is judged by these.
const MAX_FILES: usize = 1_000_000;
/// Bytes of the blocks in which the kernel counts.
const BLOCK: u64 = 512;

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// What a directory with all below it takes of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DiskUsage {
    pub bytes: u64,
    /// Files and directories, itself included.
    pub inodes: u64,
}

/// Bytes on the disk below a directory. Links are not followed, a file with several names counts once, and what is mounted
/// below it does not count.
pub fn disk_usage(directory: &Path) -> u64 {
    measure(directory).bytes
}

/// The same with the number of files.
pub fn measure(directory: &Path) -> DiskUsage {
    let opened = openat(
        CWD,
        directory,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let Ok(top) = opened else {
        return DiskUsage::default();
    };
    let Ok(stat) = fstat(&top) else {
        return DiskUsage::default();
    };
    let mut count = Count {
        device: stat.st_dev,
        linked: HashSet::new(),
        files: 0,
        blocks: 0,
    };
    count.add(&stat);
    let mut way = Way {
        levels: vec![Level {
            name: CString::default(),
            identity: identity(&stat),
            left: count.entries(&top),
        }],
        here: None,
        top,
    };
    while let Some(name) = way.next_directory() {
        way.enter(name, &mut count);
    }
    DiskUsage {
        bytes: count.blocks.saturating_mul(BLOCK),
        inodes: count.files as u64,
    }
}

/// What was found so far.
struct Count {
    device: u64,
    linked: HashSet<(u64, u64)>,
    files: usize,
    blocks: u64,
}

impl Count {
    /// Counts what is in a directory, but for what is in the directories there. Returns their names.
    fn entries(&mut self, directory: &OwnedFd) -> Vec<CString> {
        let mut directories = Vec::new();
        let entries = Dir::read_from(directory).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if self.files >= MAX_FILES {
                break;
            }
            // What a container removes meanwhile takes no room.
            let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            self.add(&stat);
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_dev == self.device {
                directories.push(name.to_owned());
            }
        }
        directories
    }

    fn add(&mut self, stat: &Stat) {
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if stat.st_dev != self.device
            || (!is_directory && stat.st_nlink > 1 && !self.linked.insert(identity(stat)))
        {
            return;
        }
        self.files += 1;
        self.blocks = self
            .blocks
            .saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0));
    }
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// A directory on the way from the top to where the walk is.
struct Level {
    /// In the one above.
    name: CString,
    identity: (u64, u64),
    /// Directories in it that were not looked into yet.
    left: Vec<CString>,
}

struct Way {
    top: OwnedFd,
    /// The directory of the last level; `None` if that is the top.
    here: Option<OwnedFd>,
    levels: Vec<Level>,
}

impl Way {
    /// Goes up to where something is left to look into. Returns its name; `None` if nothing is.
    fn next_directory(&mut self) -> Option<CString> {
        loop {
            if let Some(name) = self.levels.last_mut()?.left.pop() {
                return Some(name);
            }
            self.levels.pop();
            self.leave();
        }
    }

    fn here(&self) -> &OwnedFd {
        self.here.as_ref().unwrap_or(&self.top)
    }

    /// Goes into a directory, unless it is gone, or something else by now.
    fn enter(&mut self, name: CString, count: &mut Count) {
        let Ok(directory) = openat(self.here(), &name, DIRECTORY, Mode::empty()) else {
            return;
        };
        let Some(stat) = fstat(&directory).ok().filter(|stat| stat.st_dev == count.device) else {
            return;
        };
        self.levels.push(Level {
            name,
            identity: identity(&stat),
            left: count.entries(&directory),
        });
        self.here = Some(directory);
    }

    /// Goes back to the directory of the last level. One that was moved meanwhile is looked for from the top.
    fn leave(&mut self) {
        let Some(level) = self.levels.last().filter(|_| self.levels.len() > 1) else {
            self.here = None;
            return;
        };
        let above = openat(self.here(), "..", DIRECTORY, Mode::empty());
        let same = |directory: &OwnedFd| fstat(directory).is_ok_and(|stat| identity(&stat) == level.identity);
        match above {
            Ok(directory) if same(&directory) => self.here = Some(directory),
            Ok(_) | Err(_) => self.walk_again(),
        }
    }

    /// Levels that cannot be found any more are given up.
    fn walk_again(&mut self) {
        self.here = None;
        let mut found = 1;
        while let Some(level) = self.levels.get(found) {
            let Ok(directory) = openat(self.here(), &level.name, DIRECTORY, Mode::empty()) else {
                break;
            };
            self.here = Some(directory);
            found += 1;
        }
        self.levels.truncate(found);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, Instant};

    use rustix::fs::{RenameFlags, renameat_with};

    use super::*;
    use crate::tree::tests::make_deep;

    #[test]
    fn links_lead_nowhere_and_count_once() {
        let directory = tempfile::tempdir().expect("works");
        let file = directory.path().join("below/file");
        fs::create_dir(directory.path().join("below")).expect("works");
        fs::write(&file, vec![1; 1 << 20]).expect("works");
        let before = disk_usage(directory.path());
        assert!((1 << 20..2 << 20).contains(&before), "{before}");
        fs::hard_link(&file, directory.path().join("again")).expect("works");
        std::os::unix::fs::symlink("/", directory.path().join("root")).expect("works");
        let after = disk_usage(directory.path());
        assert!(after < before + (1 << 16), "{after}");
        assert_eq!(
            measure(directory.path()).inodes,
            4,
            "two directories, a file and a link"
        );
        assert_eq!(measure(Path::new("/no/such/directory")), DiskUsage::default());
        assert_eq!(disk_usage(Path::new("/no/such/directory")), 0);
    }

    /// Whoever hides behind a long path would take as much of the disk as he likes.
    #[test]
    fn what_is_deeper_than_a_path_can_say_counts() {
        let home = tempfile::tempdir().expect("a directory");
        fs::write(home.path().join("beside"), vec![1; 1 << 20]).expect("writes");
        let deepest = make_deep(home.path(), 5_000);
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&deepest, "large", flags, Mode::RUSR | Mode::WUSR).expect("is made");
        rustix::io::write(&file, &vec![1; 4 << 20]).expect("writes");
        let used = disk_usage(home.path());
        crate::remove_tree(&home.path().join("d")).expect("is removed");
        assert!(used >= 5 << 20, "{used}");
    }

    #[test]
    fn directories_that_become_links_meanwhile_lead_nowhere() {
        let home = tempfile::tempdir().expect("a directory");
        let outside = tempfile::tempdir().expect("a directory");
        fs::write(outside.path().join("large"), vec![1; 4 << 20]).expect("writes");
        fs::create_dir_all(home.path().join("a/b")).expect("makes");
        std::os::unix::fs::symlink(outside.path(), home.path().join("link")).expect("links");
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let [a, link] = ["a", "link"].map(|name| home.path().join(name));
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    renameat_with(CWD, &a, CWD, &link, RenameFlags::EXCHANGE).expect("swaps");
                }
            });
            let end = Instant::now() + Duration::from_millis(300);
            let mut most = 0;
            while Instant::now() < end {
                most = most.max(disk_usage(home.path()));
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(most < 1 << 20, "{most}");
        });
    }
}
