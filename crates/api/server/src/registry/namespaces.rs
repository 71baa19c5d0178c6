//! Namespaces: which ones are always there, what each of them comes with, and when they take no more objects.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use pulselet_store::{Expect, Revision};
use serde_json::json;

use super::Registry;
use super::object::Object;
use super::resource::{Endpoint, ObjectPath, ResourceKind};
use super::writes::ChangedObject;
use crate::rest::status::ApiError;

/// Namespaces the server cannot be without.
pub(crate) const SYSTEM_NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// The config map by which Pods know the server's authority.
const ROOT_CERTIFICATE: &str = "kube-root-ca.crt";

/// How many namespaces are remembered.
const MAX_REMEMBERED: usize = 256;

/// The revisions of namespaces that took new objects when they were last looked at.
#[derive(Debug, Default)]
pub(super) struct OpenNamespaces(Mutex<HashMap<String, Revision>>);

impl OpenNamespaces {
    /// The condition under which a namespace still takes new objects, as far as it is known.
    pub(super) fn guard(&self, namespace: &str) -> Option<(String, Expect)> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let revision = known.get(namespace)?;
        let key = ResourceKind::Namespace.key(None, namespace);
        Some((key, Expect::Revision(*revision)))
    }

    fn remember(&self, namespace: &str, revision: Revision) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_REMEMBERED {
            known.clear();
        }
        known.insert(namespace.to_owned(), revision);
    }
}

impl Registry {
    /// Creates the namespaces that every cluster has, and what every namespace has.
    pub(crate) async fn create_system_namespaces(&self) -> Result<(), ApiError> {
        for name in SYSTEM_NAMESPACES {
            let namespace = Object::new(json!({"metadata": {"name": name}})).expect("a literal object");
            self.ensure(ResourceKind::Namespace, namespace).await?;
        }
        let (namespaces, _) = self.all(ResourceKind::Namespace, None).await?;
        for namespace in namespaces.iter().filter(|namespace| !namespace.is_deleting()) {
            self.create_namespace_defaults(namespace.name()).await?;
        }
        Ok(())
    }

    /// Creates what every namespace has.
    pub(super) async fn create_namespace_defaults(&self, namespace: &str) -> Result<(), ApiError> {
        self.ensure_service_account(namespace).await?;
        let certificate = json!({
            "metadata": {"name": ROOT_CERTIFICATE, "namespace": namespace},
            "data": {"ca.crt": self.root_certificate.as_ref()},
        });
        self.put_own(ResourceKind::ConfigMap, certificate, &["/data"])
            .await
    }

    /// Creates the service account `default`, which every namespace has.
    async fn ensure_service_account(&self, namespace: &str) -> Result<(), ApiError> {
        let object = Object::new(json!({"metadata": {"name": "default", "namespace": namespace}}))
            .expect("a literal object");
        self.ensure(ResourceKind::ServiceAccount, object).await
    }

    /// The condition under which a namespace still takes new objects.
    pub(super) async fn open_namespace(
        &self,
        endpoint: Endpoint,
        namespace: &str,
        name: &str,
    ) -> Result<(String, Expect), ApiError> {
        let path = ObjectPath::stored(ResourceKind::Namespace, None, namespace);
        let entry = self.entry(&path).await?;
        if Object::from_entry(&entry)?.is_deleting() {
            let why = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            let mut error = ApiError::forbidden(endpoint, name, &why);
            if let Some(details) = &mut error.details {
                details["causes"] = json!([{
                    "reason": "NamespaceTerminating",
                    "message": format!("namespace {namespace} is being terminated"),
                    "field": "metadata.namespace",
                }]);
            }
            return Err(error);
        }
        self.open_namespaces.remember(namespace, entry.revision);
        Ok((entry.key, Expect::Revision(entry.revision)))
    }

    /// Takes the server's own finalizer off a namespace that is ending and empty.
    pub(crate) async fn finalize_namespace(&self, name: &str) -> Result<(), ApiError> {
        let path = ObjectPath::stored(ResourceKind::Namespace, None, name);
        self.change(&path, false, |old| {
            let mut object = old.clone();
            if object.is_deleting() {
                object.value_mut()["spec"]["finalizers"] = json!([]);
            }
            Ok(ChangedObject {
                object,
                warnings: Vec::new(),
            })
        })
        .await
        .map(drop)
    }
}
