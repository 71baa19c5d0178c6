//! Config maps and secrets that were handed over with pods, by `run --detach`: they outlive the agent as those pods do.
//!
//! What always holds: an object is on disk before a pod can use it; the file, which may hold secrets, is its owner's alone and is
//! replaced as a whole. An object stays until another of its name takes its place, or the data directory goes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use pulselet_model::openapi::api::core::v1::{ConfigMap, Secret};
use pulselet_volume::{LocalObject, LocalObjects};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Whose they are, beside the files of a manifest directory.
const OWNER: &str = "`pulselet run --detach`";
/// Objects that are kept: far more than a machine's pods have.
const MAX_OBJECTS: usize = 10_000;

/// Why objects were not kept.
#[derive(Debug, Error)]
pub enum KeepObjectsError {
    #[error("config maps and secrets of this node are those of its API: kubectl apply")]
    OfApi,
    #[error("{kind} {name} belongs to {other}, which would change it again: change it there")]
    Owned {
        kind: &'static str,
        name: String,
        other: String,
    },
    #[error(
        "{MAX_OBJECTS} config maps and secrets are kept already; `pulselet reset` removes them with everything else"
    )]
    TooMany,
    #[error("cannot write config maps and secrets to {path}: {source}; is the disk full?", path = path.display())]
    Save { path: PathBuf, source: io::Error },
}

/// An object as it is handed over and written down.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum HandedObject {
    ConfigMap(Box<ConfigMap>),
    Secret(Box<Secret>),
}

impl From<LocalObject> for HandedObject {
    fn from(object: LocalObject) -> Self {
        match object {
            LocalObject::ConfigMap(map) => Self::ConfigMap(map),
            LocalObject::Secret(secret) => Self::Secret(secret),
        }
    }
}

impl From<HandedObject> for LocalObject {
    fn from(object: HandedObject) -> Self {
        match object {
            HandedObject::ConfigMap(map) => Self::ConfigMap(map),
            HandedObject::Secret(secret) => Self::Secret(secret),
        }
    }
}

#[derive(Debug)]
pub(crate) struct HandedObjects {
    path: PathBuf,
    /// Where pods find them; `None` if an API has them all.
    local: Option<Arc<LocalObjects>>,
    kept: Mutex<Vec<LocalObject>>,
}

impl HandedObjects {
    /// Reads what an earlier agent has written down. A file that cannot be read is none: pods wait for their objects.
    pub(crate) fn load(path: PathBuf, local: Option<Arc<LocalObjects>>) -> Self {
        let kept = read(&path).unwrap_or_else(|error| {
            tracing::error!(path = %path.display(), %error, "cannot read the config maps and secrets that were handed over");
            Vec::new()
        });
        if let Some(local) = &local {
            local.replace(OWNER, kept.clone());
        }
        Self {
            path,
            local,
            kept: Mutex::new(kept),
        }
    }

    /// Keeps all of these, in the place of those that have their names, or none.
    pub(crate) fn keep(&self, objects: Vec<LocalObject>) -> Result<(), KeepObjectsError> {
        let local = self.local.as_ref().ok_or(KeepObjectsError::OfApi)?;
        for object in &objects {
            if let Some(other) = local.other_owner(object, OWNER) {
                let (kind, name) = (object.kind(), object.name().to_owned());
                return Err(KeepObjectsError::Owned { kind, name, other });
            }
        }
        // Every change is made whole before the lock is let go of.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let key = |it: &LocalObject| (it.kind(), it.namespace().to_owned(), it.name().to_owned());
        let mut all = kept.clone();
        all.retain(|old| objects.iter().all(|new| key(new) != key(old)));
        all.extend(objects);
        if all.len() > MAX_OBJECTS {
            return Err(KeepObjectsError::TooMany);
        }
        self.save(&all)?;
        local.replace(OWNER, all.clone());
        *kept = all;
        Ok(())
    }

    fn save(&self, objects: &[LocalObject]) -> Result<(), KeepObjectsError> {
        let objects: Vec<HandedObject> = objects.iter().cloned().map(Into::into).collect();
        let text = serde_json::to_vec(&objects).expect("objects are plain data");
        pulselet_durable::replace(&self.path, &text, 0o600).map_err(|source| KeepObjectsError::Save {
            path: self.path.clone(),
            source,
        })
    }
}

fn read(path: &Path) -> io::Result<Vec<LocalObject>> {
    let text = match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let objects: Vec<HandedObject> = serde_json::from_slice(&text)?;
    Ok(objects.into_iter().map(Into::into).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use pulselet_volume::ObjectSource as _;

    fn map(name: &str, value: &str) -> LocalObject {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.to_owned());
        map.data = Some([("key".to_owned(), value.to_owned())].into());
        LocalObject::ConfigMap(Box::new(map))
    }

    async fn value(local: &LocalObjects, name: &str) -> Option<String> {
        let found = local.config_map("default", name).await.unwrap()?;
        found.data.as_ref()?.get("key").cloned()
    }

    #[tokio::test]
    async fn what_was_handed_over_outlives_the_agent_and_is_replaced_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("objects.json");
        let first = Arc::new(LocalObjects::default());
        let kept = HandedObjects::load(path.clone(), Some(Arc::clone(&first)));
        kept.keep(vec![map("one", "a"), map("two", "a")]).unwrap();
        kept.keep(vec![map("two", "b")]).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let second = Arc::new(LocalObjects::default());
        let kept = HandedObjects::load(path, Some(Arc::clone(&second)));
        for local in [&first, &second] {
            assert_eq!(value(local, "one").await.as_deref(), Some("a"));
            assert_eq!(value(local, "two").await.as_deref(), Some("b"));
        }
        // What a file has is the file's.
        second.replace("web.yaml", vec![map("three", "a")]);
        let refused = kept.keep(vec![map("four", "a"), map("three", "b")]).unwrap_err();
        assert!(refused.to_string().contains("web.yaml"), "{refused}");
        assert_eq!(value(&second, "four").await, None);
    }

    #[test]
    fn an_api_has_all_objects_of_its_nodes() {
        let directory = tempfile::tempdir().unwrap();
        let kept = HandedObjects::load(directory.path().join("objects.json"), None);
        let refused = kept.keep(vec![map("one", "a")]).unwrap_err();
        assert!(matches!(refused, KeepObjectsError::OfApi));
    }
}
