//! Services: the addresses and ports that they get, and the Service by which Pods find this server.
//!
//! What must always hold: no two Services have the same cluster address or node port. Writes of Services are made one
//! after the other for that, and what is taken is read from the store each time. Servers that share a store take turns: each
//! write begins with a ticket, a change of one key, and is made only if no other ticket was taken since.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use pulselet_model::{FieldError, NODE_PORTS};
use pulselet_store::{Expect, Revision, Swap, Swapped};
use serde_json::{Value, json};
use tokio::sync::MutexGuard;

use super::decode::decode;
use super::object::Object;
use super::resource::{ObjectPath, ResourceKind};
use super::strategies::{Allocation, has_node_ports, invalid};
use super::writes::ChangedObject;
use super::{Registry, Written};
use crate::rest::status::{ApiError, StatusReason};

/// A Service without an address of its own.
const HEADLESS: &str = "None";
/// The Service by which Pods find this server.
const KUBERNETES: &str = "kubernetes";
/// Changed by every ticket.
const TURN: &str = "/turns/services";
/// How often a ticket is asked for that others are faster with.
const MAX_TICKETS: usize = 16;

/// The addresses that Services get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceRange {
    first: u32,
    bits: u8,
}

/// A text that is no range of addresses for Services.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a range of addresses for services, for example 10.43.0.0/16 (12 to 28 bits)")]
pub struct ParseServiceRangeError(String);

impl ServiceRange {
    /// Outside of what our nodes take for Pods.
    pub const DEFAULT: Self = Self {
        first: u32::from_be_bytes([10, 43, 0, 0]),
        bits: 16,
    };

    fn size(self) -> u32 {
        1 << (32 - self.bits)
    }

    /// The addresses of Services: not that of the network, and not the last.
    fn addresses(self) -> impl Iterator<Item = Ipv4Addr> {
        (1..self.size() - 1).map(move |offset| Ipv4Addr::from(self.first + offset))
    }

    fn contains(self, address: Ipv4Addr) -> bool {
        let offset = u32::from(address).wrapping_sub(self.first);
        (1..self.size() - 1).contains(&offset)
    }

    /// The address of the Service `kubernetes`.
    pub(crate) fn own_address(self) -> Ipv4Addr {
        Ipv4Addr::from(self.first + 1)
    }
}

impl std::str::FromStr for ServiceRange {
    type Err = ParseServiceRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.split_once('/').and_then(|(address, bits)| {
            let address: Ipv4Addr = address.parse().ok()?;
            let bits: u8 = bits.parse().ok().filter(|bits| (12..=28).contains(bits))?;
            let range = Self {
                first: address.into(),
                bits,
            };
            range.first.is_multiple_of(range.size()).then_some(range)
        });
        parsed.ok_or_else(|| ParseServiceRangeError(text.to_owned()))
    }
}

impl std::fmt::Display for ServiceRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.first), self.bits)
    }
}

/// What Services have already. No other Service is written while this is held.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    addresses: HashSet<String>,
    ports: HashSet<i64>,
    range: ServiceRange,
    /// `None` if no other server writes to the store.
    ticket: Option<Revision>,
    _turn: MutexGuard<'a, ()>,
}

impl Taken<'_> {
    /// What must still hold when the Service is written.
    pub(super) fn guard(&self) -> Option<(String, Expect)> {
        self.ticket
            .map(|ticket| (TURN.to_owned(), Expect::Revision(ticket)))
    }
}

/// Whether this is the key of what [`Taken::guard`] asks for.
pub(super) fn is_turn(key: &str) -> bool {
    key == TURN
}

/// Lets others have their turn.
pub(super) async fn yield_turn() {
    let pause = std::time::Duration::from_millis(rand::random_range(1..=20));
    tokio::time::sleep(pause).await;
}

impl Registry {
    /// Takes a ticket: no other server writes a Service before we do, or we do not write it.
    async fn service_ticket(&self) -> Result<Revision, ApiError> {
        for _ in 0..MAX_TICKETS {
            let (found, _) = self.store.get(TURN).await?;
            let swap = Swap {
                key: TURN.to_owned(),
                expect: found.map_or(Expect::Absent, |found| Expect::Revision(found.revision)),
                value: Some(bytes::Bytes::new()),
                guards: Vec::new(),
            };
            match self.store.swap(swap).await? {
                Swapped::Done(ticket) => return Ok(ticket),
                Swapped::Conflict(_) | Swapped::GuardFailed { .. } => yield_turn().await,
            }
        }
        Err(ApiError::too_many_requests())
    }

    /// What is taken, for a write of a Service; `None` for other kinds.
    pub(super) async fn taken(
        &self,
        kind: ResourceKind,
        dry_run: bool,
    ) -> Result<Option<Taken<'_>>, ApiError> {
        match kind.strategy().allocation() {
            Allocation::Nothing => return Ok(None),
            Allocation::ServiceAddresses => {}
        }
        let turn = self.service_turn.lock().await;
        let ticket = if self.store.is_shared() && !dry_run {
            Some(self.service_ticket().await?)
        } else {
            None
        };
        let (services, _) = self.all(kind, None).await?;
        let addresses = services.iter().flat_map(addresses).map(str::to_owned).collect();
        let ports = services.iter().flat_map(node_ports).collect();
        Ok(Some(Taken {
            addresses,
            ports,
            range: self.service_range,
            ticket,
            _turn: turn,
        }))
    }

    /// Makes the Service `kubernetes` and what it leads to: this server, and others that share its store. They should all
    /// listen on one port: an `EndpointSlice` has room for one.
    pub(crate) async fn publish_own_service(&self, servers: &[SocketAddr]) -> Result<(), ApiError> {
        let mut servers = servers.to_vec();
        servers.sort_unstable_by_key(|server| (server.port(), server.ip()));
        servers.dedup();
        let Some(server) = servers.first().copied() else {
            return Ok(());
        };
        let same_port = servers
            .iter()
            .filter(|other| other.port() == server.port() && other.is_ipv4() == server.is_ipv4());
        let addresses: Vec<String> = same_port.map(|server| server.ip().to_string()).collect();
        let subsets: Vec<Value> = servers
            .chunk_by(|one, other| one.port() == other.port())
            .map(|chunk| {
                let addresses: Vec<Value> = chunk
                    .iter()
                    .map(|server| json!({"ip": server.ip().to_string()}))
                    .collect();
                let ports = json!([{"name": "https", "port": chunk[0].port(), "protocol": "TCP"}]);
                json!({"addresses": addresses, "ports": ports})
            })
            .collect();
        let slice: Vec<Value> = addresses
            .iter()
            .map(|address| json!({"addresses": [address], "conditions": {"ready": true}}))
            .collect();
        let labels = json!({"component": "apiserver", "provider": "kubernetes"});
        let service = json!({
            "metadata": {"name": KUBERNETES, "namespace": "default", "labels": labels},
            "spec": {
                "clusterIP": self.service_range.own_address().to_string(),
                "ports": [{"name": "https", "port": 443, "targetPort": server.port(), "protocol": "TCP"}],
            },
        });
        let ports = json!([{"name": "https", "port": server.port(), "protocol": "TCP"}]);
        let endpoints = json!({
            "metadata": {"name": KUBERNETES, "namespace": "default",
                "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
            "subsets": subsets,
        });
        let family = match server.ip() {
            IpAddr::V4(_) => "IPv4",
            IpAddr::V6(_) => "IPv6",
        };
        let slice = json!({
            "metadata": {"name": KUBERNETES, "namespace": "default",
                "labels": {"kubernetes.io/service-name": KUBERNETES}},
            "addressType": family,
            "endpoints": slice,
            "ports": ports,
        });
        self.put_own(ResourceKind::SERVICE, service, &["/spec/ports"])
            .await?;
        self.put_own(ResourceKind::ENDPOINTS, endpoints, &["/subsets"])
            .await?;
        self.put_own(ResourceKind::ENDPOINT_SLICE, slice, &["/endpoints", "/ports"])
            .await
    }

    /// Creates an object of the server's own, or makes parts of it what they should be.
    pub(super) async fn put_own(
        &self,
        kind: ResourceKind,
        wanted: Value,
        parts: &[&str],
    ) -> Result<(), ApiError> {
        let endpoint = kind.storage();
        let body = crate::rest::body::Parsed::from(wanted);
        let validation = crate::rest::query::FieldValidation::Strict;
        let object = decode(endpoint, body, validation, self.rules)?.object;
        let path = ObjectPath::stored(kind, Some(object.namespace()), object.name());
        match self.get(&path).await {
            Err(error) if error.reason == StatusReason::NotFound => {
                for _ in 0..MAX_TICKETS {
                    let taken = self.taken(kind, false).await?;
                    match self.ensure_with(kind, object.clone(), taken.as_ref()).await {
                        Err(error) if error.reason == StatusReason::Conflict => yield_turn().await,
                        ensured => return ensured,
                    }
                }
                return Err(ApiError::too_many_requests());
            }
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        let written: Result<Written, ApiError> = self
            .change(&path, false, |old| {
                let mut changed = old.clone();
                for part in parts {
                    let new = object.value().pointer(part).cloned();
                    if let (Some(place), Some(new)) = (changed.value_mut().pointer_mut(part), new) {
                        *place = new;
                    }
                }
                Ok(ChangedObject {
                    object: changed,
                    warnings: Vec::new(),
                })
            })
            .await;
        written.map(drop)
    }
}

fn addresses(service: &Object) -> impl Iterator<Item = &str> {
    let listed = service
        .value()
        .pointer("/spec/clusterIPs")
        .and_then(Value::as_array);
    let listed = listed.into_iter().flatten().filter_map(Value::as_str);
    listed.filter(|address| *address != HEADLESS)
}

/// The node ports that a Service has. One of a type that has none keeps others from none.
fn node_ports(service: &Object) -> impl Iterator<Item = i64> {
    let has_some = has_node_ports(service.text("/spec/type"));
    let ports = service.value().pointer("/spec/ports").and_then(Value::as_array);
    let ports = ports.filter(|_| has_some).into_iter().flatten();
    ports.filter_map(asked_port)
}

/// Zero asks for any.
fn asked_port(port: &Value) -> Option<i64> {
    port["nodePort"].as_i64().filter(|port| *port != 0)
}

/// Gives a Service what it needs of what is left, and keeps what it has.
pub(super) fn assign(
    service: &mut Object,
    old: Option<&Object>,
    taken: &Taken<'_>,
) -> Result<(), Vec<FieldError>> {
    let kind = service.text("/spec/type").to_owned();
    if kind == "ExternalName" {
        let spec = &mut service.value_mut()["spec"];
        if let Some(spec) = spec.as_object_mut() {
            for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                spec.remove(field);
            }
        }
        return Ok(());
    }
    let mut errors = Vec::new();
    assign_address(service, old, taken, &mut errors);
    if has_node_ports(&kind) {
        assign_ports(service, old, taken, &mut errors);
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn assign_address(
    service: &mut Object,
    old: Option<&Object>,
    taken: &Taken<'_>,
    errors: &mut Vec<FieldError>,
) {
    let before = old.map(|old| old.text("/spec/clusterIP")).unwrap_or_default();
    let listed = service.text("/spec/clusterIPs/0").to_owned();
    let mut wanted = service.text("/spec/clusterIP").to_owned();
    if wanted.is_empty() {
        wanted = if listed.is_empty() {
            before.to_owned()
        } else {
            listed
        };
    }
    if !before.is_empty() && wanted != before {
        let shown = json!([wanted]);
        errors.push(invalid("spec.clusterIPs[0]", &shown, "may not change once set"));
        return;
    }
    if wanted.is_empty() {
        let free = taken
            .range
            .addresses()
            .find(|address| !taken.addresses.contains(&address.to_string()));
        let Some(address) = free else {
            let detail = "failed to allocate a serviceIP: range is full";
            errors.push(invalid("spec.clusterIPs", &json!([]), detail));
            return;
        };
        wanted = address.to_string();
    } else if wanted != HEADLESS && wanted != before {
        let why = match wanted.parse::<Ipv4Addr>() {
            Ok(address) if !taken.range.contains(address) => Some(format!(
                "the provided IP ({wanted}) is not in the valid range. The range of valid IPs is {}",
                taken.range
            )),
            Ok(_) if taken.addresses.contains(&wanted) => Some("provided IP is already allocated".to_owned()),
            Ok(_) => None,
            Err(_) => Some(format!("the provided IP ({wanted}) is not an IPv4 address")),
        };
        if let Some(why) = why {
            let detail = format!("failed to allocate IP {wanted}: {why}");
            errors.push(invalid("spec.clusterIPs", &json!([wanted]), &detail));
            return;
        }
    }
    let spec = &mut service.value_mut()["spec"];
    spec["clusterIPs"] = json!([wanted]);
    spec["clusterIP"] = json!(wanted);
    let selects = spec["selector"]
        .as_object()
        .is_some_and(|selector| !selector.is_empty());
    // Whoever writes the endpoints of such a Service may write those of either family.
    let by_hand = wanted == HEADLESS && !selects;
    if spec["ipFamilies"].is_null() {
        let families: &[&str] = if by_hand { &["IPv4", "IPv6"] } else { &["IPv4"] };
        spec["ipFamilies"] = json!(families);
    }
    if spec["ipFamilyPolicy"].is_null() {
        let policy = if by_hand {
            "RequireDualStack"
        } else {
            "SingleStack"
        };
        spec["ipFamilyPolicy"] = json!(policy);
    }
}

fn assign_ports(service: &mut Object, old: Option<&Object>, taken: &Taken<'_>, errors: &mut Vec<FieldError>) {
    let own: HashSet<i64> = old.into_iter().flat_map(node_ports).collect();
    let asked: HashSet<i64> = node_ports(service).collect();
    let mut free = NODE_PORTS
        .map(i64::from)
        .filter(|port| !taken.ports.contains(port) && !asked.contains(port));
    let ports = service
        .value_mut()
        .pointer_mut("/spec/ports")
        .and_then(Value::as_array_mut);
    let Some(ports) = ports else { return };
    let mut used: HashSet<(String, i64)> = ports
        .iter()
        .filter_map(|port| Some((protocol(port), asked_port(port)?)))
        .collect();
    for (index, port) in ports.iter_mut().enumerate() {
        let Some(number) = asked_port(port) else {
            let kept = port_before(old, port).filter(|number| used.insert((protocol(port), *number)));
            match kept.or_else(|| free.next()) {
                Some(number) => port["nodePort"] = json!(number),
                None => errors.push(port_error(
                    index,
                    0,
                    "failed to allocate a nodePort: range is full",
                )),
            }
            continue;
        };
        if !is_node_port(number) {
            let detail = "provided port is not in the valid range. The range of valid ports is 30000-32767";
            errors.push(port_error(index, number, detail));
        } else if taken.ports.contains(&number) && !own.contains(&number) {
            errors.push(port_error(index, number, "provided port is already allocated"));
        }
    }
}

/// The node port that the Service had for this port.
fn port_before(old: Option<&Object>, port: &Value) -> Option<i64> {
    let old = old.filter(|old| has_node_ports(old.text("/spec/type")))?;
    let before = old.value().pointer("/spec/ports")?.as_array()?;
    let same = |other: &&Value| other["port"] == port["port"] && other["protocol"] == port["protocol"];
    let number = before.iter().find(same).and_then(asked_port);
    number.filter(|number| is_node_port(*number))
}

fn is_node_port(number: i64) -> bool {
    u16::try_from(number).is_ok_and(|number| NODE_PORTS.contains(&number))
}

fn protocol(port: &Value) -> String {
    port["protocol"].as_str().unwrap_or_default().to_owned()
}

fn port_error(index: usize, number: i64, detail: &str) -> FieldError {
    invalid(&format!("spec.ports[{index}].nodePort"), &json!(number), detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_checked() {
        let range: ServiceRange = "10.96.0.0/16".parse().unwrap();
        assert_eq!(range.own_address(), Ipv4Addr::new(10, 96, 0, 1));
        assert!(range.contains(Ipv4Addr::new(10, 96, 255, 254)));
        assert!(!range.contains(Ipv4Addr::new(10, 96, 255, 255)));
        assert!(!range.contains(Ipv4Addr::new(10, 95, 0, 1)));
        assert_eq!(range.to_string(), "10.96.0.0/16");
        for text in ["10.96.0.1/16", "10.96.0.0", "10.96.0.0/8", "x/16", "fd00::/112"] {
            assert!(text.parse::<ServiceRange>().is_err(), "{text}");
        }
    }
}
