//! Config maps, secrets, tokens and services that the node's pods use, asked for with the node's identity.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use pulselet_agent::{
    ClaimedVolume, ObjectSource, ServiceFacts, SourceError, SourceObject, Token, TokenRequest,
};
use pulselet_model::openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::client::{ApiClient, ApiClientError, Call};
use crate::object_watches::ObjectWatches;
use crate::paths;
use crate::services::ServiceCache;

/// The API as a source of objects. Every question goes to the server, so an answer is never old; only where services are
/// is known from a watch. Once the node has joined, watches tell when to ask again. Clones share what they know.
#[derive(Clone, Debug)]
pub struct ApiObjects {
    client: ApiClient,
    pub(crate) services: ServiceCache,
    pub(crate) watches: ObjectWatches,
}

impl ApiObjects {
    pub fn new(client: ApiClient) -> Self {
        Self {
            client,
            services: ServiceCache::new(None),
            watches: ObjectWatches::default(),
        }
    }

    /// Keeps where services are in a file, so that the node knows while the API is away.
    #[must_use]
    pub fn with_services_in(mut self, file: PathBuf) -> Self {
        self.services = ServiceCache::new(Some(file));
        self
    }

    async fn find<T: DeserializeOwned>(
        &self,
        namespace: &str,
        resource: &str,
        name: &str,
    ) -> Result<Option<Arc<T>>, SourceError> {
        match self
            .client
            .ask(Call::get(paths::named(namespace, resource, name)))
            .await
        {
            Ok(object) => Ok(Some(Arc::new(object))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(fetch(&error)),
        }
    }
}

fn fetch(error: &ApiClientError) -> SourceError {
    SourceError::Fetch {
        message: error.to_string(),
    }
}

#[async_trait]
impl ObjectSource for ApiObjects {
    async fn config_map(&self, namespace: &str, name: &str) -> Result<Option<Arc<ConfigMap>>, SourceError> {
        self.find(namespace, "configmaps", name).await
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Option<Arc<Secret>>, SourceError> {
        self.find(namespace, "secrets", name).await
    }

    async fn claimed_volume(&self, namespace: &str, claim: &str) -> Result<ClaimedVolume, SourceError> {
        let found: Option<Arc<PersistentVolumeClaim>> =
            self.find(namespace, "persistentvolumeclaims", claim).await?;
        let Some(found) = found else {
            return Ok(ClaimedVolume::Missing);
        };
        let is_bound = found.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
        let name = found.spec.as_ref().and_then(|spec| spec.volume_name.clone());
        let Some(name) = name.filter(|name| is_bound && !name.is_empty()) else {
            return Ok(ClaimedVolume::Unbound);
        };
        let path = format!("{}/{name}", paths::PERSISTENT_VOLUMES);
        match self.client.ask(Call::get(path)).await {
            Ok(volume) => Ok(ClaimedVolume::Bound(Arc::new(volume))),
            Err(error) if error.is_not_found() => Ok(ClaimedVolume::Unbound),
            Err(error) => Err(fetch(&error)),
        }
    }

    async fn runtime_handler(&self, class: &str) -> Result<Option<String>, SourceError> {
        let path = format!("{}/{class}", paths::RUNTIME_CLASSES);
        let class: Value = match self.client.ask(Call::get(path)).await {
            Err(error) if error.is_not_found() => return Ok(None),
            other => other.map_err(|error| fetch(&error))?,
        };
        Ok(Some(class["handler"].as_str().unwrap_or_default().to_owned()))
    }

    async fn services(&self, namespace: &str, links: bool) -> Result<Vec<ServiceFacts>, SourceError> {
        Ok(self.services.of(namespace, links).await)
    }

    fn follow(&self, used: BTreeSet<SourceObject>) {
        self.watches.follow(used);
    }

    fn is_followed(&self, object: &SourceObject) -> bool {
        self.watches.is_open(object)
    }

    async fn changed(&self) -> SourceObject {
        self.watches.changed().await
    }

    async fn token(&self, request: &TokenRequest) -> Result<Token, SourceError> {
        let path = paths::named(&request.namespace, "serviceaccounts", &request.service_account);
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": request.audiences,
                "expirationSeconds": request.expiration_seconds,
                "boundObjectRef": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": request.pod_name,
                    "uid": request.pod_uid,
                },
            },
        });
        let answer = self
            .client
            .ask(Call::create(format!("{path}/token"), &body))
            .await;
        let answer: Value = match answer {
            Err(error) if error.is_not_found() || error.is_not_allowed() => {
                return Err(SourceError::Unsupported {
                    what: "tokens of service accounts",
                });
            }
            other => other.map_err(|error| fetch(&error))?,
        };
        let text = |field: &str| answer["status"][field].as_str().map(str::to_owned);
        let expires_at = text("expirationTimestamp").and_then(|at| at.parse::<Timestamp>().ok());
        match (text("token"), expires_at) {
            (Some(text), Some(expires_at)) => Ok(Token { text, expires_at }),
            (None, _) | (_, None) => Err(SourceError::Fetch {
                message: "the API's answer holds no token".to_owned(),
            }),
        }
    }
}
