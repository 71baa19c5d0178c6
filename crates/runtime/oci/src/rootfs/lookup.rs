//! Finding, and making, what something is mounted on inside the container's root.
//!
//! Images and volumes bring symbolic links, and another container that shares a volume can replace any part of a path
//! at any moment. So paths are walked here name by name, each opened from the directory before it and never again by
//! its path; links are read and their texts are walked the same way. What always holds: what was found is below the
//! root, and the path returned with it is the one that was walked. A path without links is left to the kernel, which is told
//! to follow none. The kernel's own jumps (`/proc/self/root` and its
//! kind) are texts like any other here and lead nowhere else.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2, readlinkat},
    io::Errno,
};

/// Links followed on the way to one path, as the kernel bounds them.
const MAX_LINKS: usize = 40;

/// Attempts to open one name that comes and goes.
const MAX_ATTEMPTS: usize = 8;

/// What becomes of symbolic links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Links {
    /// They are followed inside the root.
    Follow,
    /// They are an error: nothing but the path itself is meant.
    Refuse,
}

/// What becomes of a path that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    Refuse,
    /// It is made, with its parents.
    MakeDirectory,
    /// The same, but an empty file at the end.
    MakeFile,
}

/// The container's root, opened.
#[derive(Debug)]
pub(super) struct RootDir(OwnedFd);

/// Something inside the root, opened for mounting on it and nothing else.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) fd: OwnedFd,
    /// From the root, with no links in it.
    pub(super) path: PathBuf,
}

impl RootDir {
    /// Opens this process's root, which is the container's.
    pub(super) fn open() -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(openat(CWD, "/", flags, Mode::empty())?))
    }

    pub(super) fn look_up(&self, path: &Path, links: Links, missing: Missing) -> io::Result<Target> {
        match self.look_up_plain(path) {
            Ok(target) => return Ok(target),
            Err(errno @ Errno::NOENT) if missing == Missing::Refuse => return Err(errno.into()),
            Err(errno @ Errno::LOOP) if links == Links::Refuse => return Err(errno.into()),
            Err(Errno::NOENT) => {
                if let Some(target) = self.make_plain(path, missing) {
                    return Ok(target);
                }
            }
            // There is a link to follow, or the kernel could not decide.
            Err(_) => {}
        }
        self.walk(path, links, missing)
    }

    /// Makes what is missing at the end of a path that is there otherwise, and has no links. `None` leaves it to a walk.
    fn make_plain(&self, path: &Path, missing: Missing) -> Option<Target> {
        let (parent, name) = (path.parent()?, path.file_name()?);
        let found;
        let (parent, path) = if parent == Path::new("/") {
            (self.as_fd(), parent.join(name))
        } else {
            found = self.look_up_plain(parent).ok()?;
            (found.fd.as_fd(), found.path.join(name))
        };
        let fd = match missing {
            Missing::Refuse => return None,
            Missing::MakeDirectory => {
                mkdirat(parent, name, Mode::from_raw_mode(0o755)).ok()?;
                // A link that somebody has put in its place is none.
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                openat(parent, name, flags, Mode::empty()).ok()?
            }
            Missing::MakeFile => make_file(parent, name).ok()?,
        };
        Some(Target { fd, path })
    }

    /// Opens a path on which nothing is missing and no link is: most are like that, and it is one call where a walk is three
    /// for each name.
    fn look_up_plain(&self, path: &Path) -> rustix::io::Result<Target> {
        let mut names = PathBuf::new();
        for component in path.components() {
            match component {
                Component::Normal(name) => names.push(name),
                Component::RootDir | Component::CurDir => {}
                Component::ParentDir | Component::Prefix(_) => return Err(Errno::INVAL),
            }
        }
        let name = if names.as_os_str().is_empty() {
            Path::new(".")
        } else {
            &names
        };
        let plain = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let fd = openat2(
            &self.0,
            name,
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
            plain,
        )?;
        Ok(Target {
            fd,
            path: Path::new("/").join(names),
        })
    }

    fn walk(&self, path: &Path, links: Links, missing: Missing) -> io::Result<Target> {
        let mut walk = Walk {
            root: self.0.as_fd(),
            found: Vec::new(),
            pending: Vec::new(),
            links,
            links_left: MAX_LINKS,
        };
        walk.push_path(path);
        while let Some(name) = walk.pending.pop() {
            walk.step(name, missing)?;
        }
        let path = Path::new("/").join(walk.found.iter().map(|(name, _)| name).collect::<PathBuf>());
        let fd = match walk.found.pop() {
            Some((_, fd)) => fd,
            None => self.0.try_clone()?,
        };
        Ok(Target { fd, path })
    }
}

impl AsFd for RootDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

struct Walk<'a> {
    root: BorrowedFd<'a>,
    /// From the root to where the walk is.
    found: Vec<(OsString, OwnedFd)>,
    /// Names still to go, the next one last.
    pending: Vec<OsString>,
    links: Links,
    links_left: usize,
}

impl Walk<'_> {
    fn push_path(&mut self, path: &Path) {
        if path.is_absolute() {
            self.found.clear();
        }
        let names = path.components().rev().filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        });
        self.pending.extend(names);
    }

    fn step(&mut self, name: OsString, missing: Missing) -> io::Result<()> {
        if name == ".." {
            self.found.pop();
            return Ok(());
        }
        let fd = self.open(&name, missing)?;
        if FileType::from_raw_mode(fstat(&fd)?.st_mode) != FileType::Symlink {
            self.found.push((name, fd));
            return Ok(());
        }
        if self.links == Links::Refuse || self.links_left == 0 {
            return Err(Errno::LOOP.into());
        }
        self.links_left -= 1;
        let text = readlinkat(&fd, "", Vec::new())?;
        self.push_path(Path::new(&OsString::from_vec(text.into_bytes())));
        Ok(())
    }

    /// Opens a name where the walk is, itself and not what it may link to.
    fn open(&self, name: &OsString, missing: Missing) -> io::Result<OwnedFd> {
        let here = self.found.last().map_or(self.root, |(_, fd)| fd.as_fd());
        for _ in 0..MAX_ATTEMPTS {
            match open_itself(here, name) {
                Err(Errno::NOENT) => {}
                opened => return Ok(opened?),
            }
            let made = match missing {
                Missing::Refuse => return Err(Errno::NOENT.into()),
                Missing::MakeFile if self.pending.is_empty() => make_file(here, name).map(drop),
                Missing::MakeDirectory | Missing::MakeFile => mkdirat(here, name, Mode::from_raw_mode(0o755)),
            };
            match made {
                // Somebody else was faster: the next attempt opens that.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(Errno::NOENT.into())
    }
}

/// Opens a name, and not what it may link to.
fn open_itself(parent: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

/// Makes an empty file, which was not there; it comes opened.
pub(super) fn make_file(parent: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::from_raw_mode(0o644))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn root(directory: &Path) -> RootDir {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        RootDir(openat(CWD, directory, flags, Mode::empty()).expect("opens"))
    }

    #[test]
    fn links_lead_nowhere_out_of_the_root() {
        let outer = tempfile::tempdir().expect("a directory");
        let inner = outer.path().join("root");
        fs::create_dir_all(inner.join("a/b")).expect("makes");
        fs::write(outer.path().join("outside"), "").expect("writes");
        for (text, link) in [
            ("/a", "absolute"),
            ("../../../a", "up"),
            ("/new/place", "dangling"),
            ("loop", "loop"),
            ("/proc/self/root", "jump"),
        ] {
            symlink(text, inner.join(link)).expect("links");
        }
        let root = root(&inner);
        let found = |path: &str, missing| {
            let target = root.look_up(Path::new(path), Links::Follow, missing);
            target.map(|target| target.path.display().to_string())
        };
        let refuse = Missing::Refuse;
        assert_eq!(found("/absolute/b", refuse).expect("is there"), "/a/b");
        assert_eq!(found("up/b/..//./b", refuse).expect("is there"), "/a/b");
        assert_eq!(found("/../..", refuse).expect("is there"), "/");
        assert!(found("/../outside", refuse).is_err() && found("/loop", refuse).is_err());
        assert!(
            found("/jump", refuse).is_err(),
            "the text leads to what the root does not have"
        );
        let made = found("/dangling/x", Missing::MakeDirectory).expect("is made");
        assert_eq!(made, "/new/place/x");
        assert!(inner.join("new/place/x").is_dir());
        assert_eq!(found("/a/f/g", Missing::MakeFile).expect("is made"), "/a/f/g");
        assert!(inner.join("a/f/g").is_file());
        assert_eq!(fs::read_dir(outer.path()).expect("lists").count(), 2);
        let strict = root.look_up(Path::new("/absolute/b"), Links::Refuse, refuse);
        assert!(strict.is_err());
    }
}
