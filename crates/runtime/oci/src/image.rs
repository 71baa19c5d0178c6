//! Images as containers are made of them: the built-in one, and those of the store.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use pulselet_image::{
    Auth, CredentialsError, Digest, DockerConfig, ImageStore, ImageStoreError, ImageStoreErrorKind,
    ParseReferenceError, Progress, Reference,
};
use pulselet_runtime::{
    ImageErrorKind, ImageStorage, ImageSummary, Mount, RegistryCredentials, RuntimeImageError,
};

use crate::host_image::HostImage;

/// What a container takes from its image.
#[derive(Debug, Clone, Default)]
pub(crate) struct Template {
    /// Directories, the lowest first.
    pub(crate) layers: Vec<PathBuf>,
    pub(crate) hidden: Vec<PathBuf>,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) entrypoint: Vec<String>,
    pub(crate) cmd: Vec<String>,
    /// `NAME=value`
    pub(crate) env: Vec<String>,
    pub(crate) working_dir: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) stop_signal: Option<String>,
    /// Paths that its containers can write to in any case.
    pub(crate) volumes: Vec<String>,
}

/// All images there are. What is not async may block.
#[derive(Debug)]
pub(crate) struct Images {
    store: ImageStore,
    host: HostImage,
    /// Files of layers. A layer never changes, so it is counted once.
    inodes: Mutex<BTreeMap<Digest, u64>>,
}

impl Images {
    pub(crate) fn new(store: ImageStore, host: HostImage) -> Self {
        Self {
            store,
            host,
            inodes: Mutex::default(),
        }
    }

    /// What a container of this image is made of. `id` is what the image was when it was pulled; empty: whatever it is
    /// now.
    pub(crate) fn template(&self, reference: &str, id: &str) -> Result<Template, RuntimeImageError> {
        if HostImage::is(reference) {
            return self.host.template();
        }
        let wanted = if id.is_empty() { reference } else { id };
        let image = self.find(wanted)?.ok_or_else(|| RuntimeImageError {
            reference: reference.to_owned(),
            kind: ImageErrorKind::NotFound,
            message: format!("image {reference:?} is not there"),
        })?;
        let config = image.config;
        Ok(Template {
            layers: image.layers,
            entrypoint: config.entrypoint,
            cmd: config.cmd,
            env: config.env,
            working_dir: config.working_dir,
            user: config.user,
            stop_signal: config.stop_signal,
            volumes: config.volumes,
            ..Template::default()
        })
    }

    /// The layers of the images that a container mounts, by the images' ids, the lowest first.
    pub(crate) fn mounted_layers(
        &self,
        mounts: &[Mount],
    ) -> Result<BTreeMap<String, Vec<PathBuf>>, RuntimeImageError> {
        let mounted = mounts.iter().filter_map(|mount| mount.image.as_ref());
        let layers = mounted.map(|image| {
            if HostImage::is(&image.reference) {
                return Err(RuntimeImageError {
                    reference: image.reference.clone(),
                    kind: ImageErrorKind::InvalidName,
                    message: format!(
                        "image {:?} shows the machine's own files: mount them with hostPath",
                        image.reference
                    ),
                });
            }
            let template = self.template(&image.reference, &image.id)?;
            Ok((image.id.clone(), template.layers))
        });
        layers.collect()
    }

    /// Returns `None` if the image is not there.
    pub(crate) fn status(&self, reference: &str) -> Result<Option<ImageSummary>, RuntimeImageError> {
        if HostImage::is(reference) {
            return Ok(self.host.summary());
        }
        Ok(self.find(reference)?.map(listed))
    }

    pub(crate) fn list(&self) -> Result<Vec<ImageSummary>, RuntimeImageError> {
        let stored = self.store.list().map_err(|error| image_error("", &error))?;
        let built_in = self.host.summary();
        Ok(built_in
            .into_iter()
            .chain(stored.into_iter().map(listed))
            .collect())
    }

    /// One that is not there is no error.
    pub(crate) fn remove(&self, reference: &str, in_use: &BTreeSet<Digest>) -> Result<(), RuntimeImageError> {
        match self.store.remove(reference, in_use) {
            Ok(_) | Err(ImageStoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(image_error(reference, &error)),
        }
    }

    /// Asks the image's registry and fetches what is not here. Without credentials, those of docker's own file are
    /// used.
    pub(crate) async fn pull(
        &self,
        reference: &str,
        credentials: Option<&RegistryCredentials>,
    ) -> Result<ImageSummary, RuntimeImageError> {
        if HostImage::is(reference) {
            return self.host.pull();
        }
        let error = |kind, message: String| RuntimeImageError {
            reference: reference.to_owned(),
            kind,
            message,
        };
        let parsed: Reference = reference
            .parse()
            .map_err(|wrong: ParseReferenceError| error(ImageErrorKind::InvalidName, wrong.to_string()))?;
        let auth = match credentials {
            Some(RegistryCredentials::Basic { username, password }) => Auth::Basic {
                username: username.clone(),
                password: password.clone(),
            },
            Some(RegistryCredentials::IdentityToken(token)) => Auth::IdentityToken(token.clone()),
            Some(RegistryCredentials::RegistryToken(token)) => Auth::RegistryToken(token.clone()),
            None => stored_auth(&parsed)
                .await
                .map_err(|wrong| error(ImageErrorKind::Pull, wrong.to_string()))?,
        };
        let silent: Progress = Arc::new(|_| ());
        match self.store.pull(&parsed, auth, silent).await {
            Ok(image) => Ok(listed(image)),
            Err(wrong) if wrong.is_not_found() => Err(error(ImageErrorKind::NotFound, wrong.to_string())),
            Err(wrong) => Err(error(ImageErrorKind::Pull, wrong.to_string())),
        }
    }

    /// What the store takes on the disk.
    pub(crate) fn storage(&self) -> Result<ImageStorage, RuntimeImageError> {
        let used_bytes = self.store.used_bytes().map_err(|error| image_error("", &error))?;
        let layers = self.store.layers().map_err(|error| image_error("", &error))?;
        Ok(ImageStorage {
            path: self.store.root().to_owned(),
            used_bytes,
            used_inodes: self.count_inodes(&layers),
        })
    }

    fn count_inodes(&self, layers: &BTreeMap<Digest, PathBuf>) -> u64 {
        let mut known = self.inodes.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|layer, _| layers.contains_key(layer));
        let count = |(layer, root): (&Digest, &PathBuf)| {
            let counted = known.entry(*layer);
            *counted.or_insert_with(|| pulselet_durable::measure(root).inodes)
        };
        layers.iter().map(count).sum()
    }

    fn find(&self, reference: &str) -> Result<Option<pulselet_image::Image>, RuntimeImageError> {
        self.store
            .resolve(reference)
            .map_err(|error| image_error(reference, &error))
    }
}

/// The images that containers below a runtime's root were made from, whether or not an agent runs there.
pub fn images_in_use(root: &Path) -> io::Result<BTreeSet<Digest>> {
    let records = pulselet_shim_client::container_records(root)?;
    Ok(records
        .iter()
        .flat_map(|record| record.config.image_ids())
        .filter_map(|id| id.parse().ok())
        .collect())
}

/// A small file that is read seldom: no need for another thread.
async fn stored_auth(reference: &Reference) -> Result<Auth, CredentialsError> {
    match DockerConfig::default_path() {
        Some(path) => DockerConfig::read(&path)?.auth(reference.registry()).await,
        None => Ok(Auth::Anonymous),
    }
}

fn image_error(reference: &str, error: &ImageStoreError) -> RuntimeImageError {
    let kind = match error.kind() {
        ImageStoreErrorKind::BadName => ImageErrorKind::InvalidName,
        ImageStoreErrorKind::NotFound => ImageErrorKind::NotFound,
        ImageStoreErrorKind::InUse => ImageErrorKind::InUse,
        ImageStoreErrorKind::Storage => ImageErrorKind::Pull,
    };
    RuntimeImageError {
        reference: reference.to_owned(),
        kind,
        message: error.to_string(),
    }
}

/// An image of the store as runtimes list it.
fn listed(image: pulselet_image::Image) -> ImageSummary {
    // A group may follow the user.
    let user = image.config.user.as_deref().unwrap_or_default();
    let user = user.split(':').next().unwrap_or_default();
    let uid = if user.is_empty() {
        Some(0)
    } else {
        user.parse().ok()
    };
    let texts = |references: &[Reference]| references.iter().map(ToString::to_string).collect();
    ImageSummary {
        id: image.id.to_string(),
        tags: texts(&image.references),
        digests: texts(&image.digests),
        size: image.size,
        username: (uid.is_none()).then(|| user.to_owned()),
        uid,
        stop_signal: image.config.stop_signal,
        stop_signal_known: true,
    }
}
