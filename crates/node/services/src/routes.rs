//! Where the ports of services lead at a node.
//!
//! What must always hold: an address with its protocol and port leads to one service, and so does a port of the node. If
//! several services have the same, the oldest one keeps it, so that no service can take anything from another. The rest is
//! reported.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use pulselet_runtime::{Protocol, ServiceRoute};

use crate::ServiceCatalog;
use crate::catalog::{
    EndpointGroup, EndpointPortEntry, Key, NodePortEntry, ServiceEntry, ServicePlace, ServicePortEntry,
};

/// Where the ports of services lead, and which of them lead nowhere.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct RoutePlan {
    pub(crate) routes: Vec<ServiceRoute>,
    pub(crate) unserved: BTreeSet<UnservedPort>,
}

/// A port that a Service has, but that does not lead to its pods.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnservedPort {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) protocol: &'static str,
    pub(crate) port: u16,
    pub(crate) reason: UnservedReason,
}

/// Why a port leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UnservedReason {
    /// A Service, be it the same one, has another port of this number and address.
    Taken {
        by: Key,
    },
    NodePortTaken {
        node_port: u16,
        by: Key,
    },
    /// The type of the Service has no node ports.
    NodePortOfOtherType {
        node_port: i32,
    },
    NodePortOutOfRange {
        node_port: i32,
    },
}

/// What leads somewhere already, and which service it belongs to.
#[derive(Debug, Default)]
struct Claims<'a> {
    addresses: HashMap<(Ipv4Addr, Protocol, u16), &'a Key>,
    node_ports: HashMap<(Protocol, u16), &'a Key>,
}

impl ServiceCatalog {
    /// Where the ports of services lead at a node of this name. Pods of other nodes are not reached from here.
    pub fn routes(&self, node: &str) -> Vec<ServiceRoute> {
        self.plan(node).routes
    }

    pub(crate) fn plan(&self, node: &str) -> RoutePlan {
        let mut plan = RoutePlan::default();
        let mut claims = Claims::default();
        for (key, service) in self.oldest_first() {
            let ServicePlace::Address(address) = service.place else {
                continue;
            };
            let groups = self.groups(&key.0, &key.1);
            for port in service.ports.iter().filter(|port| is_forwarded(port.protocol)) {
                let mut reject = |reason| {
                    plan.unserved.insert(UnservedPort {
                        namespace: key.0.clone(),
                        name: key.1.clone(),
                        protocol: protocol(port.protocol),
                        port: port.number,
                        reason,
                    });
                };
                if let Err(by) = claim(&mut claims.addresses, (address, port.protocol, port.number), key) {
                    reject(UnservedReason::Taken { by: by.clone() });
                    continue;
                }
                let node_port = match claims.node_port(port, key) {
                    Ok(node_port) => node_port,
                    Err(reason) => {
                        reject(reason);
                        None
                    }
                };
                plan.routes.push(ServiceRoute {
                    address,
                    protocol: port.protocol,
                    port: port.number,
                    node_port,
                    backends: backends(&groups, port, node),
                    choice: service.choice,
                });
            }
        }
        plan
    }

    /// By the second of their creation, then by name. One without a time comes last.
    fn oldest_first(&self) -> Vec<(&Key, &ServiceEntry)> {
        let mut services: Vec<_> = self.services.iter().collect();
        // Services of the same second stay in the order of their keys.
        services.sort_by_key(|(_, service)| (service.created.is_none(), &service.created));
        services
    }
}

impl<'a> Claims<'a> {
    fn node_port(&mut self, port: &ServicePortEntry, key: &'a Key) -> Result<Option<u16>, UnservedReason> {
        match port.node_port {
            None => Ok(None),
            Some(NodePortEntry::OfOtherType(node_port)) => {
                Err(UnservedReason::NodePortOfOtherType { node_port })
            }
            Some(NodePortEntry::OutOfRange(node_port)) => {
                Err(UnservedReason::NodePortOutOfRange { node_port })
            }
            Some(NodePortEntry::Usable(node_port)) => {
                match claim(&mut self.node_ports, (port.protocol, node_port), key) {
                    Ok(()) => Ok(Some(node_port)),
                    Err(by) => {
                        let by = by.clone();
                        Err(UnservedReason::NodePortTaken { node_port, by })
                    }
                }
            }
        }
    }
}

/// Fails with the service that has it.
fn claim<'a, K: Eq + std::hash::Hash>(
    claims: &mut HashMap<K, &'a Key>,
    wanted: K,
    key: &'a Key,
) -> Result<(), &'a Key> {
    match claims.entry(wanted) {
        Entry::Occupied(taken) => Err(taken.get()),
        Entry::Vacant(free) => {
            free.insert(key);
            Ok(())
        }
    }
}

/// Ports of SCTP are not: no address of the machine leads to pods by it either.
const fn is_forwarded(protocol: Protocol) -> bool {
    match protocol {
        Protocol::Tcp | Protocol::Udp => true,
        Protocol::Sctp => false,
    }
}

const fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    }
}

/// An endpoint on a loopback address means whoever wrote it, and is not where a pod would come out.
fn backends(groups: &[&EndpointGroup], port: &ServicePortEntry, node: &str) -> Vec<SocketAddrV4> {
    let mut backends = Vec::new();
    for group in groups {
        let fits = |it: &&EndpointPortEntry| it.name == port.name && it.protocol == port.protocol;
        let Some(target) = group.ports.iter().find(fits) else {
            continue;
        };
        for endpoint in &group.endpoints {
            let is_here = endpoint.node.as_deref().is_none_or(|of| of == node);
            if let IpAddr::V4(address) = endpoint.address
                && is_here
                && !address.is_loopback()
            {
                backends.push(SocketAddrV4::new(address, target.number));
            }
        }
    }
    backends.sort_unstable();
    backends.dedup();
    backends
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Of the namespace `shop`, created in that second, at an address of its own.
    fn add(catalog: &mut ServiceCatalog, name: &str, second: u32, spec: &Value) {
        let created = format!("2026-01-02T03:04:{second:02}Z");
        let metadata = json!({"namespace": "shop", "name": name, "creationTimestamp": created});
        let service = json!({"metadata": metadata, "spec": spec});
        catalog.set_service(&serde_json::from_value(service).unwrap());
    }

    fn node_port(address: &str, kind: &str, port: u32) -> Value {
        json!({"type": kind, "clusterIP": address, "ports": [{"port": 80, "nodePort": port}]})
    }

    fn routes(plan: &RoutePlan) -> Vec<String> {
        let show = |route: &ServiceRoute| {
            let node_port = route.node_port.unwrap_or_default();
            format!(
                "{}:{} {:?} {node_port}",
                route.address, route.port, route.protocol
            )
        };
        plan.routes.iter().map(show).collect()
    }

    fn reasons(plan: &RoutePlan) -> Vec<(&str, &UnservedReason)> {
        let unserved = plan.unserved.iter();
        unserved.map(|port| (port.name.as_str(), &port.reason)).collect()
    }

    fn key(name: &str) -> Key {
        ("shop".to_owned(), name.to_owned())
    }

    #[test]
    fn only_types_with_node_ports_have_some_and_only_in_their_range() {
        let mut catalog = ServiceCatalog::default();
        add(&mut catalog, "a", 1, &node_port("10.43.0.1", "ClusterIP", 26_443));
        add(&mut catalog, "b", 1, &node_port("10.43.0.2", "NodePort", 22));
        add(&mut catalog, "c", 1, &node_port("10.43.0.3", "NodePort", 30_000));
        add(
            &mut catalog,
            "d",
            1,
            &node_port("10.43.0.4", "LoadBalancer", 32_767),
        );
        add(
            &mut catalog,
            "e",
            1,
            &node_port("10.43.0.5", "LoadBalancer", 98_304),
        );
        add(&mut catalog, "f", 1, &node_port("10.43.0.6", "", 30_001));
        add(&mut catalog, "g", 1, &node_port("10.43.0.7", "NodePort", 0));
        let plan = catalog.plan("here");
        assert_eq!(
            routes(&plan),
            [
                "10.43.0.1:80 Tcp 0",
                "10.43.0.2:80 Tcp 0",
                "10.43.0.3:80 Tcp 30000",
                "10.43.0.4:80 Tcp 32767",
                "10.43.0.5:80 Tcp 0",
                "10.43.0.6:80 Tcp 0",
                "10.43.0.7:80 Tcp 0",
            ]
        );
        let of_other_type = |node_port| UnservedReason::NodePortOfOtherType { node_port };
        let out_of_range = |node_port| UnservedReason::NodePortOutOfRange { node_port };
        assert_eq!(
            reasons(&plan),
            [
                ("a", &of_other_type(26_443)),
                ("b", &out_of_range(22)),
                ("e", &out_of_range(98_304)),
                ("f", &of_other_type(30_001)),
            ]
        );
    }

    #[test]
    fn the_oldest_service_keeps_what_several_have() {
        let mut catalog = ServiceCatalog::default();
        add(&mut catalog, "a", 9, &node_port("10.43.0.1", "NodePort", 30_080));
        add(
            &mut catalog,
            "b",
            5,
            &node_port("10.43.0.2", "LoadBalancer", 30_080),
        );
        let udp = json!({"type": "NodePort", "clusterIP": "10.43.0.3",
            "ports": [{"port": 53, "protocol": "UDP", "nodePort": 30_080}]});
        add(&mut catalog, "c", 9, &udp);
        // The address of another one, and no time.
        let same = json!({"metadata": {"namespace": "shop", "name": "0"}, "spec": node_port("10.43.0.1", "NodePort", 30_081)});
        catalog.set_service(&serde_json::from_value(same).unwrap());
        let plan = catalog.plan("here");
        let expected = [
            "10.43.0.2:80 Tcp 30080",
            "10.43.0.1:80 Tcp 0",
            "10.43.0.3:53 Udp 30080",
        ];
        assert_eq!(routes(&plan), expected);
        let lost = UnservedReason::NodePortTaken {
            node_port: 30_080,
            by: key("b"),
        };
        let taken = UnservedReason::Taken { by: key("a") };
        assert_eq!(reasons(&plan), [("0", &taken), ("a", &lost)]);
        catalog.remove_service("shop", "b");
        assert_eq!(routes(&catalog.plan("here"))[0], "10.43.0.1:80 Tcp 30080");
    }

    #[test]
    fn the_first_of_equal_ports_of_a_service_counts() {
        let mut catalog = ServiceCatalog::default();
        let ports = json!([{"name": "a", "port": 80, "nodePort": 30_080}, {"name": "b", "port": 80, "nodePort": 30_081},
            {"name": "c", "port": 81, "nodePort": 30_080}, {"name": "d", "port": 0}, {"name": "e", "port": 65_536},
            {"name": "f", "port": 80, "protocol": "UDP"}, {"name": "g", "port": 80, "protocol": "tcp"}]);
        let spec = json!({"type": "NodePort", "clusterIP": "10.43.0.1", "ports": ports});
        add(&mut catalog, "a", 1, &spec);
        let plan = catalog.plan("here");
        let expected = [
            "10.43.0.1:80 Tcp 30080",
            "10.43.0.1:81 Tcp 0",
            "10.43.0.1:80 Udp 0",
        ];
        assert_eq!(routes(&plan), expected);
        let lost = UnservedReason::NodePortTaken {
            node_port: 30_080,
            by: key("a"),
        };
        let taken = UnservedReason::Taken { by: key("a") };
        assert_eq!(reasons(&plan), [("a", &taken), ("a", &lost)]);
    }
}
