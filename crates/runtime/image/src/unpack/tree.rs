//! The directory a layer is unpacked into, seen together with the layers below it.
//!
//! Every step goes from an open directory to one name in it and never follows a symbolic link by itself: links are read
//! and resolved here, against the root of the image. So no name, however it is made, leads out of the tree. Nobody else
//! writes to the tree meanwhile: it lies in a directory that only we can enter.
//!
//! Layers below are never changed. A directory that exists only there is made in this layer too, with the same owner
//! and mode, when something is put into it; that is what an overlay mount would do.

use std::ffi::CString;
use std::path::Path;
use std::rc::Rc;

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, XattrFlags};
use rustix::io::Errno;

use super::UnpackError;

/// Symbolic links on the way to one name, as the kernel bounds them.
const MAX_LINKS: usize = 40;
/// Steps on the way to one name; links full of `..` can ask for many.
const MAX_STEPS: usize = 4096;
/// Parts of one path. The kernel has no such bound, but no image needs more.
pub(super) const MAX_DEPTH: usize = 256;
/// Marks a directory that hides its counterparts in the layers below.
const OPAQUE: &str = "trusted.overlay.opaque";
const READ_DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
const IMPLIED_MODE: Mode = Mode::from_raw_mode(0o755);

pub(super) type Result<T> = std::result::Result<T, UnpackError>;

/// One name in a directory; never empty, `.`, `..` or with a slash or zero.
pub(super) type Name = CString;

/// What to do about a directory on the way that exists nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    Create,
    Stop,
}

#[derive(Debug)]
pub(super) struct Tree {
    root: Rc<Directory>,
}

/// A directory of this layer.
#[derive(Debug)]
pub(super) struct Directory {
    /// In this layer.
    pub(super) fd: OwnedFd,
    /// Its counterparts below that are not hidden, highest first.
    below: Vec<OwnedFd>,
    /// From the root; links are resolved.
    pub(super) path: Vec<Name>,
}

enum Step {
    Into(Directory),
    Link(Vec<u8>),
    Missing,
}

impl Tree {
    /// `below`: the layers below, lowest first.
    pub(super) fn open(root: &Path, below: &[impl AsRef<Path>]) -> rustix::io::Result<Self> {
        let open = |path: &Path| rustix::fs::open(path, READ_DIRECTORY, Mode::empty());
        let below: rustix::io::Result<_> = below.iter().rev().map(|path| open(path.as_ref())).collect();
        Ok(Self {
            root: Rc::new(Directory {
                fd: open(root)?,
                below: below?,
                path: Vec::new(),
            }),
        })
    }

    pub(super) fn root(&self) -> Rc<Directory> {
        Rc::clone(&self.root)
    }

    /// The directory with this path. Returns `None` if it does not exist and is not to be created.
    pub(super) fn directory(&self, path: &[Name], missing: Missing) -> Result<Option<Rc<Directory>>> {
        let mut here = self.root();
        let mut pending: Vec<Part> = path.iter().rev().cloned().map(Part::Name).collect();
        let (mut links, mut steps) = (0, 0);
        let endless = || UnpackError::LinkLoop { path: shown(path) };
        while let Some(part) = pending.pop() {
            steps += 1;
            if steps > MAX_STEPS {
                return Err(endless());
            }
            let name = match part {
                Part::Root => {
                    here = self.root();
                    continue;
                }
                Part::Parent => {
                    // Only one directory is held open at a time: the way to its parent starts at the root.
                    let way = here.path.iter().rev().skip(1).cloned().map(Part::Name);
                    pending.extend(way);
                    here = self.root();
                    continue;
                }
                Part::Name(name) => name,
            };
            match here.step(&name, missing)? {
                Step::Into(directory) if directory.path.len() > MAX_DEPTH => {
                    return Err(UnpackError::TooDeep);
                }
                Step::Into(directory) => here = Rc::new(directory),
                Step::Missing => return Ok(None),
                Step::Link(target) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(endless());
                    }
                    let mut parts = link_parts(&target)?;
                    parts.reverse();
                    pending.append(&mut parts);
                }
            }
        }
        Ok(Some(here))
    }

    /// A directory of this layer with exactly this path; `None` if there is no such directory (any more).
    pub(super) fn reopen(&self, path: &[Name]) -> rustix::io::Result<Option<OwnedFd>> {
        let mut here = rustix::io::dup(&self.root.fd)?;
        for name in path {
            here = match rustix::fs::openat(&here, name, READ_DIRECTORY, Mode::empty()) {
                Ok(next) => next,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
                Err(error) => return Err(error),
            };
        }
        Ok(Some(here))
    }
}

impl Directory {
    /// One step down.
    fn step(&self, name: &Name, missing: Missing) -> Result<Step> {
        let failed = |source: Errno| self.failed("enter", name, source);
        match self.look(name).map_err(failed)? {
            Look::Directory => {
                let fd = open_directory(&self.fd, name).map_err(failed)?;
                let below = if is_opaque(&fd).map_err(failed)? {
                    Vec::new()
                } else {
                    self.below(name).map_err(failed)?.into_directories()
                };
                Ok(Step::Into(self.child(name, fd, below)))
            }
            Look::Link => read_link(&self.fd, name).map(Step::Link).map_err(failed),
            Look::Other => Err(UnpackError::NotADirectory {
                path: self.shown(name),
            }),
            Look::Whiteout if missing == Missing::Stop => Ok(Step::Missing),
            Look::Whiteout => {
                let fd = self.make_directory(name).map_err(failed)?;
                Ok(Step::Into(self.child(name, fd, Vec::new())))
            }
            Look::Nothing => match self.below(name).map_err(failed)? {
                Below::Directories(below) => {
                    let fd = self.copy_directory(name, &below[0]).map_err(failed)?;
                    Ok(Step::Into(self.child(name, fd, below)))
                }
                Below::Other(parent, stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => {
                    read_link(&parent, name).map(Step::Link).map_err(failed)
                }
                Below::Other(..) => Err(UnpackError::NotADirectory {
                    path: self.shown(name),
                }),
                Below::Nothing if missing == Missing::Stop => Ok(Step::Missing),
                Below::Nothing => {
                    let fd = self.make_directory(name).map_err(failed)?;
                    Ok(Step::Into(self.child(name, fd, Vec::new())))
                }
            },
        }
    }

    fn child(&self, name: &Name, fd: OwnedFd, below: Vec<OwnedFd>) -> Self {
        let mut path = self.path.clone();
        path.push(name.clone());
        Self { fd, below, path }
    }

    /// What this layer has under a name.
    pub(super) fn look(&self, name: &Name) -> rustix::io::Result<Look> {
        Ok(match stat(&self.fd, name)? {
            None => Look::Nothing,
            Some(stat) if is_whiteout(&stat) => Look::Whiteout,
            Some(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => Look::Directory,
                FileType::Symlink => Look::Link,
                _ => Look::Other,
            },
        })
    }

    /// What the layers below have under a name, as far as they show through.
    pub(super) fn below(&self, name: &Name) -> rustix::io::Result<Below> {
        let mut directories = Vec::new();
        for lower in &self.below {
            let Some(stat) = stat(lower, name)? else { continue };
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                let fd = open_directory(lower, name)?;
                let opaque = is_opaque(&fd)?;
                directories.push(fd);
                if opaque {
                    break;
                }
            } else if directories.is_empty() && !is_whiteout(&stat) {
                return Ok(Below::Other(rustix::io::dup(lower)?, stat));
            } else {
                break;
            }
        }
        Ok(if directories.is_empty() {
            Below::Nothing
        } else {
            Below::Directories(directories)
        })
    }

    /// Names that the layers below may show here.
    pub(super) fn names_below(&self) -> rustix::io::Result<Vec<Name>> {
        let mut names = Vec::new();
        for lower in &self.below {
            for entry in rustix::fs::Dir::read_from(lower)? {
                let entry = entry?;
                if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                    names.push(entry.file_name().to_owned());
                }
            }
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Makes a directory where this layer has nothing or a whiteout. In the second case what is below stays hidden.
    pub(super) fn make_directory(&self, name: &Name) -> rustix::io::Result<OwnedFd> {
        let hidden = self.look(name)? == Look::Whiteout;
        if hidden {
            rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?;
        }
        rustix::fs::mkdirat(&self.fd, name, Mode::RWXU)?;
        let fd = open_directory(&self.fd, name)?;
        rustix::fs::fchmod(&fd, IMPLIED_MODE)?;
        if hidden {
            make_opaque(&fd)?;
        }
        Ok(fd)
    }

    fn copy_directory(&self, name: &Name, original: &OwnedFd) -> rustix::io::Result<OwnedFd> {
        let stat = rustix::fs::fstat(original)?;
        let fd = self.make_directory(name)?;
        let owner = (
            rustix::fs::Uid::from_raw(stat.st_uid),
            rustix::fs::Gid::from_raw(stat.st_gid),
        );
        rustix::fs::fchown(&fd, Some(owner.0), Some(owner.1))?;
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(stat.st_mode))?;
        Ok(fd)
    }

    /// For messages.
    pub(super) fn shown(&self, name: &Name) -> String {
        shown(self.path.iter().chain([name]))
    }

    pub(super) fn failed(&self, operation: &'static str, name: &Name, source: Errno) -> UnpackError {
        UnpackError::Write {
            operation,
            path: self.shown(name),
            source: source.into(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Nothing,
    /// Hides what is below.
    Whiteout,
    Directory,
    Link,
    Other,
}

#[derive(Debug)]
pub(super) enum Below {
    Nothing,
    /// Highest first.
    Directories(Vec<OwnedFd>),
    /// Not a directory: the one that has it, and what it is.
    Other(OwnedFd, Stat),
}

impl Below {
    fn into_directories(self) -> Vec<OwnedFd> {
        match self {
            Self::Directories(directories) => directories,
            Self::Nothing | Self::Other(..) => Vec::new(),
        }
    }
}

enum Part {
    Root,
    Parent,
    Name(Name),
}

fn link_parts(target: &[u8]) -> Result<Vec<Part>> {
    let start = target.starts_with(b"/").then_some(Ok(Part::Root));
    let parts = target
        .split(|byte| *byte == b'/')
        .filter(|part| !matches!(*part, b"" | b"."))
        .map(|part| match part {
            b".." => Ok(Part::Parent),
            name => name_from(name).map(Part::Name),
        });
    start.into_iter().chain(parts).collect()
}

/// A part of a path that is neither empty nor special.
pub(super) fn name_from(bytes: &[u8]) -> Result<Name> {
    CString::new(bytes).map_err(|_| UnpackError::InvalidPath {
        path: String::from_utf8_lossy(bytes).into_owned(),
    })
}

pub(super) fn shown<'a>(path: impl IntoIterator<Item = &'a Name>) -> String {
    path.into_iter().fold(String::new(), |mut shown, name| {
        shown.push('/');
        shown.push_str(&name.to_string_lossy());
        shown
    })
}

fn stat(directory: &OwnedFd, name: &Name) -> rustix::io::Result<Option<Stat>> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

fn open_directory(directory: &OwnedFd, name: &Name) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(directory, name, READ_DIRECTORY, Mode::empty())
}

fn read_link(directory: &OwnedFd, name: &Name) -> rustix::io::Result<Vec<u8>> {
    rustix::fs::readlinkat(directory, name, Vec::new()).map(CString::into_bytes)
}

fn is_opaque(directory: &OwnedFd) -> rustix::io::Result<bool> {
    let mut value = [0; 1];
    match rustix::fs::fgetxattr(directory, OPAQUE, &mut value) {
        Ok(length) => Ok(value[..length] == *b"y"),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn make_opaque(directory: &OwnedFd) -> rustix::io::Result<()> {
    rustix::fs::fsetxattr(directory, OPAQUE, b"y", XattrFlags::empty())
}
