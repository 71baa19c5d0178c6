//! A node as a client of a Kubernetes API server, ours or another.
//!
//! [`join`] begins and returns at once. From then on the Node object and its lease are kept, the pods that the API
//! binds to the node are handed to it, what becomes of them is reported, static pods are shown as mirrors, services are
//! known, and so is when a config map or secret of a volume changes.
//! [`PodObserver`] is for others who only look at the pods of a namespace.
//!
//! What must always hold: while the API is away the node goes on as it is, and what it has to say is said when the
//! API is back; no pod is ended because the API did not answer; a request concerns the very pod it was decided for,
//! by its uid; whatever waits is bounded by the number of pods or by a named limit.
//!
//! Left to others: running pods (`node`), the rules about them (`api`), and who may do what (the server).

mod backoff;
mod bootstrap;
mod caller_reviews;
mod client;
mod decide;
mod events;
mod exec_credential;
mod kubeconfig;
mod lease;
mod machine;
mod mirror;
mod object_watches;
mod objects;
mod observer;
mod paths;
mod pods;
mod registration;
mod selection;
mod services;
mod status;
mod store_memory;
mod watch;

use pulselet_agent::{Feed, NodeHandle};
use tokio::sync::{mpsc, watch as value};
use tokio::task::JoinSet;

pub use bootstrap::{
    BootstrapError, CertificateSubject, IssuedCertificate, bootstrap, renew_client, renew_serving,
};
pub use caller_reviews::{CallerReviews, ReviewedUser};
pub use client::{ApiClient, ApiClientError};
pub use exec_credential::ExecCredentialError;
pub use kubeconfig::{Kubeconfig, KubeconfigError};
pub use machine::Machine;
pub use objects::ApiObjects;
pub use observer::{
    ObservedEvent, ObservedEventMeta, ObservedEventSeries, ObservedEventSubject, ObservedLog,
    ObservedLogLine, ObservedNamespace, PodObserver,
};
pub use store_memory::STORE_MEMORY;
pub use watch::Seen;

use self::events::Poster;
use self::pods::Pods;
use self::registration::Registration;
use self::store_memory::StoreMemory;
use self::watch::Followed;

/// A node that is joined to an API, until this is dropped.
#[derive(Debug)]
pub struct Joined {
    _tasks: JoinSet<()>,
}

/// Joins a node to an API. The feed and the objects are those the node was started with, and the name in the machine's
/// facts is the one the node goes by.
pub fn join(
    client: &ApiClient,
    node: NodeHandle,
    feed: Feed,
    objects: &ApiObjects,
    machine: Machine,
) -> Joined {
    let name = machine.facts.name.clone();
    let (known, registered) = value::channel(None);
    let memory = StoreMemory::new(&machine.data_dir);
    let (seen, changes) = mpsc::channel(watch::BACKLOG);
    let (posts, events) = mpsc::channel(events::QUEUE);
    let registrar = node.clone();
    let pods = Pods::new(client.clone(), node, feed, registered.clone(), posts);
    let mut tasks = JoinSet::new();
    tasks.spawn(Registration::new(client.clone(), machine, registrar, known).run());
    tasks.spawn(lease::renew(client.clone(), registered));
    tasks.spawn(watch::follow(
        client.clone(),
        Followed::pods_of(&name, memory),
        seen,
    ));
    let (seen, services) = mpsc::channel(watch::BACKLOG);
    tasks.spawn(watch::follow(client.clone(), Followed::services(), seen));
    tasks.spawn(objects.services.clone().follow(services));
    tasks.spawn(objects.watches.clone().run(client.clone()));
    tasks.spawn(Poster::new(client.clone(), name).run(events));
    tasks.spawn(pods.run(changes));
    Joined { _tasks: tasks }
}
