//! The store: which images there are, and where their layers lie.
//!
//! ```text
//! images.json        every image, its names and layers; replaced as a whole
//! configs/<digest>   the configuration of each image
//! layers/<chain>/fs  an unpacked layer
//! stages/            images in the making
//! partial/           blobs of which a pull has some bytes, to go on with
//! lock               held while images.json is changed, by any process
//! ```
//! What always holds: an image that `images.json` names is complete, on disk too, and its layers never change. Layers hold
//! files of any owner and mode, set-user-id programs among them, so only root can enter the store.
//!
//! Who uses an image is for others to know: they say it when something is to be removed.

mod index;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::FlockOperation;

use crate::digest::Digest;
use crate::image::{ConfigFile, DocumentError, Image};
use crate::mirror::RegistryMirror;
use crate::reference::{ParseReferenceError, Reference};
use crate::stage::{Layer, Stage};
use crate::unpack::Limits;
use index::{Index, Record};

pub use index::IndexError;

/// The part of a layer's directory that is mounted.
pub(crate) const LAYER_ROOT: &str = "fs";
/// How long what an interrupted pull has is kept: a day.
const KEEP_PARTIAL: Duration = Duration::from_hours(24);
/// Digits that a shortened id must have at least; `image ls` shows as many.
pub const SHORT_ID_DIGITS: usize = 12;

/// A store of images. Cloning is cheap; any number of processes may use one at the same time.
#[derive(Debug, Clone)]
pub struct ImageStore {
    root: PathBuf,
    limits: Limits,
    pub(crate) mirrors: Arc<[RegistryMirror]>,
}

#[derive(Debug, thiserror::Error)]
pub enum ImageStoreError {
    #[error("cannot open the image store at {path}: {source}")]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot lock the image store: {0}")]
    Lock(#[source] io::Error),
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Reference(#[from] ParseReferenceError),
    #[error("no such image: {reference}")]
    NotFound { reference: String },
    #[error("{id} is short for several images")]
    Ambiguous { id: String },
    #[error("image {reference} is used by a container")]
    InUse { reference: String },
    #[error("cannot read the configuration of image {id}: {source}")]
    ReadConfig { id: Digest, source: io::Error },
    #[error("the configuration of image {id} is corrupt on disk")]
    CorruptConfig { id: Digest },
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("cannot make room for a new image: {0}")]
    Stage(#[source] io::Error),
    #[error("cannot add {path} to the image store: {source}")]
    Publish { path: PathBuf, source: io::Error },
    #[error("cannot remove {path}: {source}")]
    Remove { path: PathBuf, source: io::Error },
}

/// What a caller can do about an [`ImageStoreError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageStoreErrorKind {
    /// The text names no image, or several.
    BadName,
    NotFound,
    /// Some container needs the image.
    InUse,
    /// The store itself is damaged, or the machine refuses.
    Storage,
}

impl ImageStoreError {
    pub fn kind(&self) -> ImageStoreErrorKind {
        match self {
            Self::Reference(_) | Self::Ambiguous { .. } => ImageStoreErrorKind::BadName,
            Self::NotFound { .. } => ImageStoreErrorKind::NotFound,
            Self::InUse { .. } => ImageStoreErrorKind::InUse,
            Self::Open { .. }
            | Self::Lock(_)
            | Self::Index(_)
            | Self::ReadConfig { .. }
            | Self::CorruptConfig { .. }
            | Self::Document(_)
            | Self::Stage(_)
            | Self::Publish { .. }
            | Self::Remove { .. } => ImageStoreErrorKind::Storage,
        }
    }
}

/// What [`ImageStore::remove`] did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Removed {
    pub untagged: Vec<Reference>,
    /// Images that had no other name.
    pub deleted: Vec<Digest>,
    /// Bytes of the layers that no other image needs.
    pub freed: u64,
}

/// What [`ImageStore::prune`] may remove. Never what is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prune {
    /// Images that no tag names any more.
    Untagged,
    /// All images.
    Unused,
}

/// A complete image in a stage.
#[derive(Debug)]
pub(crate) struct NewImage {
    pub(crate) id: Digest,
    pub(crate) config: Vec<u8>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) references: Vec<Reference>,
    pub(crate) digests: Vec<Reference>,
}

/// Holds the store's lock.
#[derive(Debug)]
pub(crate) struct Locked {
    _file: File,
}

impl ImageStore {
    /// Opens a store, making it if needed, and removes what processes that died have left.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, ImageStoreError> {
        Self::open_with(root, Limits::default())
    }

    pub fn open_with(root: impl Into<PathBuf>, limits: Limits) -> Result<Self, ImageStoreError> {
        let store = Self {
            root: root.into(),
            limits,
            mirrors: Arc::default(),
        };
        let failed = |source| ImageStoreError::Open {
            path: store.root.clone(),
            source,
        };
        let mut private = fs::DirBuilder::new();
        private.recursive(true).mode(0o700);
        for part in ["configs", "layers", "stages", "partial"] {
            private.create(store.root.join(part)).map_err(failed)?;
        }
        // Somebody who holds the lock is alive and leaves nothing behind; cleaning can wait.
        if let Some(locked) = store.try_lock()? {
            store.clean(&locked)?;
        }
        Ok(store)
    }

    /// The same store, whose pulls ask these mirrors before the registries they stand for, in this order.
    #[must_use]
    pub fn with_mirrors(self, mirrors: impl Into<Arc<[RegistryMirror]>>) -> Self {
        Self {
            mirrors: mirrors.into(),
            ..self
        }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Bytes of all layers, each counted once.
    pub fn used_bytes(&self) -> Result<u64, ImageStoreError> {
        Ok(self.read_index()?.layers().values().sum())
    }

    /// The files of all layers.
    pub fn layers(&self) -> Result<BTreeMap<Digest, PathBuf>, ImageStoreError> {
        let layers = self.read_index()?.layers();
        let roots = layers.into_keys().map(|layer| (layer, self.layer_root(layer)));
        Ok(roots.collect())
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The image with this name or id; short ids have at least [`SHORT_ID_DIGITS`] digits.
    pub fn resolve(&self, reference: &str) -> Result<Option<Image>, ImageStoreError> {
        let index = self.read_index()?;
        match index.find(reference)? {
            Some(id) => index
                .images
                .get(&id)
                .map(|record| self.image(id, record))
                .transpose(),
            None => Ok(None),
        }
    }

    /// All images, in the order of their first name.
    pub fn list(&self) -> Result<Vec<Image>, ImageStoreError> {
        let index = self.read_index()?;
        let mut images: Vec<_> = index
            .images
            .iter()
            .map(|(id, record)| self.image(*id, record))
            .collect::<Result<_, _>>()?;
        images.sort_by(|a, b| (a.references.first(), a.id).cmp(&(b.references.first(), b.id)));
        Ok(images)
    }

    /// Removes a tag, and the image when that was its last one; by id or digest the image with all its names.
    /// `in_use`: ids of images that containers were made from.
    pub fn remove(&self, reference: &str, in_use: &BTreeSet<Digest>) -> Result<Removed, ImageStoreError> {
        let locked = self.lock()?;
        let mut index = self.read_index()?;
        let id = index.find(reference)?.ok_or_else(|| ImageStoreError::NotFound {
            reference: reference.to_owned(),
        })?;
        let record = index.images.entry(id).or_default();
        let tag = reference
            .parse::<Reference>()
            .ok()
            .filter(|name| name.digest().is_none() && record.references.contains(name));
        let untagged: Vec<_> = match tag {
            Some(tag) => vec![tag],
            None => record.references.iter().cloned().collect(),
        };
        let last = untagged.len() == record.references.len();
        if last && in_use.contains(&id) {
            return Err(ImageStoreError::InUse {
                reference: reference.to_owned(),
            });
        }
        let mut removed = Removed {
            untagged,
            ..Removed::default()
        };
        if last {
            index.images.remove(&id);
            removed.deleted.push(id);
        } else {
            record.references.retain(|name| !removed.untagged.contains(name));
        }
        removed.freed = self.shrink(locked, &index)?;
        Ok(removed)
    }

    /// Removes images that nobody uses, and what is left of interrupted pulls.
    pub fn prune(&self, prune: Prune, in_use: &BTreeSet<Digest>) -> Result<Removed, ImageStoreError> {
        let locked = self.lock()?;
        let mut index = self.read_index()?;
        let mut removed = Removed::default();
        index.images.retain(|id, record| {
            let keep = in_use.contains(id)
                || match prune {
                    Prune::Untagged => !record.references.is_empty(),
                    Prune::Unused => false,
                };
            if !keep {
                removed.deleted.push(*id);
                removed.untagged.extend(record.references.iter().cloned());
            }
            keep
        });
        self.remove_partial(Duration::ZERO)?;
        removed.freed = self.shrink(locked, &index)?;
        Ok(removed)
    }

    /// Where blobs that are being pulled are kept.
    pub(crate) fn partial_directory(&self) -> PathBuf {
        self.root.join("partial")
    }

    fn image(&self, id: Digest, record: &Record) -> Result<Image, ImageStoreError> {
        let bytes =
            fs::read(self.config_path(id)).map_err(|source| ImageStoreError::ReadConfig { id, source })?;
        if Digest::of(&bytes) != id {
            return Err(ImageStoreError::CorruptConfig { id });
        }
        Ok(Image {
            id,
            references: record.references.iter().cloned().collect(),
            digests: record.digests.iter().cloned().collect(),
            config: ConfigFile::parse(&bytes)?.config,
            layers: record
                .layers
                .iter()
                .map(|layer| self.layer_root(layer.chain_id))
                .collect(),
            size: record.layers.iter().map(|layer| layer.bytes).sum(),
        })
    }

    fn config_path(&self, id: Digest) -> PathBuf {
        self.root.join("configs").join(id.hex())
    }

    fn layer_directory(&self, chain_id: Digest) -> PathBuf {
        self.root.join("layers").join(chain_id.hex())
    }

    pub(crate) fn layer_root(&self, chain_id: Digest) -> PathBuf {
        self.layer_directory(chain_id).join(LAYER_ROOT)
    }

    fn stages(&self) -> PathBuf {
        self.root.join("stages")
    }

    fn read_index(&self) -> Result<Index, ImageStoreError> {
        Ok(Index::read(&self.root)?)
    }

    /// Waits for whoever changes the store; nobody does for long.
    fn lock(&self) -> Result<Locked, ImageStoreError> {
        let file = self.lock_file()?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)
            .map_err(|error| ImageStoreError::Lock(error.into()))?;
        Ok(Locked { _file: file })
    }

    fn try_lock(&self) -> Result<Option<Locked>, ImageStoreError> {
        let file = self.lock_file()?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Locked { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(ImageStoreError::Lock(error.into())),
        }
    }

    fn lock_file(&self) -> Result<File, ImageStoreError> {
        File::create(self.root.join("lock")).map_err(ImageStoreError::Lock)
    }

    /// A place to prepare an image in.
    pub(crate) fn stage(&self) -> Result<Stage, ImageStoreError> {
        let _locked = self.lock()?;
        Stage::create(&self.stages()).map_err(ImageStoreError::Stage)
    }

    /// Which of these layers are there; they stay at least as long as the stage.
    pub(crate) fn claim(
        &self,
        stage: &Stage,
        chain_ids: &[Digest],
    ) -> Result<BTreeMap<Digest, u64>, ImageStoreError> {
        let _locked = self.lock()?;
        let known = self.read_index()?.layers();
        let mut claimed = BTreeMap::new();
        for chain_id in chain_ids {
            if let Some(bytes) = known.get(chain_id) {
                stage.claim(*chain_id).map_err(ImageStoreError::Stage)?;
                claimed.insert(*chain_id, *bytes);
            }
        }
        Ok(claimed)
    }

    /// Makes complete images visible, all at once. Their names no longer mean the images that had them before.
    pub(crate) fn commit(&self, stage: &Stage, images: Vec<NewImage>) -> Result<(), ImageStoreError> {
        let published = |path: &Path| {
            let path = path.to_owned();
            move |source| ImageStoreError::Publish { path, source }
        };
        // Everything in the stage is on disk before anything of it can be found.
        let root = File::open(&self.root).map_err(published(&self.root))?;
        rustix::fs::syncfs(&root).map_err(|error| published(&self.root)(error.into()))?;
        let _locked = self.lock()?;
        let mut index = self.read_index()?;
        let known = index.layers();
        for image in images {
            for layer in &image.layers {
                let target = self.layer_directory(layer.chain_id);
                let staged = stage.layer_directory(layer.chain_id);
                if !known.contains_key(&layer.chain_id) && staged.exists() {
                    replace(&staged, &target).map_err(published(&target))?;
                }
            }
            let path = self.config_path(image.id);
            index::write_atomically(&path, &image.config).map_err(published(&path))?;
            index.add(image);
        }
        for directory in ["configs", "layers"] {
            let path = self.root.join(directory);
            File::open(&path)
                .and_then(|directory| directory.sync_all())
                .map_err(published(&path))?;
        }
        Ok(index.write(&self.root)?)
    }

    /// Writes an index with fewer images and removes what they leave. Returns the bytes of the layers removed.
    fn shrink(&self, locked: Locked, index: &Index) -> Result<u64, ImageStoreError> {
        let before = self.read_index()?.layers();
        index.write(&self.root)?;
        let gone = self.collect(&locked, index)?;
        drop(locked);
        remove_all(gone)?;
        let after = index.layers();
        Ok(before
            .iter()
            .filter(|(chain_id, _)| !after.contains_key(chain_id))
            .map(|(_, bytes)| bytes)
            .sum())
    }

    fn clean(&self, locked: &Locked) -> Result<(), ImageStoreError> {
        self.remove_partial(KEEP_PARTIAL)?;
        let index = self.read_index()?;
        remove_all(self.collect(locked, &index)?)
    }

    /// Takes everything that neither an image nor a living stage needs out of sight, and returns what is to be removed.
    fn collect(&self, _locked: &Locked, index: &Index) -> Result<Vec<PathBuf>, ImageStoreError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| ImageStoreError::Remove { path, source }
        };
        let mut needed: BTreeSet<Digest> = index.layers().into_keys().collect();
        let mut gone = Vec::new();
        for directory in entries(&self.stages()).map_err(failed(&self.stages()))? {
            if Stage::is_alive(&directory) {
                needed.extend(Stage::claims_of(&directory).map_err(failed(&directory))?);
            } else {
                gone.push(directory);
            }
        }
        for path in entries(&self.root.join("layers")).map_err(failed(&self.root))? {
            if digest_of(&path).is_none_or(|chain_id| !needed.contains(&chain_id)) {
                // Under this name nobody takes it for a layer, and a later cleaning finds it.
                let mut name = std::ffi::OsString::from("removed-");
                name.push(path.file_name().unwrap_or_default());
                let moved = self.stages().join(name);
                replace(&path, &moved).map_err(failed(&path))?;
                gone.push(moved);
            }
        }
        for path in entries(&self.root.join("configs")).map_err(failed(&self.root))? {
            if digest_of(&path).is_none_or(|id| !index.images.contains_key(&id)) {
                fs::remove_file(&path).map_err(failed(&path))?;
            }
        }
        Ok(gone)
    }

    /// Removes blobs that nobody is pulling and that were last written at least this long ago.
    fn remove_partial(&self, age: Duration) -> Result<(), ImageStoreError> {
        let directory = self.partial_directory();
        let failed = |source| ImageStoreError::Remove {
            path: directory.clone(),
            source,
        };
        for path in entries(&directory).map_err(failed)? {
            let file = File::open(&path).map_err(failed)?;
            let written = file
                .metadata()
                .and_then(|metadata| metadata.modified())
                .map_err(failed)?;
            let old = written.elapsed().is_ok_and(|elapsed| elapsed >= age);
            if old && rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                fs::remove_file(&path).map_err(failed)?;
            }
        }
        Ok(())
    }
}

fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(directory)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect()
}

/// Removes directories; another process may be removing the same.
fn remove_all(paths: Vec<PathBuf>) -> Result<(), ImageStoreError> {
    for path in paths {
        match fs::remove_dir_all(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(ImageStoreError::Remove { path, source });
            }
            _ => {}
        }
    }
    Ok(())
}

fn digest_of(path: &Path) -> Option<Digest> {
    path.file_name()?.to_str().and_then(Digest::from_hex)
}

/// Renames a directory; one of that name that is in the way belongs to nobody.
fn replace(from: &Path, to: &Path) -> io::Result<()> {
    match fs::remove_dir_all(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::rename(from, to)
}
