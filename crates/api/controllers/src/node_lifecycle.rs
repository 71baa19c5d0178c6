//! Nodes that have gone silent: their conditions become Unknown, and no pod of theirs is said to be ready any more, so that
//! nobody is sent to it. Whether the pods run on is not known; a node that is back says so itself.
//!
//! A node shows that it lives by renewing its lease. How long a lease has not changed is measured by our own clock,
//! from when we first saw it so: neither a wrong clock of the node nor our own absence makes a node look dead.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use pulselet_apiserver::{ApiError, LocalClient, Object, ResourceKind, StatusReason};

use crate::events::{ControllerEvent, record_event};

/// The time between looks at the leases.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// How long a lease may go without renewal: this is the duration that nodes write into their leases.
const GRACE: Duration = Duration::from_secs(40);
const LEASE_NAMESPACE: &str = "kube-node-lease";
/// What a pod of a silent node is told about, in upstream's words.
const EVENT: ControllerEvent = ControllerEvent {
    component: "node-controller",
    kind: "Warning",
    reason: "NodeNotReady",
    message: "Node is not ready",
};

/// When the lease of each node last changed.
#[derive(Debug, Default)]
struct Leases {
    /// By node: the time in the lease, and when we first saw this time.
    seen: HashMap<String, (String, Instant)>,
}

impl Leases {
    /// The nodes whose lease has not changed for too long.
    fn stale(&mut self, leases: &HashMap<String, String>, nodes: &[String], now: Instant) -> Vec<String> {
        self.seen.retain(|node, _| nodes.contains(node));
        let mut stale = Vec::new();
        for node in nodes {
            let renewed = leases.get(node).cloned().unwrap_or_default();
            let seen = self
                .seen
                .entry(node.clone())
                .or_insert_with(|| (renewed.clone(), now));
            if seen.0 != renewed {
                *seen = (renewed, now);
            }
            if now.duration_since(seen.1) >= GRACE {
                stale.push(node.clone());
            }
        }
        stale
    }
}

/// Runs until it is dropped.
pub(crate) async fn run(client: LocalClient) {
    let mut leases = Leases::default();
    let mut ticks = tokio::time::interval(LOOK_INTERVAL);
    loop {
        ticks.tick().await;
        if let Err(error) = look(&client, &mut leases).await {
            tracing::warn!(%error, "the node controller could not read the leases of nodes");
        }
    }
}

async fn look(client: &LocalClient, leases: &mut Leases) -> Result<(), ApiError> {
    let (nodes, _) = client.list(ResourceKind::Node, None).await?;
    let (found, _) = client.list(ResourceKind::Lease, Some(LEASE_NAMESPACE)).await?;
    let found = found
        .iter()
        .map(|lease| (lease.name().to_owned(), lease.text("/spec/renewTime").to_owned()))
        .collect();
    let names: Vec<String> = nodes.iter().map(|node| node.name().to_owned()).collect();
    let stale = leases.stale(&found, &names, Instant::now());
    for node in &stale {
        match client.mark_node_unknown(node).await {
            Err(error) if error.reason != StatusReason::NotFound => return Err(error),
            Ok(true) => tracing::warn!(node, "the node has not renewed its lease, its state is unknown"),
            Ok(false) | Err(_) => {}
        }
    }
    if stale.is_empty() {
        return Ok(());
    }
    mark_pods(client, &stale).await
}

/// Each time anew: a node's last word about a pod may have been on its way.
async fn mark_pods(client: &LocalClient, nodes: &[String]) -> Result<(), ApiError> {
    let (pods, _) = client.list(ResourceKind::Pod, None).await?;
    let of_silent = |pod: &&Object| nodes.iter().any(|node| node == pod.text("/spec/nodeName"));
    for pod in pods.iter().filter(of_silent) {
        match client.mark_unready(pod).await {
            Err(error) if error.reason != StatusReason::NotFound => return Err(error),
            Ok(true) => record_event(client, pod, &EVENT).await,
            Ok(false) | Err(_) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_stale_when_it_has_not_changed_for_long() {
        let mut leases = Leases::default();
        let nodes = ["a".to_owned(), "b".to_owned()];
        let at = |a: &str| HashMap::from([("a".to_owned(), a.to_owned()), ("b".to_owned(), "0".to_owned())]);
        let start = Instant::now();
        assert!(leases.stale(&at("1"), &nodes, start).is_empty());
        assert!(leases.stale(&at("2"), &nodes, start + GRACE / 2).is_empty());
        assert_eq!(leases.stale(&at("2"), &nodes, start + GRACE), ["b"]);
        assert_eq!(leases.stale(&at("2"), &nodes, start + GRACE * 2), ["a", "b"]);
        assert_eq!(leases.stale(&at("3"), &nodes, start + GRACE * 2), ["b"]);
    }
}
