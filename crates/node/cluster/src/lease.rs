//! The node's lease: a sign of life that costs the API little.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::backoff::Backoff;
use crate::client::{ApiClient, ApiClientError, Call};
use crate::paths;
use crate::registration::Registered;

/// How long a lease counts, as a kubelet has it; the API calls the node's state unknown after that.
const DURATION_SECONDS: u32 = 40;
/// How often it is renewed: three may be lost.
const RENEWAL: Duration = Duration::from_secs(10);

/// Renews the lease from the node's registration on, for good.
pub(crate) async fn renew(client: ApiClient, mut registered: watch::Receiver<Option<Registered>>) {
    let Ok(node) = registered.wait_for(Option::is_some).await.map(|it| it.clone()) else {
        return;
    };
    let Some(node) = node else { return };
    let mut ticks = tokio::time::interval(RENEWAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut backoff = Backoff::default();
    loop {
        match renew_once(&client, &node).await {
            Ok(()) => {
                backoff.reset();
                ticks.tick().await;
            }
            Err(error) => {
                let pause = backoff.next();
                tracing::warn!(%error, ?pause, "cannot renew the node's lease");
                tokio::time::sleep(pause).await;
            }
        }
    }
}

async fn renew_once(client: &ApiClient, node: &Registered) -> Result<(), ApiClientError> {
    let spec = json!({
        "holderIdentity": node.name,
        "leaseDurationSeconds": DURATION_SECONDS,
        "renewTime": format!("{:.6}", Timestamp::now()),
    });
    let path = format!("{}/{}", paths::LEASES, node.name);
    let renewed = client.send(Call::merge(path, &json!({"spec": &spec}))).await;
    match renewed {
        Err(error) if error.is_not_found() => {
            client
                .send(Call::create(paths::LEASES, &lease(node, &spec)))
                .await
        }
        other => other,
    }
}

fn lease(node: &Registered, spec: &Value) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": node.name,
            "namespace": "kube-node-lease",
            "ownerReferences": [node.owner_reference()],
        },
        "spec": spec,
    })
}
