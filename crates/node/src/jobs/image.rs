//! Getting an image as the container's pull policy says.

use std::time::Instant;

use pulselet_engine::PodKey;
use pulselet_engine::io::{ImageError, Input, Pulled};
use pulselet_runtime::{Error, Image, ImageErrorKind, Operation, Result};

use super::{News, PULL_TIMEOUT, Tools, bounded};

#[derive(Debug)]
pub(crate) struct ImageJob {
    pub(crate) pod: PodKey,
    pub(crate) container: usize,
    pub(crate) image: String,
    /// `Always`, `IfNotPresent` or `Never`.
    pub(crate) policy: String,
}

impl Tools {
    pub(crate) async fn ensure_image(&self, job: ImageJob) {
        let key = job.pod;
        let container = job.container;
        if !self.version.features.images {
            let pulled = Pulled::NotNeeded;
            return self.tell(key, Input::ImageReady { container, pulled }).await;
        }
        match self.get_image(&job).await {
            Ok((image, pulled)) => {
                let bad_signal = match image.parsed_stop_signal() {
                    Some(Err(error)) => Some(error.to_string()),
                    Some(Ok(_)) | None => None,
                };
                let news = News::Image {
                    container,
                    image_id: image.id,
                    pulled,
                    bad_signal,
                };
                self.answer(key, news).await;
            }
            Err((error, message)) => {
                let input = Input::ImageFailed {
                    container,
                    error,
                    message,
                };
                self.tell(key, input).await;
            }
        }
    }

    async fn get_image(&self, job: &ImageJob) -> std::result::Result<(Image, Pulled), (ImageError, String)> {
        let failed = |error: Error| (kind(&error), error.to_string());
        if job.policy != "Always" {
            let there = bounded(Operation::ImageStatus, self.runtime.image_status(&job.image)).await;
            if let Some(image) = there.map_err(failed)? {
                return Ok((image, Pulled::AlreadyPresent));
            }
        }
        if job.policy == "Never" {
            let message = format!(
                "Container image \"{}\" is not present with pull policy of Never",
                job.image
            );
            return Err((ImageError::ErrImageNeverPull, message));
        }
        let container = job.container;
        self.tell(job.pod, Input::ImagePulling { container }).await;
        let _permit = self.limits.pulls.acquire().await;
        let began = Instant::now();
        let image = self.pull(&job.image).await.map_err(failed)?;
        let pulled = Pulled::Fetched {
            took: began.elapsed().into(),
            bytes: image.size,
        };
        Ok((image, pulled))
    }

    async fn pull(&self, image: &str) -> Result<Image> {
        let after = PULL_TIMEOUT;
        let operation = Operation::PullImage;
        tokio::time::timeout(after, self.runtime.pull_image(image, None))
            .await
            .unwrap_or(Err(Error::Timeout { operation, after }))
    }
}

fn kind(error: &Error) -> ImageError {
    match error {
        Error::Image(image) if image.kind == ImageErrorKind::InvalidName => ImageError::InvalidImageName,
        _ => ImageError::ErrImagePull,
    }
}
