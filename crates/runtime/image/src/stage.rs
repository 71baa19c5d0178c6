//! A private part of the store in which an image is prepared until it is complete.
//!
//! Nothing in a stage is visible as an image. Its owner holds a lock on it: a stage that nobody holds was left by a
//! process that died, and is removed by the next one that opens the store. Layers that are there already are claimed,
//! so that nobody removes them before the new image counts.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::FlockOperation;

use crate::compression;
use crate::digest::{Digest, HashingReader};
use crate::store::LAYER_ROOT;
use crate::unpack::{self, Limits, UnpackError};

const LOCK: &str = "lock";
const CLAIMS: &str = "claims";
const LAYERS: &str = "layers";
const FILES: &str = "files";
/// Bytes of tar headers that one entry may bring with it.
const HEADER_BYTES: u64 = 2048;

/// Makes the names of stages of this process different.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Why a layer could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    #[error("cannot read layer {digest}: {source}")]
    Read { digest: Digest, source: io::Error },
    #[error("cannot unpack layer {digest}: {source}")]
    Unpack { digest: Digest, source: UnpackError },
    #[error("layer {expected} is corrupt: its content has the digest {actual}")]
    Corrupt { expected: Digest, actual: Digest },
    #[error("cannot make {path}: {source}")]
    Prepare { path: PathBuf, source: io::Error },
}

/// A layer of an image, and how many bytes its files have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layer {
    pub(crate) chain_id: Digest,
    pub(crate) bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Stage {
    directory: PathBuf,
    /// Held until the end.
    _lock: File,
    /// Layers unpacked here.
    unpacked: BTreeMap<Digest, u64>,
    next_file: u64,
}

impl Stage {
    /// A new, empty stage in the directory of stages. The caller holds the store's lock, so that nobody takes it for an
    /// abandoned one before it is locked.
    pub(crate) fn create(stages: &Path) -> io::Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut salt = [0; 8];
        rustix::rand::getrandom(&mut salt[..], rustix::rand::GetRandomFlags::empty())?;
        let name = format!(
            "{}-{number}-{:016x}",
            std::process::id(),
            u64::from_le_bytes(salt)
        );
        let directory = stages.join(name);
        fs::create_dir(&directory)?;
        let lock = File::create(directory.join(LOCK))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        for part in [CLAIMS, LAYERS, FILES] {
            fs::create_dir(directory.join(part))?;
        }
        Ok(Self {
            directory,
            _lock: lock,
            unpacked: BTreeMap::new(),
            next_file: 0,
        })
    }

    /// Whether the stage with this directory has an owner that lives.
    pub(crate) fn is_alive(directory: &Path) -> bool {
        File::open(directory.join(LOCK))
            .is_ok_and(|lock| rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err())
    }

    /// The layers that the stage with this directory claims.
    pub(crate) fn claims_of(directory: &Path) -> io::Result<Vec<Digest>> {
        let mut claims = Vec::new();
        for entry in fs::read_dir(directory.join(CLAIMS))? {
            claims.extend(entry?.file_name().to_str().and_then(Digest::from_hex));
        }
        Ok(claims)
    }

    /// Keeps a layer of the store from being removed. The caller holds the store's lock.
    pub(crate) fn claim(&self, chain_id: Digest) -> io::Result<()> {
        File::create(self.directory.join(CLAIMS).join(chain_id.hex())).map(drop)
    }

    /// A new path for a file of the stage's own.
    pub(crate) fn new_file(&mut self) -> PathBuf {
        let path = self.directory.join(FILES).join(self.next_file.to_string());
        self.next_file += 1;
        path
    }

    /// Where a layer that was unpacked here is.
    pub(crate) fn layer_directory(&self, chain_id: Digest) -> PathBuf {
        self.directory.join(LAYERS).join(chain_id.hex())
    }

    pub(crate) fn layer_root(&self, chain_id: Digest) -> PathBuf {
        self.layer_directory(chain_id).join(LAYER_ROOT)
    }

    /// The bytes of a layer, if it was unpacked here.
    pub(crate) fn unpacked(&self, chain_id: Digest) -> Option<u64> {
        self.unpacked.get(&chain_id).copied()
    }

    /// Unpacks a layer, compressed or not, on top of those in `below`, lowest first, and checks its digest. Returns the
    /// bytes of its files.
    pub(crate) fn unpack(
        &mut self,
        layer: impl Read + Send,
        diff_id: Digest,
        chain_id: Digest,
        below: &[PathBuf],
        limits: Limits,
    ) -> Result<u64, LayerError> {
        let root = self.layer_root(chain_id);
        make_root(&root).map_err(|source| LayerError::Prepare {
            path: root.clone(),
            source,
        })?;
        let read = |source| LayerError::Read {
            digest: diff_id,
            source,
        };
        let plain = compression::decompress(layer).map_err(read)?;
        let mut hashing = HashingReader::new(Bounded::new(plain, limits));
        let unpacked =
            unpack::unpack(&mut hashing, &root, below, limits).map_err(|source| LayerError::Unpack {
                digest: diff_id,
                source,
            })?;
        let actual = hashing.finish().map_err(read)?;
        if actual != diff_id {
            return Err(LayerError::Corrupt {
                expected: diff_id,
                actual,
            });
        }
        self.unpacked.insert(chain_id, unpacked.bytes);
        Ok(unpacked.bytes)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // What cannot be removed now is removed when the store is opened next: nobody holds its lock then.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The root of an image that does not describe its own: as everyone expects it.
fn make_root(root: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if let Some(parent) = root.parent().filter(|parent| parent.exists()) {
        // An earlier try that failed.
        fs::remove_dir_all(parent)?;
    }
    fs::create_dir_all(root)?;
    fs::set_permissions(root, fs::Permissions::from_mode(0o755))
}

/// Ends with an error when a layer is longer than its limits can explain, as a bomb of zeros after its end is.
struct Bounded<R> {
    inner: R,
    left: u64,
    limit: u64,
}

impl<R> Bounded<R> {
    fn new(inner: R, limits: Limits) -> Self {
        let headers = limits.layer_entries.saturating_mul(HEADER_BYTES);
        let limit = limits.layer_bytes.saturating_add(headers);
        Self {
            inner,
            left: limit,
            limit,
        }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self
            .left
            .checked_sub(count as u64)
            .ok_or_else(|| io::Error::other(format!("it has more than {} bytes", self.limit)))?;
        Ok(count)
    }
}
