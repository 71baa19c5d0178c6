//! Events, for kubelets that would rather be told than ask (evented PLEG).
//!
//! An event carries the whole pod as it was when the event was sent, because that is what a kubelet puts into its cache. A
//! client that is too slow loses its stream, and asks: the same as with a server that was restarted.

use futures_util::stream;
use pulselet_cri_wire::v1;
use pulselet_runtime::{ContainerFilter, EventKind, RuntimeEvent, SandboxId};
use tokio::sync::broadcast;
use tonic::Status;
use tonic::codegen::BoxStream;

use crate::answer;
use crate::service::Service;

/// Events of sandboxes kept for a client that is behind.
pub(crate) const SANDBOX_EVENTS: usize = 1024;

/// What happened to a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SandboxChange {
    Started,
    Stopped,
    Removed,
}

#[derive(Debug, Clone)]
pub(crate) struct SandboxEvent {
    sandbox: SandboxId,
    change: SandboxChange,
}

/// What a client is sent before the pod is looked up.
struct Change {
    /// A container, or the sandbox itself: in CRI its id counts as one.
    id: String,
    kind: v1::ContainerEventType,
    sandbox: SandboxId,
}

impl Service {
    /// Nobody listening is not an error.
    pub(crate) fn tell(&self, sandbox: &SandboxId, change: SandboxChange) {
        let _ = self.0.sandbox_events.send(SandboxEvent {
            sandbox: sandbox.clone(),
            change,
        });
    }

    /// All events from now on.
    pub(crate) fn follow_events(&self) -> BoxStream<v1::ContainerEventResponse> {
        let containers = self.runtime().events();
        let sandboxes = self.0.sandbox_events.subscribe();
        let begun = (self.clone(), containers, sandboxes);
        Box::pin(stream::unfold(Some(begun), async move |state| {
            let (service, mut containers, mut sandboxes) = state?;
            loop {
                let change = tokio::select! {
                    event = containers.next() => of_container(event),
                    event = sandboxes.recv() => of_sandbox(event),
                };
                match change {
                    Ok(Some(change)) => {
                        let event = service.complete(change).await;
                        return Some((Ok(event), Some((service, containers, sandboxes))));
                    }
                    Ok(None) => {}
                    Err(status) => return Some((Err(status), None)),
                }
            }
        }))
    }

    /// Adds the pod as it is now. One that is gone is left out.
    async fn complete(&self, change: Change) -> v1::ContainerEventResponse {
        let sandbox = self.sandbox(change.sandbox.as_str()).await.ok();
        let filter = ContainerFilter {
            sandbox: Some(change.sandbox),
            pod_uid: None,
        };
        let containers = self.containers(&filter).await.unwrap_or_default();
        let statuses = containers
            .iter()
            .map(|container| answer::container_status(container, None));
        v1::ContainerEventResponse {
            container_id: change.id,
            container_event_type: change.kind.into(),
            created_at: answer::now(),
            pod_sandbox_status: sandbox.as_ref().map(answer::sandbox_status),
            containers_statuses: statuses.collect(),
        }
    }
}

/// Returns `None` for what no client is told.
fn of_container(event: Option<RuntimeEvent>) -> Result<Option<Change>, Status> {
    let event = match event {
        Some(RuntimeEvent::Container(event)) => event,
        Some(RuntimeEvent::Resync) => {
            return Err(Status::aborted("events were missed: list, and listen again"));
        }
        Some(RuntimeEvent::NetworkRestored(_)) => return Ok(None),
        None => return Err(Status::unavailable("the runtime is gone")),
    };
    Ok(Some(Change {
        id: event.container.to_string(),
        kind: match event.kind {
            EventKind::Created => v1::ContainerEventType::ContainerCreatedEvent,
            EventKind::Started => v1::ContainerEventType::ContainerStartedEvent,
            EventKind::Stopped => v1::ContainerEventType::ContainerStoppedEvent,
            EventKind::Deleted => v1::ContainerEventType::ContainerDeletedEvent,
        },
        sandbox: event.sandbox,
    }))
}

fn of_sandbox(event: Result<SandboxEvent, broadcast::error::RecvError>) -> Result<Option<Change>, Status> {
    let SandboxEvent { sandbox, change } = match event {
        Ok(event) => event,
        Err(broadcast::error::RecvError::Lagged(_)) => {
            return Err(Status::aborted("events were missed: list, and listen again"));
        }
        Err(broadcast::error::RecvError::Closed) => return Err(Status::unavailable("the server ends")),
    };
    Ok(Some(Change {
        id: sandbox.to_string(),
        kind: match change {
            SandboxChange::Started => v1::ContainerEventType::ContainerStartedEvent,
            SandboxChange::Stopped => v1::ContainerEventType::ContainerStoppedEvent,
            SandboxChange::Removed => v1::ContainerEventType::ContainerDeletedEvent,
        },
        sandbox,
    }))
}
