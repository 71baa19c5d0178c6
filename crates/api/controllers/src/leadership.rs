//! Who runs the controllers where several servers share a store: the one that holds the Lease.
//!
//! The holder renews it; whoever finds it unchanged for as long as it lasts takes it. How long that is, is measured by our own
//! clock from when we first saw it so. A holder that cannot renew it stops its controllers before another one may begin. Should
//! two of them overlap all the same, each change is still made on the version it was computed from, or not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use pulselet_apiserver::{ApiError, LocalClient, Object, ResourceKind, StatusReason};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::{ControllerOptions, spawn_all};

const NAME: &str = "pulselet-controllers";
const NAMESPACE: &str = "kube-system";
/// How long the Lease lasts without renewal, as upstream has it.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// How long the holder goes on without a renewal: shorter, so that it has stopped when another one begins.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// The time between renewals, and between looks of those who wait.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// A server that runs the controllers when it is its turn.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    client: LocalClient,
    options: ControllerOptions,
    leads: Arc<AtomicBool>,
}

/// The Lease as it was last seen.
#[derive(Debug, Default)]
struct Observed {
    /// Holder and time of renewal, and since when they are so.
    lease: Option<(String, String, Instant)>,
}

impl Observed {
    /// Whether somebody else may take the Lease.
    fn is_free(&mut self, lease: &Object, own: &str, now: Instant) -> bool {
        let (holder, renewed) = (lease.text("/spec/holderIdentity"), lease.text("/spec/renewTime"));
        let is_same =
            |seen: &(String, String, Instant)| (seen.0.as_str(), seen.1.as_str()) == (holder, renewed);
        if !self.lease.as_ref().is_some_and(is_same) {
            self.lease = Some((holder.to_owned(), renewed.to_owned(), now));
        }
        let since = self.lease.as_ref().map_or(now, |seen| seen.2);
        holder.is_empty() || holder == own || now.duration_since(since) >= LEASE_DURATION
    }
}

impl Candidate {
    pub(crate) fn new(client: LocalClient, options: ControllerOptions) -> Self {
        Self {
            client,
            options,
            leads: Arc::default(),
        }
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        let mut observed = Observed::default();
        loop {
            match self.acquire(&mut observed).await {
                Ok(true) => self.lead(&mut observed).await,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "the lease of the controllers cannot be read"),
            }
            sleep(RETRY_INTERVAL).await;
        }
    }

    /// Runs the controllers as long as the Lease is ours.
    async fn lead(&self, observed: &mut Observed) {
        tracing::info!("this server runs the controllers");
        self.leads.store(true, Ordering::Release);
        let mut controllers = JoinSet::new();
        spawn_all(&mut controllers, &self.client, self.options);
        let mut renewed = Instant::now();
        while renewed.elapsed() < RENEW_DEADLINE {
            sleep(RETRY_INTERVAL).await;
            let left = RENEW_DEADLINE.saturating_sub(renewed.elapsed());
            match tokio::time::timeout(left, self.acquire(observed)).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => break,
                Ok(Err(error)) => tracing::warn!(%error, "the lease of the controllers cannot be renewed"),
                Err(_) => {}
            }
        }
        controllers.shutdown().await;
        self.leads.store(false, Ordering::Release);
        tracing::warn!("this server has lost the lease of the controllers and has stopped them");
    }

    /// Takes or renews the Lease; false if it is somebody else's.
    async fn acquire(&self, observed: &mut Observed) -> Result<bool, ApiError> {
        let own = self.client.copy();
        let Some(lease) = self.read().await? else {
            let lease = json!({
                "metadata": {"name": NAME, "namespace": NAMESPACE},
                "spec": held_by(own, 0),
            });
            let lease = Object::new(lease).ok_or_else(|| ApiError::internal("a lease is an object"))?;
            self.client.ensure(ResourceKind::Lease, lease).await?;
            // Another server may have been faster.
            let lease = self.read().await?;
            return Ok(lease.is_some_and(|lease| lease.text("/spec/holderIdentity") == own));
        };
        if !observed.is_free(&lease, own, Instant::now()) {
            return Ok(false);
        }
        let transitions = lease
            .value()
            .pointer("/spec/leaseTransitions")
            .and_then(Value::as_i64);
        let is_ours = lease.text("/spec/holderIdentity") == own;
        let mut spec = held_by(own, transitions.unwrap_or(0) + i64::from(!is_ours));
        if is_ours {
            spec["acquireTime"] = lease.value()["spec"]["acquireTime"].clone();
        }
        self.replace(&lease, spec).await
    }

    /// Gives the Lease back, so that another server need not wait for its end.
    pub(crate) async fn release(&self) {
        if !self.leads.load(Ordering::Acquire) {
            return;
        }
        let released = async {
            if let Some(lease) = self.read().await?
                && lease.text("/spec/holderIdentity") == self.client.copy()
            {
                let mut spec = lease.value()["spec"].clone();
                spec["holderIdentity"] = json!("");
                self.replace(&lease, spec).await?;
            }
            Ok::<(), ApiError>(())
        };
        match tokio::time::timeout(RETRY_INTERVAL, released).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the lease of the controllers was not given back"),
            Err(_) => tracing::warn!("the lease of the controllers was not given back in time"),
        }
    }

    async fn read(&self) -> Result<Option<Object>, ApiError> {
        self.client.get(ResourceKind::Lease, Some(NAMESPACE), NAME).await
    }

    /// Writes the Lease; false if somebody else was faster.
    async fn replace(&self, lease: &Object, spec: Value) -> Result<bool, ApiError> {
        let mut value = lease.value().clone();
        value["spec"] = spec;
        let lease = Object::new(value).ok_or_else(|| ApiError::internal("a lease is an object"))?;
        match self.client.replace_unchanged(ResourceKind::Lease, &lease).await {
            Err(error) if error.reason == StatusReason::Conflict => Ok(false),
            written => written.map(|()| true),
        }
    }
}

fn held_by(holder: &str, transitions: i64) -> Value {
    let now = format!("{:.6}", Timestamp::now());
    json!({
        "holderIdentity": holder,
        "leaseDurationSeconds": LEASE_DURATION.as_secs(),
        "acquireTime": now,
        "renewTime": now,
        "leaseTransitions": transitions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str, renewed: &str) -> Object {
        let lease = json!({"spec": {"holderIdentity": holder, "renewTime": renewed}});
        Object::new(lease).expect("an object")
    }

    #[test]
    fn a_lease_is_free_when_it_was_given_back_or_has_not_changed_for_its_duration() {
        let (mut observed, start) = (Observed::default(), Instant::now());
        let later = |seconds| start + Duration::from_secs(seconds);
        assert!(!observed.is_free(&lease("a", "1"), "b", start));
        assert!(
            !observed.is_free(&lease("a", "2"), "b", later(14)),
            "it was renewed"
        );
        assert!(!observed.is_free(&lease("a", "2"), "b", later(28)));
        assert!(observed.is_free(&lease("a", "2"), "b", later(29)));
        assert!(
            observed.is_free(&lease("a", "3"), "a", later(30)),
            "it is its own"
        );
        assert!(
            observed.is_free(&lease("", "3"), "b", later(30)),
            "it was given back"
        );
    }
}
