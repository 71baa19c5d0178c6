//! Container events: how a runtime says that something changed.
//!
//! An event is a hint that carries what was known when it was made. The buffer of each receiver is bounded; one that
//! fell behind gets [`RuntimeEvent::Resync`] instead of what it missed, and lists. The same is published by a
//! runtime that lost its own source of events for a while.

use jiff::Timestamp;
use tokio::sync::broadcast;

use crate::{ContainerId, ContainerStatus, SandboxId};

/// Events kept for a receiver that is behind: some bursts of a full node (a thousand containers), few bytes each.
pub const EVENT_BUFFER: usize = 4096;

#[derive(Debug, Clone)]
pub enum RuntimeEvent {
    Container(ContainerEvent),
    /// Something may have been missed: list to learn what is true.
    Resync,
    /// Another program had removed or changed a part of the pods' network, which is as it should be again.
    NetworkRestored(NetworkPart),
}

/// A part of the pods' network that other programs of the machine can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NetworkPart {
    /// Rules for packets: ports of the host, masquerading, what pods must not reach.
    Firewall,
    /// Rules for packets: the addresses of services.
    Services,
    /// That the machine forwards for pods, and for no others.
    Forwarding,
    /// Settings of the pods' bridge.
    Bridge,
}

impl NetworkPart {
    pub const ALL: [Self; 4] = [Self::Firewall, Self::Services, Self::Forwarding, Self::Bridge];

    /// As logs and metrics name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Firewall => "firewall",
            Self::Services => "services",
            Self::Forwarding => "forwarding",
            Self::Bridge => "bridge",
        }
    }
}

#[derive(Debug, Clone)]
pub struct ContainerEvent {
    pub container: ContainerId,
    pub sandbox: SandboxId,
    pub kind: EventKind,
    pub at: Timestamp,
    /// The container as it was just after the change, where the runtime knows; `None` once it is deleted.
    pub status: Option<Box<ContainerStatus>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    Created,
    Started,
    Stopped,
    Deleted,
}

/// The sending side, for implementations of [`Runtime`](crate::Runtime).
#[derive(Debug, Clone)]
pub struct EventHub(broadcast::Sender<RuntimeEvent>);

impl EventHub {
    pub fn new() -> Self {
        Self(broadcast::Sender::new(EVENT_BUFFER))
    }

    /// Nobody listening is not an error.
    pub fn publish(&self, event: RuntimeEvent) {
        let _ = self.0.send(event);
    }

    pub fn subscribe(&self) -> Events {
        Events(self.0.subscribe())
    }
}

impl Default for EventHub {
    fn default() -> Self {
        Self::new()
    }
}

/// The receiving side.
#[derive(Debug)]
pub struct Events(broadcast::Receiver<RuntimeEvent>);

impl Events {
    /// The next event; `None` if the runtime is gone. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<RuntimeEvent> {
        match self.0.recv().await {
            Ok(event) => Some(event),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(RuntimeEvent::Resync),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_receiver_that_fell_behind_is_told_to_list() {
        let hub = EventHub::new();
        let mut events = hub.subscribe();
        let event = |n: usize| {
            RuntimeEvent::Container(ContainerEvent {
                container: ContainerId::new(n.to_string()),
                sandbox: SandboxId::new("s"),
                kind: EventKind::Created,
                at: Timestamp::UNIX_EPOCH,
                status: None,
            })
        };
        for n in 0..=EVENT_BUFFER {
            hub.publish(event(n));
        }
        assert!(matches!(events.next().await, Some(RuntimeEvent::Resync)));
        assert!(
            matches!(events.next().await, Some(RuntimeEvent::Container(e)) if e.container.as_str() == "1")
        );
        drop(hub);
        while events.next().await.is_some() {}
    }
}
