//! Events of the controllers, and old events of anybody: one that nobody has seen again for a while is removed.

use std::time::Duration;

use jiff::Timestamp;
use pulselet_apiserver::{ApiError, LocalClient, Object, ResourceKind, StatusReason, timestamp};
use serde_json::json;

/// How long events are kept, as upstream has it.
const EVENT_LIFETIME: Duration = Duration::from_hours(1);
/// The time between looks for events that are too old.
const LOOK_INTERVAL: Duration = Duration::from_mins(5);

/// Events that are held at once: there may be very many, and all of them are looked at.
const PAGE: usize = 200;

/// Runs until it is dropped.
pub(crate) async fn run(client: LocalClient) {
    let mut ticks = tokio::time::interval(LOOK_INTERVAL);
    loop {
        ticks.tick().await;
        if let Err(error) = remove_before(&client, Timestamp::now() - EVENT_LIFETIME).await {
            tracing::warn!(%error, "the event controller could not remove old events");
        }
    }
}

async fn remove_before(client: &LocalClient, limit: Timestamp) -> Result<(), ApiError> {
    let mut after = None;
    loop {
        let (events, next) = client.page(ResourceKind::Event, after, PAGE).await?;
        for event in events {
            if last_seen(&event).is_some_and(|last| last < limit) {
                match client.delete_unchanged(ResourceKind::Event, &event).await {
                    // The event was seen again meanwhile, or it is gone already.
                    Err(error) if matches!(error.reason, StatusReason::Conflict | StatusReason::NotFound) => {
                    }
                    other => drop(other?),
                }
            }
        }
        if next.is_none() {
            return Ok(());
        }
        after = next;
    }
}

/// What a controller reports about a Pod.
pub(crate) struct ControllerEvent<'a> {
    /// Who reports it, as upstream's part calls itself.
    pub(crate) component: &'static str,
    /// Normal or Warning.
    pub(crate) kind: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) message: &'a str,
}

/// Stores an event about a Pod. A failure loses nothing that matters.
pub(crate) async fn record_event(client: &LocalClient, pod: &Object, event: &ControllerEvent<'_>) {
    let now = Timestamp::now();
    let object = json!({
        "metadata": {
            "name": format!("{}.{:x}", pod.name(), now.as_nanosecond()),
            "namespace": pod.namespace(),
        },
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace(),
            "name": pod.name(),
            "uid": pod.uid(),
        },
        "type": event.kind,
        "reason": event.reason,
        "message": event.message,
        "source": {"component": event.component},
        "reportingComponent": event.component,
        "reportingInstance": "",
        "firstTimestamp": timestamp(now),
        "lastTimestamp": timestamp(now),
        "count": 1,
    });
    let object = Object::new(object).expect("a literal object");
    if let Err(error) = client.ensure(ResourceKind::Event, object).await {
        tracing::debug!(%error, reason = event.reason, "a controller could not store an event");
    }
}

/// When an event last happened; `None` if it does not say.
fn last_seen(event: &Object) -> Option<Timestamp> {
    let times = [
        "/series/lastObservedTime",
        "/lastTimestamp",
        "/eventTime",
        "/metadata/creationTimestamp",
    ];
    times
        .into_iter()
        .filter_map(|pointer| event.text(pointer).parse().ok())
        .max()
}

#[cfg(test)]
mod tests {
    use pulselet_apiserver::{Config, Server};
    use serde_json::json;

    use super::*;

    #[test]
    fn the_latest_of_an_events_times_counts() {
        let event = |value| Object::new(value).expect("an object");
        let created = json!({"creationTimestamp": "2024-01-01T00:00:00Z"});
        let seen =
            event(json!({"metadata": created, "lastTimestamp": "2024-01-01T02:00:00Z", "eventTime": null}));
        assert_eq!(last_seen(&seen), "2024-01-01T02:00:00Z".parse().ok());
        let only_created = event(json!({"metadata": created}));
        assert_eq!(last_seen(&only_created), "2024-01-01T00:00:00Z".parse().ok());
        assert_eq!(last_seen(&event(json!({"lastTimestamp": "yesterday"}))), None);
    }

    #[tokio::test]
    async fn old_events_are_removed_however_many_there_are() {
        let directory = tempfile::tempdir().expect("a directory");
        let config = Config::new(([127, 0, 0, 1], 0).into(), directory.path());
        let server = Server::bind(config).await.expect("the server starts");
        let client = server.client();
        for number in 0..=2 * PAGE {
            let seen = if number == PAGE {
                "2124-01-01T00:00:00Z"
            } else {
                "2024-01-01T00:00:00Z"
            };
            let event = json!({
                "metadata": {"name": format!("e{number}"), "namespace": "default"},
                "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
                "lastTimestamp": seen,
            });
            let event = Object::new(event).expect("an object");
            client.ensure(ResourceKind::Event, event).await.expect("creates");
        }
        let tomorrow = Timestamp::now() + Duration::from_hours(24);
        remove_before(&client, tomorrow).await.expect("removes");
        let (left, _) = client.list(ResourceKind::Event, None).await.expect("lists");
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].name(), format!("e{PAGE}"));
    }
}
