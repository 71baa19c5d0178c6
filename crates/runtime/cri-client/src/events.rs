//! When to look: the server's own events where it has some, else by the clock, quickly while something is going on.
//!
//! An event is only a hint to look; what is published is the difference between two looks. So all servers are served by
//! the same code, and an event that comes early, late, twice or never does no harm.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prost::Message as _;
use pulselet_runtime::RuntimeEvent;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Response, Status, Streaming};

use crate::connection::Connection;
use crate::table::Table;
use crate::wire::{containerd, v1};

/// Between looks while something changes. containerd reports an exit some milliseconds before it can be listed.
const QUICK: Duration = Duration::from_millis(50);
/// How long after a change, a hint or an order of ours more is expected.
const QUICK_FOR: Duration = Duration::from_secs(2);
/// Between looks when nothing is expected and nobody tells, as a kubelet relists.
const SLOW: Duration = Duration::from_secs(1);
/// The same where events tell: for what they may have missed.
const SLOW_WITH_EVENTS: Duration = Duration::from_secs(10);
/// Hints that come within this time are one.
const SETTLE: Duration = Duration::from_millis(5);
/// Waits of a server that is away double between these.
const MIN_RETRY: Duration = Duration::from_millis(100);
const MAX_RETRY: Duration = Duration::from_secs(5);
/// A server without events may have been replaced by one with.
const NO_EVENTS_RETRY: Duration = Duration::from_mins(1);
/// A subscription that was not refused for this long stands; servers send nothing before the first event.
const STANDS_AFTER: Duration = Duration::from_secs(1);

/// What containerd is asked for: the tasks of its CRI service.
const CONTAINERD_FILTERS: [&str; 3] = [
    "namespace==k8s.io,topic==\"/tasks/start\"",
    "namespace==k8s.io,topic==\"/tasks/exit\"",
    "namespace==k8s.io,topic==\"/tasks/delete\"",
];
const TASK_EXIT: &str = "/tasks/exit";

#[derive(Debug)]
pub(crate) struct Watch {
    table: Arc<Table>,
    connection: Connection,
    hint: Notify,
    quick_until: Mutex<Option<Instant>>,
    /// A subscription stands.
    told: AtomicBool,
}

/// Why a subscription is over.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// The server has no such thing.
    Unsupported,
    Broken,
}

impl Watch {
    pub(crate) fn new(table: Arc<Table>, connection: Connection) -> Self {
        Self {
            table,
            connection,
            hint: Notify::new(),
            quick_until: Mutex::default(),
            told: AtomicBool::new(false),
        }
    }

    /// Something of ours is about to change, or has.
    pub(crate) fn expect_change(&self) {
        *self.quick_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + QUICK_FOR);
        self.hint.notify_one();
    }

    /// Looks, for ever.
    pub(crate) async fn look(self: Arc<Self>) {
        let mut changes = self.table.hub.subscribe();
        let mut away = None;
        loop {
            match self.table.refresh().await {
                Ok(_) => {
                    if away.take().is_some() {
                        tracing::info!("the container runtime answers again");
                        self.table.hub.publish(RuntimeEvent::Resync);
                    }
                    if timeout(Duration::ZERO, changes.next()).await.is_ok() {
                        self.expect_more();
                    }
                    // Hints that came while it looked are as good as new: the state they tell of may be newer.
                    tokio::select! {
                        () = sleep(self.pause()) => {}
                        () = self.hint.notified() => sleep(SETTLE).await,
                    }
                }
                Err(error) => {
                    if away.is_none() {
                        tracing::warn!(%error, "the container runtime does not answer; what runs there runs on");
                    }
                    let wait = away.map_or(MIN_RETRY, |wait: Duration| (wait * 2).min(MAX_RETRY));
                    away = Some(wait);
                    sleep(wait).await;
                }
            }
        }
    }

    fn expect_more(&self) {
        *self.quick_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + QUICK_FOR);
    }

    fn pause(&self) -> Duration {
        let until = *self.quick_until.lock().unwrap_or_else(PoisonError::into_inner);
        if until.is_some_and(|until| Instant::now() < until) {
            QUICK
        } else if self.told.load(Ordering::Relaxed) {
            SLOW_WITH_EVENTS
        } else {
            SLOW
        }
    }

    /// Takes hints, for ever, from the best source there is.
    pub(crate) async fn listen(self: Arc<Self>) {
        let mut wait = MIN_RETRY;
        loop {
            let began = Instant::now();
            let mut ended = self.follow_cri().await;
            if ended == Ended::Unsupported {
                ended = self.follow_containerd().await;
            }
            self.told.store(false, Ordering::Relaxed);
            self.hint.notify_one();
            wait = match ended {
                Ended::Unsupported => NO_EVENTS_RETRY,
                Ended::Broken if began.elapsed() > STANDS_AFTER => MIN_RETRY,
                Ended::Broken => (wait * 2).min(MAX_RETRY),
            };
            sleep(wait).await;
        }
    }

    async fn follow_cri(&self) -> Ended {
        let mut client = self.connection.runtime();
        let stream = client.get_container_events(v1::GetEventsRequest::default());
        self.follow(stream, |_| true).await
    }

    async fn follow_containerd(&self) -> Ended {
        let mut client = self.connection.containerd_events();
        let filters = CONTAINERD_FILTERS.map(str::to_owned).to_vec();
        let stream = client.subscribe(containerd::SubscribeRequest { filters });
        self.follow(stream, |envelope| !is_exit_of_command(envelope))
            .await
    }

    async fn follow<T>(
        &self,
        subscription: impl Future<Output = Result<Response<Streaming<T>>, Status>>,
        concerns_us: impl Fn(&T) -> bool,
    ) -> Ended {
        let mut subscription = Box::pin(subscription);
        let answered = if let Ok(answered) = timeout(STANDS_AFTER, &mut subscription).await {
            answered
        } else {
            self.told.store(true, Ordering::Relaxed);
            subscription.await
        };
        let mut stream = match answered {
            Ok(response) => response.into_inner(),
            Err(status) if status.code() == Code::Unimplemented => return Ended::Unsupported,
            Err(_) => return Ended::Broken,
        };
        while let Ok(Some(event)) = stream.message().await {
            self.told.store(true, Ordering::Relaxed);
            if concerns_us(&event) {
                self.expect_change();
            }
        }
        Ended::Broken
    }
}

/// Commands are tasks to containerd, too; each probe would be a hint.
fn is_exit_of_command(envelope: &containerd::Envelope) -> bool {
    if envelope.topic != TASK_EXIT {
        return false;
    }
    let exit = envelope.event.as_ref();
    let exit = exit.and_then(|event| containerd::TaskExit::decode(event.value.as_slice()).ok());
    exit.is_some_and(|exit| exit.id != exit.container_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exits_of_containers_are_hints() {
        let envelope = |topic: &str, id: &str| {
            let exit = containerd::TaskExit {
                container_id: "c".into(),
                id: id.into(),
            };
            containerd::Envelope {
                topic: topic.into(),
                event: Some(containerd::Any {
                    value: exit.encode_to_vec(),
                }),
            }
        };
        assert!(!is_exit_of_command(&envelope(TASK_EXIT, "c")));
        assert!(is_exit_of_command(&envelope(TASK_EXIT, "exec-1")));
        assert!(!is_exit_of_command(&envelope("/tasks/start", "exec-1")));
        let mut empty = envelope(TASK_EXIT, "exec-1");
        empty.event = None;
        assert!(!is_exit_of_command(&empty));
    }
}
