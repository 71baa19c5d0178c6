//! What a name means: pure functions from the catalog and a name to what is known of it.
//!
//! Names are in lower case and without their last dot. Below the cluster's domain are
//!
//! - `SERVICE.NAMESPACE.svc`: the service's own address, or all of its endpoints;
//! - `HOSTNAME.SERVICE.NAMESPACE.svc`: the endpoint of that name, or of an address with dashes for dots;
//! - `_PORT._PROTOCOL.SERVICE.NAMESPACE.svc`: where a named port is;
//! - `POD.NAMESPACE.svc` and `POD.NAMESPACE.pod`: a pod's address, in `svc` if no service has the name.
//!
//! Services come first, so that no pod takes the name of one. All namespaces are seen from everywhere, as in any cluster.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pulselet_runtime::Protocol;

use crate::ServiceCatalog;
use crate::catalog::{EndpointEntry, PodEntry, ServiceEntry, ServicePlace};

const SERVICES: &str = "svc";
const PODS: &str = "pod";

/// What is known of a name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// It is not one of ours.
    Foreign,
    Missing,
    Known(NameFacts),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NameFacts {
    pub(crate) addresses: Vec<IpAddr>,
    /// The name that this one stands for.
    pub(crate) alias: Option<String>,
    /// Names and ports at which a named port is.
    pub(crate) servers: Vec<(String, u16)>,
    /// The names of an address.
    pub(crate) pointers: Vec<String>,
}

impl NameFacts {
    fn at(addresses: Vec<IpAddr>) -> Self {
        Self {
            addresses,
            ..Self::default()
        }
    }
}

impl ServiceCatalog {
    pub(crate) fn look_up(&self, name: &str, domain: &str) -> Lookup {
        if let Some(address) = reversed_address(name) {
            let pointers = self.names_of(address, domain);
            return if pointers.is_empty() {
                Lookup::Foreign
            } else {
                Lookup::Known(NameFacts {
                    pointers,
                    ..NameFacts::default()
                })
            };
        }
        if name == domain {
            return Lookup::Known(NameFacts::default());
        }
        let Some(below) = name.strip_suffix(domain).and_then(|name| name.strip_suffix('.')) else {
            return Lookup::Foreign;
        };
        let mut labels: Vec<&str> = below.split('.').collect();
        let found = match labels.pop() {
            Some(SERVICES) => self.below_services(&labels, domain),
            Some(PODS) => self.below_pods(&labels),
            Some(_) | None => None,
        };
        found.map_or(Lookup::Missing, Lookup::Known)
    }

    fn below_services(&self, labels: &[&str], domain: &str) -> Option<NameFacts> {
        let Some((namespace, labels)) = labels.split_last() else {
            return Some(NameFacts::default());
        };
        match labels {
            [] => self.has_namespace(namespace).then(NameFacts::default),
            [name] => match self.service(namespace, name) {
                Some(service) => Some(self.of_service(namespace, name, service)),
                None => self.of_pod(namespace, name),
            },
            [port, protocol, name] if port.starts_with('_') => {
                self.port(namespace, name, port, protocol, domain)
            }
            [host, service] => self
                .of_host(namespace, host, service)
                .or_else(|| self.of_pod(namespace, &labels.join("."))),
            _ => self.of_pod(namespace, &labels.join(".")),
        }
    }

    fn below_pods(&self, labels: &[&str]) -> Option<NameFacts> {
        let Some((namespace, labels)) = labels.split_last() else {
            return Some(NameFacts::default());
        };
        let [label] = labels else {
            let name = labels.join(".");
            return if name.is_empty() {
                self.has_namespace(namespace).then(NameFacts::default)
            } else {
                self.of_pod(namespace, &name)
            };
        };
        self.of_pod(namespace, label).or_else(|| {
            let address = dashed_address(label)?;
            let is_there = self
                .pods_of(namespace)
                .any(|(_, pod)| pod.addresses.contains(&address));
            is_there.then(|| NameFacts::at(vec![address]))
        })
    }

    fn service(&self, namespace: &str, name: &str) -> Option<&ServiceEntry> {
        self.services.get(&(namespace.to_owned(), name.to_owned()))
    }

    fn pods_of<'a>(&'a self, namespace: &str) -> impl Iterator<Item = (&'a str, &'a PodEntry)> {
        let namespace = namespace.to_owned();
        let from = (namespace.clone(), String::new());
        let pods = self.pods.range(from..);
        pods.take_while(move |((of, _), _)| *of == namespace)
            .map(|((_, name), pod)| (name.as_str(), pod))
    }

    fn has_namespace(&self, namespace: &str) -> bool {
        let has_service = self.services.keys().any(|(of, _)| of == namespace);
        has_service || self.pods_of(namespace).next().is_some()
    }

    fn of_service(&self, namespace: &str, name: &str, service: &ServiceEntry) -> NameFacts {
        match &service.place {
            ServicePlace::Address(address) => NameFacts::at(vec![IpAddr::V4(*address)]),
            ServicePlace::Elsewhere(name) => NameFacts {
                alias: Some(name.trim_end_matches('.').to_ascii_lowercase()),
                ..NameFacts::default()
            },
            ServicePlace::Headless => {
                let endpoints = self.endpoints(namespace, name);
                let mut addresses: Vec<IpAddr> = endpoints.map(|endpoint| endpoint.address).collect();
                addresses.sort_unstable();
                addresses.dedup();
                NameFacts::at(addresses)
            }
        }
    }

    fn endpoints<'a>(&'a self, namespace: &str, service: &str) -> impl Iterator<Item = &'a EndpointEntry> {
        let groups = self.groups(namespace, service).into_iter();
        groups.flat_map(|group| &group.endpoints)
    }

    /// One endpoint of a service, by its host name or its address. A pod with a subdomain that no service has is found too: an
    /// agent without an API has no services.
    fn of_host(&self, namespace: &str, host: &str, service: &str) -> Option<NameFacts> {
        let mut addresses: Vec<IpAddr> = if self.service(namespace, service).is_some() {
            let of_host = self.endpoints(namespace, service);
            let of_host = of_host.filter(|endpoint| host_label(endpoint) == host);
            of_host.map(|endpoint| endpoint.address).collect()
        } else {
            let pods = self.pods_of(namespace).map(|(_, pod)| pod);
            let of_host = pods.filter(|pod| pod.hostname == host && pod.subdomain == service);
            of_host.filter_map(first_v4).collect()
        };
        addresses.sort_unstable();
        addresses.dedup();
        (!addresses.is_empty()).then(|| NameFacts::at(addresses))
    }

    /// A pod's name leads to its IPv4 address: programs that listen on that alone are common, and so are clients that try one
    /// address only.
    fn of_pod(&self, namespace: &str, name: &str) -> Option<NameFacts> {
        let pod = self.pods.get(&(namespace.to_owned(), name.to_owned()))?;
        Some(NameFacts::at(first_v4(pod).into_iter().collect()))
    }

    fn port(
        &self,
        namespace: &str,
        name: &str,
        port: &str,
        protocol: &str,
        domain: &str,
    ) -> Option<NameFacts> {
        let service = self.service(namespace, name)?;
        let (port, protocol) = (port.strip_prefix('_')?, protocol_of(protocol)?);
        let of_service = format!("{name}.{namespace}.{SERVICES}.{domain}");
        let mut servers = Vec::new();
        match service.place {
            ServicePlace::Address(_) => {
                let ports = service.ports.iter();
                let named = ports.filter(|it| it.name == port && it.protocol == protocol);
                servers.extend(named.map(|it| (of_service.clone(), it.number)));
            }
            ServicePlace::Headless => {
                for group in self.groups(namespace, name) {
                    let ports = group.ports.iter();
                    for port in ports.filter(|it| it.name == port && it.protocol == protocol) {
                        let target = |it| (format!("{}.{of_service}", host_label(it)), port.number);
                        servers.extend(group.endpoints.iter().map(target));
                    }
                }
            }
            ServicePlace::Elsewhere(_) => {}
        }
        servers.sort();
        servers.dedup();
        (!servers.is_empty()).then(|| NameFacts {
            servers,
            ..NameFacts::default()
        })
    }

    /// Pods on the machine's network have its address, and that has names elsewhere.
    fn names_of(&self, address: IpAddr, domain: &str) -> Vec<String> {
        let services = self.services.iter().filter_map(|((namespace, name), service)| {
            let is_it = matches!(service.place, ServicePlace::Address(of) if IpAddr::V4(of) == address);
            is_it.then(|| format!("{name}.{namespace}.{SERVICES}.{domain}"))
        });
        let pods = self.pods.iter().filter_map(|((namespace, name), pod)| {
            let is_it = !pod.host_network && pod.addresses.contains(&address);
            is_it.then(|| format!("{name}.{namespace}.{PODS}.{domain}"))
        });
        services.chain(pods).collect()
    }
}

fn first_v4(pod: &PodEntry) -> Option<IpAddr> {
    pod.addresses.iter().find(|address| address.is_ipv4()).copied()
}

/// An endpoint without a host name is named after its address.
fn host_label(endpoint: &EndpointEntry) -> String {
    match &endpoint.hostname {
        Some(name) => name.clone(),
        None => endpoint.address.to_string().replace(['.', ':'], "-"),
    }
}

fn dashed_address(label: &str) -> Option<IpAddr> {
    label.replace('-', ".").parse::<Ipv4Addr>().ok().map(IpAddr::V4)
}

fn protocol_of(label: &str) -> Option<Protocol> {
    match label {
        "_tcp" => Some(Protocol::Tcp),
        "_udp" => Some(Protocol::Udp),
        "_sctp" => Some(Protocol::Sctp),
        _ => None,
    }
}

/// The address that a name below `in-addr.arpa` or `ip6.arpa` stands for.
fn reversed_address(name: &str) -> Option<IpAddr> {
    if let Some(digits) = name.strip_suffix(".in-addr.arpa") {
        let octets: Vec<&str> = digits.rsplit('.').collect();
        return octets.join(".").parse::<Ipv4Addr>().ok().map(IpAddr::V4);
    }
    let digits = name.strip_suffix(".ip6.arpa")?;
    let nibbles: Vec<u8> = digits
        .rsplit('.')
        .map(|digit| match digit.as_bytes() {
            [digit] => char::from(*digit)
                .to_digit(16)
                .and_then(|it| u8::try_from(it).ok()),
            _ => None,
        })
        .collect::<Option<_>>()?;
    let octets: Vec<u8> = nibbles
        .chunks_exact(2)
        .map(|pair| pair.iter().fold(0, |sum, nibble| sum << 4 | nibble))
        .collect();
    let octets: [u8; 16] = octets.try_into().ok().filter(|_| nibbles.len() == 32)?;
    Some(IpAddr::V6(Ipv6Addr::from(octets)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, json};

    pub(crate) const DOMAIN: &str = "cluster.local";

    fn typed<T>(namespace: &str, name: &str, rest: &Value) -> T
    where
        T: for<'de> serde::Deserialize<'de>,
    {
        let mut object = rest.clone();
        object["metadata"]["namespace"] = json!(namespace);
        object["metadata"]["name"] = json!(name);
        serde_json::from_value(object).unwrap()
    }

    /// A service, a headless one, one that is elsewhere, and three pods.
    pub(crate) fn catalog() -> ServiceCatalog {
        let mut catalog = ServiceCatalog::default();
        let ports = json!([{"name": "http", "port": 80}]);
        let web = json!({"spec": {"clusterIP": "10.43.0.5", "ports": ports}});
        let db = json!({"spec": {"clusterIP": "None", "ports": ports}});
        let far = json!({"spec": {"type": "ExternalName", "externalName": "Example.com."}});
        for (name, service) in [("web", web), ("db", db), ("far", far)] {
            catalog.set_service(&typed("shop", name, &service));
        }
        let slice = json!({"addressType": "IPv4", "metadata": {"labels": {"kubernetes.io/service-name": "db"}},
            "ports": [{"name": "http", "port": 8080}], "endpoints": [
                {"addresses": ["10.88.0.3"], "hostname": "db-0"},
                {"addresses": ["10.88.0.4"]},
                {"addresses": ["10.88.0.5"], "conditions": {"ready": false}}]});
        catalog.set_slice(&typed("shop", "db", &slice));
        let pod = |ip: &str, fields: Value| {
            let mut spec = json!({"containers": [{"name": "app"}]});
            spec.as_object_mut()
                .unwrap()
                .extend(fields.as_object().unwrap().clone());
            json!({"apiVersion": "v1", "kind": "Pod", "spec": spec,
                "status": {"phase": "Running", "podIPs": [{"ip": ip}, {"ip": "fd00::9"}]}})
        };
        for (name, pod) in [
            ("web", pod("10.88.0.2", json!({}))),
            (
                "a.b",
                pod("10.88.0.6", json!({"hostname": "h", "subdomain": "s"})),
            ),
            ("host", pod("192.0.2.2", json!({"hostNetwork": true}))),
        ] {
            catalog.set_pod(&typed("shop", name, &pod));
        }
        catalog.set_pod(&typed("other", "web", &pod("10.88.0.7", json!({}))));
        catalog
    }

    fn shown(name: &str) -> String {
        match catalog().look_up(name, DOMAIN) {
            Lookup::Foreign => "foreign".to_owned(),
            Lookup::Missing => "missing".to_owned(),
            Lookup::Known(facts) => {
                let mut words: Vec<String> = facts.addresses.iter().map(ToString::to_string).collect();
                words.extend(facts.alias);
                words.extend(facts.servers.iter().map(|(name, port)| format!("{name}:{port}")));
                words.extend(facts.pointers);
                words.join(" ")
            }
        }
    }

    #[test]
    fn names_lead_to_services_endpoints_and_pods() {
        for (name, meaning) in [
            ("web.shop.svc.cluster.local", "10.43.0.5"),
            ("db.shop.svc.cluster.local", "10.88.0.3 10.88.0.4"),
            ("db-0.db.shop.svc.cluster.local", "10.88.0.3"),
            ("10-88-0-4.db.shop.svc.cluster.local", "10.88.0.4"),
            ("db-1.db.shop.svc.cluster.local", "missing"),
            ("far.shop.svc.cluster.local", "example.com"),
            (
                "_http._tcp.web.shop.svc.cluster.local",
                "web.shop.svc.cluster.local:80",
            ),
            (
                "_http._tcp.db.shop.svc.cluster.local",
                "10-88-0-4.db.shop.svc.cluster.local:8080 db-0.db.shop.svc.cluster.local:8080",
            ),
            ("_http._udp.web.shop.svc.cluster.local", "missing"),
            ("web.other.svc.cluster.local", "10.88.0.7"),
            ("web.shop.pod.cluster.local", "10.88.0.2"),
            ("a.b.shop.svc.cluster.local", "10.88.0.6"),
            ("a.b.shop.pod.cluster.local", "10.88.0.6"),
            ("h.s.shop.svc.cluster.local", "10.88.0.6"),
            ("10-88-0-2.shop.pod.cluster.local", "10.88.0.2"),
            ("10-88-0-9.shop.pod.cluster.local", "missing"),
            ("shop.svc.cluster.local", ""),
            ("none.svc.cluster.local", "missing"),
            ("svc.cluster.local", ""),
            ("cluster.local", ""),
            ("web.shop.cluster.local", "missing"),
            ("mycluster.local", "foreign"),
            ("example.com", "foreign"),
            ("", "foreign"),
        ] {
            assert_eq!(shown(name), meaning, "{name}");
        }
    }

    #[test]
    fn addresses_have_names() {
        let nibbles = "9.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa";
        assert_eq!(reversed_address(nibbles), Some("fd00::9".parse().unwrap()));
        for (name, meaning) in [
            ("5.0.43.10.in-addr.arpa", "web.shop.svc.cluster.local"),
            ("2.0.88.10.in-addr.arpa", "web.shop.pod.cluster.local"),
            ("2.2.0.192.in-addr.arpa", "foreign"),
            ("1.2.3.in-addr.arpa", "foreign"),
            ("0.9.ip6.arpa", "foreign"),
        ] {
            assert_eq!(shown(name), meaning, "{name}");
        }
    }
}
