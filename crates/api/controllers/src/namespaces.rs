//! Namespaces that are ending: what is in them is deleted, and then they are let go.

use std::time::Duration;

use pulselet_apiserver::{ApiError, Deletion, LocalClient, ResourceKind, StatusReason};

use crate::RETRY_PAUSE;

/// The time between looks at namespaces that cannot end yet because of what is in them.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Runs until it is dropped.
pub(crate) async fn run(client: LocalClient) {
    loop {
        let ended = match wait_for_ending(&client).await {
            Ok(names) => end_all(&client, &names).await,
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            tracing::warn!(%error, "the namespace controller could not empty the namespaces that are ending");
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

/// Waits until namespaces are ending, and returns their names.
async fn wait_for_ending(client: &LocalClient) -> Result<Vec<String>, ApiError> {
    loop {
        let (namespaces, revision) = client.list(ResourceKind::Namespace, None).await?;
        let ending: Vec<String> = namespaces
            .iter()
            .filter(|namespace| namespace.is_deleting())
            .map(|namespace| namespace.name().to_owned())
            .collect();
        if !ending.is_empty() {
            return Ok(ending);
        }
        let mut watch = client.watch(ResourceKind::Namespace, revision).await?;
        watch.next().await?;
    }
}

async fn end_all(client: &LocalClient, names: &[String]) -> Result<(), ApiError> {
    let mut waiting = false;
    for name in names {
        if empty(client, name).await? {
            ignore_missing(client.finalize_namespace(name).await)?;
        } else {
            waiting = true;
        }
    }
    if waiting {
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
    Ok(())
}

/// Deletes what is in a namespace; true if nothing is left. The pods go first: while they run they need the rest, network policies
/// that protect them above all.
async fn empty(client: &LocalClient, namespace: &str) -> Result<bool, ApiError> {
    if !delete_all(client, ResourceKind::Pod, namespace).await? {
        return Ok(false);
    }
    let mut is_empty = true;
    for kind in ResourceKind::all().filter(|kind| kind.info().namespaced) {
        is_empty &= delete_all(client, kind, namespace).await?;
    }
    Ok(is_empty)
}

/// Deletes the objects of a kind; true if none is left.
async fn delete_all(client: &LocalClient, kind: ResourceKind, namespace: &str) -> Result<bool, ApiError> {
    let mut are_gone = true;
    let (objects, _) = client.list(kind, Some(namespace)).await?;
    for object in objects {
        match client.delete(kind, &object).await {
            Ok(Deletion::Removed) => {}
            Ok(Deletion::Marked) => are_gone = false,
            Err(error) => ignore_missing(Err(error))?,
        }
    }
    Ok(are_gone)
}

fn ignore_missing(result: Result<(), ApiError>) -> Result<(), ApiError> {
    match result {
        Err(error) if error.reason == StatusReason::NotFound => Ok(()),
        other => other,
    }
}
