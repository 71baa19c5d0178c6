//! Loads images from an archive: what `docker save` writes, or an OCI layout, as a tar stream, plain or compressed.
//!
//! Such an archive lists its content in any order, so its files are first put into a stage, by the name they have in
//! the archive, never by a path made from it. Then the images are checked, unpacked and made visible, all or none.

mod archive;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::digest::Digest;
use crate::image::{
    ConfigFile, Descriptor, DocumentError, Image, MAX_CONFIG_BYTES, MAX_MANIFEST_BYTES, Manifest, from_json,
};
use crate::platform::{self, Platform};
use crate::reference::{ParseReferenceError, Reference};
use crate::stage::{Layer, LayerError, Stage};
use crate::store::{ImageStore, ImageStoreError, NewImage};
use archive::{Archive, Stored};

pub use archive::ArchiveError;

/// Images in one archive.
const MAX_IMAGES: usize = 1000;
/// Where exporters put the full name of an image in a layout.
const NAME_ANNOTATIONS: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("cannot open {path}: {source}")]
    Open { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error("the archive holds no image: neither manifest.json nor index.json is in it")]
    NotAnImage,
    #[error("the archive has no {name:?}, which its manifest names")]
    Missing { name: String },
    #[error("{name:?} in the archive is corrupt: its digest is {actual}")]
    Corrupt { name: String, actual: Digest },
    #[error("the archive holds more than {MAX_IMAGES} images")]
    TooManyImages,
    #[error("the image is for {image}, this machine is {host}")]
    WrongPlatform { image: String, host: Platform },
    #[error("a name can be given to one image only; the archive holds {count}")]
    SeveralToName { count: usize },
    #[error(transparent)]
    Name(#[from] ParseReferenceError),
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error(transparent)]
    Layer(#[from] LayerError),
    #[error(transparent)]
    Store(#[from] ImageStoreError),
}

impl ImageStore {
    /// [`Self::load`] from a file.
    pub fn load_file(&self, path: &Path, name: Option<&Reference>) -> Result<Vec<Image>, LoadError> {
        let file = File::open(path).map_err(|source| LoadError::Open {
            path: path.to_owned(),
            source,
        })?;
        self.load(file, name)
    }

    /// Loads all images of an archive that run on this machine. `name` is given to the image in addition to the names
    /// that the archive has for it.
    pub fn load(&self, archive: impl Read + Send, name: Option<&Reference>) -> Result<Vec<Image>, LoadError> {
        let mut stage = self.stage()?;
        let archive = Archive::read(archive, &mut stage, self.limits())?;
        let mut found = find_images(&archive)?;
        if let Some(name) = name {
            match found.as_mut_slice() {
                [only] => only.references.push(name.clone()),
                several => return Err(LoadError::SeveralToName { count: several.len() }),
            }
        }
        let mut images = Vec::new();
        for source in found {
            images.push(self.unpack_source(&mut stage, source)?);
        }
        let ids: Vec<_> = images.iter().map(|image| image.id).collect();
        self.commit(&stage, images)?;
        let mut loaded = Vec::new();
        for id in ids {
            loaded.extend(self.resolve(&id.to_string())?);
        }
        Ok(loaded)
    }

    fn unpack_source(&self, stage: &mut Stage, source: Source) -> Result<NewImage, LoadError> {
        let chain_ids = source.config.chain_ids();
        let there = self.claim(stage, &chain_ids)?;
        let mut below: Vec<PathBuf> = Vec::new();
        let mut layers = Vec::new();
        for ((stored, diff_id), chain_id) in source.layers.iter().zip(&source.config.diff_ids).zip(chain_ids)
        {
            if let Some(bytes) = there.get(&chain_id) {
                layers.push(Layer {
                    chain_id,
                    bytes: *bytes,
                });
                below.push(self.layer_root(chain_id));
                continue;
            }
            let bytes = match stage.unpacked(chain_id) {
                Some(bytes) => bytes,
                None => stage.unpack(stored.open()?, *diff_id, chain_id, &below, self.limits())?,
            };
            layers.push(Layer { chain_id, bytes });
            below.push(stage.layer_root(chain_id));
        }
        Ok(NewImage {
            id: Digest::of(&source.config_bytes),
            config: source.config_bytes,
            layers,
            references: source.references,
            digests: source.digests,
        })
    }
}

/// An image of an archive that has been checked as far as its documents go.
struct Source {
    config_bytes: Vec<u8>,
    config: ConfigFile,
    /// Lowest first; as many as the configuration has.
    layers: Vec<Stored>,
    references: Vec<Reference>,
    digests: Vec<Reference>,
}

fn find_images(archive: &Archive) -> Result<Vec<Source>, LoadError> {
    // Newer docker writes both; its own list has the names.
    if let Some(list) = archive.find("manifest.json") {
        return from_docker(archive, &list.read(MAX_MANIFEST_BYTES)?);
    }
    match archive.find("index.json") {
        Some(index) => from_layout(archive, &index.read(MAX_MANIFEST_BYTES)?),
        None => Err(LoadError::NotAnImage),
    }
}

/// An entry of docker's `manifest.json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Option<Vec<String>>,
}

fn from_docker(archive: &Archive, list: &[u8]) -> Result<Vec<Source>, LoadError> {
    let list: Vec<DockerImage> = from_json("manifest.json", list)?;
    if list.len() > MAX_IMAGES {
        return Err(LoadError::TooManyImages);
    }
    list.iter().map(|image| docker_image(archive, image)).collect()
}

fn docker_image(archive: &Archive, image: &DockerImage) -> Result<Source, LoadError> {
    let file = find(archive, &image.config)?;
    // The file is named after its digest.
    let stem = image.config.rsplit('/').next().unwrap_or_default();
    if let Some(expected) = Digest::from_hex(stem.strip_suffix(".json").unwrap_or(stem))
        && expected != file.digest
    {
        return Err(corrupt(&image.config, &file));
    }
    let config_bytes = file.read(MAX_CONFIG_BYTES)?;
    let config = runnable(&config_bytes)?;
    let names = image.layers.as_deref().unwrap_or_default();
    if names.len() != config.diff_ids.len() {
        let (manifest, config) = (names.len(), config.diff_ids.len());
        return Err(DocumentError::LayersDiffer { manifest, config }.into());
    }
    let layers: Result<_, _> = names.iter().map(|name| find(archive, name)).collect();
    let tags = image.repo_tags.as_deref().unwrap_or_default();
    let references: Result<_, _> = tags.iter().map(|tag| tag.parse()).collect();
    Ok(Source {
        config_bytes,
        config,
        layers: layers?,
        references: references?,
        digests: Vec::new(),
    })
}

fn from_layout(archive: &Archive, index: &[u8]) -> Result<Vec<Source>, LoadError> {
    let Manifest::Index(entries) = Manifest::parse(index)? else {
        return Err(LoadError::NotAnImage);
    };
    if entries.len() > MAX_IMAGES {
        return Err(LoadError::TooManyImages);
    }
    let host = Platform::host();
    let foreign = |entry: &&Descriptor| {
        entry
            .platform
            .as_ref()
            .is_some_and(|platform| !platform.runs_on(&host))
    };
    let (foreign, ours): (Vec<_>, Vec<_>) = entries.iter().partition(foreign);
    if ours.is_empty() && !foreign.is_empty() {
        let image = platform::offered(&entries);
        return Err(LoadError::WrongPlatform { image, host });
    }
    ours.into_iter()
        .map(|entry| layout_image(archive, entry))
        .collect()
}

fn layout_image(archive: &Archive, entry: &Descriptor) -> Result<Source, LoadError> {
    let host = Platform::host();
    let manifest = match read_manifest(archive, entry)? {
        Manifest::Image(manifest) => manifest,
        Manifest::Index(entries) => {
            let offered = || LoadError::WrongPlatform {
                image: platform::offered(&entries),
                host: host.clone(),
            };
            let selected = platform::select(&entries, &host).ok_or_else(offered)?;
            match read_manifest(archive, selected)? {
                Manifest::Image(manifest) => manifest,
                Manifest::Index(_) => return Err(LoadError::NotAnImage),
            }
        }
    };
    let config_bytes = blob(archive, &manifest.config)?.read(MAX_CONFIG_BYTES)?;
    let config = runnable(&config_bytes)?;
    manifest.check(&config)?;
    let layers: Result<_, _> = manifest.layers.iter().map(|layer| blob(archive, layer)).collect();
    let references: Vec<Reference> = annotated_name(entry).into_iter().collect();
    Ok(Source {
        config_bytes,
        config,
        layers: layers?,
        digests: references.iter().map(|name| name.at(entry.digest)).collect(),
        references,
    })
}

/// The name of an image in a layout. A bare tag, as some exporters write it, is none.
fn annotated_name(entry: &Descriptor) -> Option<Reference> {
    let annotations = entry.annotations.as_ref()?;
    NAME_ANNOTATIONS
        .iter()
        .filter_map(|key| annotations.get(*key))
        .filter(|name| name.contains([':', '/']))
        .find_map(|name| name.parse().ok())
}

fn read_manifest(archive: &Archive, entry: &Descriptor) -> Result<Manifest, LoadError> {
    Ok(Manifest::parse(&blob(archive, entry)?.read(MAX_MANIFEST_BYTES)?)?)
}

/// A file of an OCI layout, which is named by its digest.
fn blob(archive: &Archive, descriptor: &Descriptor) -> Result<Stored, LoadError> {
    let name = format!("blobs/sha256/{}", descriptor.digest.hex());
    let file = find(archive, &name)?;
    if file.digest == descriptor.digest && file.size == descriptor.size {
        Ok(file)
    } else {
        Err(corrupt(&name, &file))
    }
}

fn find(archive: &Archive, name: &str) -> Result<Stored, LoadError> {
    archive.find(name).ok_or_else(|| LoadError::Missing {
        name: name.to_owned(),
    })
}

fn corrupt(name: &str, file: &Stored) -> LoadError {
    LoadError::Corrupt {
        name: name.to_owned(),
        actual: file.digest,
    }
}

/// The configuration of an image that this machine can run.
fn runnable(bytes: &[u8]) -> Result<ConfigFile, LoadError> {
    let config = ConfigFile::parse(bytes)?;
    let (platform, host) = (config.platform(), Platform::host());
    if platform.runs_on(&host) {
        Ok(config)
    } else {
        let image = platform.to_string();
        Err(LoadError::WrongPlatform { image, host })
    }
}
