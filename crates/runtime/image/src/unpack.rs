//! Unpacks a layer into a directory that an overlay mount takes as a lower directory.
//!
//! What always holds: nothing outside the directory is read or written, whatever the layer says; sizes and counts are
//! bounded by [`Limits`]. Whiteouts become what overlay mounts know: a character device 0/0, and the attribute
//! `trusted.overlay.opaque` on directories. Both need root, as owners of other users do.
//!
//! A path with `..` is an error. Device nodes are left out: a container gets its devices from the runtime, not from its
//! image. Of extended attributes only capabilities and those of users are kept, since others change how the host sees
//! the files. Checking the digest of the layer is left to the caller.

mod tree;

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::rc::Rc;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::tarball::{Entry, Kind, TarError, Tarball};
use tree::{Below, Directory, Look, MAX_DEPTH, Missing, Name, Tree};

/// Bytes copied at once.
const COPY_BYTES: usize = 256 << 10;
/// The name of a marker starts so, and goes on with what it hides.
const WHITEOUT_PREFIX: &[u8] = b".wh.";
/// Hides everything below in the directory it is in.
const OPAQUE_MARKER: &[u8] = b".wh..wh..opq";
/// Other markers of that kind belong to a file system that is no longer used.
const INTERNAL_PREFIX: &[u8] = b".wh..wh.";
/// Paths of directories that are kept in memory to set their times at the end. Further ones have the time of unpacking.
const MAX_TIMES_BYTES: usize = 64 << 20;
/// What is left free of the disk, so that an image cannot stop the machine it is for: 128 MiB.
const RESERVED_BYTES: u64 = 128 << 20;
/// How often to look at that.
const SPACE_CHECK_BYTES: u64 = 32 << 20;

/// Bounds of an archive and of each layer.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Of all files of an archive that is loaded.
    pub archive_bytes: u64,
    /// Of all files, unpacked. The largest layers in use, with machine learning models, have some ten GiB.
    pub layer_bytes: u64,
    /// Files, directories and links. The largest layers in use have some hundred thousand.
    pub layer_entries: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            archive_bytes: 256 << 30,
            layer_bytes: 64 << 30,
            layer_entries: 4_000_000,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error(transparent)]
    Tar(#[from] TarError),
    #[error("cannot open {path}: {source}")]
    Open { path: String, source: io::Error },
    #[error("the layer has the path {path:?}, which is not one inside an image")]
    InvalidPath { path: String },
    #[error("the layer has a path of more than {MAX_DEPTH} parts")]
    TooDeep,
    #[error("the layer has a loop of symbolic links at {path}")]
    LinkLoop { path: String },
    #[error("the layer has a file below {path}, which is not a directory")]
    NotADirectory { path: String },
    #[error("the layer links {path} to {target:?}, which does not exist or cannot be linked to")]
    LinkTarget { path: String, target: String },
    #[error("the layer has {path}, of a kind that is not supported")]
    UnknownKind { path: String },
    #[error("the owner of {path} is out of range")]
    Owner { path: String },
    #[error("the layer has more than {limit} entries")]
    TooManyEntries { limit: u64 },
    #[error("the layer has more than {limit} bytes")]
    TooLarge { limit: u64 },
    #[error("no space left: less than {} MiB would stay free", RESERVED_BYTES >> 20)]
    NoSpace,
    #[error("cannot {operation} {path}: {source}")]
    Write {
        operation: &'static str,
        path: String,
        source: io::Error,
    },
}

/// What a layer was found to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unpacked {
    /// Of all files.
    pub(crate) bytes: u64,
}

/// Unpacks the tar stream into the empty directory `root`, as a layer on top of `below` (lowest first).
pub(crate) fn unpack(
    layer: impl Read,
    root: &Path,
    below: &[impl AsRef<Path>],
    limits: Limits,
) -> Result<Unpacked, UnpackError> {
    let opened = |source: Errno| UnpackError::Open {
        path: root.display().to_string(),
        source: source.into(),
    };
    let mut unpacker = Unpacker {
        tree: Tree::open(root, below).map_err(opened)?,
        limits,
        bytes: 0,
        next_space_check: 0,
        last_parent: None,
        times: Vec::new(),
        times_bytes: 0,
        buffer: vec![0; COPY_BYTES].into_boxed_slice(),
    };
    let mut tarball = Tarball::new(layer);
    let mut entries = 0;
    while let Some(entry) = tarball.next_entry()? {
        entries += 1;
        if entries > limits.layer_entries {
            return Err(UnpackError::TooManyEntries {
                limit: limits.layer_entries,
            });
        }
        unpacker.add(&entry, &mut tarball)?;
    }
    unpacker.set_directory_times()?;
    Ok(Unpacked {
        bytes: unpacker.bytes,
    })
}

struct Unpacker {
    tree: Tree,
    limits: Limits,
    bytes: u64,
    /// When `bytes` gets here.
    next_space_check: u64,
    /// Entries of one directory follow each other.
    last_parent: Option<(Vec<Name>, Rc<Directory>)>,
    /// Directories get their time at the end: putting something into one changes it.
    times: Vec<(Vec<Name>, i64)>,
    /// Of the paths in `times`.
    times_bytes: usize,
    buffer: Box<[u8]>,
}

impl Unpacker {
    fn add(&mut self, entry: &Entry, tarball: &mut Tarball<impl Read>) -> Result<(), UnpackError> {
        let mut path = split(&entry.path)?;
        let Some(name) = path.pop() else {
            return if entry.kind == Kind::Directory {
                let root = self.tree.root();
                self.describe_directory(&root.fd, Vec::new(), entry)
            } else {
                Err(invalid_path(&entry.path))
            };
        };
        let bytes = name.as_bytes();
        if bytes == OPAQUE_MARKER {
            return self.hide_all(&path);
        }
        if bytes.starts_with(INTERNAL_PREFIX) {
            return Ok(());
        }
        if let Some(hidden) = bytes.strip_prefix(WHITEOUT_PREFIX) {
            let hidden = match hidden {
                b"" | b"." | b".." => return Err(invalid_path(&entry.path)),
                hidden => tree::name_from(hidden)?,
            };
            return self.hide(&path, &hidden);
        }
        let parent = self.parent(path)?;
        match entry.kind {
            Kind::Directory => self.add_directory(&parent, &name, entry),
            Kind::File => self.add_file(&parent, &name, entry, &mut tarball.content()),
            Kind::Symlink => self.add_symlink(&parent, &name, entry),
            Kind::HardLink => self.add_hard_link(&parent, &name, entry),
            Kind::Fifo => self.add_fifo(&parent, &name, entry),
            Kind::Device => Ok(()),
            Kind::Unknown => Err(UnpackError::UnknownKind {
                path: parent.shown(&name),
            }),
        }
    }

    fn parent(&mut self, path: Vec<Name>) -> Result<Rc<Directory>, UnpackError> {
        if let Some((last, directory)) = &self.last_parent
            && *last == path
        {
            return Ok(Rc::clone(directory));
        }
        let directory = self
            .tree
            .directory(&path, Missing::Create)?
            .unwrap_or_else(|| self.tree.root());
        self.last_parent = Some((path, Rc::clone(&directory)));
        Ok(directory)
    }

    /// A whiteout. It concerns the layers below only: what this layer has under that name stays.
    fn hide(&mut self, path: &[Name], name: &Name) -> Result<(), UnpackError> {
        self.last_parent = None;
        match self.tree.directory(path, Missing::Stop)? {
            Some(directory) => {
                hide_in(&directory, name).map_err(|source| directory.failed("hide", name, source))
            }
            None => Ok(()),
        }
    }

    fn hide_all(&mut self, path: &[Name]) -> Result<(), UnpackError> {
        self.last_parent = None;
        let Some(directory) = self.tree.directory(path, Missing::Stop)? else {
            return Ok(());
        };
        let failed = |source: Errno| directory.failed("hide what is below", &c".".to_owned(), source);
        if !directory.path.is_empty() {
            return tree::make_opaque(&directory.fd).map_err(failed);
        }
        // An overlay mount does not look at the attribute of its roots.
        for name in directory.names_below().map_err(failed)? {
            hide_in(&directory, &name).map_err(failed)?;
        }
        Ok(())
    }

    fn add_directory(&mut self, parent: &Directory, name: &Name, entry: &Entry) -> Result<(), UnpackError> {
        let failed = |source: Errno| parent.failed("make directory", name, source);
        let fd = match parent.look(name).map_err(failed)? {
            Look::Directory => rustix::fs::openat(
                &parent.fd,
                name,
                OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            )
            .map_err(failed)?,
            Look::Nothing | Look::Whiteout => parent.make_directory(name).map_err(failed)?,
            Look::Link | Look::Other => {
                self.clear(parent, name)?;
                parent.make_directory(name).map_err(failed)?
            }
        };
        let mut path = parent.path.clone();
        path.push(name.clone());
        self.describe_directory(&fd, path, entry)
    }

    fn describe_directory(
        &mut self,
        fd: &OwnedFd,
        path: Vec<Name>,
        entry: &Entry,
    ) -> Result<(), UnpackError> {
        describe(fd, entry).map_err(|source| described(entry, source))?;
        let size: usize = path.iter().map(|name| name.count_bytes() + 1).sum();
        if self.times_bytes + size <= MAX_TIMES_BYTES {
            self.times_bytes += size;
            self.times.push((path, entry.mtime));
        }
        Ok(())
    }

    fn add_file(
        &mut self,
        parent: &Directory,
        name: &Name,
        entry: &Entry,
        content: &mut impl Read,
    ) -> Result<(), UnpackError> {
        self.reserve(entry.size)?;
        self.clear(parent, name)?;
        let file = create_file(parent, name)?;
        self.copy(parent, name, content, &file)?;
        describe(&file, entry)
            .and_then(|()| Ok(rustix::fs::futimens(&file, &times(entry.mtime))?))
            .map_err(|source| described(entry, source))
    }

    fn copy(
        &mut self,
        parent: &Directory,
        name: &Name,
        content: &mut impl Read,
        mut file: &File,
    ) -> Result<(), UnpackError> {
        loop {
            let count = match content.read(&mut self.buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(TarError::Truncated.into());
                }
                Err(error) => return Err(TarError::Read(error).into()),
            };
            self.bytes += count as u64;
            if self.bytes >= self.next_space_check {
                self.next_space_check = self.bytes + SPACE_CHECK_BYTES;
                check_space(file)?;
            }
            file.write_all(&self.buffer[..count])
                .map_err(|source| UnpackError::Write {
                    operation: "write",
                    path: parent.shown(name),
                    source,
                })?;
        }
    }

    fn add_symlink(&mut self, parent: &Directory, name: &Name, entry: &Entry) -> Result<(), UnpackError> {
        let failed = |source: Errno| parent.failed("link", name, source);
        self.clear(parent, name)?;
        let target = entry.link.as_slice();
        rustix::fs::symlinkat(target, &parent.fd, name).map_err(failed)?;
        set_owner_at(parent, name, entry)?;
        rustix::fs::utimensat(&parent.fd, name, &times(entry.mtime), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed)
    }

    fn add_fifo(&mut self, parent: &Directory, name: &Name, entry: &Entry) -> Result<(), UnpackError> {
        let failed = |source: Errno| parent.failed("make pipe", name, source);
        self.clear(parent, name)?;
        rustix::fs::mknodat(&parent.fd, name, FileType::Fifo, Mode::empty(), 0).map_err(failed)?;
        set_owner_at(parent, name, entry)?;
        // The name is a pipe that was made just now, so there is no link to follow.
        rustix::fs::chmodat(&parent.fd, name, mode(entry), AtFlags::empty()).map_err(failed)?;
        rustix::fs::utimensat(&parent.fd, name, &times(entry.mtime), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed)
    }

    fn add_hard_link(&mut self, parent: &Directory, name: &Name, entry: &Entry) -> Result<(), UnpackError> {
        let bad_target = || UnpackError::LinkTarget {
            path: parent.shown(name),
            target: String::from_utf8_lossy(&entry.link).into_owned(),
        };
        let mut path = split(&entry.link)?;
        let target = path.pop().ok_or_else(bad_target)?;
        let directory = self
            .tree
            .directory(&path, Missing::Stop)?
            .ok_or_else(bad_target)?;
        if directory.path == parent.path && target == *name {
            return Err(bad_target());
        }
        let failed = |source: Errno| parent.failed("link", name, source);
        match directory.look(&target).map_err(failed)? {
            Look::Link | Look::Other => {
                self.clear(parent, name)?;
                rustix::fs::linkat(&directory.fd, &target, &parent.fd, name, AtFlags::empty()).map_err(failed)
            }
            Look::Nothing => match directory.below(&target).map_err(failed)? {
                Below::Other(holder, stat)
                    if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile =>
                {
                    self.copy_from_below(parent, name, &holder, &target)
                }
                Below::Other(..) | Below::Directories(_) | Below::Nothing => Err(bad_target()),
            },
            Look::Directory | Look::Whiteout => Err(bad_target()),
        }
    }

    /// A link to a file of a layer below cannot be made; a copy is what an overlay mount would show after the first
    /// write too.
    fn copy_from_below(
        &mut self,
        parent: &Directory,
        name: &Name,
        holder: &OwnedFd,
        target: &Name,
    ) -> Result<(), UnpackError> {
        let failed = |source: Errno| parent.failed("copy", name, source);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut original =
            File::from(rustix::fs::openat(holder, target, flags, Mode::empty()).map_err(failed)?);
        let stat = rustix::fs::fstat(&original).map_err(failed)?;
        self.reserve(u64::try_from(stat.st_size).unwrap_or(0))?;
        self.clear(parent, name)?;
        let file = create_file(parent, name)?;
        self.copy(parent, name, &mut original, &file)?;
        let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        rustix::fs::fchown(&file, Some(uid), Some(gid)).map_err(failed)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(stat.st_mode)).map_err(failed)?;
        rustix::fs::futimens(&file, &times(stat.st_mtime)).map_err(failed)
    }

    /// Makes room for something that is not a directory: an entry replaces what an earlier one of this layer made.
    fn clear(&mut self, parent: &Directory, name: &Name) -> Result<(), UnpackError> {
        let failed = |source: Errno| parent.failed("replace", name, source);
        match parent.look(name).map_err(failed)? {
            Look::Nothing => Ok(()),
            Look::Whiteout | Look::Link | Look::Other => {
                rustix::fs::unlinkat(&parent.fd, name, AtFlags::empty()).map_err(failed)
            }
            Look::Directory => {
                self.last_parent = None;
                remove_tree(&parent.fd, name).map_err(failed)
            }
        }
    }

    /// That a file of this size is within the limit.
    fn reserve(&self, size: u64) -> Result<(), UnpackError> {
        let limit = self.limits.layer_bytes;
        if self.bytes.saturating_add(size) > limit {
            return Err(UnpackError::TooLarge { limit });
        }
        Ok(())
    }

    fn set_directory_times(&self) -> Result<(), UnpackError> {
        for (path, mtime) in self.times.iter().rev() {
            let failed = |source: Errno| UnpackError::Write {
                operation: "set the time of",
                path: tree::shown(path),
                source: source.into(),
            };
            if let Some(fd) = self.tree.reopen(path).map_err(failed)? {
                rustix::fs::futimens(&fd, &times(*mtime)).map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// Hides what the layers below have under a name. A directory of this layer keeps only its own content.
fn hide_in(directory: &Directory, name: &Name) -> rustix::io::Result<()> {
    match directory.look(name)? {
        Look::Directory => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            tree::make_opaque(&rustix::fs::openat(&directory.fd, name, flags, Mode::empty())?)
        }
        Look::Whiteout | Look::Link | Look::Other => Ok(()),
        Look::Nothing => match directory.below(name)? {
            Below::Nothing => Ok(()),
            Below::Directories(_) | Below::Other(..) => {
                rustix::fs::mknodat(&directory.fd, name, FileType::CharacterDevice, Mode::empty(), 0)
            }
        },
    }
}

/// Removes a directory and what is in it, without following links. Its depth is bounded as that of paths is.
fn remove_tree(parent: &OwnedFd, name: &Name) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(&directory)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    for inner in names {
        match rustix::fs::unlinkat(&directory, &inner, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => remove_tree(&directory, &inner)?,
            other => other?,
        }
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
}

fn create_file(parent: &Directory, name: &Name) -> Result<File, UnpackError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&parent.fd, name, flags, Mode::RUSR | Mode::WUSR)
        .map(File::from)
        .map_err(|source| parent.failed("create", name, source))
}

/// Owner, attributes and mode, in this order: a new owner takes away capabilities and set-user-id.
fn describe(fd: impl AsFd, entry: &Entry) -> io::Result<()> {
    let (uid, gid) = owner(entry)?;
    rustix::fs::fchown(&fd, Some(uid), Some(gid))?;
    for (name, value) in entry.xattrs.iter().filter(|(name, _)| kept_xattr(name)) {
        match rustix::fs::fsetxattr(&fd, name.as_slice(), value, XattrFlags::empty()) {
            // A file system without them runs the image all the same.
            Err(Errno::OPNOTSUPP) | Ok(()) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(rustix::fs::fchmod(&fd, mode(entry))?)
}

fn kept_xattr(name: &[u8]) -> bool {
    name == b"security.capability" || (name.starts_with(b"user.") && !name.starts_with(b"user.overlay."))
}

fn set_owner_at(parent: &Directory, name: &Name, entry: &Entry) -> Result<(), UnpackError> {
    let (uid, gid) = owner(entry).map_err(|_| UnpackError::Owner {
        path: parent.shown(name),
    })?;
    rustix::fs::chownat(&parent.fd, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|source| parent.failed("change the owner of", name, source))
}

/// The largest number means "unchanged" to the kernel and is no owner.
fn owner(entry: &Entry) -> io::Result<(Uid, Gid)> {
    let id = |number: u64| {
        u32::try_from(number)
            .ok()
            .filter(|id| *id != u32::MAX)
            .ok_or(Errno::INVAL)
    };
    Ok((Uid::from_raw(id(entry.uid)?), Gid::from_raw(id(entry.gid)?)))
}

fn mode(entry: &Entry) -> Mode {
    Mode::from_raw_mode(entry.mode)
}

fn times(mtime: i64) -> Timestamps {
    let time = Timespec {
        tv_sec: mtime,
        tv_nsec: 0,
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

fn described(entry: &Entry, source: io::Error) -> UnpackError {
    UnpackError::Write {
        operation: "set owner and mode of",
        path: String::from_utf8_lossy(&entry.path).into_owned(),
        source,
    }
}

pub(crate) fn check_space(file: &File) -> Result<(), UnpackError> {
    // Where the file system does not tell, writing will.
    match rustix::fs::fstatvfs(file) {
        Ok(stat) if stat.f_bavail.saturating_mul(stat.f_frsize) < RESERVED_BYTES => Err(UnpackError::NoSpace),
        _ => Ok(()),
    }
}

/// The parts of a path. A leading slash means the root of the image.
fn split(path: &[u8]) -> Result<Vec<Name>, UnpackError> {
    let parts = path
        .split(|byte| *byte == b'/')
        .filter(|part| !matches!(*part, b"" | b"."));
    let mut names = Vec::new();
    for part in parts {
        if part == b".." {
            return Err(invalid_path(path));
        }
        if names.len() == MAX_DEPTH {
            return Err(UnpackError::TooDeep);
        }
        names.push(tree::name_from(part)?);
    }
    Ok(names)
}

fn invalid_path(path: &[u8]) -> UnpackError {
    UnpackError::InvalidPath {
        path: String::from_utf8_lossy(path).chars().take(200).collect(),
    }
}
