//! Images: pull, list, look at, remove.

use pulselet_cri_wire::v1;
use pulselet_runtime::{ImageErrorKind, ImageSummary, RegistryCredentials};
use serde_json::json;
use tonic::Status;

use crate::answer;
use crate::refusal::{RequestError, refused};
use crate::service::Service;

/// Where an image is whose name has no registry, and the other names that credentials have for it.
const USUAL_REGISTRY: &str = "docker.io";
const USUAL_REGISTRY_NAMES: [&str; 2] = ["index.docker.io", "registry-1.docker.io"];

impl Service {
    pub(crate) async fn pull_image(&self, request: v1::PullImageRequest) -> Result<String, Status> {
        let name = image_name(request.image.as_ref())?;
        let auth = request.auth.as_ref().filter(|auth| is_for(auth, &name));
        let credentials = auth.map(credentials).transpose()?.flatten();
        let pulled = self.runtime().pull_image(&name, credentials.as_ref()).await;
        Ok(pulled.map_err(refused)?.id)
    }

    /// Returns `None` if it is not there, which is no error in CRI.
    pub(crate) async fn find_image(
        &self,
        spec: Option<&v1::ImageSpec>,
    ) -> Result<Option<ImageSummary>, Status> {
        let name = image_name(spec)?;
        match self.runtime().image_status(&name).await {
            Err(pulselet_runtime::Error::Image(error)) if error.kind == ImageErrorKind::NotFound => Ok(None),
            found => found.map_err(refused),
        }
    }

    pub(crate) async fn describe_image(
        &self,
        request: &v1::ImageStatusRequest,
    ) -> Result<v1::ImageStatusResponse, Status> {
        let Some(image) = self.find_image(request.image.as_ref()).await? else {
            return Ok(v1::ImageStatusResponse::default());
        };
        Ok(v1::ImageStatusResponse {
            info: if request.verbose {
                [("info".to_owned(), info(&image))].into()
            } else {
                std::collections::BTreeMap::new()
            },
            image: Some(answer::image(&image, self.is_pinned(&image))),
        })
    }

    pub(crate) async fn list_images(
        &self,
        filter: Option<v1::ImageFilter>,
    ) -> Result<Vec<v1::Image>, Status> {
        let wanted = filter
            .and_then(|filter| filter.image)
            .filter(|image| !image.image.is_empty());
        let images = match wanted {
            Some(spec) => self.find_image(Some(&spec)).await?.into_iter().collect(),
            None => self.runtime().list_images().await.map_err(refused)?,
        };
        let images = images.iter();
        Ok(images
            .map(|image| answer::image(image, self.is_pinned(image)))
            .collect())
    }

    /// Removes the image with all its names. What is not there is removed.
    pub(crate) async fn remove_image(&self, spec: Option<&v1::ImageSpec>) -> Result<(), Status> {
        let Some(image) = self.find_image(spec).await? else {
            return Ok(());
        };
        self.runtime().remove_image(&image.id).await.map_err(refused)
    }

    /// Whether it has one of the names that are not to be removed.
    fn is_pinned(&self, image: &ImageSummary) -> bool {
        let pinned = &self.0.pinned_images;
        pinned
            .iter()
            .any(|name| image.tags.contains(name) || image.digests.contains(name))
    }

    pub(crate) async fn image_fs(&self) -> Result<v1::ImageFsInfoResponse, Status> {
        let storage = self.runtime().image_storage().await.map_err(refused)?;
        let Some(storage) = storage else {
            return Err(Status::unimplemented(
                "this runtime does not say where its images are",
            ));
        };
        let usage = |bytes: u64, inodes: u64| v1::FilesystemUsage {
            timestamp: answer::now(),
            fs_id: Some(v1::FilesystemIdentifier {
                mountpoint: storage.path.display().to_string(),
            }),
            used_bytes: Some(v1::UInt64Value { value: bytes }),
            inodes_used: Some(v1::UInt64Value { value: inodes }),
        };
        Ok(v1::ImageFsInfoResponse {
            image_filesystems: vec![usage(storage.used_bytes, storage.used_inodes)],
            // Containers are on the same file system; what each has written is in its own statistics.
            container_filesystems: vec![usage(0, 0)],
        })
    }
}

fn image_name(spec: Option<&v1::ImageSpec>) -> Result<String, RequestError> {
    let name = spec.map(|spec| spec.image.clone()).unwrap_or_default();
    if name.is_empty() {
        return Err(RequestError::Missing { field: "image" });
    }
    Ok(name)
}

/// Whether the credentials are for the registry that the image is in. Those of another are given to nobody.
fn is_for(auth: &v1::AuthConfig, image: &str) -> bool {
    if auth.server_address.is_empty() {
        return true;
    }
    let address = &auth.server_address;
    let address = address
        .split_once("://")
        .map_or(address.as_str(), |(_, rest)| rest);
    let server = address.split('/').next().unwrap_or_default();
    // The first part of a name is a registry if it could not be a directory of the usual one.
    let first = image.split_once('/').map_or("", |(first, _)| first);
    let registry = if first == "localhost" || first.contains(['.', ':']) {
        first
    } else {
        USUAL_REGISTRY
    };
    let same = |name: &str| {
        if USUAL_REGISTRY_NAMES.contains(&name) {
            USUAL_REGISTRY.to_owned()
        } else {
            name.to_ascii_lowercase()
        }
    };
    same(server) == same(registry)
}

/// Returns `None` if the client gives none.
fn credentials(auth: &v1::AuthConfig) -> Result<Option<RegistryCredentials>, RequestError> {
    if !auth.identity_token.is_empty() {
        return Ok(Some(RegistryCredentials::IdentityToken(
            auth.identity_token.clone(),
        )));
    }
    if !auth.registry_token.is_empty() {
        return Ok(Some(RegistryCredentials::RegistryToken(
            auth.registry_token.clone(),
        )));
    }
    if !auth.username.is_empty() {
        return Ok(Some(RegistryCredentials::Basic {
            username: auth.username.clone(),
            password: auth.password.clone(),
        }));
    }
    if auth.auth.is_empty() {
        return Ok(None);
    }
    let refused = || RequestError::invalid("auth", "is not base64 of a name, a colon and a password");
    let (username, password) = decode_basic(&auth.auth).ok_or_else(refused)?;
    Ok(Some(RegistryCredentials::Basic { username, password }))
}

/// A user name and a password as docker's files have them.
fn decode_basic(text: &str) -> Option<(String, String)> {
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(text.trim())
        .ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (username, password) = text.split_once(':')?;
    // Some writers fill up with zero bytes.
    let password = password.trim_end_matches('\0');
    Some((username.to_owned(), password.to_owned()))
}

pub(crate) fn fuzz_auth(auth: Option<&v1::AuthConfig>) {
    let _ = auth.map(|auth| (is_for(auth, &auth.username), credentials(auth)));
}

/// What people see who ask for more; clients read the stop signal here.
fn info(image: &ImageSummary) -> String {
    let user = image.username.clone().or_else(|| Some(image.uid?.to_string()));
    json!({
        "imageSpec": {"config": {"StopSignal": image.stop_signal, "User": user}},
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_another_registry_are_given_to_nobody() {
        for (address, image, expected) in [
            ("", "example.com/a", true),
            ("https://example.com", "example.com/a:1", true),
            ("Example.com:5000/v2/", "example.com:5000/a/b@sha256:0", true),
            ("https://index.docker.io/v1/", "busybox", true),
            ("docker.io", "docker.io/library/busybox", true),
            ("https://index.docker.io/v1/", "library/busybox:1", true),
            ("https://example.com", "example.org/a", false),
            ("https://example.com", "example.com:5000/a", false),
            ("https://example.com", "busybox", false),
            ("https://index.docker.io/v1/", "localhost/busybox", false),
            ("https://example.com.evil.test", "example.com/a", false),
        ] {
            let auth = v1::AuthConfig {
                server_address: address.into(),
                ..v1::AuthConfig::default()
            };
            assert_eq!(is_for(&auth, image), expected, "{address} for {image}");
        }
    }

    #[test]
    fn credentials_come_in_four_forms() {
        let auth = |change: fn(&mut v1::AuthConfig)| {
            let mut auth = v1::AuthConfig::default();
            change(&mut auth);
            credentials(&auth)
        };
        let basic = RegistryCredentials::Basic {
            username: "u".into(),
            password: "p:w".into(),
        };
        assert_eq!(auth(|_| ()), Ok(None));
        assert_eq!(
            auth(|it| (it.username, it.password) = ("u".into(), "p:w".into())),
            Ok(Some(basic.clone()))
        );
        assert_eq!(auth(|it| it.auth = "dTpwOnc=".into()), Ok(Some(basic)));
        assert_eq!(
            auth(|it| it.registry_token = "t".into()),
            Ok(Some(RegistryCredentials::RegistryToken("t".into())))
        );
        assert!(auth(|it| it.auth = "%".into()).is_err());
        assert!(auth(|it| it.auth = "bm9jb2xvbg==".into()).is_err());
    }
}
