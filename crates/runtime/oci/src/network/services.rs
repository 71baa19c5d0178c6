//! The addresses of services: connections to them are translated to the pods behind them.
//!
//! The rules are in a table of their own beside that of the bridge, which is replaced as a whole: a connection sees the old
//! backends or the new ones, never half of both. A connection that was made keeps its backend. The table is there while
//! some sandbox is on the bridge, also while no agent runs.
//!
//! A connection between two pods comes from the host's address: `firewall` sees to that, as for ports of the host. A service
//! without backends refuses connections.
//!
//! What is left to others: which pods are behind a service, and when that has changed.

use std::{
    collections::{BTreeSet, HashSet},
    fmt::Write as _,
    fs, io,
    net::{Ipv4Addr, SocketAddrV4},
    sync::Arc,
};

use pulselet_runtime::{BackendChoice, Protocol, SandboxId, ServiceRoute};

use super::{
    Network, State, firewall,
    firewall::FirewallError,
    link_name,
    nftables::Outline,
    repair::{TableState, installed_table},
};

/// Parts into which clients are divided by their address where each keeps its backend. With many times more parts than
/// backends each gets about as many clients.
const CLIENT_PARTS: u32 = 256;

/// Why the addresses of services do not lead to their pods.
#[derive(Debug, thiserror::Error)]
#[error("services need nftables: {0}")]
pub struct ServiceRulesError(#[source] FirewallError);

/// The pods' network as one machine's services use it. Clones are the same network.
#[derive(Debug, Clone)]
pub struct PodNetwork {
    pub(crate) network: Arc<Network>,
}

impl PodNetwork {
    /// The bridge's own address, at which pods reach the host.
    pub fn gateway(&self) -> Ipv4Addr {
        self.network.subnet.gateway()
    }

    /// Whether it is an address of a pod or of the bridge.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        self.network.subnet.contains(address)
    }

    /// Makes the addresses of services lead where these say, and no others. Nothing happens if they do already; after a
    /// failure it is tried again. May block.
    pub fn set_services(&self, routes: Vec<ServiceRoute>) -> Result<(), ServiceRulesError> {
        let mut state = self.network.state.lock().expect("no holder panics");
        state.services.wanted = DistinctRoutes::new(routes);
        self.network
            .update_services(&mut state)
            .map_err(ServiceRulesError)
    }
}

/// Routes without two of the same address, protocol and port, and without two of the same node port: nftables rejects a table in
/// which a key is there twice, and with it the routes of all services.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct DistinctRoutes(Vec<ServiceRoute>);

impl DistinctRoutes {
    /// The first of equal ones counts.
    fn new(mut routes: Vec<ServiceRoute>) -> Self {
        let (mut addresses, mut node_ports) = (HashSet::new(), HashSet::new());
        routes.retain_mut(|route| {
            let is_first = addresses.insert((route.address, route.protocol, route.port));
            if is_first {
                let protocol = route.protocol;
                route.node_port = route
                    .node_port
                    .filter(|port| node_ports.insert((protocol, *port)));
            }
            is_first
        });
        Self(routes)
    }

    const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Where services are to lead and where they do.
#[derive(Debug, Default)]
pub(super) struct ServiceState {
    wanted: DistinctRoutes,
    /// `None` if it is not known: an earlier agent may have left rules.
    installed: Option<DistinctRoutes>,
    /// Sandboxes whose links give back what came from them.
    reflecting: BTreeSet<SandboxId>,
}

impl ServiceState {
    /// The table has gone with the bridge.
    pub(super) fn removed(&mut self) {
        if self.is_followed() {
            self.installed = Some(DistinctRoutes::default());
        }
    }

    /// The table has been removed by others.
    pub(super) fn lost(&mut self) {
        self.installed = None;
    }

    /// Whether somebody says where services lead; most agents have none.
    pub(super) fn is_followed(&self) -> bool {
        !self.wanted.is_empty() || self.installed.is_some()
    }

    /// Lets pods reach themselves through their services. Where the machine lets bridged packets pass its rules, such a packet
    /// is sent back to the link it came from, which a bridge does for these links only.
    fn reflect<'a>(&mut self, users: impl Iterator<Item = &'a SandboxId>) {
        let users: BTreeSet<SandboxId> = users.cloned().collect();
        self.reflecting.retain(|id| users.contains(id));
        for id in users {
            if self.reflecting.contains(&id) {
                continue;
            }
            let link = link_name(&id);
            let path = format!("/sys/class/net/{link}/brport/hairpin_mode");
            match fs::write(path, "1") {
                Ok(()) => {}
                // A sandbox that is still being made has no link, and is behind no service yet.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => tracing::warn!(link, %error, "a pod cannot reach itself through its service"),
            }
            self.reflecting.insert(id);
        }
    }

    pub(super) fn has_node_ports(&self) -> bool {
        let installed = self.installed.iter().flat_map(|installed| &installed.0);
        installed.into_iter().any(|route| route.node_port.is_some())
    }
}

impl Network {
    pub(super) fn update_services(&self, state: &mut State) -> Result<(), FirewallError> {
        let services = &mut state.services;
        let name = table(&self.bridge);
        if state.users.is_empty() || services.installed.as_ref() == Some(&services.wanted) {
            return Ok(());
        }
        let script = if services.wanted.is_empty() {
            firewall::deletion(&name)
        } else {
            ruleset(&self.bridge, &services.wanted)
        };
        match firewall::nft(&script) {
            Ok(()) => {}
            // Nothing is there that could be removed.
            Err(FirewallError::Run(_)) if services.wanted.is_empty() => {}
            Err(error) => return Err(error),
        }
        state.tables.services = if services.wanted.is_empty() {
            TableState::Unneeded
        } else {
            installed_table(&name, outline(&services.wanted.0))
        };
        services.installed = Some(services.wanted.clone());
        services.reflect(state.users.keys());
        self.route_loopback(state);
        Ok(())
    }
}

pub(super) fn table(bridge: &str) -> String {
    format!("{}_services", firewall::table(bridge))
}

/// A connection is looked up by where it goes, and goes on in the chain of that port. Of what the machine forwards only the
/// bridge's own counts: the pods of another agent have services of their own under the same addresses.
fn ruleset(bridge: &str, routes: &DistinctRoutes) -> String {
    let table = table(bridge);
    let deletion = firewall::deletion(&table);
    let lookup = "ip daddr . meta l4proto . th dport";
    let (open, refused): (Vec<_>, Vec<_>) = routes.0.iter().partition(|route| !route.backends.is_empty());
    let addresses = |routes: &[&ServiceRoute], leads: bool| {
        elements(routes.iter().enumerate().map(|(index, route)| {
            let verdict = if leads { to_chain(index) } else { String::new() };
            let protocol = protocol(route.protocol);
            format!("{} . {protocol} . {}{verdict}", route.address, route.port)
        }))
    };
    let ports = elements(open.iter().enumerate().filter_map(|(index, route)| {
        let port = route.node_port?;
        Some(format!(
            "{} . {port}{}",
            protocol(route.protocol),
            to_chain(index)
        ))
    }));
    let chains: String = open.iter().enumerate().map(chain).collect();
    let (open, refused) = (addresses(&open, true), addresses(&refused, false));
    format!(
        "{deletion}table ip {table} {{\n{chains}\
         map addresses {{ type ipv4_addr . inet_proto . inet_service : verdict; {open}}}\n\
         map ports {{ type inet_proto . inet_service : verdict; {ports}}}\n\
         set refused {{ type ipv4_addr . inet_proto . inet_service; {refused}}}\n\
         chain prerouting {{ type nat hook prerouting priority -100;\n\
         iifname \"{bridge}\" {lookup} vmap @addresses;\n\
         fib daddr type local meta l4proto . th dport vmap @ports;\n}}\n\
         chain output {{ type nat hook output priority -100;\n\
         {lookup} vmap @addresses;\n\
         fib daddr type local meta l4proto . th dport vmap @ports;\n}}\n\
         chain refuse {{\n\
         {lookup} @refused meta l4proto tcp reject with tcp reset;\n\
         {lookup} @refused reject;\n}}\n\
         chain refuse_forwarded {{ type filter hook forward priority -10; iifname \"{bridge}\" jump refuse; }}\n\
         chain refuse_own {{ type filter hook output priority 0; jump refuse; }}\n}}\n"
    )
}

/// How much the table has of which chains and rules.
fn outline(routes: &[ServiceRoute]) -> Outline {
    let open = routes.iter().filter(|route| !route.backends.is_empty()).count();
    Outline {
        chains: 5 + open,
        rules: 8 + open,
    }
}

fn elements(elements: impl Iterator<Item = String>) -> String {
    let elements: Vec<String> = elements.collect();
    if elements.is_empty() {
        return String::new();
    }
    format!("elements = {{ {} }}; ", elements.join(", "))
}

fn to_chain(index: usize) -> String {
    format!(" : goto port_{index}")
}

/// Where connections to one port of a service go.
fn chain((index, route): (usize, &&ServiceRoute)) -> String {
    let place = |backend: &SocketAddrV4| format!("{} . {}", backend.ip(), backend.port());
    let backends = &route.backends;
    let target = match (backends.as_slice(), route.choice) {
        ([only], BackendChoice::Random | BackendChoice::ByClient) => only.to_string(),
        (_, BackendChoice::Random) => {
            let places = numbered(backends.iter().map(place));
            format!("numgen random mod {} map {{ {places} }}", backends.len())
        }
        (_, BackendChoice::ByClient) => {
            let parts = (0..CLIENT_PARTS).filter_map(|part| backend_of_part(part, backends));
            let places = numbered(parts.map(|backend| place(&backend)));
            format!("jhash ip saddr mod {CLIENT_PARTS} seed 0x1 map {{ {places} }}")
        }
    };
    let protocol = protocol(route.protocol);
    format!("chain port_{index} {{ meta l4proto {protocol} dnat ip to {target}; }}\n")
}

fn numbered(places: impl Iterator<Item = String>) -> String {
    let mut text = String::new();
    for (number, place) in places.enumerate() {
        let separator = if number == 0 { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}{number} : {place}");
    }
    text
}

/// The backend of a part of the clients: the one with the highest score for the part. So no client loses its backend because
/// another one has gone.
fn backend_of_part(part: u32, backends: &[SocketAddrV4]) -> Option<SocketAddrV4> {
    let score = |backend: &&SocketAddrV4| {
        let bits = u64::from(backend.ip().to_bits()) << 16 | u64::from(backend.port());
        // The steps of SplitMix64, which spread neighbours evenly.
        let mut value = bits ^ (u64::from(part) << 48).wrapping_add(0x9e37_79b9_7f4a_7c15);
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    };
    backends.iter().max_by_key(score).copied()
}

fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;
    use pulselet_sys::unshare_namespaces;
    use rustix::thread::UnshareFlags;

    use super::*;

    /// Each is a run of nft.
    const CASES: u32 = 100;
    const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 43, 0, 5);

    fn backend(last: u8) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::new(10, 88, 0, last), 8080)
    }

    fn route(protocol: Protocol, backends: &[SocketAddrV4]) -> ServiceRoute {
        ServiceRoute {
            address: ADDRESS,
            protocol,
            port: 80,
            node_port: None,
            backends: backends.to_vec(),
            choice: BackendChoice::Random,
        }
    }

    fn rules(routes: &[ServiceRoute]) -> String {
        ruleset("b", &DistinctRoutes::new(routes.to_vec()))
    }

    #[test]
    fn a_port_leads_to_its_backends_and_is_refused_without_any() {
        let mut open = route(Protocol::Tcp, &[backend(2), backend(3)]);
        open.node_port = Some(30_080);
        let single = route(Protocol::Udp, &[backend(4)]);
        let mut empty = route(Protocol::Tcp, &[]);
        (empty.port, empty.node_port) = (81, Some(30_081));
        let text = rules(&[open, empty, single]);
        for line in [
            "chain port_0 { meta l4proto tcp dnat ip to numgen random mod 2 map { 0 : 10.88.0.2 . 8080, 1 : 10.88.0.3 . 8080 }; }",
            "chain port_1 { meta l4proto udp dnat ip to 10.88.0.4:8080; }",
            "elements = { 10.43.0.5 . tcp . 80 : goto port_0, 10.43.0.5 . udp . 80 : goto port_1 };",
            "elements = { tcp . 30080 : goto port_0 };",
            "elements = { 10.43.0.5 . tcp . 81 };",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        let table = "pulselet_b_services";
        let start = format!("add table ip {table}\ndelete table ip {table}\ntable ip {table} {{");
        assert!(text.starts_with(&start), "{text}");
    }

    #[test]
    fn a_client_keeps_its_backend_when_others_go() {
        let before: Vec<_> = (2..6).map(backend).collect();
        let after: Vec<_> = before.iter().copied().filter(|it| *it != backend(3)).collect();
        let mut counts = [0; 6];
        for part in 0..CLIENT_PARTS {
            let had = backend_of_part(part, &before).expect("there are some");
            counts[usize::from(had.ip().octets()[3])] += 1;
            if had != backend(3) {
                assert_eq!(backend_of_part(part, &after), Some(had));
            }
        }
        assert!(
            counts[2..].iter().all(|count| (32..=96).contains(count)),
            "{counts:?}"
        );
        let mut sticky = route(Protocol::Tcp, &before);
        sticky.choice = BackendChoice::ByClient;
        let text = rules(&[sticky]);
        assert!(
            text.contains("dnat ip to jhash ip saddr mod 256 seed 0x1 map { 0 : 10.88.0."),
            "{text}"
        );
        assert_eq!(backend_of_part(0, &[]), None);
    }
    #[test]
    fn the_first_of_equal_routes_counts() {
        let mut open = route(Protocol::Tcp, &[backend(2)]);
        open.node_port = Some(30_080);
        let same = route(Protocol::Tcp, &[]);
        let mut same_node_port = open.clone();
        same_node_port.port = 81;
        let mut other_protocol = open.clone();
        other_protocol.protocol = Protocol::Udp;
        let text = rules(&[open, same, same_node_port, other_protocol]);
        for line in [
            "elements = { 10.43.0.5 . tcp . 80 : goto port_0, 10.43.0.5 . tcp . 81 : goto port_1, 10.43.0.5 . udp . 80 : goto \
             port_2 };",
            "elements = { tcp . 30080 : goto port_0, udp . 30080 : goto port_2 };",
            "set refused { type ipv4_addr . inet_proto . inet_service; }",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    /// Few values of each kind, so that many are the same, and the odd ones among them.
    fn any_route() -> impl Strategy<Value = ServiceRoute> {
        let port = || prop_oneof![Just(0_u16), Just(1), Just(80), Just(65_535)];
        let address = prop_oneof![
            Just(ADDRESS),
            Just(Ipv4Addr::UNSPECIFIED),
            Just(Ipv4Addr::BROADCAST),
            Just(Ipv4Addr::LOCALHOST),
        ];
        let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Sctp)];
        let choice = prop_oneof![Just(BackendChoice::Random), Just(BackendChoice::ByClient)];
        let host = prop_oneof![
            Just(Ipv4Addr::UNSPECIFIED),
            Just(Ipv4Addr::BROADCAST),
            Just(ADDRESS)
        ];
        let backend = (host, port()).prop_map(|(host, port)| SocketAddrV4::new(host, port));
        let backends = proptest::collection::vec(backend, 0..5);
        let node_port = proptest::option::of(port());
        (address, protocol, port(), node_port, backends, choice).prop_map(
            |(address, protocol, port, node_port, backends, choice)| ServiceRoute {
                address,
                protocol,
                port,
                node_port,
                backends,
                choice,
            },
        )
    }

    /// nftables checks a script in a network namespace of its own, so that nothing of the machine is in its way.
    #[test]
    fn nftables_takes_whatever_routes_there_are() {
        if !pulselet_testing::requires("root", pulselet_testing::is_root()) {
            return;
        }
        let property = || {
            unshare_namespaces(UnshareFlags::NEWNET).expect("has a namespace");
            let config = ProptestConfig {
                failure_persistence: None,
                ..ProptestConfig::with_cases(CASES)
            };
            let routes = proptest::collection::vec(any_route(), 0..40);
            TestRunner::new(config).run(&routes, |routes| {
                let script = rules(&routes);
                let installed = firewall::nft(&script);
                prop_assert!(installed.is_ok(), "{installed:?}\n{script}");
                Ok(())
            })
        };
        let ran = std::thread::scope(|scope| scope.spawn(property).join().expect("does not panic"));
        assert!(ran.is_ok(), "{ran:?}");
    }
}
