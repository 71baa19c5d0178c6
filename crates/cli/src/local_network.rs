//! Services and names on a machine that is a cluster of its own: wires what an API or an agent knows to the pods' network.
//!
//! Only `serve` and `run` have it. A node of someone else's API leaves both to the cluster, and takes away what a `serve`
//! of the same directory left.

use std::net::IpAddr;
use std::time::Duration;

use pulselet_agent::{Feed, NodeHandle};
use pulselet_apiserver::{ApiError, LocalClient, Object, ObjectChange, ResourceKind};
use pulselet_model::Pod;
use pulselet_plan::duties::ClusterDns;
use pulselet_runtime_oci::PodNetwork;
use pulselet_services::{NameServer, NameSource, ServiceCatalog, Upstream, keep_routes};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;

const DNS_PORT: u16 = 53;
/// How long further changes of pods are waited for: a pod that starts changes several times.
const GATHER: Duration = Duration::from_millis(20);
/// How long it takes until the API is read again after a watch has been lost.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Where services and names come from.
#[derive(Debug)]
pub(crate) enum ServiceSource {
    /// Whoever runs the cluster.
    Others,
    /// The pods of this agent: there are no services.
    Pods(Feed),
    /// The API of this process.
    Api(LocalClient),
}

/// What keeps services and names true until it is dropped. The rules for packets stay, as the pods do.
#[derive(Debug)]
pub(crate) struct LocalNetwork {
    tasks: JoinSet<()>,
    /// The agent's own pods are to be followed, once it runs.
    pods: Option<(Feed, watch::Sender<ServiceCatalog>)>,
}

impl LocalNetwork {
    /// `network` is `None` if others make it: then they have its services and names too. A resolver that comes to be is added to
    /// `dns`, for the pods.
    pub(crate) async fn start(
        source: ServiceSource,
        network: Option<PodNetwork>,
        node: &str,
        dns: &mut ClusterDns,
    ) -> Self {
        let mut local = Self {
            tasks: JoinSet::new(),
            pods: None,
        };
        let Some(network) = network else {
            return local;
        };
        let catalog = watch::Sender::new(ServiceCatalog::default());
        match source {
            ServiceSource::Others => forget_services(network).await,
            ServiceSource::Pods(feed) => {
                local.serve_names(&network, &catalog, dns);
                local.pods = Some((feed, catalog));
                forget_services(network).await;
            }
            ServiceSource::Api(client) => {
                local.serve_names(&network, &catalog, dns);
                let set = move |routes| network.set_services(routes);
                let routes = keep_routes(catalog.subscribe(), node.to_owned(), set);
                local.tasks.spawn(routes);
                local.tasks.spawn(follow_api(client, catalog));
            }
        }
        local
    }

    /// Follows the pods of an agent that runs.
    pub(crate) fn follow_pods(&mut self, node: &NodeHandle) {
        if let Some((feed, catalog)) = self.pods.take() {
            self.tasks.spawn(follow_agent(node.clone(), feed, catalog));
        }
    }

    /// Answers pods at the bridge's address, unless they were given another resolver.
    fn serve_names(
        &mut self,
        network: &PodNetwork,
        catalog: &watch::Sender<ServiceCatalog>,
        dns: &mut ClusterDns,
    ) {
        if !dns.servers.is_empty() {
            return;
        }
        let gateway = network.gateway();
        let server = match NameServer::bind(gateway, DNS_PORT) {
            Ok(server) => server,
            Err(error) => {
                tracing::warn!(
                    address = %gateway,
                    %error,
                    "pods do not find each other by name and have the machine's resolver: port 53 of the bridge cannot be \
                     listened at; see what listens there with `ss -lnp sport = 53`"
                );
                return;
            }
        };
        dns.servers.push(gateway.into());
        let network = network.clone();
        let source = NameSource {
            catalog: catalog.subscribe(),
            domain: dns.domain.trim_end_matches('.').to_ascii_lowercase(),
            upstream: Upstream::of_machine(gateway),
            admits: Box::new(move |client| match client {
                IpAddr::V4(client) => network.contains(client),
                IpAddr::V6(_) => false,
            }),
        };
        self.tasks.spawn(server.serve(source));
    }
}

/// Keeps the catalog as the agent's pods are, until it ends.
async fn follow_agent(node: NodeHandle, feed: Feed, catalog: watch::Sender<ServiceCatalog>) {
    let mut revisions = feed.revisions();
    loop {
        revisions.mark_unchanged();
        let Ok(pods) = node.objects().await else {
            return;
        };
        let mut read = ServiceCatalog::default();
        for pod in &pods {
            read.set_pod(pod);
        }
        catalog.send_replace(read);
        if revisions.changed().await.is_err() {
            return;
        }
        tokio::time::sleep(GATHER).await;
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
