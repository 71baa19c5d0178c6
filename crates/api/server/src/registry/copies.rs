//! Servers in more than one copy on one store: what they agree on, and who is there.
//!
//! Each copy renews a Lease of its own every few seconds. From these Leases every copy knows where the others are, which the
//! Service `kubernetes` says, and what is watched there. How long a Lease has not changed is measured by our own clock. What
//! must always hold: copies whose certificate authority or token key differs do not serve one store, since each of them would
//! refuse what the other has issued.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jiff::Timestamp;
use pulselet_store::{Expect, Swap};
use serde_json::{Value, json};

use super::attendance::Watched;
use super::object::Object;
use super::policy::is_policy;
use super::resource::{ObjectPath, ResourceKind};
use super::writes::ChangedObject;
use super::{Registry, Written};
use crate::rest::query::DeleteOptions;
use crate::rest::status::{ApiError, StatusReason};

/// What the copies agree on.
const AGREED: &str = "/agreed";
/// The time between renewals.
pub(crate) const BEAT_INTERVAL: Duration = Duration::from_secs(5);
/// How long a copy may be silent before it is taken for gone.
const GONE_AFTER: Duration = Duration::from_secs(20);
/// How long to wait after a failure of the store.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const NAMESPACE: &str = "kube-system";
/// Marks the Leases of servers, as upstream does.
const LABEL: &str = "apiserver.kubernetes.io/identity";
const LABEL_VALUE: &str = "pulselet-api";
/// What is watched at a copy, as JSON.
const WATCHED: &str = "pulselet/watched";

impl Registry {
    /// Whether other servers use the store as well.
    pub(crate) fn is_shared(&self) -> bool {
        self.store.is_shared()
    }

    /// Whether all copies have the same of something; the first says what.
    pub(crate) async fn agrees_on(&self, fingerprint: &str) -> Result<bool, ApiError> {
        let swap = Swap {
            key: AGREED.to_owned(),
            expect: Expect::Absent,
            value: Some(Bytes::from(fingerprint.to_owned())),
            guards: Vec::new(),
        };
        // It may be there already, and then that counts.
        self.store.swap(swap).await?;
        let (found, _) = self.store.get(AGREED).await?;
        Ok(found.is_some_and(|found| found.value == fingerprint.as_bytes()))
    }

    /// Notices changes of roles and bindings that other copies make. Runs until it is dropped.
    pub(crate) async fn follow_policy(self) {
        loop {
            if let Err(error) = self.follow_policy_once().await {
                tracing::warn!(%error, "changes of roles at other copies cannot be followed");
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    async fn follow_policy_once(&self) -> Result<(), ApiError> {
        let revision = self.revision().await?;
        let mut watch = self.store.watch("/registry/".to_owned(), revision).await?;
        // What was missed until now is read again.
        self.policy_changes.fetch_add(1, Ordering::AcqRel);
        loop {
            let changes = watch.next().await?;
            if changes.iter().any(|change| is_policy(&change.key)) {
                self.policy_changes.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
}

/// The copies that are there, as one of them sees it.
#[derive(Debug)]
pub(crate) struct Roster {
    registry: Registry,
    own: SocketAddr,
    /// By name of their Leases: the time in it, and when we first saw this time.
    seen: HashMap<String, (String, Instant)>,
}

impl Roster {
    pub(crate) fn new(registry: Registry, own: SocketAddr) -> Self {
        Self {
            registry,
            own,
            seen: HashMap::new(),
        }
    }

    /// Says that we are here, and looks who else is.
    pub(crate) async fn beat(&mut self) -> Result<(), ApiError> {
        self.renew().await?;
        let leases = self.leases().await?;
        let now = Instant::now();
        let (here, gone) = self.sort(leases, now);
        for lease in &gone {
            self.remove(lease.name()).await?;
        }
        let own = self.lease_name();
        let mut watched = Watched::new();
        for lease in here.iter().filter(|lease| lease.name() != own) {
            let said = lease
                .metadata()
                .get("annotations")
                .and_then(|all| all[WATCHED].as_str());
            let said: Watched = said
                .and_then(|said| serde_json::from_str(said).ok())
                .unwrap_or_default();
            for (plural, of_metadata) in said {
                *watched.entry(plural).or_default() |= of_metadata;
            }
        }
        self.registry.attendance.set_elsewhere(watched);
        self.publish(&here).await
    }

    /// Says that we leave.
    pub(crate) async fn leave(&mut self) -> Result<(), ApiError> {
        self.remove(&self.lease_name()).await?;
        let leases = self.leases().await?;
        let (here, _) = self.sort(leases, Instant::now());
        self.publish(&here).await
    }

    async fn publish(&self, here: &[Object]) -> Result<(), ApiError> {
        let addresses: Vec<SocketAddr> = here
            .iter()
            .filter_map(|lease| lease.text("/spec/holderIdentity").parse().ok())
            .collect();
        self.registry.publish_own_service(&addresses).await
    }

    async fn leases(&self) -> Result<Vec<Object>, ApiError> {
        let (mut leases, _) = self.registry.all(ResourceKind::Lease, Some(NAMESPACE)).await?;
        let is_ours = |lease: &Object| {
            let label = lease
                .metadata()
                .get("labels")
                .and_then(|labels| labels[LABEL].as_str());
            label == Some(LABEL_VALUE)
        };
        leases.retain(is_ours);
        Ok(leases)
    }

    /// The Leases of those who are here, and of those who are gone.
    fn sort(&mut self, leases: Vec<Object>, now: Instant) -> (Vec<Object>, Vec<Object>) {
        self.seen
            .retain(|name, _| leases.iter().any(|lease| lease.name() == name));
        leases.into_iter().partition(|lease| {
            let renewed = lease.text("/spec/renewTime").to_owned();
            let seen = self
                .seen
                .entry(lease.name().to_owned())
                .or_insert_with(|| (renewed.clone(), now));
            if seen.0 != renewed {
                *seen = (renewed, now);
            }
            now.duration_since(seen.1) < GONE_AFTER
        })
    }

    fn lease_name(&self) -> String {
        let address: String = self
            .own
            .to_string()
            .chars()
            .map(|each| if each.is_ascii_alphanumeric() { each } else { '-' })
            .collect();
        format!("apiserver-{}", address.trim_matches('-'))
    }

    async fn renew(&self) -> Result<(), ApiError> {
        let name = self.lease_name();
        let renewed = format!("{:.6}", Timestamp::now());
        let watched = json!(self.registry.attendance.watched_here()).to_string();
        let path = ObjectPath::stored(ResourceKind::Lease, Some(NAMESPACE), &name);
        let set = |old: &Object| {
            let mut object = old.clone();
            object.value_mut()["spec"]["renewTime"] = json!(renewed);
            object.set_meta("annotations", json!({WATCHED: watched}));
            Ok(ChangedObject {
                object,
                warnings: Vec::new(),
            })
        };
        let written: Result<Written, ApiError> = self.registry.change(&path, false, set).await;
        match written {
            Err(error) if error.reason == StatusReason::NotFound => {}
            written => return written.map(drop),
        }
        let lease: Value = json!({
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": {LABEL: LABEL_VALUE},
                "annotations": {WATCHED: watched}},
            "spec": {"holderIdentity": self.own.to_string(), "renewTime": renewed,
                "leaseDurationSeconds": GONE_AFTER.as_secs()},
        });
        match Object::new(lease) {
            Some(lease) => self.registry.ensure(ResourceKind::Lease, lease).await,
            None => Err(ApiError::internal("a lease is an object")),
        }
    }

    async fn remove(&self, name: &str) -> Result<(), ApiError> {
        let path = ObjectPath::stored(ResourceKind::Lease, Some(NAMESPACE), name);
        match self.registry.delete(&path, &DeleteOptions::default()).await {
            Err(error) if error.reason == StatusReason::NotFound => Ok(()),
            deleted => deleted.map(drop),
        }
    }
}
