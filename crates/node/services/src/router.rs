//! Keeping the routes of services true: whenever the catalog has changed, after a moment, all of them at once.
//!
//! A failure is said once with what to do, and tried again; when it works again that is said too. A port that leads nowhere
//! although a Service has it is reported once.

use std::collections::BTreeSet;
use std::error::Error;
use std::time::Duration;

use pulselet_runtime::ServiceRoute;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use crate::ServiceCatalog;
use crate::routes::{UnservedPort, UnservedReason};

/// How long further changes are waited for: pods seldom come alone, and a change costs a process.
const GATHER: Duration = Duration::from_millis(20);
/// How soon routes are set again after a failure. Rules that other programs remove come back by the network itself.
const AGAIN: Duration = Duration::from_secs(10);

/// Sets the routes of a node's services until whoever fills the catalog is gone. `set` may block.
pub async fn keep_routes<E: Error + Send + 'static>(
    mut catalog: watch::Receiver<ServiceCatalog>,
    node: String,
    set: impl Fn(Vec<ServiceRoute>) -> Result<(), E> + Clone + Send + 'static,
) {
    let mut has_failed = false;
    let mut reported = BTreeSet::new();
    loop {
        let plan = catalog.borrow_and_update().plan(&node);
        plan.unserved.difference(&reported).for_each(report);
        reported = plan.unserved;
        let routes = plan.routes;
        let set = set.clone();
        match spawn_blocking(move || set(routes)).await {
            Ok(Ok(())) if has_failed => {
                has_failed = false;
                tracing::info!("the addresses of services lead to their pods again");
            }
            Ok(Err(error)) if !has_failed => {
                has_failed = true;
                tracing::warn!(
                    %error,
                    "the addresses of services do not lead to their pods; install nftables, and look whether this kernel \
                     has it; it is tried again every ten seconds"
                );
            }
            Ok(Ok(()) | Err(_)) => {}
            // The program ends.
            Err(_) => return,
        }
        match timeout(AGAIN, catalog.changed()).await {
            Ok(Ok(())) => sleep(GATHER).await,
            Ok(Err(_)) => return,
            Err(_) => {}
        }
    }
}

/// Says which object has a port that is not served, and what keeps it from that.
fn report(port: &UnservedPort) {
    let UnservedPort {
        namespace,
        name,
        protocol,
        port,
        reason,
    } = port;
    match reason {
        UnservedReason::Taken { by: (of, by) } => {
            let holder = format!("{of}/{by}");
            tracing::warn!(
                namespace,
                name,
                protocol,
                port,
                holder,
                "service port is not served: the address and port belong to the holder; delete one of the two"
            );
        }
        UnservedReason::NodePortTaken {
            node_port,
            by: (of, by),
        } => {
            let holder = format!("{of}/{by}");
            tracing::warn!(
                namespace,
                name,
                protocol,
                port,
                node_port,
                holder,
                "node port is not served: it belongs to the holder, which is older; choose another one"
            );
        }
        UnservedReason::NodePortOfOtherType { node_port } => tracing::warn!(
            namespace,
            name,
            protocol,
            port,
            node_port,
            "node port is not served: the Service is neither of type NodePort nor of type LoadBalancer; remove it"
        ),
        UnservedReason::NodePortOutOfRange { node_port } => tracing::warn!(
            namespace,
            name,
            protocol,
            port,
            node_port,
            "node port is not served: it is not in the range 30000 to 32767; choose another one"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;
    use serde_json::json;

    #[tokio::test(start_paused = true)]
    async fn changes_become_routes_and_a_failure_is_tried_again() {
        let sender = watch::Sender::new(ServiceCatalog::default());
        let seen: Arc<Mutex<Vec<usize>>> = Arc::default();
        let record = Arc::clone(&seen);
        let set = move |routes: Vec<ServiceRoute>| {
            let mut seen = record.lock().unwrap();
            seen.push(routes.len());
            // The first one with a route fails.
            if seen.iter().filter(|count| **count == 1).count() == 1 && routes.len() == 1 {
                return Err(io::Error::other("no nft"));
            }
            Ok(())
        };
        let task = tokio::spawn(keep_routes(sender.subscribe(), "here".to_owned(), set));
        let service = json!({"metadata": {"namespace": "a", "name": "b"},
            "spec": {"clusterIP": "10.43.0.5", "ports": [{"port": 80}]}});
        let service = serde_json::from_value(service).unwrap();
        sleep(Duration::from_millis(1)).await;
        sender.send_modify(|catalog| catalog.set_service(&service));
        sleep(AGAIN * 2).await;
        sender.send_modify(|catalog| catalog.remove_service("a", "b"));
        drop(sender);
        task.await.unwrap();
        let seen = seen.lock().unwrap().clone();
        assert_eq!(seen.first(), Some(&0));
        assert!(seen.iter().filter(|count| **count == 1).count() >= 2, "{seen:?}");
    }
}
