//! What the server does by itself: the namespaces it starts with, emptying namespaces that end, forgetting old events,
//! noticing nodes that have gone silent.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use crate::registry::object::Object;
use crate::registry::resource::{ObjectPath, ResourceKind};
use crate::registry::{Registry, SYSTEM_NAMESPACES};
use crate::rest::query::DeleteOptions;
use crate::rest::status::{ApiError, StatusReason};

/// How long events are kept, as upstream has it.
const EVENT_LIFETIME: Duration = Duration::from_hours(1);
/// Between looks for events that are too old.
const EVENT_INTERVAL: Duration = Duration::from_mins(5);
/// Between looks at namespaces that cannot end yet because of what is in them.
const NAMESPACE_INTERVAL: Duration = Duration::from_secs(1);
/// After a failure of the store.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Creates the namespaces that every cluster has.
pub(super) async fn bootstrap(registry: &Registry) -> Result<(), ApiError> {
    for name in SYSTEM_NAMESPACES {
        let namespace = Object::new(json!({"metadata": {"name": name}})).expect("a literal object");
        registry.ensure(ResourceKind::Namespace, namespace).await?;
        registry.ensure_service_account(name).await?;
    }
    Ok(())
}

/// Runs until it is dropped.
pub(super) async fn run(registry: Registry) {
    tokio::join!(
        end_namespaces(&registry),
        forget_events(&registry),
        super::staleness::run(&registry)
    );
}

/// Empties namespaces whose end has begun and lets them go.
async fn end_namespaces(registry: &Registry) {
    loop {
        let waited = match wait_for_ending(registry).await {
            Ok(names) => end_all(registry, &names).await,
            Err(error) => Err(error),
        };
        if let Err(error) = waited {
            tracing::warn!(%error, "namespaces that end could not be looked after");
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

/// The names of namespaces that are ending, as soon as there are any.
async fn wait_for_ending(registry: &Registry) -> Result<Vec<String>, ApiError> {
    loop {
        let (namespaces, revision) = registry.all(ResourceKind::Namespace, None).await?;
        let ending: Vec<String> = namespaces
            .iter()
            .filter(|namespace| namespace.is_deleting())
            .map(|namespace| namespace.name().to_owned())
            .collect();
        if !ending.is_empty() {
            return Ok(ending);
        }
        let mut watch = registry.watch(ResourceKind::Namespace, None, revision).await?;
        watch.next().await?;
    }
}

async fn end_all(registry: &Registry, names: &[String]) -> Result<(), ApiError> {
    let mut waiting = false;
    for name in names {
        if empty(registry, name).await? {
            ignore_missing(registry.finalize_namespace(name).await)?;
        } else {
            waiting = true;
        }
    }
    if waiting {
        tokio::time::sleep(NAMESPACE_INTERVAL).await;
    }
    Ok(())
}

/// Deletes what is in a namespace; true when nothing is left.
async fn empty(registry: &Registry, namespace: &str) -> Result<bool, ApiError> {
    let mut left = 0;
    for kind in ResourceKind::ALL
        .into_iter()
        .filter(|kind| kind.info().namespaced)
    {
        let (objects, _) = registry.all(kind, Some(namespace)).await?;
        for object in objects {
            let path = ObjectPath::stored(kind, Some(namespace), object.name());
            match registry.delete(&path, &DeleteOptions::default()).await {
                Ok(deleted) => left += usize::from(!deleted.gone),
                Err(error) => ignore_missing(Err(error))?,
            }
        }
    }
    Ok(left == 0)
}

fn ignore_missing(result: Result<(), ApiError>) -> Result<(), ApiError> {
    match result {
        Err(error) if error.reason == StatusReason::NotFound => Ok(()),
        other => other,
    }
}

async fn forget_events(registry: &Registry) {
    let mut ticks = tokio::time::interval(EVENT_INTERVAL);
    loop {
        ticks.tick().await;
        if let Err(error) = forget_events_before(registry, Timestamp::now() - EVENT_LIFETIME).await {
            tracing::warn!(%error, "old events could not be removed");
        }
    }
}

async fn forget_events_before(registry: &Registry, limit: Timestamp) -> Result<(), ApiError> {
    let (events, _) = registry.all(ResourceKind::Event, None).await?;
    for event in events {
        let last = [
            "/series/lastObservedTime",
            "/lastTimestamp",
            "/eventTime",
            "/metadata/creationTimestamp",
        ]
        .into_iter()
        .filter_map(|pointer| event.text(pointer).parse::<Timestamp>().ok())
        .max();
        if last.is_some_and(|last| last < limit) {
            let path = ObjectPath::stored(ResourceKind::Event, Some(event.namespace()), event.name());
            let options = DeleteOptions {
                precondition_version: Some(event.resource_version().to_owned()),
                ..DeleteOptions::default()
            };
            match registry.delete(&path, &options).await {
                // Seen again meanwhile, or gone already.
                Err(error) if matches!(error.reason, StatusReason::Conflict | StatusReason::NotFound) => {}
                other => drop(other?),
            }
        }
    }
    Ok(())
}
