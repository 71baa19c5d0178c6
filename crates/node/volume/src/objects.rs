//! Config maps, secrets, tokens and services: what pods use that is not in their manifests.
//!
//! The node asks an [`ObjectSource`]; who joins it to an API provides one. What always holds: an answer is one version
//! of one object as a whole, and an object that is not there is an answer, not an error. When objects are asked for,
//! what becomes of them and what is reported about a missing one is the node's business; caching is the source's, and
//! so is how it learns of a change.

mod changed;
mod fetch;
mod local;
mod service;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use pulselet_model::openapi::api::core::v1::{ConfigMap, Secret};
use thiserror::Error;

pub use crate::claim::ClaimedVolume;
pub use changed::{ChangedObjects, SourceObject};
pub use fetch::{ObjectError, Objects, SourceKind, Wanted};
pub use local::{LocalObject, LocalObjects};
pub use service::{ServiceFacts, ServicePortFacts};

/// Where a node gets the objects from that its pods name.
#[async_trait]
pub trait ObjectSource: fmt::Debug + Send + Sync {
    /// The config map as it is now; none if there is none.
    async fn config_map(&self, namespace: &str, name: &str) -> Result<Option<Arc<ConfigMap>>, SourceError>;

    /// The secret as it is now; none if there is none.
    async fn secret(&self, namespace: &str, name: &str) -> Result<Option<Arc<Secret>>, SourceError>;

    /// A new token of a service account, bound to a pod.
    async fn token(&self, request: &TokenRequest) -> Result<Token, SourceError>;

    /// The persistent volume that a claim is bound to.
    async fn claimed_volume(&self, _namespace: &str, _claim: &str) -> Result<ClaimedVolume, SourceError> {
        Err(SourceError::NoApi)
    }

    /// The handler that a runtime class names; none if there is no such class.
    async fn runtime_handler(&self, _class: &str) -> Result<Option<String>, SourceError> {
        Err(SourceError::NoApi)
    }

    /// The services that containers of a namespace are told of: the API's own, and with `links` those of the namespace.
    /// A source that knows no services has none.
    async fn services(&self, _namespace: &str, _links: bool) -> Result<Vec<ServiceFacts>, SourceError> {
        Ok(Vec::new())
    }

    /// From now on these are the objects whose changes matter, and no others: volumes of pods are made from them.
    fn follow(&self, _used: BTreeSet<SourceObject>) {}

    /// Whether every change of an object is told by [`ObjectSource::changed`] at present. What is not followed has to be
    /// asked for again from time to time.
    fn is_followed(&self, _object: &SourceObject) -> bool {
        false
    }

    /// Waits until one of the objects that are followed may be another than before. A source that cannot tell never
    /// answers.
    async fn changed(&self) -> SourceObject {
        std::future::pending().await
    }
}

/// Which token a pod wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRequest {
    pub namespace: String,
    pub service_account: String,
    /// The pod it is bound to: the token ends with it.
    pub pod_name: String,
    pub pod_uid: String,
    /// Whom it is for; empty is the API itself.
    pub audiences: Vec<String>,
    /// The API may give a longer or a shorter one.
    pub expiration_seconds: i64,
}

/// A token, never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    pub text: String,
    pub expires_at: Timestamp,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(.., expires at {})", self.expires_at)
    }
}

/// Why a source has no answer. The text goes into statuses and events.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SourceError {
    /// There is nothing to ask, so no such object can exist; an optional reference is as good as to a missing one.
    #[error("a node without an API has none")]
    NoApi,
    /// The API could not be asked or refused, in its own words.
    #[error("{message}")]
    Fetch { message: String },
    /// The API does not give such things.
    #[error("the API does not give {what}")]
    Unsupported { what: &'static str },
}

/// The source of a node without an API.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObjects;

#[async_trait]
impl ObjectSource for NoObjects {
    async fn config_map(&self, _namespace: &str, _name: &str) -> Result<Option<Arc<ConfigMap>>, SourceError> {
        Err(SourceError::NoApi)
    }

    async fn secret(&self, _namespace: &str, _name: &str) -> Result<Option<Arc<Secret>>, SourceError> {
        Err(SourceError::NoApi)
    }

    async fn token(&self, _request: &TokenRequest) -> Result<Token, SourceError> {
        Err(SourceError::NoApi)
    }
}
