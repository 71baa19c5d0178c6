//! Controllers: what happens in a cluster without a request.
//!
//! Each of them is a loop that reads objects through the server's [`LocalClient`], decides, and changes objects through
//! it:
//!
//! - `scheduler` binds Pods to nodes, if it is asked to; `scheduler::placement` is its decision.
//! - `node_lifecycle` marks nodes that have gone silent.
//! - `namespaces` empties namespaces that are ending.
//! - `events` removes old events.
//! - `endpoints` says which Pods are behind a Service, if it is asked to.
//!
//! Where several servers share a store, one of them runs the controllers: `leadership` says which.
//!
//! What must always hold: a controller keeps nothing that it could not read again, so that it may begin anew at any
//! time; a failure is logged and tried again; a change that somebody else made first is theirs.
//!
//! What they leave to others: the rules for objects and their versions (`pulselet-apiserver`), and running Pods (a
//! node).

mod endpoints;
mod events;
mod leadership;
mod namespaces;
mod node_lifecycle;
mod scheduler;

use std::time::Duration;

use leadership::Candidate;
use pulselet_apiserver::LocalClient;
use tokio::task::JoinSet;

/// How long a controller waits after a failure of the store.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Which controllers run besides those that every server needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ControllerOptions {
    /// Bind Pods without a node to one; otherwise that is someone else's task.
    pub bind_pods: bool,
    /// Write the endpoints of Services that select Pods, while no kube-controller-manager does.
    pub write_endpoints: bool,
}

/// Running controllers. They end when this is dropped.
#[derive(Debug)]
pub struct Controllers {
    tasks: JoinSet<()>,
    /// `None` if no other server could run them.
    candidate: Option<Candidate>,
}

impl Controllers {
    /// Starts the controllers on the runtime of the caller.
    pub fn start(client: &LocalClient, options: ControllerOptions) -> Self {
        let mut tasks = JoinSet::new();
        let candidate = client
            .is_shared()
            .then(|| Candidate::new(client.clone(), options));
        match &candidate {
            Some(candidate) => {
                tasks.spawn(candidate.clone().run());
            }
            None => spawn_all(&mut tasks, client, options),
        }
        Self { tasks, candidate }
    }

    /// Ends the controllers and waits until none of them uses the store any more.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
        if let Some(candidate) = self.candidate {
            candidate.release().await;
        }
    }
}

fn spawn_all(tasks: &mut JoinSet<()>, client: &LocalClient, options: ControllerOptions) {
    tasks.spawn(namespaces::run(client.clone()));
    tasks.spawn(events::run(client.clone()));
    tasks.spawn(node_lifecycle::run(client.clone()));
    if options.bind_pods {
        tasks.spawn(scheduler::run(client.clone()));
    }
    if options.write_endpoints {
        tasks.spawn(endpoints::run(client.clone()));
    }
}
