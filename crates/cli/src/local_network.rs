//! Services and names on a machine that is a cluster of its own: wires what an API or an agent knows to the pods' network.
//!
//! Only `serve` and `run` have it. A node of someone else's API leaves both to the cluster, and takes away what a `serve`
//! of the same directory left.

use std::time::Duration;

use pulselet_apiserver::{ApiError, LocalClient, Object, ObjectChange, ResourceKind};
use pulselet_model::Pod;
use pulselet_runtime_oci::PodNetwork;
use pulselet_services::{ServiceCatalog, keep_routes};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long it takes until the API is read again after a watch has been lost.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Where services and names come from.
#[derive(Debug)]
pub(crate) enum ServiceSource {
    /// Whoever runs the cluster.
    Others,
    /// The API of this process.
    Api(LocalClient),
}

/// What keeps services and names true until it is dropped. The rules for packets stay, as the pods do.
#[derive(Debug)]
pub(crate) struct LocalNetwork {
    _tasks: JoinSet<()>,
}

impl LocalNetwork {
    /// `network` is `None` if others make it: then they have its services too.
    pub(crate) async fn start(source: ServiceSource, network: Option<PodNetwork>, node: &str) -> Self {
        let mut tasks = JoinSet::new();
        match (source, network) {
            (ServiceSource::Others, Some(network)) => forget_services(network).await,
            (ServiceSource::Api(client), Some(network)) => {
                let catalog = watch::Sender::new(ServiceCatalog::default());
                let set = move |routes| network.set_services(routes);
                tasks.spawn(keep_routes(catalog.subscribe(), node.to_owned(), set));
                tasks.spawn(follow_api(client, catalog));
            }
            (ServiceSource::Others | ServiceSource::Api(_), None) => {}
        }
        Self { _tasks: tasks }
    }
}

/// Takes away the rules that a `serve` of the same directory left.
async fn forget_services(network: PodNetwork) {
    let removed = tokio::task::spawn_blocking(move || network.set_services(Vec::new())).await;
    if let Ok(Err(error)) = removed {
        tracing::warn!(%error, "rules for services that an earlier agent made are still there");
    }
}

/// Keeps the catalog as the API's objects are.
async fn follow_api(client: LocalClient, catalog: watch::Sender<ServiceCatalog>) {
    let _acting = client.act_on_services();
    loop {
        if let Err(error) = follow(&client, &catalog).await {
            tracing::warn!(%error, "services are read again: their changes cannot be followed");
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Follows the API until a watch cannot go on.
async fn follow(client: &LocalClient, catalog: &watch::Sender<ServiceCatalog>) -> Result<(), ApiError> {
    let mut read = ServiceCatalog::default();
    let mut start = async |kind: ResourceKind, note: Note| {
        let (objects, revision) = client.list(kind, None).await?;
        for object in &objects {
            note(&mut read, object.namespace(), object.name(), Some(object));
        }
        client.watch(kind, revision).await
    };
    let mut services = start(ResourceKind::SERVICE, note_service).await?;
    let mut slices = start(ResourceKind::ENDPOINT_SLICE, note_slice).await?;
    let mut endpoints = start(ResourceKind::ENDPOINTS, note_endpoints).await?;
    let mut pods = start(ResourceKind::Pod, note_pod).await?;
    catalog.send_replace(read);
    loop {
        let (changes, note) = tokio::select! {
            changes = services.next() => (changes?, note_service as Note),
            changes = slices.next() => (changes?, note_slice as Note),
            changes = endpoints.next() => (changes?, note_endpoints as Note),
            changes = pods.next() => (changes?, note_pod as Note),
        };
        catalog.send_if_modified(|catalog| {
            let before = catalog.clone();
            for change in &changes {
                if let Some((namespace, name)) = place(change) {
                    note(catalog, namespace, name, change.object.as_ref());
                }
            }
            *catalog != before
        });
    }
}

/// Puts an object of a kind into the catalog, or takes out one that is gone.
type Note = fn(&mut ServiceCatalog, &str, &str, Option<&Object>);

/// Namespace and name, of the end of a key of the store.
fn place(change: &ObjectChange) -> Option<(&str, &str)> {
    let (rest, name) = change.key.rsplit_once('/')?;
    Some((rest.rsplit_once('/')?.1, name))
}

/// An object that cannot be read leads nowhere.
fn typed<T: DeserializeOwned>(object: Option<&Object>) -> Option<T> {
    serde_json::from_value(object?.value().clone()).ok()
}

fn note_service(catalog: &mut ServiceCatalog, namespace: &str, name: &str, object: Option<&Object>) {
    match typed(object) {
        Some(service) => catalog.set_service(&service),
        None => catalog.remove_service(namespace, name),
    }
}

fn note_slice(catalog: &mut ServiceCatalog, namespace: &str, name: &str, object: Option<&Object>) {
    match typed(object) {
        Some(slice) => catalog.set_slice(&slice),
        None => catalog.remove_slice(namespace, name),
    }
}

fn note_endpoints(catalog: &mut ServiceCatalog, namespace: &str, name: &str, object: Option<&Object>) {
    match typed(object) {
        Some(endpoints) => catalog.set_endpoints(&endpoints),
        None => catalog.remove_endpoints(namespace, name),
    }
}

fn note_pod(catalog: &mut ServiceCatalog, namespace: &str, name: &str, object: Option<&Object>) {
    match typed::<Pod>(object) {
        Some(pod) => catalog.set_pod(&pod),
        None => catalog.remove_pod(namespace, name),
    }
}
