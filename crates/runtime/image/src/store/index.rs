//! `images.json`: the images of a store, their names and layers.
//!
//! It is read anew for every question, since other processes change it, and replaced as a whole. A name belongs to at
//! most one image.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{ImageStoreError, NewImage, SHORT_ID_DIGITS};
use crate::digest::Digest;
use crate::reference::Reference;

const FILE: &str = "images.json";
/// A thousand images with ten layers each have some 2 MiB.
const MAX_INDEX_BYTES: u64 = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot understand {path}: {source}")]
    Parse {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("{path} has more than {MAX_INDEX_BYTES} bytes")]
    TooLarge { path: PathBuf },
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Index {
    /// By id.
    pub(super) images: BTreeMap<Digest, Record>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Record {
    pub(super) references: BTreeSet<Reference>,
    pub(super) digests: BTreeSet<Reference>,
    /// Lowest first.
    pub(super) layers: Vec<LayerRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct LayerRecord {
    pub(super) chain_id: Digest,
    pub(super) bytes: u64,
}

impl Index {
    pub(super) fn read(root: &Path) -> Result<Self, IndexError> {
        let path = root.join(FILE);
        let mut bytes = Vec::new();
        let read = match File::open(&path) {
            Ok(file) => file.take(MAX_INDEX_BYTES + 1).read_to_end(&mut bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => Err(error),
        };
        if let Err(source) = read {
            return Err(IndexError::Read { path, source });
        }
        if bytes.len() as u64 > MAX_INDEX_BYTES {
            return Err(IndexError::TooLarge { path });
        }
        serde_json::from_slice(&bytes).map_err(|source| IndexError::Parse { path, source })
    }

    pub(super) fn write(&self, root: &Path) -> Result<(), IndexError> {
        let path = root.join(FILE);
        serde_json::to_vec_pretty(self)
            .map_err(io::Error::from)
            .and_then(|bytes| write_atomically(&path, &bytes))
            .and_then(|()| File::open(root)?.sync_all())
            .map_err(|source| IndexError::Write { path, source })
    }

    pub(super) fn add(&mut self, image: NewImage) {
        for record in self.images.values_mut() {
            record.references.retain(|name| !image.references.contains(name));
        }
        let record = self.images.entry(image.id).or_default();
        record.references.extend(image.references);
        record.digests.extend(image.digests);
        record.layers = image
            .layers
            .iter()
            .map(|layer| LayerRecord {
                chain_id: layer.chain_id,
                bytes: layer.bytes,
            })
            .collect();
    }

    /// The layers of all images, with their bytes.
    pub(super) fn layers(&self) -> BTreeMap<Digest, u64> {
        self.images
            .values()
            .flat_map(|record| record.layers.iter().map(|layer| (layer.chain_id, layer.bytes)))
            .collect()
    }

    /// The id of the image with this name, id or short id. Names come first, as users of docker know it.
    pub(super) fn find(&self, text: &str) -> Result<Option<Digest>, ImageStoreError> {
        if let Ok(id) = text.parse::<Digest>() {
            return Ok(self.images.contains_key(&id).then_some(id));
        }
        let name = text.parse::<Reference>();
        if let Ok(name) = &name
            && let Some(id) = self.find_name(name)
        {
            return Ok(Some(id));
        }
        if text.len() >= SHORT_ID_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return self.find_short(text);
        }
        name.map(|_| None).map_err(Into::into)
    }

    fn find_name(&self, name: &Reference) -> Option<Digest> {
        let has = |record: &Record| match name.digest() {
            Some(digest) => record.digests.contains(&name.at(digest)),
            None => record.references.contains(name),
        };
        self.images
            .iter()
            .find_map(|(id, record)| has(record).then_some(*id))
    }

    fn find_short(&self, digits: &str) -> Result<Option<Digest>, ImageStoreError> {
        let mut found = self.images.keys().filter(|id| id.hex().starts_with(digits));
        match (found.next(), found.next()) {
            (Some(_), Some(_)) => Err(ImageStoreError::Ambiguous {
                id: digits.to_owned(),
            }),
            (first, _) => Ok(first.copied()),
        }
    }
}

/// Writes a file so that after a crash either the old or the new content is there. The caller makes the name durable.
pub(super) fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Writers hold the store's lock, so the name is free.
    let temporary = path.with_extension("new");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}
