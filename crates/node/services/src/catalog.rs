//! What is known of services, of the endpoints behind them and of pods.
//!
//! The endpoints of a service are those of its `EndpointSlice`s; a service that has none has those of the `Endpoints` of its
//! name, which is how people write them by hand. An endpoint that is not ready is not there, unless whoever wrote it says
//! otherwise.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use pulselet_model::openapi::api::core::v1::{EndpointAddress, Endpoints, Service};
use pulselet_model::openapi::api::discovery::v1::EndpointSlice;
use pulselet_model::openapi::apimachinery::pkg::apis::meta::v1::Time;
use pulselet_model::{NODE_PORTS, Pod};
use pulselet_runtime::{BackendChoice, Protocol};

/// The label by which a slice names its service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Namespace and name.
pub(crate) type Key = (String, String);

/// Services, endpoints and pods, by namespace and name.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct ServiceCatalog {
    pub(crate) services: BTreeMap<Key, ServiceEntry>,
    slices: BTreeMap<Key, SliceEntry>,
    endpoints: BTreeMap<Key, Vec<EndpointGroup>>,
    pub(crate) pods: BTreeMap<Key, PodEntry>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServiceEntry {
    pub(crate) place: ServicePlace,
    pub(crate) ports: Vec<ServicePortEntry>,
    pub(crate) choice: BackendChoice,
    /// `None` if the object does not say.
    pub(crate) created: Option<Time>,
}

/// Where a service is found.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ServicePlace {
    Address(Ipv4Addr),
    /// At each of its endpoints.
    Headless,
    /// Under another name.
    Elsewhere(String),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServicePortEntry {
    pub(crate) name: String,
    pub(crate) protocol: Protocol,
    pub(crate) number: u16,
    pub(crate) node_port: Option<NodePortEntry>,
}

/// The node port that an object has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodePortEntry {
    Usable(u16),
    /// The Service's type has no node ports. The API rejects such objects, but an earlier build may have stored some.
    OfOtherType(i32),
    OutOfRange(i32),
}

#[derive(Debug, Clone, PartialEq)]
struct SliceEntry {
    service: String,
    group: EndpointGroup,
}

/// Endpoints with the same ports. Those that take no connections are left out.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct EndpointGroup {
    pub(crate) endpoints: Vec<EndpointEntry>,
    pub(crate) ports: Vec<EndpointPortEntry>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EndpointEntry {
    pub(crate) address: IpAddr,
    pub(crate) hostname: Option<String>,
    /// `None` if it may be anywhere.
    pub(crate) node: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EndpointPortEntry {
    pub(crate) name: String,
    pub(crate) protocol: Protocol,
    pub(crate) number: u16,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PodEntry {
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) hostname: String,
    pub(crate) subdomain: String,
    pub(crate) host_network: bool,
}

impl ServiceCatalog {
    pub fn set_service(&mut self, service: &Service) {
        let key = key(
            service.metadata.namespace.as_ref(),
            service.metadata.name.as_ref(),
        );
        match ServiceEntry::new(service) {
            Some(entry) => self.services.insert(key, entry),
            None => self.services.remove(&key),
        };
    }

    pub fn remove_service(&mut self, namespace: &str, name: &str) {
        self.services.remove(&(namespace.to_owned(), name.to_owned()));
    }

    pub fn set_slice(&mut self, slice: &EndpointSlice) {
        let metadata = &slice.metadata;
        let key = key(metadata.namespace.as_ref(), metadata.name.as_ref());
        let label = metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(SERVICE_NAME));
        match label {
            Some(service) => {
                let service = service.clone();
                let group = slice_group(slice);
                self.slices.insert(key, SliceEntry { service, group });
            }
            None => drop(self.slices.remove(&key)),
        }
    }

    pub fn remove_slice(&mut self, namespace: &str, name: &str) {
        self.slices.remove(&(namespace.to_owned(), name.to_owned()));
    }

    pub fn set_endpoints(&mut self, endpoints: &Endpoints) {
        let metadata = &endpoints.metadata;
        let key = key(metadata.namespace.as_ref(), metadata.name.as_ref());
        self.endpoints.insert(key, subset_groups(endpoints));
    }

    pub fn remove_endpoints(&mut self, namespace: &str, name: &str) {
        self.endpoints.remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Notes a pod with the status that it has now.
    pub fn set_pod(&mut self, pod: &Pod) {
        let key = (pod.namespace().to_owned(), pod.name().to_owned());
        match PodEntry::new(pod) {
            Some(entry) => self.pods.insert(key, entry),
            None => self.pods.remove(&key),
        };
    }

    pub fn remove_pod(&mut self, namespace: &str, name: &str) {
        self.pods.remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// The endpoints of a service that take connections.
    pub(crate) fn groups(&self, namespace: &str, service: &str) -> Vec<&EndpointGroup> {
        let of_namespace = self
            .slices
            .range((namespace.to_owned(), String::new())..)
            .take_while(|((of, _), _)| of == namespace);
        let mut groups: Vec<&EndpointGroup> = of_namespace
            .filter(|(_, slice)| slice.service == service)
            .map(|(_, slice)| &slice.group)
            .collect();
        if groups.is_empty() {
            let written = self.endpoints.get(&(namespace.to_owned(), service.to_owned()));
            groups = written.into_iter().flatten().collect();
        }
        groups
    }
}

impl ServiceEntry {
    /// `None` if nothing leads to the service.
    fn new(service: &Service) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        let place = match (spec.type_.as_deref(), spec.cluster_ip.as_deref()) {
            (Some("ExternalName"), _) => ServicePlace::Elsewhere(spec.external_name.clone()?),
            (_, Some("None")) => ServicePlace::Headless,
            (_, address) => ServicePlace::Address(address?.parse().ok()?),
        };
        let port = |port: &pulselet_model::openapi::api::core::v1::ServicePort| {
            Some(ServicePortEntry {
                name: port.name.clone().unwrap_or_default(),
                protocol: protocol(port.protocol.as_deref())?,
                number: number(port.port)?,
                node_port: NodePortEntry::new(spec.type_.as_deref(), port.node_port),
            })
        };
        let choice = match spec.session_affinity.as_deref() {
            Some("ClientIP") => BackendChoice::ByClient,
            Some(_) | None => BackendChoice::Random,
        };
        Some(Self {
            place,
            ports: spec.ports.iter().flatten().filter_map(port).collect(),
            choice,
            created: service.metadata.creation_timestamp.clone(),
        })
    }
}

impl NodePortEntry {
    fn new(kind: Option<&str>, port: Option<i32>) -> Option<Self> {
        let port = port.filter(|port| *port != 0)?;
        if !matches!(kind, Some("NodePort" | "LoadBalancer")) {
            return Some(Self::OfOtherType(port));
        }
        let usable = number(port).filter(|port| NODE_PORTS.contains(port));
        Some(usable.map_or(Self::OutOfRange(port), Self::Usable))
    }
}

impl PodEntry {
    /// `None` if the pod has no address, or has ended.
    fn new(pod: &Pod) -> Option<Self> {
        if matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
            return None;
        }
        let listed = pod.status.pod_ips.iter();
        let addresses: Vec<IpAddr> = listed.filter_map(|ip| ip.ip.parse().ok()).collect();
        (!addresses.is_empty()).then(|| Self {
            addresses,
            hostname: pod.spec.hostname.clone(),
            subdomain: pod.spec.subdomain.clone(),
            host_network: pod.spec.host_network,
        })
    }
}

fn slice_group(slice: &EndpointSlice) -> EndpointGroup {
    let mut group = EndpointGroup::default();
    for endpoint in slice.endpoints.iter().flatten() {
        let ready = endpoint
            .conditions
            .as_ref()
            .and_then(|conditions| conditions.ready);
        if ready == Some(false) {
            continue;
        }
        let addresses = endpoint
            .addresses
            .iter()
            .filter_map(|address| address.parse().ok());
        group.endpoints.extend(addresses.map(|address| EndpointEntry {
            address,
            hostname: endpoint.hostname.clone(),
            node: endpoint.node_name.clone().filter(|node| !node.is_empty()),
        }));
    }
    for port in slice.ports.iter().flatten() {
        let name = port.name.as_deref();
        group
            .ports
            .extend(port_entry(name, port.protocol.as_deref(), port.port));
    }
    group
}

fn subset_groups(endpoints: &Endpoints) -> Vec<EndpointGroup> {
    let entry = |address: &EndpointAddress| {
        Some(EndpointEntry {
            address: address.ip.parse().ok()?,
            hostname: address.hostname.clone().filter(|name| !name.is_empty()),
            node: address.node_name.clone().filter(|node| !node.is_empty()),
        })
    };
    let subsets = endpoints.subsets.iter().flatten();
    subsets
        .map(|subset| {
            let ports = subset.ports.iter().flatten();
            let port = |port: &pulselet_model::openapi::api::core::v1::EndpointPort| {
                port_entry(port.name.as_deref(), port.protocol.as_deref(), Some(port.port))
            };
            EndpointGroup {
                endpoints: subset.addresses.iter().flatten().filter_map(entry).collect(),
                ports: ports.filter_map(port).collect(),
            }
        })
        .collect()
}

fn port_entry(name: Option<&str>, of: Option<&str>, port: Option<i32>) -> Option<EndpointPortEntry> {
    Some(EndpointPortEntry {
        name: name.unwrap_or_default().to_owned(),
        protocol: protocol(of)?,
        number: port.and_then(number)?,
    })
}

/// Nothing is reached at port zero.
fn number(port: i32) -> Option<u16> {
    u16::try_from(port).ok().filter(|port| *port != 0)
}

fn protocol(name: Option<&str>) -> Option<Protocol> {
    match name {
        Some("TCP") | None => Some(Protocol::Tcp),
        Some("UDP") => Some(Protocol::Udp),
        Some("SCTP") => Some(Protocol::Sctp),
        Some(_) => None,
    }
}

fn key(namespace: Option<&String>, name: Option<&String>) -> Key {
    let text = |text: Option<&String>| text.cloned().unwrap_or_default();
    (text(namespace), text(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pulselet_runtime::ServiceRoute;
    use serde_json::{Value, json};

    fn service(name: &str, spec: &Value) -> Service {
        serde_json::from_value(json!({"metadata": {"namespace": "shop", "name": name}, "spec": spec}))
            .unwrap()
    }

    fn web() -> Service {
        service(
            "web",
            &json!({"type": "NodePort", "clusterIP": "10.43.0.5", "sessionAffinity": "ClientIP", "ports": [
                {"name": "http", "port": 80, "nodePort": 30080},
                {"name": "dns", "port": 53, "protocol": "UDP"},
                {"name": "sctp", "port": 9, "protocol": "SCTP"}]}),
        )
    }

    fn slice(endpoints: &Value) -> EndpointSlice {
        let metadata = json!({"namespace": "shop", "name": "web", "labels": {SERVICE_NAME: "web"}});
        let ports = json!([{"name": "http", "port": 8080}, {"name": "dns", "port": 5353, "protocol": "UDP"}]);
        let slice =
            json!({"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints, "ports": ports});
        serde_json::from_value(slice).unwrap()
    }

    fn shown(catalog: &ServiceCatalog) -> Vec<String> {
        let show =
            |route: &ServiceRoute| format!("{} {:?} {:?}", route.port, route.node_port, route.backends);
        catalog.plan("here").routes.iter().map(show).collect()
    }

    #[test]
    fn a_port_leads_to_the_ready_endpoints_of_this_node() {
        let mut catalog = ServiceCatalog::default();
        catalog.set_service(&web());
        assert_eq!(shown(&catalog), ["80 Some(30080) []", "53 None []"]);
        catalog.set_slice(&slice(&json!([
            {"addresses": ["10.88.0.3"], "nodeName": "here", "conditions": {"ready": true}},
            {"addresses": ["10.88.0.2"]},
            {"addresses": ["10.88.0.4"], "nodeName": "here", "conditions": {"ready": false}},
            {"addresses": ["10.99.0.4"], "nodeName": "there"},
            {"addresses": ["127.0.0.1"]},
            {"addresses": ["fd00::1"]},
        ])));
        assert_eq!(
            shown(&catalog),
            [
                "80 Some(30080) [10.88.0.2:8080, 10.88.0.3:8080]",
                "53 None [10.88.0.2:5353, 10.88.0.3:5353]"
            ]
        );
        assert_eq!(catalog.plan("here").routes[0].choice, BackendChoice::ByClient);
        catalog.remove_service("shop", "web");
        assert_eq!(shown(&catalog), Vec::<String>::new());
    }

    #[test]
    fn endpoints_written_by_hand_count_where_no_slice_is() {
        let mut catalog = ServiceCatalog::default();
        catalog.set_service(&web());
        let by_hand = json!({"metadata": {"namespace": "shop", "name": "web"}, "subsets": [
            {"addresses": [{"ip": "192.0.2.9"}], "notReadyAddresses": [{"ip": "192.0.2.8"}],
             "ports": [{"name": "http", "port": 81}]}]});
        catalog.set_endpoints(&serde_json::from_value(by_hand).unwrap());
        assert_eq!(shown(&catalog)[0], "80 Some(30080) [192.0.2.9:81]");
        catalog.set_slice(&slice(&json!([])));
        assert_eq!(shown(&catalog)[0], "80 Some(30080) []");
        catalog.remove_slice("shop", "web");
        assert_eq!(shown(&catalog)[0], "80 Some(30080) [192.0.2.9:81]");
        catalog.remove_endpoints("shop", "web");
        assert_eq!(shown(&catalog)[0], "80 Some(30080) []");
    }

    #[test]
    fn services_without_an_address_have_no_routes() {
        let mut catalog = ServiceCatalog::default();
        for (name, spec) in [
            ("headless", json!({"clusterIP": "None", "ports": [{"port": 80}]})),
            (
                "elsewhere",
                json!({"type": "ExternalName", "externalName": "example.com"}),
            ),
            ("odd", json!({"clusterIP": "fd00::1", "ports": [{"port": 80}]})),
            ("new", json!({})),
        ] {
            catalog.set_service(&service(name, &spec));
        }
        assert_eq!(shown(&catalog), Vec::<String>::new());
    }
}
