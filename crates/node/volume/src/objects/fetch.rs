//! The objects a manifest names, asked for together before something is made from them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use pulselet_model::openapi::api::core::v1::{ConfigMap, Secret};
use pulselet_model::openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use thiserror::Error;

use super::{ObjectSource, ServiceFacts, SourceError, SourceObject};

/// How long one object may take. A pod that waits for it is tried again later.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Objects of one container or pod that are asked for at once.
const FETCHES_AT_ONCE: usize = 8;
/// Bytes in the values of one object, as the API allows.
const MAX_OBJECT_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceKind {
    ConfigMap,
    Secret,
}

impl SourceKind {
    /// As the type is written.
    pub const fn type_name(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        }
    }

    /// As a field that refers to it is written.
    pub const fn field_name(self) -> &'static str {
        match self {
            Self::ConfigMap => "configMap",
            Self::Secret => "secret",
        }
    }
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        })
    }
}

/// The text goes into statuses and events.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ObjectError {
    #[error("{kind} {name:?} not found")]
    NotFound { kind: SourceKind, name: String },
    #[error(
        "{kind} {name:?} not found: {}, mark the reference as optional",
        SourceError::NoApi
    )]
    NoApi { kind: SourceKind, name: String },
    #[error("cannot get {kind} {name:?}: {source}")]
    Fetch {
        kind: SourceKind,
        name: String,
        source: SourceError,
    },
    #[error("cannot get {kind} {name:?}: the API did not answer within {} s", FETCH_TIMEOUT.as_secs())]
    Timeout { kind: SourceKind, name: String },
    #[error("{kind} {name:?} has more than {MAX_OBJECT_BYTES} bytes")]
    TooLarge { kind: SourceKind, name: String },
    #[error("cannot tell where services are: {source}")]
    Services { source: SourceError },
    #[error("cannot tell where services are: the API did not answer within {} s", FETCH_TIMEOUT.as_secs())]
    ServicesTimeout,
}

impl ObjectError {
    /// There is no such object; an optional reference to it means nothing then.
    const fn is_absence(&self) -> bool {
        match self {
            Self::NotFound { .. } | Self::NoApi { .. } => true,
            Self::Fetch { .. }
            | Self::Timeout { .. }
            | Self::TooLarge { .. }
            | Self::Services { .. }
            | Self::ServicesTimeout => false,
        }
    }
}

/// Names of objects in one namespace.
#[derive(Debug, Default)]
pub struct Wanted {
    pub config_maps: BTreeSet<String>,
    pub secrets: BTreeSet<String>,
    /// Where services are: `Some(true)` with those of the namespace.
    pub services: Option<bool>,
}

impl Wanted {
    /// The objects as one set.
    pub fn objects(&self, namespace: &str) -> BTreeSet<SourceObject> {
        let object = |kind, name: &String| SourceObject {
            kind,
            namespace: namespace.to_owned(),
            name: name.clone(),
        };
        let config_maps = self.config_maps.iter();
        let config_maps = config_maps.map(|name| object(SourceKind::ConfigMap, name));
        let secrets = self.secrets.iter();
        let secrets = secrets.map(|name| object(SourceKind::Secret, name));
        config_maps.chain(secrets).collect()
    }
}

type Found<T> = Result<Arc<T>, ObjectError>;

/// Objects as they were when asked for, or why there are none.
#[derive(Debug, Default)]
pub struct Objects {
    config_maps: BTreeMap<String, Found<ConfigMap>>,
    secrets: BTreeMap<String, Found<Secret>>,
    services: Option<Result<Vec<ServiceFacts>, ObjectError>>,
}

impl Objects {
    /// Objects that are known without asking, by name.
    pub fn of(config_maps: BTreeMap<String, ConfigMap>, secrets: BTreeMap<String, Secret>) -> Self {
        fn found<T>(objects: BTreeMap<String, T>) -> BTreeMap<String, Found<T>> {
            let found = |(name, object)| (name, Ok(Arc::new(object)));
            objects.into_iter().map(found).collect()
        }
        Self {
            config_maps: found(config_maps),
            secrets: found(secrets),
            services: None,
        }
    }

    /// With these services.
    #[must_use]
    pub fn with_services(self, services: Vec<ServiceFacts>) -> Self {
        Self {
            services: Some(Ok(services)),
            ..self
        }
    }

    /// The services, if they were wanted.
    pub fn services(&self) -> Result<&[ServiceFacts], ObjectError> {
        match &self.services {
            Some(Ok(services)) => Ok(services),
            Some(Err(error)) => Err(error.clone()),
            None => Ok(&[]),
        }
    }

    /// Asks a source for everything that is wanted; what it has no answer for is known as such afterwards.
    pub async fn fetch(source: &dyn ObjectSource, namespace: &str, wanted: Wanted) -> Self {
        let config_maps = stream::iter(wanted.config_maps)
            .map(async |name| {
                let answer = source.config_map(namespace, &name);
                let found = settle(SourceKind::ConfigMap, &name, answer, config_map_bytes).await;
                (name, found)
            })
            .buffer_unordered(FETCHES_AT_ONCE)
            .collect()
            .await;
        let secrets = stream::iter(wanted.secrets)
            .map(async |name| {
                let answer = source.secret(namespace, &name);
                let found = settle(SourceKind::Secret, &name, answer, secret_bytes).await;
                (name, found)
            })
            .buffer_unordered(FETCHES_AT_ONCE)
            .collect()
            .await;
        let services = match wanted.services {
            Some(links) => Some(services(source, namespace, links).await),
            None => None,
        };
        Self {
            config_maps,
            secrets,
            services,
        }
    }

    /// A config map that was wanted; none where the reference is optional and there is no such object.
    pub fn config_map(&self, name: &str, optional: Option<bool>) -> Result<Option<&ConfigMap>, ObjectError> {
        look_up(&self.config_maps, SourceKind::ConfigMap, name, optional)
    }

    /// What distinguishes this version of an object, or its absence, from others; none where nothing does.
    pub fn version(&self, kind: SourceKind, name: &str) -> Option<String> {
        fn of<T>(found: Option<&Found<T>>, metadata: fn(&T) -> &ObjectMeta) -> Option<String> {
            match found? {
                Ok(object) => {
                    let ObjectMeta {
                        uid,
                        resource_version,
                        ..
                    } = metadata(object);
                    let uid = uid.as_deref().unwrap_or_default();
                    resource_version
                        .as_ref()
                        .map(|version| format!("{uid}/{version}"))
                }
                Err(error) => error.is_absence().then(|| "absent".to_owned()),
            }
        }
        match kind {
            SourceKind::ConfigMap => of(self.config_maps.get(name), |object| &object.metadata),
            SourceKind::Secret => of(self.secrets.get(name), |object| &object.metadata),
        }
    }

    /// A secret that was wanted; none where the reference is optional and there is no such object.
    pub fn secret(&self, name: &str, optional: Option<bool>) -> Result<Option<&Secret>, ObjectError> {
        look_up(&self.secrets, SourceKind::Secret, name, optional)
    }
}

async fn services(
    source: &dyn ObjectSource,
    namespace: &str,
    links: bool,
) -> Result<Vec<ServiceFacts>, ObjectError> {
    match tokio::time::timeout(FETCH_TIMEOUT, source.services(namespace, links)).await {
        Ok(Ok(services)) => Ok(services),
        Ok(Err(source)) => Err(ObjectError::Services { source }),
        Err(_) => Err(ObjectError::ServicesTimeout),
    }
}

fn look_up<'o, T>(
    found: &'o BTreeMap<String, Found<T>>,
    kind: SourceKind,
    name: &str,
    optional: Option<bool>,
) -> Result<Option<&'o T>, ObjectError> {
    let error = match found.get(name) {
        Some(Ok(object)) => return Ok(Some(object)),
        Some(Err(error)) => error.clone(),
        // Nobody asked for it, so nothing is known of it.
        None => ObjectError::NotFound {
            kind,
            name: name.to_owned(),
        },
    };
    if error.is_absence() && optional == Some(true) {
        return Ok(None);
    }
    Err(error)
}

async fn settle<T>(
    kind: SourceKind,
    name: &str,
    answer: impl Future<Output = Result<Option<Arc<T>>, SourceError>>,
    bytes: fn(&T) -> usize,
) -> Found<T> {
    let name = name.to_owned();
    match tokio::time::timeout(FETCH_TIMEOUT, answer).await {
        Ok(Ok(Some(object))) if bytes(&object) > MAX_OBJECT_BYTES => {
            Err(ObjectError::TooLarge { kind, name })
        }
        Ok(Ok(Some(object))) => Ok(object),
        Ok(Ok(None)) => Err(ObjectError::NotFound { kind, name }),
        Ok(Err(SourceError::NoApi)) => Err(ObjectError::NoApi { kind, name }),
        Ok(Err(source)) => Err(ObjectError::Fetch { kind, name, source }),
        Err(_) => Err(ObjectError::Timeout { kind, name }),
    }
}

fn config_map_bytes(object: &ConfigMap) -> usize {
    let texts = object.data.iter().flatten().map(|(_, text)| text.len());
    let binary = object.binary_data.iter().flatten().map(|(_, data)| data.0.len());
    texts.chain(binary).sum()
}

fn secret_bytes(object: &Secret) -> usize {
    object.data.iter().flatten().map(|(_, data)| data.0.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{NoObjects, Token, TokenRequest};
    use async_trait::async_trait;

    /// Has one large config map, and refuses to give secrets.
    #[derive(Debug)]
    struct Odd;

    #[async_trait]
    impl ObjectSource for Odd {
        async fn config_map(&self, _: &str, name: &str) -> Result<Option<Arc<ConfigMap>>, SourceError> {
            let data = [("k".to_owned(), "x".repeat(MAX_OBJECT_BYTES + 1))];
            let large = ConfigMap {
                data: Some(data.into()),
                ..ConfigMap::default()
            };
            Ok((name == "large").then(|| Arc::new(large)))
        }

        async fn secret(&self, _: &str, _: &str) -> Result<Option<Arc<Secret>>, SourceError> {
            let message = "secrets is forbidden".to_owned();
            Err(SourceError::Fetch { message })
        }

        async fn token(&self, _: &TokenRequest) -> Result<Token, SourceError> {
            Err(SourceError::Unsupported { what: "tokens" })
        }
    }

    fn wanted() -> Wanted {
        Wanted {
            config_maps: ["large".to_owned(), "none".to_owned()].into(),
            secrets: ["own".to_owned()].into(),
            services: None,
        }
    }

    #[tokio::test]
    async fn what_cannot_be_had_says_why() {
        let objects = Objects::fetch(&Odd, "shop", wanted()).await;
        let large = objects.config_map("large", Some(true)).unwrap_err();
        assert_eq!(
            large.to_string(),
            "configmap \"large\" has more than 1048576 bytes"
        );
        let none = objects.config_map("none", None).unwrap_err();
        assert_eq!(none.to_string(), "configmap \"none\" not found");
        assert_eq!(objects.config_map("none", Some(true)), Ok(None));
        let own = objects.secret("own", Some(true)).unwrap_err();
        assert_eq!(own.to_string(), "cannot get secret \"own\": secrets is forbidden");
    }

    #[tokio::test]
    async fn without_an_api_there_are_no_objects() {
        let objects = Objects::fetch(&NoObjects, "shop", wanted()).await;
        let none = objects.secret("own", None).unwrap_err().to_string();
        assert_eq!(
            none,
            "secret \"own\" not found: a node without an API has none, mark the reference as optional"
        );
        assert_eq!(objects.secret("own", Some(true)), Ok(None));
    }
}
