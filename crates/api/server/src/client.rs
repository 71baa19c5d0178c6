//! A client inside the server's process, for controllers.
//!
//! It reads and changes objects as the server itself does: nobody asks who it is, and admission, preconditions and the
//! one swap per change apply as they do to requests. What controllers want done is left to them.

use std::fs::File;
use std::sync::Arc;

use pulselet_store::{Revision, Watch};
use serde_json::json;

use crate::registry::Registry;
use crate::registry::attendance::ServiceForwarder;
use crate::registry::object::Object;
use crate::registry::resource::{ObjectPath, ResourceKind};
use crate::rest::body::Parsed;
use crate::rest::query::{DeleteOptions, WriteOptions};
use crate::rest::status::{ApiError, StatusReason};

/// A client of the server in whose process it is. Clones share one store.
#[derive(Debug, Clone)]
pub struct LocalClient {
    registry: Registry,
    /// Names this server among those that share its store.
    copy: Arc<str>,
    /// The data directory stays locked as long as a client may write to it.
    _lock: Arc<File>,
}

/// What a deletion did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    /// The object is gone.
    Removed,
    /// The object's end has begun; a node or a finalizer holds it back.
    Marked,
}

/// A change of one object.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectChange {
    /// The object's key, as [`ResourceKind::key`] makes it.
    pub key: String,
    /// `None` if the object was removed.
    pub object: Option<Object>,
}

/// Changes of the objects of one kind.
#[derive(Debug)]
pub struct ObjectWatch(Box<dyn Watch>);

impl ObjectWatch {
    /// Waits for the next changes, of which there is at least one. Dropping the future loses none.
    pub async fn next(&mut self) -> Result<Vec<ObjectChange>, ApiError> {
        let changes = self.0.next().await?;
        let decode = |change: &Arc<pulselet_store::Change>| {
            let value = change.value.as_ref();
            let object = value.map(|value| Object::decode(&change.key, value, change.revision));
            Ok(ObjectChange {
                key: change.key.clone(),
                object: object.transpose()?,
            })
        };
        changes.iter().map(decode).collect()
    }
}

impl LocalClient {
    pub(crate) fn new(registry: Registry, copy: Arc<str>, lock: Arc<File>) -> Self {
        Self {
            registry,
            copy,
            _lock: lock,
        }
    }

    /// Whether other servers use the store as well. What must be done by one alone is then done by whoever holds the lease.
    pub fn is_shared(&self) -> bool {
        self.registry.is_shared()
    }

    /// The name of this server among those that share its store.
    pub fn copy(&self) -> &str {
        &self.copy
    }

    /// Says that this process forwards from Services to their Pods, for as long as the answer lives: who makes one is not told
    /// that nobody acts on it.
    pub fn act_on_services(&self) -> ServiceForwarder {
        self.registry.attendance().forward_services()
    }

    /// The object of a kind and name; `None` if there is none.
    pub async fn get(
        &self,
        kind: ResourceKind,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<Object>, ApiError> {
        match self
            .registry
            .get(&ObjectPath::stored(kind, namespace, name))
            .await
        {
            Err(error) if error.reason == StatusReason::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// Replaces an object if nobody has changed it since it was read; otherwise that is a conflict.
    pub async fn replace_unchanged(&self, kind: ResourceKind, object: &Object) -> Result<(), ApiError> {
        let body = Parsed::from(object.value().clone());
        let (path, options) = (path(kind, object), WriteOptions::of_server());
        self.registry.update(&path, body, &options).await.map(drop)
    }

    /// All objects of a kind, or those of a namespace, and the revision at which they were read.
    pub async fn list(
        &self,
        kind: ResourceKind,
        namespace: Option<&str>,
    ) -> Result<(Vec<Object>, Revision), ApiError> {
        self.registry.all(kind, namespace).await
    }

    /// Some objects of a kind, and where the next ones begin: for kinds of which there may be too many to hold at once.
    pub async fn page(
        &self,
        kind: ResourceKind,
        after: Option<String>,
        limit: usize,
    ) -> Result<(Vec<Object>, Option<String>), ApiError> {
        self.registry.page(kind, after, limit).await
    }

    /// The changes of a kind's objects after a revision.
    pub async fn watch(&self, kind: ResourceKind, after: Revision) -> Result<ObjectWatch, ApiError> {
        Ok(ObjectWatch(self.registry.watch(kind, None, after).await?))
    }

    /// Creates an object, unless there is one of its name.
    pub async fn ensure(&self, kind: ResourceKind, object: Object) -> Result<(), ApiError> {
        self.registry.ensure(kind, object).await
    }

    /// Deletes the object of this kind and name.
    pub async fn delete(&self, kind: ResourceKind, object: &Object) -> Result<Deletion, ApiError> {
        self.delete_with(kind, object, &DeleteOptions::default()).await
    }

    /// Deletes an object if nobody has changed it since it was read; otherwise that is a conflict.
    pub async fn delete_unchanged(&self, kind: ResourceKind, object: &Object) -> Result<Deletion, ApiError> {
        let options = DeleteOptions {
            precondition_version: Some(object.resource_version().to_owned()),
            ..DeleteOptions::default()
        };
        self.delete_with(kind, object, &options).await
    }

    async fn delete_with(
        &self,
        kind: ResourceKind,
        object: &Object,
        options: &DeleteOptions,
    ) -> Result<Deletion, ApiError> {
        let deleted = self.registry.delete(&path(kind, object), options).await?;
        Ok(if deleted.gone {
            Deletion::Removed
        } else {
            Deletion::Marked
        })
    }

    /// Binds a Pod to a node. A Pod that is bound, is ending or has been replaced is a conflict.
    pub async fn bind_pod(&self, pod: &Object, node: &str) -> Result<(), ApiError> {
        let binding = json!({
            "metadata": {"uid": pod.uid()},
            "target": {"kind": "Node", "name": node},
        });
        let path = path(ResourceKind::Pod, pod);
        self.registry.bind(&path, &binding, false).await.map(drop)
    }

    /// Records on a Pod why no node takes it; false if that is recorded already.
    pub async fn mark_unschedulable(&self, pod: &Object, why: &str) -> Result<bool, ApiError> {
        let path = path(ResourceKind::Pod, pod);
        self.registry.mark_unschedulable(&path, pod.uid(), why).await
    }

    /// Sets the conditions of a silent node to Unknown; false if they are already.
    pub async fn mark_node_unknown(&self, node: &str) -> Result<bool, ApiError> {
        self.registry.mark_node_unknown(node).await
    }

    /// Says of a Pod whose node is silent that it is not ready; false if that is said already, or if it is another Pod by now.
    pub async fn mark_unready(&self, pod: &Object) -> Result<bool, ApiError> {
        let path = path(ResourceKind::Pod, pod);
        self.registry.mark_unready(&path, pod.uid()).await
    }

    /// Takes the server's own finalizer off a namespace that is ending, so that it can go.
    pub async fn finalize_namespace(&self, name: &str) -> Result<(), ApiError> {
        self.registry.finalize_namespace(name).await
    }
}

fn path(kind: ResourceKind, object: &Object) -> ObjectPath {
    let namespace = kind.info().namespaced.then(|| object.namespace());
    ObjectPath::stored(kind, namespace, object.name())
}
