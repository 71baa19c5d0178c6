//! Controllers: what happens in a cluster without a request.
//!
//! Each of them is a loop that reads objects through the server's [`LocalClient`], decides, and changes objects through
//! it:
//!
//! - `scheduler` binds Pods to nodes, if it is asked to; `scheduler::placement` is its decision.
//! - `node_lifecycle` marks nodes that have gone silent.
//! - `namespaces` empties namespaces that are ending.
//! - `events` removes old events.
//!
//! What must always hold: a controller keeps nothing that it could not read again, so that it may begin anew at any
//! time; a failure is logged and tried again; a change that somebody else made first is theirs.
//!
//! What they leave to others: the rules for objects and their versions (`pulselet-apiserver`), and running Pods (a
//! node).

mod events;
mod namespaces;
mod node_lifecycle;
mod scheduler;

use std::time::Duration;

use pulselet_apiserver::LocalClient;
use tokio::task::JoinSet;

/// How long a controller waits after a failure of the store.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Which controllers run besides those that every server needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ControllerOptions {
    /// Bind Pods without a node to one; otherwise that is someone else's task.
    pub bind_pods: bool,
}

/// Running controllers. They end when this is dropped.
#[derive(Debug)]
pub struct Controllers {
    tasks: JoinSet<()>,
}

impl Controllers {
    /// Starts the controllers on the runtime of the caller.
    pub fn start(client: &LocalClient, options: ControllerOptions) -> Self {
        let mut tasks = JoinSet::new();
        tasks.spawn(namespaces::run(client.clone()));
        tasks.spawn(events::run(client.clone()));
        tasks.spawn(node_lifecycle::run(client.clone()));
        if options.bind_pods {
            tasks.spawn(scheduler::run(client.clone()));
        }
        Self { tasks }
    }

    /// Ends the controllers and waits until none of them uses the store any more.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}
