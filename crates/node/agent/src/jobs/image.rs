//! Getting an image as the container's pull policy says.

mod pull_secrets;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pulselet_engine::PodKey;
use pulselet_engine::io::{ImageFailure, Input, Pulled};
use pulselet_plan::{ImageVolume, PullPolicy};
use pulselet_runtime::{Error, ImageErrorKind, ImageSummary, Operation, RegistryCredentials, Result};
use pulselet_volume::{Objects, Wanted};

use self::pull_secrets::Keyring;
use super::{JobContext, JobResult, PULL_TIMEOUT, bounded};
use crate::pod::status::KnownImage;

/// First wait before the images of a pod are asked for again that replaces another; it doubles up to the second. The other
/// serves meanwhile, so nothing is in a hurry.
const MIN_SUCCESSOR_RETRY: Duration = Duration::from_secs(1);
const MAX_SUCCESSOR_RETRY: Duration = Duration::from_mins(5);

#[derive(Debug)]
pub(crate) struct ImageJob {
    pub(crate) pod: PodKey,
    pub(crate) container: usize,
    pub(crate) image: Arc<str>,
    pub(crate) policy: PullPolicy,
    /// Images that the container mounts.
    pub(crate) volumes: Vec<ImageVolume>,
    pub(crate) namespace: Arc<str>,
    /// The container's name, for what is reported about its image.
    pub(crate) name: Arc<str>,
    /// Secrets that may hold credentials for the registry.
    pub(crate) pull_secrets: BTreeSet<String>,
}

impl JobContext {
    pub(crate) async fn ensure_image(&self, job: ImageJob) {
        let key = job.pod;
        let container = job.container;
        if !self.version.features.images {
            let pulled = Pulled::NotNeeded;
            return self
                .send_input(key, Input::ImageReady { container, pulled })
                .await;
        }
        let begins = Input::ImagePulling { container };
        let own = self.get_image(&job, &job.image, job.policy, Some(begins)).await;
        let got = match own {
            Ok(own) => self.get_mounted_images(&job).await.map(|()| own),
            Err(failure) => Err(failure),
        };
        match got {
            Ok((image, pulled)) => {
                let bad_signal = match image.parsed_stop_signal() {
                    Some(Err(error)) => Some(error.to_string()),
                    Some(Ok(_)) | None => None,
                };
                let result = JobResult::Image {
                    container,
                    image: KnownImage {
                        name: job.image,
                        id: image.id,
                    },
                    pulled,
                    bad_signal,
                };
                self.answer(key, result).await;
            }
            Err((error, message)) => {
                let result = JobResult::ImageFailed {
                    container,
                    image: job.image,
                    error,
                    message,
                };
                self.answer(key, result).await;
            }
        }
    }

    /// Fetches the images of a pod that waits for the name of this one, until they are all there.
    pub(crate) async fn fetch_images_of_successor(&self, pod: PodKey, uid: String, images: Vec<ImageJob>) {
        let mut pause = MIN_SUCCESSOR_RETRY;
        loop {
            let mut failure = None;
            for job in &images {
                let own = self.get_image(job, &job.image, job.policy, None).await;
                let mounted = self.get_mounted_images(job).await;
                let own = own.err().map(|(_, message)| {
                    format!(
                        "the image {:?} of container {} cannot be had: {message}",
                        job.image, job.name
                    )
                });
                failure = own.or(mounted.err().map(|(_, message)| message));
                if failure.is_some() {
                    break;
                }
            }
            let Some(message) = failure else {
                return self.answer(pod, JobResult::SuccessorReady { uid }).await;
            };
            let uid = uid.clone();
            self.answer(pod, JobResult::SuccessorWaits { uid, message }).await;
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(MAX_SUCCESSOR_RETRY);
        }
    }

    /// The images that a container mounts.
    async fn get_mounted_images(&self, job: &ImageJob) -> std::result::Result<(), (ImageFailure, String)> {
        for ImageVolume {
            reference,
            pull_policy,
        } in &job.volumes
        {
            let got = self.get_image(job, reference, *pull_policy, None);
            if let Err((error, message)) = got.await {
                let message = format!("the image {reference:?} of a volume cannot be had: {message}");
                return Err((error, message));
            }
        }
        Ok(())
    }

    /// `begins` is what the engine learns when something has to be fetched.
    async fn get_image(
        &self,
        job: &ImageJob,
        image: &str,
        policy: PullPolicy,
        begins: Option<Input>,
    ) -> std::result::Result<(ImageSummary, Pulled), (ImageFailure, String)> {
        let failed = |error: Error| failure(image, &error);
        if policy != PullPolicy::Always {
            let there = bounded(Operation::ImageStatus, self.runtime.image_status(image)).await;
            if let Some(image) = there.map_err(failed)? {
                return Ok((image, Pulled::AlreadyPresent));
            }
        }
        if policy == PullPolicy::Never {
            let message = format!("Container image \"{image}\" is not present with pull policy of Never");
            return Err((ImageFailure::ErrImageNeverPull, message));
        }
        if let Some(begins) = begins {
            self.send_input(job.pod, begins).await;
        }
        let candidates = self.candidates(job, image).await;
        let _permit = self.limits.pulls.acquire().await;
        let began = Instant::now();
        let image = self.pull(image, &candidates).await.map_err(failed)?;
        let pulled = Pulled::Fetched {
            took: began.elapsed().into(),
            bytes: image.size,
        };
        Ok((image, pulled))
    }

    /// Credentials for the image. Secrets that are of no use are reported; the pull may do without.
    async fn candidates(&self, job: &ImageJob, image: &str) -> Vec<RegistryCredentials> {
        let wanted = Wanted {
            secrets: job.pull_secrets.clone(),
            ..Wanted::default()
        };
        let objects = Objects::fetch(&*self.objects, &job.namespace, wanted).await;
        let mut keyring = Keyring::default();
        let mut missing = Vec::new();
        for name in &job.pull_secrets {
            let trouble = match objects.secret(name, None) {
                Ok(Some(secret)) => keyring.add(secret).err().map(|error| error.to_string()),
                Ok(None) => None,
                Err(error) => Some(error.to_string()),
            };
            if let Some(trouble) = trouble {
                tracing::warn!(secret = name, %trouble, "the secret is of no use as a pull secret");
                missing.push(name.as_str());
            }
        }
        if !missing.is_empty() {
            let message = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                missing.join(", ")
            );
            let result = JobResult::Warning {
                container: Arc::clone(&job.name),
                reason: "FailedToRetrieveImagePullSecret",
                message,
            };
            self.answer(job.pod, result).await;
        }
        keyring.candidates(image)
    }

    /// Tries one after the other; the last refusal is the one that is reported.
    async fn pull(&self, image: &str, candidates: &[RegistryCredentials]) -> Result<ImageSummary> {
        let Some((last, others)) = candidates.split_last() else {
            return self.pull_with(image, None).await;
        };
        for credentials in others {
            match self.pull_with(image, Some(credentials)).await {
                Ok(image) => return Ok(image),
                Err(error) => {
                    tracing::debug!(image, %error, "the image was not pulled with these credentials");
                }
            }
        }
        self.pull_with(image, Some(last)).await
    }

    async fn pull_with(
        &self,
        image: &str,
        credentials: Option<&RegistryCredentials>,
    ) -> Result<ImageSummary> {
        let after = PULL_TIMEOUT;
        let operation = Operation::PullImage;
        tokio::time::timeout(after, self.runtime.pull_image(image, credentials))
            .await
            .unwrap_or(Err(Error::Timeout { operation, after }))
    }
}

/// The reason and message of a container whose image cannot be had, in a kubelet's words.
fn failure(image: &str, error: &Error) -> (ImageFailure, String) {
    match error {
        Error::Image(wrong) if wrong.kind == ImageErrorKind::InvalidName => {
            let message = format!(
                "Failed to apply default image tag \"{image}\": couldn't parse image name \"{image}\": {error}"
            );
            (ImageFailure::InvalidImageName, message)
        }
        _ => (ImageFailure::ErrImagePull, error.to_string()),
    }
}
