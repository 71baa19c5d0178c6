//! Pulls an image: manifest, configuration, then its layers, several at once.
//!
//! Layers are downloaded side by side and unpacked one after the other, each on top of those below; what the store has
//! already is not downloaded. A download that breaks off goes on where it was, also after this process has died. The
//! image is visible when all of it is there, and not before.

mod download;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;

use crate::credentials::Auth;
use crate::digest::Digest;
use crate::image::{ConfigFile, Descriptor, DocumentError, Image, ImageManifest, MAX_CONFIG_BYTES, Manifest};
use crate::platform::{self, Platform};
use crate::reference::Reference;
use crate::registry::{Registry, RegistryError};
use crate::stage::{Layer, LayerError, Stage};
use crate::store::{ImageStore, ImageStoreError, NewImage};
use download::Blob;

pub use download::DownloadError;

/// Layers downloaded at once; more rarely make it faster, and registries slow down those who ask too much.
const MAX_DOWNLOADS: usize = 3;
/// How often a manifest is asked for when the registry is not well.
const MANIFEST_TRIES: u32 = 4;
/// Between tries; doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// How a pull goes on, as it happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullEvent {
    /// The image was found, with so many layers.
    Resolved {
        digest: Digest,
        layers: usize,
    },
    Layer {
        digest: Digest,
        step: LayerStep,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerStep {
    /// Nothing to do.
    Exists,
    /// It will be downloaded.
    Waiting {
        total: u64,
    },
    Downloading {
        done: u64,
        total: u64,
    },
    /// The connection broke; the download goes on soon.
    Interrupted {
        error: String,
    },
    Unpacking,
    Done,
}

/// Is called with each step of a pull; it must not block.
pub type Progress = Arc<dyn Fn(PullEvent) + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum PullError {
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("the image is there for {offered}, but not for this machine, {host}")]
    NoPlatform { offered: String, host: String },
    #[error("the image is for {image}, this machine is {host}")]
    WrongPlatform { image: String, host: String },
    #[error("the configuration of the image has {size} bytes, more than the {MAX_CONFIG_BYTES} supported")]
    ConfigTooLarge { size: u64 },
    #[error(transparent)]
    Download(#[from] DownloadError),
    #[error(transparent)]
    Layer(#[from] LayerError),
    #[error(transparent)]
    Store(#[from] ImageStoreError),
    #[error("the pull was interrupted")]
    Interrupted,
}

impl PullError {
    /// Whether the registry says that there is no such image.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Registry(RegistryError::NotFound { .. }))
    }

    /// Whether another place may have the image as it should be.
    const fn is_of_the_place(&self) -> bool {
        match self {
            Self::Registry(_)
            | Self::Document(_)
            | Self::NoPlatform { .. }
            | Self::WrongPlatform { .. }
            | Self::ConfigTooLarge { .. }
            | Self::Download(_)
            | Self::Layer(_) => true,
            Self::Store(_) | Self::Interrupted => false,
        }
    }

    /// Whether other credentials may help.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Registry(RegistryError::Denied { .. }))
    }
}

impl ImageStore {
    /// Pulls an image for this machine and returns it. Needs a rustls crypto provider, installed by the program.
    pub async fn pull(
        &self,
        reference: &Reference,
        auth: Auth,
        progress: Progress,
    ) -> Result<Image, PullError> {
        let registry = reference.registry();
        for mirror in self.mirrors.iter().filter(|mirror| mirror.is_of(registry)) {
            let mirrored = Registry::at(mirror.url().clone(), reference, Auth::Anonymous)?;
            match self.pull_from(mirrored, reference, Arc::clone(&progress)).await {
                Err(error) if error.is_of_the_place() => {
                    tracing::info!(image = %reference, %error, "a mirror cannot give the image, the next is asked");
                }
                ended => return ended,
            }
        }
        let registry = Registry::new(reference, auth)?;
        self.pull_from(registry, reference, progress).await
    }

    async fn pull_from(
        &self,
        registry: Registry,
        reference: &Reference,
        progress: Progress,
    ) -> Result<Image, PullError> {
        let pull = Pull {
            store: self.clone(),
            registry: Arc::new(registry),
            reference: reference.clone(),
            progress,
        };
        pull.run().await
    }
}

struct Pull {
    store: ImageStore,
    registry: Arc<Registry>,
    reference: Reference,
    progress: Progress,
}

type Downloads = HashMap<Digest, AbortOnDropHandle<Result<Blob, DownloadError>>>;

impl Pull {
    async fn run(&self) -> Result<Image, PullError> {
        let (manifest, digest) = self.find().await?;
        let layers = manifest.layers.len();
        (self.progress)(PullEvent::Resolved { digest, layers });
        let config_bytes = self.config(&manifest.config).await?;
        let config = ConfigFile::parse(&config_bytes)?;
        check_platform(&config.platform())?;
        manifest.check(&config)?;

        let store = self.store.clone();
        let chain_ids = config.chain_ids();
        let (stage, there) = blocking(move || {
            let stage = store.stage()?;
            let there = store.claim(&stage, &chain_ids)?;
            Ok((stage, there))
        })
        .await?;
        let downloads = self.start_downloads(&manifest, &config, &there);
        let (stage, layers, blobs) = self.unpack(stage, &manifest, &config, &there, downloads).await?;
        let image = NewImage {
            id: Digest::of(&config_bytes),
            config: config_bytes,
            layers,
            references: self
                .reference
                .tag()
                .map(|_| self.reference.clone())
                .into_iter()
                .collect(),
            digests: vec![self.reference.at(digest)],
        };
        self.commit(stage, image, blobs).await
    }

    /// The manifest for this machine, and the digest under which the registry has the whole.
    async fn find(&self) -> Result<(ImageManifest, Digest), PullError> {
        let (bytes, digest) = self.manifest(&self.reference).await?;
        let entries = match Manifest::parse(&bytes)? {
            Manifest::Image(manifest) => return Ok((manifest, digest)),
            Manifest::Index(entries) => entries,
        };
        let host = Platform::host();
        let Some(selected) = platform::select(&entries, &host) else {
            return Err(PullError::NoPlatform {
                offered: platform::offered(&entries),
                host: host.to_string(),
            });
        };
        let (bytes, _) = self.manifest(&self.reference.at(selected.digest)).await?;
        match Manifest::parse(&bytes)? {
            Manifest::Image(manifest) => Ok((manifest, digest)),
            Manifest::Index(_) => Err(DocumentError::MediaType {
                media_type: "an index in an index".to_owned(),
            }
            .into()),
        }
    }

    async fn manifest(&self, reference: &Reference) -> Result<(Vec<u8>, Digest), RegistryError> {
        let mut pause = FIRST_PAUSE;
        for _ in 1..MANIFEST_TRIES {
            match self.registry.manifest(reference).await {
                Err(error) if error.is_transient() => tokio::time::sleep(pause).await,
                other => return other,
            }
            pause *= 2;
        }
        self.registry.manifest(reference).await
    }

    async fn config(&self, descriptor: &Descriptor) -> Result<Vec<u8>, PullError> {
        let size = descriptor.size;
        if size > MAX_CONFIG_BYTES {
            return Err(PullError::ConfigTooLarge { size });
        }
        let directory = self.store.partial_directory();
        let blob = download::blob(&self.registry, descriptor, &directory, |_| {}).await?;
        blocking(move || {
            let bytes = blob.read()?;
            blob.remove()?;
            Ok(bytes)
        })
        .await
    }

    /// Starts to download each layer that is not there, once.
    fn start_downloads(
        &self,
        manifest: &ImageManifest,
        config: &ConfigFile,
        there: &BTreeMap<Digest, u64>,
    ) -> Downloads {
        let permits = Arc::new(Semaphore::new(MAX_DOWNLOADS));
        let mut downloads = Downloads::new();
        let mut seen = BTreeSet::new();
        for (descriptor, chain_id) in manifest.layers.iter().zip(config.chain_ids()) {
            let digest = descriptor.digest;
            if there.contains_key(&chain_id) {
                self.report(digest, LayerStep::Exists);
            } else if seen.insert(digest) {
                let total = descriptor.size;
                self.report(digest, LayerStep::Waiting { total });
                let download = self.download(descriptor.clone(), Arc::clone(&permits));
                downloads.insert(digest, AbortOnDropHandle::new(tokio::spawn(download)));
            }
        }
        downloads
    }

    fn download(
        &self,
        descriptor: Descriptor,
        permits: Arc<Semaphore>,
    ) -> impl Future<Output = Result<Blob, DownloadError>> + Send + 'static {
        let (registry, progress) = (Arc::clone(&self.registry), Arc::clone(&self.progress));
        let directory = self.store.partial_directory();
        async move {
            // The semaphore is never closed.
            let _permit = permits.acquire_owned().await.ok();
            let digest = descriptor.digest;
            let on_step = |step| progress(PullEvent::Layer { digest, step });
            download::blob(&registry, &descriptor, &directory, on_step).await
        }
    }

    /// Unpacks the layers in their order as they arrive.
    async fn unpack(
        &self,
        mut stage: Stage,
        manifest: &ImageManifest,
        config: &ConfigFile,
        there: &BTreeMap<Digest, u64>,
        mut downloads: Downloads,
    ) -> Result<(Stage, Vec<Layer>, Vec<Arc<Blob>>), PullError> {
        let mut below: Vec<PathBuf> = Vec::new();
        let mut layers = Vec::new();
        let mut blobs: HashMap<Digest, Arc<Blob>> = HashMap::new();
        let ids = config.diff_ids.iter().copied().zip(config.chain_ids());
        for (descriptor, (diff_id, chain_id)) in manifest.layers.iter().zip(ids) {
            if let Some(bytes) = there.get(&chain_id) {
                layers.push(Layer {
                    chain_id,
                    bytes: *bytes,
                });
                below.push(self.store.layer_root(chain_id));
                continue;
            }
            let digest = descriptor.digest;
            if let Some(download) = downloads.remove(&digest) {
                let blob = download.await.map_err(|_| PullError::Interrupted)??;
                blobs.insert(digest, Arc::new(blob));
            }
            let blob = Arc::clone(blobs.get(&digest).ok_or(PullError::Interrupted)?);
            self.report(digest, LayerStep::Unpacking);
            let (lower, limits) = (below.clone(), self.store.limits());
            let (returned, bytes) = blocking(move || {
                let file = blob.open()?;
                let bytes = stage.unpack(file, diff_id, chain_id, &lower, limits)?;
                Ok((stage, bytes))
            })
            .await?;
            stage = returned;
            self.report(digest, LayerStep::Done);
            layers.push(Layer { chain_id, bytes });
            below.push(stage.layer_root(chain_id));
        }
        Ok((stage, layers, blobs.into_values().collect()))
    }

    async fn commit(&self, stage: Stage, image: NewImage, blobs: Vec<Arc<Blob>>) -> Result<Image, PullError> {
        let store = self.store.clone();
        blocking(move || {
            let id = image.id.to_string();
            store.commit(&stage, vec![image])?;
            for blob in blobs {
                blob.remove()?;
            }
            let image = store.resolve(&id)?;
            Ok(image.ok_or(ImageStoreError::NotFound { reference: id })?)
        })
        .await
    }

    fn report(&self, digest: Digest, step: LayerStep) {
        (self.progress)(PullEvent::Layer { digest, step });
    }
}

fn check_platform(image: &Platform) -> Result<(), PullError> {
    let host = Platform::host();
    if image.runs_on(&host) {
        return Ok(());
    }
    Err(PullError::WrongPlatform {
        image: image.to_string(),
        host: host.to_string(),
    })
}

/// Work on files, off the threads that serve connections.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PullError> + Send + 'static,
) -> Result<T, PullError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or(Err(PullError::Interrupted))
}
