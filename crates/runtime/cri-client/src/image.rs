//! Images, and what is remembered of them.
//!
//! A container's user and, where the server does not tell it, its stop signal come from its image. A server is asked
//! once per image.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use pulselet_runtime::{
    Error, ImageErrorKind, ImageSummary, Operation, RegistryCredentials, Result, RuntimeImageError, Signal,
};
use serde::Deserialize;
use tonic::Code;

use crate::call::{ASK, CHANGE, CallError, PULL, call, carry_out};
use crate::connection::Connection;
use crate::labels;
use crate::wire::v1;

/// Images remembered; with more, all are forgotten and asked about again.
const MAX_REMEMBERED: usize = 1024;

/// The key under which containerd and CRI-O keep what is more than the interface has.
pub(crate) const INFO: &str = "info";

#[derive(Debug, Clone)]
pub(crate) struct Images {
    connection: Connection,
    /// By the name or id asked for. What an id stands for does not change; what a name stands for is forgotten by
    /// every pull.
    known: Arc<Mutex<HashMap<String, Arc<ImageSummary>>>>,
}

/// What we read of an image's description.
#[derive(Debug, Deserialize)]
struct Info {
    #[serde(rename = "imageSpec")]
    image_spec: ImageSpec,
}

#[derive(Debug, Deserialize)]
struct ImageSpec {
    #[serde(default)]
    config: ImageConfig,
}

#[derive(Debug, Default, Deserialize)]
struct ImageConfig {
    #[serde(rename = "StopSignal", default)]
    stop_signal: Option<String>,
}

impl Images {
    pub(crate) fn new(connection: Connection) -> Self {
        Self {
            connection,
            known: Arc::default(),
        }
    }

    pub(crate) async fn status(&self, reference: &str) -> Result<Option<ImageSummary>> {
        let request = v1::ImageStatusRequest {
            image: Some(spec(reference)),
            verbose: true,
        };
        let answer = call(ASK, self.connection.images().image_status(request)).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(failed(Operation::ImageStatus, reference, error)),
        };
        Ok(answer.image.map(|image| from_wire(image, &answer.info)))
    }

    /// The image of a container; none where it is gone.
    pub(crate) async fn of_container(&self, reference: &str) -> Result<Option<Arc<ImageSummary>>> {
        if let Some(image) = self.known().get(reference) {
            return Ok(Some(Arc::clone(image)));
        }
        let Some(image) = self.status(reference).await?.map(Arc::new) else {
            return Ok(None);
        };
        let mut known = self.known();
        if known.len() >= MAX_REMEMBERED {
            known.clear();
        }
        known.insert(reference.to_owned(), Arc::clone(&image));
        Ok(Some(image))
    }

    /// What a container of this image is stopped with if nobody says otherwise; none where that cannot be known.
    pub(crate) async fn stop_signal(&self, reference: &str) -> Option<Signal> {
        let image = self.of_container(reference).await.ok()??;
        match image.parsed_stop_signal() {
            Some(parsed) => parsed.ok(),
            None => image.stop_signal_known.then_some(Signal::TERM),
        }
    }

    pub(crate) async fn pull(
        &self,
        reference: &str,
        credentials: Option<&RegistryCredentials>,
    ) -> Result<ImageSummary> {
        let request = v1::PullImageRequest {
            image: Some(spec(reference)),
            auth: credentials.map(auth),
            sandbox_config: None,
        };
        let images = self.clone();
        let reference = reference.to_owned();
        carry_out(Operation::PullImage, async move {
            let answer = call(PULL, Box::pin(images.connection.images().pull_image(request))).await;
            let pulled = answer.map_err(|error| failed(Operation::PullImage, &reference, error))?;
            images.known().remove(&reference);
            let image = images.status(&pulled.image_ref).await?;
            image.ok_or_else(|| {
                Error::Image(RuntimeImageError {
                    reference,
                    kind: ImageErrorKind::Pull,
                    message: "the runtime has no such image after pulling it".to_owned(),
                })
            })
        })
        .await
    }

    pub(crate) async fn list(&self) -> Result<Vec<ImageSummary>> {
        let request = v1::ListImagesRequest::default();
        let answer = call(ASK, self.connection.images().list_images(request)).await;
        let images = answer.map_err(|error| error.of(Operation::List))?.images;
        let nothing = labels::Map::new();
        Ok(images
            .into_iter()
            .map(|image| from_wire(image, &nothing))
            .collect())
    }

    pub(crate) async fn remove(&self, reference: &str) -> Result<()> {
        let request = v1::RemoveImageRequest {
            image: Some(spec(reference)),
        };
        self.known().remove(reference);
        let mut client = self.connection.images();
        let reference = reference.to_owned();
        carry_out(Operation::RemoveImage, async move {
            match call(CHANGE, client.remove_image(request)).await {
                Ok(_) => Ok(()),
                Err(error) if error.is_not_found() => Ok(()),
                Err(error) => Err(failed(Operation::RemoveImage, &reference, error)),
            }
        })
        .await
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<ImageSummary>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn spec(reference: &str) -> v1::ImageSpec {
    v1::ImageSpec {
        image: reference.to_owned(),
        ..v1::ImageSpec::default()
    }
}

fn auth(credentials: &RegistryCredentials) -> v1::AuthConfig {
    match credentials {
        RegistryCredentials::Basic { username, password } => v1::AuthConfig {
            username: username.clone(),
            password: password.clone(),
            ..v1::AuthConfig::default()
        },
        RegistryCredentials::IdentityToken(token) => v1::AuthConfig {
            identity_token: token.clone(),
            ..v1::AuthConfig::default()
        },
        RegistryCredentials::RegistryToken(token) => v1::AuthConfig {
            registry_token: token.clone(),
            ..v1::AuthConfig::default()
        },
    }
}

/// Servers put most of their own errors into words.
fn failed(operation: Operation, reference: &str, error: CallError) -> Error {
    let text = error.text();
    let bad_name = error.code() == Some(Code::InvalidArgument)
        || text.contains("invalid reference format")
        || text.contains("could not parse reference");
    let kind = match (bad_name, error.code()) {
        (true, _) => ImageErrorKind::InvalidName,
        (false, Some(Code::NotFound)) => ImageErrorKind::NotFound,
        (false, _) if operation == Operation::PullImage => ImageErrorKind::Pull,
        (false, _) => return error.of(operation),
    };
    match error.of(operation) {
        away @ (Error::Unavailable { .. } | Error::Timeout { .. }) => away,
        other => Error::Image(RuntimeImageError {
            reference: reference.to_owned(),
            kind,
            message: other.to_string(),
        }),
    }
}

fn from_wire(image: v1::Image, info: &labels::Map) -> ImageSummary {
    let info = info
        .get(INFO)
        .and_then(|text| serde_json::from_str::<Info>(text).ok());
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    ImageSummary {
        id: image.id,
        tags: image.repo_tags,
        digests: image.repo_digests,
        size: image.size,
        stop_signal_known: info.is_some(),
        stop_signal: info
            .and_then(|info| info.image_spec.config.stop_signal)
            .and_then(some),
        uid: image.uid.and_then(|uid| u32::try_from(uid.value).ok()),
        username: some(image.username),
    }
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;

    fn image(info: &str) -> ImageSummary {
        let info = labels::Map::from([(INFO.to_owned(), info.to_owned())]);
        from_wire(v1::Image::default(), &info)
    }

    #[test]
    fn the_stop_signal_is_in_the_description() {
        let told = image(r#"{"chainID":"x","imageSpec":{"config":{"StopSignal":"SIGUSR2","Env":[]}}}"#);
        assert_eq!(told.stop_signal.as_deref(), Some("SIGUSR2"));
        let none = image(r#"{"imageSpec":{"config":{}}}"#);
        assert_eq!((none.stop_signal, none.stop_signal_known), (None, true));
        for unknown in ["", "{}", "[]", r#"{"imageSpec":3}"#] {
            assert!(!image(unknown).stop_signal_known, "{unknown}");
        }
    }

    #[test]
    fn errors_of_images_have_their_kinds() {
        let kind = |code, text: &str| {
            let error = CallError::Refused(Status::new(code, text));
            match failed(Operation::PullImage, "x", error) {
                Error::Image(error) => Some(error.kind),
                _ => None,
            }
        };
        assert_eq!(kind(Code::NotFound, "no"), Some(ImageErrorKind::NotFound));
        assert_eq!(
            kind(Code::Unknown, "invalid reference format"),
            Some(ImageErrorKind::InvalidName)
        );
        assert_eq!(kind(Code::Unknown, "401"), Some(ImageErrorKind::Pull));
        assert_eq!(kind(Code::Unavailable, "gone"), None);
    }
}
