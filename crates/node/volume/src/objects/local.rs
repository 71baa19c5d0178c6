//! The objects of files: config maps and secrets for the pods of a node that has no API.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use pulselet_model::openapi::api::core::v1::{ConfigMap, Secret};
use pulselet_model::openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{ChangedObjects, ObjectSource, SourceError, SourceKind, SourceObject, Token, TokenRequest};

/// A config map or a secret that was admitted.
#[derive(Clone, Debug, PartialEq)]
pub enum LocalObject {
    ConfigMap(Box<ConfigMap>),
    Secret(Box<Secret>),
}

/// Kind, namespace and name.
type Key = (&'static str, String, String);

impl LocalObject {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::ConfigMap(_) => "ConfigMap",
            Self::Secret(_) => "Secret",
        }
    }

    fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::ConfigMap(map) => &map.metadata,
            Self::Secret(secret) => &secret.metadata,
        }
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::ConfigMap(map) => &mut map.metadata,
            Self::Secret(secret) => &mut secret.metadata,
        }
    }

    pub fn namespace(&self) -> &str {
        self.metadata().namespace.as_deref().unwrap_or("default")
    }

    pub fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }

    fn identity(&self) -> SourceObject {
        let kind = match self {
            Self::ConfigMap(_) => SourceKind::ConfigMap,
            Self::Secret(_) => SourceKind::Secret,
        };
        SourceObject {
            kind,
            namespace: self.namespace().to_owned(),
            name: self.name().to_owned(),
        }
    }

    fn key(&self) -> Key {
        (self.kind(), self.namespace().to_owned(), self.name().to_owned())
    }
}

/// What files hold, by the file. Every change of an object has a version of its own, so that volumes follow it.
#[derive(Debug, Default)]
pub struct LocalObjects {
    kept: Mutex<Kept>,
    changed: ChangedObjects,
}

#[derive(Debug, Default)]
struct Kept {
    objects: BTreeMap<Key, KeptObject>,
    last_version: u64,
}

#[derive(Debug)]
struct KeptObject {
    /// The file it came from.
    owner: String,
    /// As it came, without a version.
    given: LocalObject,
    version: u64,
}

impl LocalObjects {
    /// These are the objects of this file from now on, and no others.
    pub fn replace(&self, owner: &str, objects: Vec<LocalObject>) {
        let mut kept = self.lock();
        let keys: Vec<Key> = objects.iter().map(LocalObject::key).collect();
        kept.objects.retain(|key, object| {
            let stays = object.owner != owner || keys.contains(key);
            if !stays {
                self.changed.add(object.given.identity());
            }
            stays
        });
        for (key, given) in keys.into_iter().zip(objects) {
            let known = kept.objects.get(&key).filter(|known| known.given == given);
            let version = if let Some(known) = known {
                known.version
            } else {
                self.changed.add(given.identity());
                kept.last_version += 1;
                kept.last_version
            };
            let owner = owner.to_owned();
            kept.objects.insert(
                key,
                KeptObject {
                    owner,
                    given,
                    version,
                },
            );
        }
    }

    /// The other file that has an object of this kind and name.
    pub fn other_owner(&self, object: &LocalObject, owner: &str) -> Option<String> {
        let kept = self.lock();
        let known = kept.objects.get(&object.key())?;
        (known.owner != owner).then(|| known.owner.clone())
    }

    fn find(&self, kind: &'static str, namespace: &str, name: &str) -> Option<LocalObject> {
        let kept = self.lock();
        let known = kept.objects.get(&(kind, namespace.to_owned(), name.to_owned()))?;
        let mut object = known.given.clone();
        object.metadata_mut().resource_version = Some(known.version.to_string());
        Some(object)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Every change is made whole before the lock is let go of.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl ObjectSource for LocalObjects {
    async fn config_map(&self, namespace: &str, name: &str) -> Result<Option<Arc<ConfigMap>>, SourceError> {
        Ok(match self.find("ConfigMap", namespace, name) {
            Some(LocalObject::ConfigMap(map)) => Some(Arc::from(map)),
            Some(LocalObject::Secret(_)) | None => None,
        })
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Option<Arc<Secret>>, SourceError> {
        Ok(match self.find("Secret", namespace, name) {
            Some(LocalObject::Secret(secret)) => Some(Arc::from(secret)),
            Some(LocalObject::ConfigMap(_)) | None => None,
        })
    }

    async fn token(&self, _request: &TokenRequest) -> Result<Token, SourceError> {
        Err(SourceError::NoApi)
    }

    fn is_followed(&self, _object: &SourceObject) -> bool {
        true
    }

    async fn changed(&self) -> SourceObject {
        self.changed.next().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(name: &str, value: &str) -> LocalObject {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.to_owned());
        map.metadata.namespace = Some("shop".to_owned());
        map.data = Some([("key".to_owned(), value.to_owned())].into());
        LocalObject::ConfigMap(Box::new(map))
    }

    async fn version(objects: &LocalObjects, name: &str) -> Option<String> {
        let found = objects.config_map("shop", name).await.unwrap();
        found.and_then(|map| map.metadata.resource_version.clone())
    }

    #[tokio::test]
    async fn a_change_has_a_new_version_and_a_file_takes_its_objects_with_it() {
        let objects = LocalObjects::default();
        objects.replace("a", vec![map("one", "x"), map("two", "x")]);
        objects.replace("b", vec![map("three", "x")]);
        let before = (version(&objects, "one").await, version(&objects, "two").await);
        objects.replace("a", vec![map("one", "x"), map("two", "y")]);
        let after = (version(&objects, "one").await, version(&objects, "two").await);
        assert_eq!(before.0, after.0);
        assert_ne!(before.1, after.1);
        assert_eq!(objects.other_owner(&map("two", ""), "b").as_deref(), Some("a"));
        assert_eq!(objects.other_owner(&map("two", ""), "a"), None);
        objects.replace("a", Vec::new());
        assert_eq!(version(&objects, "one").await, None);
        assert!(version(&objects, "three").await.is_some());
        assert!(objects.secret("shop", "three").await.unwrap().is_none());
    }
}
