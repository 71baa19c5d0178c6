//! The files of an archive, put into a stage and found again by their name.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;

use crate::compression;
use crate::digest::{Digest, Hasher};
use crate::stage::Stage;
use crate::tarball::{Kind, TarError, Tarball};
use crate::unpack::{self, Limits, UnpackError};

/// Files and links in an archive: several for each layer of each image.
const MAX_ENTRIES: usize = 100_000;
/// Links on the way to a file; docker used one.
const MAX_LINKS: usize = 8;
/// Bytes copied at once.
const COPY_BYTES: usize = 256 << 10;
/// How often to look whether there is space left.
const SPACE_CHECK_BYTES: u64 = 32 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error(transparent)]
    Tar(#[from] TarError),
    #[error("the archive has more than {MAX_ENTRIES} entries")]
    TooManyEntries,
    #[error("the archive has more than {limit} bytes")]
    TooLarge { limit: u64 },
    #[error("cannot keep the archive: {0}")]
    Space(#[source] UnpackError),
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("a document of the archive has more than {limit} bytes")]
    DocumentTooLarge { limit: u64 },
}

/// A file of the archive, in the stage.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    path: PathBuf,
    pub(super) size: u64,
    pub(super) digest: Digest,
}

impl Stored {
    pub(super) fn open(&self) -> Result<File, ArchiveError> {
        File::open(&self.path).map_err(|source| ArchiveError::Read {
            path: self.path.clone(),
            source,
        })
    }

    /// All of a document.
    pub(super) fn read(&self, limit: u64) -> Result<Vec<u8>, ArchiveError> {
        if self.size > limit {
            return Err(ArchiveError::DocumentTooLarge { limit });
        }
        std::fs::read(&self.path).map_err(|source| ArchiveError::Read {
            path: self.path.clone(),
            source,
        })
    }
}

#[derive(Debug)]
enum Member {
    File(Stored),
    /// To another name in the archive.
    Link(String),
}

#[derive(Debug, Default)]
pub(super) struct Archive {
    members: HashMap<String, Member>,
}

impl Archive {
    pub(super) fn read(
        archive: impl Read + Send,
        stage: &mut Stage,
        limits: Limits,
    ) -> Result<Self, ArchiveError> {
        let plain = compression::decompress(archive).map_err(TarError::Read)?;
        let mut tarball = Tarball::new(plain);
        let mut copier = Copier::new(limits.archive_bytes);
        let mut found = Self::default();
        let mut entries = 0;
        while let Some(entry) = tarball.next_entry()? {
            entries += 1;
            if entries > MAX_ENTRIES {
                return Err(ArchiveError::TooManyEntries);
            }
            let name = normal("", &String::from_utf8_lossy(&entry.path));
            let link = String::from_utf8_lossy(&entry.link);
            let member = match entry.kind {
                Kind::File => Member::File(copier.store(&mut tarball.content(), stage.new_file())?),
                Kind::Symlink => Member::Link(normal(parent(&name), &link)),
                Kind::HardLink => Member::Link(normal("", &link)),
                Kind::Directory | Kind::Fifo | Kind::Device | Kind::Unknown => continue,
            };
            found.members.insert(name, member);
        }
        Ok(found)
    }

    pub(super) fn find(&self, name: &str) -> Option<Stored> {
        let mut name = normal("", name);
        for _ in 0..MAX_LINKS {
            match self.members.get(&name)? {
                Member::File(stored) => return Some(stored.clone()),
                Member::Link(target) => name.clone_from(target),
            }
        }
        None
    }
}

struct Copier {
    limit: u64,
    bytes: u64,
    next_space_check: u64,
    buffer: Box<[u8]>,
}

impl Copier {
    fn new(limit: u64) -> Self {
        Self {
            limit,
            bytes: 0,
            next_space_check: 0,
            buffer: vec![0; COPY_BYTES].into_boxed_slice(),
        }
    }

    fn store(&mut self, content: &mut impl Read, path: PathBuf) -> Result<Stored, ArchiveError> {
        let written = |source| ArchiveError::Write {
            path: path.clone(),
            source,
        };
        let mut file = File::create_new(&path).map_err(written)?;
        let (mut hasher, mut size) = (Hasher::default(), 0);
        loop {
            let count = match content.read(&mut self.buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(TarError::reading(error).into()),
            };
            self.count(count as u64, &file)?;
            hasher.update(&self.buffer[..count]);
            file.write_all(&self.buffer[..count]).map_err(written)?;
            size += count as u64;
        }
        Ok(Stored {
            path,
            size,
            digest: hasher.finish(),
        })
    }

    fn count(&mut self, bytes: u64, file: &File) -> Result<(), ArchiveError> {
        self.bytes += bytes;
        if self.bytes > self.limit {
            return Err(ArchiveError::TooLarge { limit: self.limit });
        }
        if self.bytes >= self.next_space_check {
            self.next_space_check = self.bytes + SPACE_CHECK_BYTES;
            unpack::check_space(file).map_err(ArchiveError::Space)?;
        }
        Ok(())
    }
}

fn parent(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// A name without `.`, `..` and needless slashes. It is only compared, never used as a path.
fn normal(base: &str, name: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    let base = if name.starts_with('/') { "" } else { base };
    for part in base.split('/').chain(name.split('/')) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_normal() {
        assert_eq!(normal("", "./manifest.json"), "manifest.json");
        assert_eq!(normal("abc", "../def/layer.tar"), "def/layer.tar");
        assert_eq!(normal("abc", "/def//./x"), "def/x");
        assert_eq!(normal("", "../../../etc/passwd"), "etc/passwd");
    }
}
