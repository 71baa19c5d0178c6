//! Where the cluster's services are, as the node's containers are told.
//!
//! What the API says is kept here and in a file, so that a container that starts while the API is away is told what was
//! true last, also after a restart of the agent. Only a node that has never read the services has to wait for them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pulselet_agent::{ServiceFacts, ServicePortFacts};
use pulselet_model::openapi::api::core::v1::Service;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use crate::watch::Seen;

/// The service of the API itself, which every container is told of.
const OWN: (&str, &str) = ("default", "kubernetes");

/// Only the node needs the file.
const FILE_MODE: u32 = 0o600;

/// By namespace and name.
type Known = BTreeMap<(String, String), ServiceFacts>;

/// What is known of services; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct ServiceCache {
    /// `None` if they were never read.
    known: Arc<watch::Sender<Option<Known>>>,
    file: Option<PathBuf>,
}

/// A service in the file.
#[derive(Serialize, Deserialize)]
struct Kept {
    namespace: String,
    name: String,
    address: String,
    /// Name, number and protocol of each port.
    ports: Vec<(String, i32, String)>,
}

impl ServiceCache {
    /// Begins with what an earlier agent left in a file, if it is to be kept there.
    pub(crate) fn new(file: Option<PathBuf>) -> Self {
        let known = file.as_deref().and_then(load);
        Self {
            known: Arc::new(watch::Sender::new(known)),
            file,
        }
    }

    /// Waits until services are known: the API's own, and with `links` those of the namespace, which come first.
    pub(crate) async fn of(&self, namespace: &str, links: bool) -> Vec<ServiceFacts> {
        let mut known = self.known.subscribe();
        let Ok(known) = known.wait_for(Option::is_some).await else {
            return Vec::new();
        };
        let known = known.iter().flatten();
        let mut chosen: BTreeMap<&str, &ServiceFacts> = BTreeMap::new();
        for ((of, name), service) in known {
            let is_own = (of.as_str(), name.as_str()) == OWN;
            if of == namespace && links {
                chosen.insert(name, service);
            } else if is_own {
                chosen.entry(name).or_insert(service);
            }
        }
        chosen.into_values().cloned().collect()
    }

    /// Takes what a watch says, until it ends.
    pub(crate) async fn follow(self, mut seen: mpsc::Receiver<Seen<Service>>) {
        while let Some(seen) = seen.recv().await {
            let has_changed = self.known.send_if_modified(|known| {
                let before = known.clone();
                apply(known.get_or_insert_default(), seen);
                *known != before
            });
            if has_changed {
                self.keep();
            }
        }
    }

    fn keep(&self) {
        let Some(path) = &self.file else { return };
        let known = self.known.borrow().clone().unwrap_or_default();
        if let Err(error) = store(path, &known) {
            tracing::warn!(path = %path.display(), %error, "cannot keep where services are");
        }
    }
}

fn apply(known: &mut Known, seen: Seen<Service>) {
    match seen {
        Seen::Listed(services) => {
            *known = services.iter().filter_map(facts).collect();
        }
        Seen::Changed(service) => match facts(&service) {
            Some((key, service)) => {
                known.insert(key, service);
            }
            None => {
                known.remove(&key(&service));
            }
        },
        Seen::Gone(service) => {
            known.remove(&key(&service));
        }
    }
}

fn key(service: &Service) -> (String, String) {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    (text(&service.metadata.namespace), text(&service.metadata.name))
}

/// `None` if the service has no address of its own.
fn facts(service: &Service) -> Option<((String, String), ServiceFacts)> {
    let spec = service.spec.as_ref()?;
    let address = spec
        .cluster_ip
        .clone()
        .filter(|ip| !ip.is_empty() && ip != "None")?;
    let ports: Vec<_> = spec.ports.iter().flatten().map(port).collect();
    let key = key(service);
    let facts = ServiceFacts {
        name: key.1.clone(),
        address,
        ports,
    };
    (!facts.ports.is_empty()).then_some((key, facts))
}

fn port(port: &pulselet_model::openapi::api::core::v1::ServicePort) -> ServicePortFacts {
    ServicePortFacts {
        name: port.name.clone().unwrap_or_default(),
        number: port.port,
        protocol: port.protocol.as_deref().unwrap_or("TCP").to_uppercase(),
    }
}

/// `None` if there is no file that can be read: then the API is waited for.
fn load(path: &Path) -> Option<Known> {
    let kept: Vec<Kept> = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let restored = kept.into_iter().map(|kept| {
        let port = |(name, number, protocol)| ServicePortFacts {
            name,
            number,
            protocol,
        };
        let service = ServiceFacts {
            name: kept.name.clone(),
            address: kept.address,
            ports: kept.ports.into_iter().map(port).collect(),
        };
        ((kept.namespace, kept.name), service)
    });
    Some(restored.collect())
}

/// Replaces the file as a whole.
fn store(path: &Path, known: &Known) -> std::io::Result<()> {
    let kept: Vec<_> = known
        .iter()
        .map(|((namespace, name), service)| Kept {
            namespace: namespace.clone(),
            name: name.clone(),
            address: service.address.clone(),
            ports: service
                .ports
                .iter()
                .map(|port| (port.name.clone(), port.number, port.protocol.clone()))
                .collect(),
        })
        .collect();
    pulselet_durable::replace(path, &serde_json::to_vec(&kept)?, FILE_MODE)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(namespace: &str, name: &str, ip: &str) -> Service {
        serde_json::from_value(json!({
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"clusterIP": ip, "ports": [{"port": 443}]},
        }))
        .unwrap()
    }

    async fn names(cache: &ServiceCache, namespace: &str, links: bool) -> Vec<String> {
        let services = cache.of(namespace, links).await.into_iter();
        services.map(|it| format!("{}={}", it.name, it.address)).collect()
    }

    #[tokio::test]
    async fn every_container_is_told_of_the_api_and_with_links_of_its_namespace() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("services.json");
        let cache = ServiceCache::new(Some(file.clone()));
        let (sink, seen) = mpsc::channel(8);
        let task = tokio::spawn(cache.clone().follow(seen));
        let all = vec![
            service("default", "kubernetes", "10.0.0.1"),
            service("shop", "db", "10.0.0.2"),
            service("shop", "headless", "None"),
            service("other", "db", "10.0.0.3"),
        ];
        sink.send(Seen::Listed(all)).await.unwrap();
        assert_eq!(
            names(&cache, "shop", true).await,
            ["db=10.0.0.2", "kubernetes=10.0.0.1"]
        );
        assert_eq!(names(&cache, "shop", false).await, ["kubernetes=10.0.0.1"]);
        let own = service("shop", "kubernetes", "10.0.0.9");
        sink.send(Seen::Changed(Box::new(own))).await.unwrap();
        let gone = service("shop", "db", "10.0.0.2");
        sink.send(Seen::Gone(Box::new(gone))).await.unwrap();
        drop(sink);
        task.await.unwrap();
        assert_eq!(names(&cache, "shop", true).await, ["kubernetes=10.0.0.9"]);
        // The next agent knows without asking.
        let next = ServiceCache::new(Some(file));
        assert_eq!(names(&next, "shop", true).await, ["kubernetes=10.0.0.9"]);
        assert_eq!(names(&next, "default", false).await, ["kubernetes=10.0.0.1"]);
    }
}
