//! Downloads one blob into a file, going on where an earlier try ended.
//!
//! The file is named by the digest and locked by whoever downloads it: a second pull of the same blob, in this process or
//! another, waits and finds it complete. A [`Blob`] is complete and has the right digest.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;

use super::LayerStep;
use crate::digest::{Digest, Hasher};
use crate::image::Descriptor;
use crate::registry::{Registry, RegistryError};
use crate::unpack::{self, UnpackError};

/// Tries in a row that bring nothing worth mentioning.
const MAX_VAIN_TRIES: u32 = 5;
/// What a try must bring to count as one that did not fail in vain; a slow drip of bytes does not go on for ever.
const WORTHWHILE_BYTES: u64 = 256 << 10;
/// Before the second try; doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often to look whether somebody else is done with a blob.
const LOCK_POLL: Duration = Duration::from_millis(100);
/// Bytes between looks at the space left.
const SPACE_CHECK_BYTES: u64 = 32 << 20;

#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    #[error("cannot download {digest}: {source}")]
    Registry { digest: Digest, source: RegistryError },
    #[error("cannot use {path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("cannot download {digest}: {source}")]
    Space { digest: Digest, source: UnpackError },
    #[error("the registry sent something else than {expected}: its digest is {actual}")]
    Corrupt { expected: Digest, actual: Digest },
    #[error("the registry sent more than the {size} bytes of {digest}")]
    TooLong { digest: Digest, size: u64 },
    #[error("the registry sent less than all of {digest}")]
    TooShort { digest: Digest },
    #[error("the download of {digest} was interrupted")]
    Interrupted { digest: Digest },
}

impl DownloadError {
    /// Whether another request may bring the rest.
    fn is_transient(&self) -> bool {
        match self {
            Self::Registry { source, .. } => source.is_transient(),
            Self::TooShort { .. } => true,
            Self::File { .. }
            | Self::Space { .. }
            | Self::Corrupt { .. }
            | Self::TooLong { .. }
            | Self::Interrupted { .. } => false,
        }
    }
}

/// A blob that is completely there.
#[derive(Debug)]
pub(super) struct Blob {
    path: PathBuf,
    /// Holds the lock.
    _file: File,
}

impl Blob {
    pub(super) fn open(&self) -> Result<File, DownloadError> {
        File::open(&self.path).map_err(|source| self.failed(source))
    }

    pub(super) fn read(&self) -> Result<Vec<u8>, DownloadError> {
        fs::read(&self.path).map_err(|source| self.failed(source))
    }

    /// It is not needed any more.
    pub(super) fn remove(&self) -> Result<(), DownloadError> {
        fs::remove_file(&self.path).map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> DownloadError {
        DownloadError::File {
            path: self.path.clone(),
            source,
        }
    }
}

/// Gets the blob, and reports its progress.
pub(super) async fn blob(
    registry: &Registry,
    descriptor: &Descriptor,
    directory: &Path,
    on_step: impl Fn(LayerStep) + Send + Sync,
) -> Result<Blob, DownloadError> {
    let download = Download::open(descriptor, directory).await?;
    let goes_on = download.done > 0;
    match run(download, registry, descriptor, &on_step).await {
        // What an earlier try has left may be of another server, and broken. It is gone now.
        Err(DownloadError::Corrupt { .. }) if goes_on => {
            let anew = Download::open(descriptor, directory).await?;
            run(anew, registry, descriptor, &on_step).await
        }
        ended => ended,
    }
}

async fn run(
    mut download: Download,
    registry: &Registry,
    descriptor: &Descriptor,
    on_step: &(impl Fn(LayerStep) + Send + Sync),
) -> Result<Blob, DownloadError> {
    let (mut vain, mut pause) = (0, FIRST_PAUSE);
    while download.done < descriptor.size {
        let before = download.done;
        let ended = download.go_on(registry, on_step).await;
        if download.done == descriptor.size {
            break;
        }
        let error = ended.err().unwrap_or(DownloadError::TooShort {
            digest: descriptor.digest,
        });
        if download.done >= before.saturating_add(WORTHWHILE_BYTES) {
            (vain, pause) = (0, FIRST_PAUSE);
        } else {
            vain += 1;
        }
        if !error.is_transient() || vain >= MAX_VAIN_TRIES {
            return Err(error);
        }
        on_step(LayerStep::Interrupted {
            error: error.to_string(),
        });
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    download.finish()
}

struct Download {
    digest: Digest,
    size: u64,
    path: PathBuf,
    file: File,
    /// Bytes in the file.
    done: u64,
    /// Of these bytes.
    hasher: Hasher,
    next_space_check: u64,
}

impl Download {
    async fn open(descriptor: &Descriptor, directory: &Path) -> Result<Self, DownloadError> {
        let (digest, size) = (descriptor.digest, descriptor.size);
        let path = directory.join(digest.hex());
        let failed = |source| DownloadError::File {
            path: path.clone(),
            source,
        };
        let mut file = loop {
            if let Some(file) = try_open(&path).map_err(failed)? {
                break file;
            }
            tokio::time::sleep(LOCK_POLL).await;
        };
        let interrupted = |_| DownloadError::Interrupted { digest };
        let (file, done, hasher) = tokio::task::spawn_blocking(move || {
            let (done, hasher) = digest_start(&mut file, size)?;
            Ok((file, done, hasher))
        })
        .await
        .map_err(interrupted)?
        .map_err(failed)?;
        Ok(Self {
            digest,
            size,
            path,
            file,
            done,
            hasher,
            next_space_check: 0,
        })
    }

    /// One request, to the end of the blob or of the connection.
    async fn go_on(
        &mut self,
        registry: &Registry,
        on_step: &(impl Fn(LayerStep) + Send + Sync),
    ) -> Result<(), DownloadError> {
        let digest = self.digest;
        let failed = |source| DownloadError::Registry { digest, source };
        let (mut response, start) = registry.blob(digest, self.done).await.map_err(failed)?;
        if start != self.done {
            // It does not know ranges, or has its own idea of them.
            self.start_anew()?;
            if start != 0 {
                return Ok(());
            }
        }
        while let Some(chunk) = registry.chunk(&mut response).await.map_err(failed)? {
            self.add(&chunk)?;
            on_step(LayerStep::Downloading {
                done: self.done,
                total: self.size,
            });
        }
        Ok(())
    }

    fn add(&mut self, chunk: &[u8]) -> Result<(), DownloadError> {
        let (digest, size) = (self.digest, self.size);
        self.done += chunk.len() as u64;
        if self.done > size {
            self.start_anew()?;
            return Err(DownloadError::TooLong { digest, size });
        }
        if self.done >= self.next_space_check {
            self.next_space_check = self.done + SPACE_CHECK_BYTES;
            unpack::check_space(&self.file).map_err(|source| DownloadError::Space { digest, source })?;
        }
        self.hasher.update(chunk);
        // A chunk is small, and goes to memory that the kernel writes back.
        self.file.write_all(chunk).map_err(|source| DownloadError::File {
            path: self.path.clone(),
            source,
        })
    }

    fn start_anew(&mut self) -> Result<(), DownloadError> {
        self.done = 0;
        self.hasher = Hasher::default();
        self.file
            .set_len(0)
            .and_then(|()| self.file.rewind())
            .map_err(|source| DownloadError::File {
                path: self.path.clone(),
                source,
            })
    }

    fn finish(self) -> Result<Blob, DownloadError> {
        let (expected, actual) = (self.digest, self.hasher.finish());
        let blob = Blob {
            path: self.path,
            _file: self.file,
        };
        if actual == expected {
            return Ok(blob);
        }
        blob.remove()?;
        Err(DownloadError::Corrupt { expected, actual })
    }
}

/// The file of a blob, locked; `None` if somebody else has it.
fn try_open(path: &Path) -> io::Result<Option<File>> {
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    // Whoever had the lock may have removed the name.
    Ok((file.metadata()?.nlink() > 0).then_some(file))
}

/// Digests what an earlier try has left; more than there can be is thrown away.
fn digest_start(file: &mut File, size: u64) -> io::Result<(u64, Hasher)> {
    const BUFFER_BYTES: usize = 256 << 10;
    let mut hasher = Hasher::default();
    let length = file.metadata()?.len();
    if length > size {
        file.set_len(0)?;
        return Ok((0, hasher));
    }
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut done = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((done, hasher)),
            count => {
                hasher.update(&buffer[..count]);
                done += count as u64;
            }
        }
    }
}
