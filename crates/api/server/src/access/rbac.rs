//! Roles and bindings: what everybody may do who is neither an administrator nor a node.
//!
//! The policy in force is a snapshot of the stored roles and bindings. It is read again when one of them has changed, so a
//! binding counts for the very next request.

mod aggregation;
mod defaults;
mod escalation;
mod policy;

use std::sync::Arc;

pub(crate) use aggregation::gathered_rules;
pub(crate) use defaults::DefaultObjects;
pub(crate) use escalation::GrantLimit;
pub(crate) use policy::{ACCOUNT_PREFIX, Policy, PolicyRule};
use tokio::sync::Mutex;

use crate::registry::Registry;
use crate::registry::resource::ResourceKind;
use crate::rest::status::ApiError;

/// The policy in force.
#[derive(Debug)]
pub(crate) struct PolicyCache {
    registry: Registry,
    current: Mutex<Option<Snapshot>>,
}

#[derive(Debug)]
struct Snapshot {
    policy: Arc<Policy>,
    /// How many changes of roles and bindings had been made when it was read.
    changes: u64,
}

impl PolicyCache {
    pub(crate) fn new(registry: Registry) -> Self {
        Self {
            registry,
            current: Mutex::default(),
        }
    }

    /// The policy as it is now.
    pub(crate) async fn policy(&self) -> Result<Arc<Policy>, ApiError> {
        // Counted before the objects are read: a change in between is seen the next time.
        let changes = self.registry.policy_changes();
        let mut current = self.current.lock().await;
        if let Some(snapshot) = current.as_ref().filter(|snapshot| snapshot.changes >= changes) {
            return Ok(Arc::clone(&snapshot.policy));
        }
        let policy = Arc::new(self.load().await?);
        *current = Some(Snapshot {
            policy: Arc::clone(&policy),
            changes,
        });
        Ok(policy)
    }

    async fn load(&self) -> Result<Policy, ApiError> {
        let mut policy = Policy::default();
        for role in self.registry.all(ResourceKind::CLUSTER_ROLE, None).await?.0 {
            policy.add_cluster_role(role.name(), role.value());
        }
        for role in self.registry.all(ResourceKind::ROLE, None).await?.0 {
            policy.add_role(role.namespace(), role.name(), role.value());
        }
        for binding in self
            .registry
            .all(ResourceKind::CLUSTER_ROLE_BINDING, None)
            .await?
            .0
        {
            policy.add_cluster_binding(binding.name(), binding.value());
        }
        for binding in self.registry.all(ResourceKind::ROLE_BINDING, None).await?.0 {
            policy.add_binding(binding.namespace(), binding.name(), binding.value());
        }
        Ok(policy)
    }
}
