//! Roles and bindings in the store: those a cluster begins with, and those that gather the rules of others.

use std::sync::atomic::Ordering;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use pulselet_store::{StoreError, Swap, Swapped};
use serde_json::{Value, json};

use super::Registry;
use super::object::Object;
use super::resource::{ObjectPath, ResourceKind};
use super::writes::ChangedObject;
use crate::access::{DefaultObjects, gathered_rules};
use crate::rest::status::ApiError;

/// The kinds that say who may do what.
const POLICY_KINDS: [ResourceKind; 4] = [
    ResourceKind::CLUSTER_ROLE,
    ResourceKind::CLUSTER_ROLE_BINDING,
    ResourceKind::ROLE,
    ResourceKind::ROLE_BINDING,
];
/// Objects that are written at a time, so that they share a few writes to the disk.
const WRITTEN_AT_ONCE: usize = 64;
/// How often roles are gathered again because one that gathers is gathered itself.
const MAX_GATHERINGS: usize = 8;

/// Whether this is the key of a role or a binding.
pub(super) fn is_policy(key: &str) -> bool {
    let mut kinds = POLICY_KINDS.iter();
    kinds.any(|kind| key.starts_with(&kind.prefix(None)))
}

impl Registry {
    /// Makes a change in the store. One of roles or bindings is counted, so that the policy is read again.
    pub(super) async fn swap(&self, swap: Swap) -> Result<Swapped, StoreError> {
        let is_policy = is_policy(&swap.key);
        let swapped = self.store.swap(swap).await?;
        if is_policy && matches!(swapped, Swapped::Done(_)) {
            self.policy_changes.fetch_add(1, Ordering::AcqRel);
        }
        Ok(swapped)
    }

    /// Creates what is missing of the roles and bindings that a cluster begins with.
    pub(crate) async fn create_default_policy(&self) -> Result<(), ApiError> {
        let DefaultObjects {
            cluster_roles,
            roles,
            cluster_role_bindings,
            role_bindings,
        } = DefaultObjects::read();
        for (kind, objects) in [
            (ResourceKind::CLUSTER_ROLE, cluster_roles),
            (ResourceKind::ROLE, roles),
            (ResourceKind::CLUSTER_ROLE_BINDING, cluster_role_bindings),
            (ResourceKind::ROLE_BINDING, role_bindings),
        ] {
            self.create_missing(kind, objects).await?;
        }
        self.gather_roles().await
    }

    async fn create_missing(&self, kind: ResourceKind, objects: Vec<Value>) -> Result<(), ApiError> {
        let (there, _) = self.all(kind, None).await?;
        let is_there = |object: &Object| {
            let mut found = there.iter().map(|known| (known.namespace(), known.name()));
            found.any(|known| known == (object.namespace(), object.name()))
        };
        let missing = objects
            .into_iter()
            .filter_map(Object::new)
            .filter(|object| !is_there(object));
        let missing: Vec<Object> = missing.collect();
        let writing = missing.into_iter().map(|object| self.ensure(kind, object));
        stream::iter(writing)
            .buffer_unordered(WRITTEN_AT_ONCE)
            .try_collect::<()>()
            .await
    }

    /// Gives the cluster roles that gather the rules of others these rules.
    pub(crate) async fn gather_roles(&self) -> Result<(), ApiError> {
        for _ in 0..MAX_GATHERINGS {
            let (roles, _) = self.all(ResourceKind::CLUSTER_ROLE, None).await?;
            let mut is_settled = true;
            for role in &roles {
                let Some(gathered) = gathered_rules(role.value(), &roles.iter().map(Object::value)) else {
                    continue;
                };
                let gathered = json!(gathered);
                if role.value().get("rules").unwrap_or(&json!([])) == &gathered {
                    continue;
                }
                is_settled = false;
                let path = ObjectPath::stored(ResourceKind::CLUSTER_ROLE, None, role.name());
                let set = |old: &Object| {
                    let mut object = old.clone();
                    object.value_mut()["rules"] = gathered.clone();
                    Ok(ChangedObject {
                        object,
                        warnings: Vec::new(),
                    })
                };
                self.change(&path, false, set).await?;
            }
            if is_settled {
                return Ok(());
            }
        }
        Ok(())
    }
}
