//! The pods' network: one bridge, a pair of links per sandbox, addresses from one range.
//!
//! An address belongs to a sandbox as long as the sandbox's record says so; there is no other list that could differ
//! from it. Where the machine has IPv6 a pod has an address of each kind; over IPv6 it reaches other pods and the host,
//! and not the world: for that this machine would have to route, which changes how it gets its own address. The bridge
//! and the firewall's rules are there while some sandbox uses them. Everything has a name made from a sandbox's id or
//! from the settings, so that what a killed agent left is recognised and removed.
//!
//! A new pod is reached at once, also where another was a moment ago: addresses are given in turn, a hardware address
//! follows from the address, the bridge's too, and the host forgets what it learned of an address when the address
//! changes hands.

mod firewall;
mod forwarding;
mod link_settings;
mod netlink;
mod nftables;
mod repair;
mod services;
mod source_guard;
mod subnet;
mod watch;

use std::{
    collections::{BTreeMap, HashSet},
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket},
    os::fd::BorrowedFd,
    path::Path,
    sync::{Mutex, OnceLock},
};

use pulselet_runtime::{EventHub, PortMapping, Protocol, SandboxId};

use crate::cni::CniOptions;
use firewall::FirewallError;
pub(crate) use firewall::Forward;
pub(crate) use forwarding::tidy_up as tidy_up_forwarding;
use forwarding::{Forwarding, ForwardingError};
use link_settings::ProtectError;
use netlink::{Netlink, Peer};
use repair::{TableState, Tables, installed_table};
use services::ServiceState;
pub use services::{PodNetwork, ServiceRulesError};
pub use subnet::{InvalidSubnet, Subnet};
use subnet::{V6_PREFIX, mac_of};

/// What the pod sees its link as.
const POD_LINK: &str = "eth0";

/// The index of the loopback link, which is the first one of every network namespace.
const LOOPBACK: u32 = 1;

/// Before the name of the host's end of a pair of links; twelve digits of the sandbox's id follow, which makes the
/// longest name that the kernel takes.
const LINK_PREFIX: &str = "plt";
const LINK_DIGITS: usize = 12;

/// Where no range is given, one of this many in a row is taken: from 10.88.0.0 to 10.127.255.255, with room for 509 pods
/// each.
const FIRST_CANDIDATE: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 0);
const CANDIDATES: u32 = 5_120;
const CANDIDATE_PREFIX: u8 = 23;

/// How the pods' network is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkOptions {
    /// The bridge's name, at most 15 bytes. Runtimes with different roots need different bridges.
    pub bridge: String,
    /// None: a part of 10.88.0.0 to 10.127.255.255 into which no route of the machine leads. The search begins at a place
    /// made from the bridge's name: two runtimes that begin at once do not take the same.
    pub subnet: Option<Subnet>,
    /// Plugins that attach new sandboxes, instead of the bridge.
    pub cni: Option<CniOptions>,
}

impl Default for NetworkOptions {
    fn default() -> Self {
        Self {
            bridge: "pulselet0".into(),
            subnet: None,
            cni: None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    #[error("cannot talk to the kernel about networks: {0}")]
    OpenSocket(io::Error),
    #[error("cannot set up the bridge {bridge}: {source}")]
    Bridge { bridge: String, source: io::Error },
    #[error("cannot make a link for the pod: {0}")]
    Pair(io::Error),
    #[error("cannot set up the pod's address {address}: {source}")]
    Configure { address: Ipv4Addr, source: io::Error },
    #[error("cannot remove the link {link}: {source}")]
    RemoveLink { link: String, source: io::Error },
    #[error(transparent)]
    Protect(#[from] ProtectError),
    #[error("host port {port} is taken by another pod or program")]
    PortTaken { port: u16 },
    #[error("host ports of protocol SCTP are not supported")]
    UnsupportedProtocol,
    #[error(transparent)]
    Firewall(#[from] FirewallError),
}

#[derive(Debug)]
pub(crate) struct Network {
    bridge: String,
    pub(crate) subnet: Subnet,
    /// Whether pods get IPv6 addresses too.
    ipv6: bool,
    /// The address that was given last. The next one is given after it.
    given: Mutex<Option<Ipv4Addr>>,
    /// Locked while the bridge or the firewall's rules change.
    state: Mutex<State>,
    forwarding: Forwarding,
    /// Filled when it was said that pods' sources are not checked.
    unguarded: OnceLock<()>,
    /// Where restored parts are made known; empty while nothing is restored.
    events: OnceLock<EventHub>,
}

/// The addresses of a pod on the bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PodAddresses {
    pub(crate) v4: Ipv4Addr,
    pub(crate) v6: Option<Ipv6Addr>,
}

impl PodAddresses {
    /// Of a list; none without an IPv4 address.
    pub(crate) fn among(addresses: &[IpAddr]) -> Option<Self> {
        let v4 = addresses.iter().find_map(|address| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        });
        let v6 = addresses.iter().find_map(|address| match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => Some(*address),
        });
        v4.map(|v4| Self { v4, v6 })
    }

    pub(crate) fn list(self) -> Vec<IpAddr> {
        let v6 = self.v6.map(IpAddr::V6);
        [IpAddr::V4(self.v4)].into_iter().chain(v6).collect()
    }
}

#[derive(Debug, Default)]
struct State {
    /// Sandboxes on the bridge, or about to be, with their ports.
    users: BTreeMap<SandboxId, Vec<Forward>>,
    /// The rules that are in force.
    installed: Option<Vec<Forward>>,
    services: ServiceState,
    /// The same as the kernel has it.
    tables: Tables,
}

impl Network {
    pub(crate) fn new(options: &NetworkOptions) -> Self {
        let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
        let begin = options.bridge.bytes().fold(0, |place: u32, byte| {
            place.wrapping_mul(31).wrapping_add(u32::from(byte))
        });
        let candidate = |place: u32| {
            let offset = (begin.wrapping_add(place) % CANDIDATES) << (32 - CANDIDATE_PREFIX);
            Subnet::new(
                Ipv4Addr::from_bits(FIRST_CANDIDATE.to_bits() + offset),
                CANDIDATE_PREFIX,
            )
        };
        let free = || {
            (0..CANDIDATES)
                .filter_map(candidate)
                .find(|subnet| !subnet.clashes(&routes, &options.bridge))
        };
        // Where every range has a route the first is as good as any: the pods' own routes are more exact.
        let subnet = options
            .subnet
            .or_else(free)
            .or_else(|| candidate(0))
            .expect("the prefix is in range");
        Self {
            bridge: options.bridge.clone(),
            subnet,
            ipv6: has_ipv6(),
            given: Mutex::default(),
            state: Mutex::default(),
            forwarding: Forwarding::default(),
            unguarded: OnceLock::new(),
            events: OnceLock::new(),
        }
    }

    /// The next free addresses.
    pub(crate) fn free_addresses(&self, taken: &[IpAddr]) -> Option<PodAddresses> {
        let mut given = self.given.lock().expect("no holder panics");
        let v4 = self.subnet.free_address(taken, *given)?;
        *given = Some(v4);
        let v6 = self.ipv6.then(|| self.subnet.v6(v4));
        Some(PodAddresses { v4, v6 })
    }

    /// Goes on where an earlier agent was, as far as records tell.
    pub(crate) fn give_after(&self, last: Option<Ipv4Addr>) {
        *self.given.lock().expect("no holder panics") = last;
    }

    /// Counts a sandbox as a user of the bridge, which is made if it is missing, and opens its ports.
    pub(crate) fn register(&self, id: &SandboxId, forwards: Vec<Forward>) -> Result<(), NetworkError> {
        let mut state = self.state.lock().expect("no holder panics");
        check_ports(&forwards, &state.users)?;
        state.users.insert(id.clone(), forwards);
        let netlink = Netlink::open().map_err(NetworkError::OpenSocket)?;
        self.ensure_bridge(&netlink)?;
        self.update_rules(&mut state)
    }

    /// As `register`, for a sandbox that an earlier agent made.
    pub(crate) fn adopt(&self, id: &SandboxId, addresses: PodAddresses, forwards: Vec<Forward>) {
        let mut state = self.state.lock().expect("no holder panics");
        state.users.insert(id.clone(), forwards);
        // Earlier builds let pods send under any address.
        if let Ok(netlink) = Netlink::open()
            && let Ok(Some(index)) = netlink.link(&link_name(id))
        {
            self.guard_source(&netlink, index, addresses);
        }
    }

    /// Lets a pod send under its own addresses only. A kernel that cannot is said once; the pods run without.
    fn guard_source(&self, netlink: &Netlink, link: u32, addresses: PodAddresses) {
        if let Err(error) = netlink.filter_frames(link, &source_guard::program(addresses)) {
            self.unguarded.get_or_init(|| {
                tracing::warn!(
                    %error,
                    "pods can send under each other's addresses: this kernel has no packet filter for links \
                     (it needs NET_SCH_INGRESS and NET_CLS_BPF)"
                );
            });
        }
    }

    /// Connects a registered sandbox's network namespace, in which the calling thread is, to the bridge. `host` was opened
    /// in the host's, `own` in the sandbox's.
    pub(crate) fn connect(
        &self,
        host: &Socket,
        own: &Socket,
        id: &SandboxId,
        namespace: BorrowedFd<'_>,
        addresses: PodAddresses,
    ) -> Result<(), NetworkError> {
        let bridge = self.ensure_bridge(&host.0)?;
        let peer = Peer {
            name: POD_LINK,
            mac: mac_of(addresses.v4),
            namespace,
        };
        let link = link_name(id);
        let pair = host.0.add_pair(&link, bridge, &peer);
        pair.map_err(NetworkError::Pair)?;
        // Nothing comes through before both ends are up.
        let index = host.0.link(&link).map_err(NetworkError::Pair)?;
        let index = index.ok_or_else(|| NetworkError::Pair(io::ErrorKind::NotFound.into()))?;
        self.guard_source(&host.0, index, addresses);
        if self.ipv6 {
            host.0.leave_without_address(index).map_err(NetworkError::Pair)?;
        }
        host.0.set_up(index).map_err(NetworkError::Pair)?;
        link_settings::protect_pod(POD_LINK)?;
        configure_pod(&own.0, self.subnet, addresses)?;
        host.0.settle(&link).map_err(NetworkError::Pair)?;
        // Only now does the pod answer: who asked before may have heard nothing.
        forget_neighbours(&host.0, bridge, addresses);
        Ok(())
    }

    /// Takes a sandbox's link and ports away, and with the last one the bridge.
    pub(crate) fn disconnect(&self, id: &SandboxId, addresses: PodAddresses) -> Result<(), NetworkError> {
        let netlink = Netlink::open().map_err(NetworkError::OpenSocket)?;
        remove_link(&netlink, &link_name(id))?;
        if let Ok(Some(bridge)) = netlink.link(&self.bridge) {
            forget_neighbours(&netlink, bridge, addresses);
        }
        let mut state = self.state.lock().expect("no holder panics");
        if state.users.remove(id).is_some() {
            self.update_rules(&mut state)?;
        }
        if state.users.is_empty() {
            remove_link(&netlink, &self.bridge)?;
        }
        Ok(())
    }

    fn update_rules(&self, state: &mut State) -> Result<(), NetworkError> {
        if state.users.is_empty() {
            if state.installed.take().is_some() {
                self.remove_rules();
            }
            state.services.removed();
            state.tables = Tables::default();
            return Ok(());
        }
        let wanted: Vec<Forward> = state.users.values().flatten().cloned().collect();
        if state.installed.as_ref() != Some(&wanted) {
            self.install_rules(&wanted, &mut state.tables)?;
            state.installed = Some(wanted);
            self.route_loopback(state);
        }
        // Pods run without the addresses of services; who follows services tries again.
        if state.services.is_followed()
            && let Err(error) = self.update_services(state)
        {
            tracing::debug!(%error, "the addresses of services do not lead to pods yet");
        }
        Ok(())
    }

    /// Ports of the host, be they of pods or of services, are also asked for under 127.0.0.1. Without the rules that guard
    /// these addresses from pods nothing is routed.
    fn route_loopback(&self, state: &mut State) {
        let of_pods = state.installed.as_ref().is_some_and(|ports| !ports.is_empty());
        let is_needed = of_pods || state.services.has_node_ports();
        let on = is_needed && state.tables.firewall.is_installed();
        firewall::route_loopback(&self.bridge, on);
        state.tables.routes_loopback = Some(on);
    }

    /// A machine without nftables is an error only if some port depends on it. Nothing is forwarded without its rules.
    fn install_rules(&self, wanted: &[Forward], tables: &mut Tables) -> Result<(), NetworkError> {
        match firewall::install(&self.bridge, self.subnet, wanted) {
            Ok(()) => {}
            Err(error) => {
                // A failed transaction leaves what was there, which others may have removed before.
                self.compare(tables);
                self.guard_loopback(tables);
                if wanted.is_empty() {
                    tracing::warn!(%error, "pods cannot reach beyond this machine: there is no masquerading");
                    return Ok(());
                }
                return Err(error.into());
            }
        }
        tables.firewall = installed_table(&firewall::table(&self.bridge), firewall::outline(wanted));
        if let Err(error) = self.turn_on_forwarding(tables) {
            tracing::warn!(%error, "pods may not reach beyond this machine: it does not forward for them");
        }
        Ok(())
    }

    fn turn_on_forwarding(&self, tables: &mut Tables) -> Result<(), ForwardingError> {
        self.forwarding.turn_on(&self.bridge)?;
        tables.forwarding = if self.forwarding.is_ours() {
            installed_table(forwarding::TABLE, forwarding::OUTLINE)
        } else {
            TableState::Unneeded
        };
        Ok(())
    }

    fn remove_rules(&self) {
        if let Err(error) = self.forwarding.turn_off(&self.bridge) {
            tracing::warn!(%error, "this machine cannot stop forwarding for pods");
        }
        firewall::remove(&self.bridge);
    }

    fn ensure_bridge(&self, netlink: &Netlink) -> Result<u32, NetworkError> {
        let found = netlink.link(&self.bridge);
        if let Some(index) = found.map_err(|source| self.bridge_error(source))? {
            return Ok(index);
        }
        let make = || -> io::Result<u32> {
            let gateway = self.subnet.gateway();
            netlink.add_bridge(&self.bridge, mac_of(gateway))?;
            let index = netlink
                .link(&self.bridge)?
                .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            netlink.add_address(index, gateway.into(), self.subnet.prefix())?;
            netlink.set_up(index)?;
            if self.ipv6 {
                netlink.add_address(index, self.subnet.v6(gateway).into(), V6_PREFIX)?;
            }
            Ok(index)
        };
        let index = make().map_err(|source| self.bridge_error(source))?;
        // No link is in it yet, so that nothing has come.
        let protected = link_settings::protect_bridge(&self.bridge);
        if protected.is_err() {
            let _ = netlink.delete_link(&self.bridge);
        }
        protected.map(|()| index).map_err(NetworkError::from)
    }

    /// Gives a bridge that an earlier agent made its hardware address: earlier builds let it follow the links in the
    /// bridge. Pods remember the old one and do not ask again for half a minute, so that they are told.
    fn fix_bridge(&self, netlink: &Netlink) -> Result<(), NetworkError> {
        let fix = || -> io::Result<()> {
            let Some(index) = netlink.link(&self.bridge)? else {
                return Ok(());
            };
            // Where there is no such setting, there is nothing of that kind to be told.
            for setting in [
                format!("ipv4/conf/{}/arp_notify", self.bridge),
                format!("ipv6/conf/{}/ndisc_notify", self.bridge),
            ] {
                let _ = fs::write(Path::new("/proc/sys/net").join(setting), "1");
            }
            netlink.set_mac(index, mac_of(self.subnet.gateway()))
        };
        fix().map_err(|source| self.bridge_error(source))
    }

    fn bridge_error(&self, source: io::Error) -> NetworkError {
        NetworkError::Bridge {
            bridge: self.bridge.clone(),
            source,
        }
    }

    /// After all were adopted: removes links of sandboxes that nobody knows any more, and a bridge that nobody uses. One
    /// that is used is made as this build has it.
    pub(crate) fn remove_strays(&self) -> Result<(), NetworkError> {
        let mut state = self.state.lock().expect("no holder panics");
        let expected: HashSet<String> = state.users.keys().map(link_name).collect();
        let ports = Path::new("/sys/class/net").join(&self.bridge).join("brif");
        let netlink = Netlink::open().map_err(NetworkError::OpenSocket)?;
        for entry in fs::read_dir(ports).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(LINK_PREFIX) && !expected.contains(&name) {
                remove_link(&netlink, &name)?;
            }
        }
        if !state.users.is_empty() {
            self.fix_bridge(&netlink)?;
            // Earlier builds left a bridge's settings as the kernel makes them.
            link_settings::protect_bridge(&self.bridge)?;
            return self.update_rules(&mut state);
        }
        if netlink.link(&self.bridge).is_ok_and(|link| link.is_some()) {
            self.remove_rules();
            return remove_link(&netlink, &self.bridge);
        }
        // An agent that was killed may have taken the bridge away and no more.
        if let Err(error) = self.forwarding.turn_off(&self.bridge) {
            tracing::warn!(%error, "this machine cannot stop forwarding for pods");
        }
        Ok(())
    }
}

/// Configures the pod's link.
fn configure_pod(
    netlink: &Netlink,
    subnet: Subnet,
    PodAddresses { v4, v6 }: PodAddresses,
) -> Result<(), NetworkError> {
    let configure = || -> io::Result<()> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let link = netlink.link(POD_LINK)?.ok_or_else(missing)?;
        netlink.add_address(link, v4.into(), subnet.prefix())?;
        // It may send under no other.
        netlink.derive_address(link)?;
        netlink.set_up(link)?;
        netlink.add_default_route(subnet.gateway())?;
        if let Some(v6) = v6 {
            netlink.add_address(link, v6.into(), V6_PREFIX)?;
        }
        Ok(())
    };
    configure().map_err(|source| NetworkError::Configure { address: v4, source })
}

/// Makes the host ask anew who has these addresses. What it remembers is right but for pods of earlier builds, which had
/// random hardware addresses; so a failure is no reason to refuse or to keep a pod.
fn forget_neighbours(netlink: &Netlink, bridge: u32, addresses: PodAddresses) {
    for address in addresses.list() {
        if let Err(error) = netlink.delete_neighbour(bridge, address) {
            tracing::warn!(%address, %error, "the host cannot forget which pod had this address");
        }
    }
}

/// Whether the machine's interfaces have IPv6.
fn has_ipv6() -> bool {
    let disabled = fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    disabled.is_ok_and(|text| text.trim() == "0")
}

/// A connection to the network namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct Socket(Netlink);

impl Socket {
    pub(crate) fn open() -> Result<Self, NetworkError> {
        Netlink::open().map(Self).map_err(NetworkError::OpenSocket)
    }

    pub(crate) fn set_up_loopback(&self) -> Result<(), NetworkError> {
        let set_up = self.0.set_up(LOOPBACK);
        set_up.map_err(|source| NetworkError::Configure {
            address: Ipv4Addr::LOCALHOST,
            source,
        })
    }
}

fn remove_link(netlink: &Netlink, link: &str) -> Result<(), NetworkError> {
    netlink
        .delete_link(link)
        .map_err(|source| NetworkError::RemoveLink {
            link: link.to_owned(),
            source,
        })
}

fn link_name(id: &SandboxId) -> String {
    let digits: String = id.as_str().chars().take(LINK_DIGITS).collect();
    format!("{LINK_PREFIX}{digits}")
}

/// Refuses ports that another pod or a program of the host has. The program could still come later.
fn check_ports(wanted: &[Forward], users: &BTreeMap<SandboxId, Vec<Forward>>) -> Result<(), NetworkError> {
    for PortMapping {
        protocol,
        host_port,
        host_ip,
        ..
    } in wanted.iter().map(|forward| &forward.mapping)
    {
        let same = |other: &Forward| {
            let other = &other.mapping;
            other.protocol == *protocol
                && other.host_port == *host_port
                && (other.host_ip == *host_ip || other.host_ip.is_none() || host_ip.is_none())
        };
        let address = (host_ip.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), *host_port);
        let free = match protocol {
            Protocol::Tcp => TcpListener::bind(address).is_ok(),
            Protocol::Udp => UdpSocket::bind(address).is_ok(),
            Protocol::Sctp => return Err(NetworkError::UnsupportedProtocol),
        };
        if !free || users.values().flatten().any(same) {
            return Err(NetworkError::PortTaken { port: *host_port });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::AsFd as _, process::Command};

    use pulselet_sys::unshare_namespaces;
    use rustix::thread::UnshareFlags;

    use super::*;

    const IP_FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";

    /// Runs a test in a network namespace of its own, in which nothing is forwarded.
    fn in_namespace(test: impl FnOnce() + Send) {
        if !pulselet_testing::requires("root", pulselet_testing::is_root()) {
            return;
        }
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                unshare_namespaces(UnshareFlags::NEWNET).expect("has a namespace");
                fs::write(IP_FORWARD, "0").expect("is set");
                test();
            });
            thread.join().expect("does not panic");
        });
    }

    fn network(bridge: &str, shared: &Path) -> Network {
        let options = NetworkOptions {
            bridge: bridge.into(),
            ..NetworkOptions::default()
        };
        let mut network = Network::new(&options);
        network.forwarding = Forwarding::in_directory(shared);
        network
    }

    fn forwards() -> bool {
        fs::read_to_string(IP_FORWARD).expect("reads").trim() == "1"
    }

    fn rules() -> String {
        let output = Command::new("nft").args(["list", "ruleset"]).output();
        String::from_utf8_lossy(&output.expect("runs").stdout).into_owned()
    }

    fn addresses(network: &Network) -> PodAddresses {
        network.free_addresses(&[]).expect("some is free")
    }

    #[test]
    fn forwarding_is_on_while_some_bridge_needs_it() {
        in_namespace(|| {
            let shared = tempfile::tempdir().expect("a directory");
            let [one, two] = ["one", "two"].map(|name| network(name, shared.path()));
            let pod = SandboxId::new("pod");
            one.register(&pod, Vec::new()).expect("is made");
            two.register(&pod, Vec::new()).expect("is made");
            assert!(forwards());
            one.disconnect(&pod, addresses(&one)).expect("is gone");
            assert!(forwards(), "the second bridge needs it");
            two.disconnect(&pod, addresses(&two)).expect("is gone");
            assert!(!forwards(), "nobody needs it");
            assert_eq!(rules(), "");
        });
    }

    #[test]
    fn an_agent_that_was_killed_is_cleaned_up_after() {
        in_namespace(|| {
            let shared = tempfile::tempdir().expect("a directory");
            let pod = SandboxId::new("pod");
            let killed = network("one", shared.path());
            killed.register(&pod, Vec::new()).expect("is made");
            drop(killed);
            assert!(forwards());
            // It comes back and knows no sandbox.
            network("one", shared.path()).remove_strays().expect("cleans up");
            assert!(!forwards());
            assert_eq!(rules(), "");
        });
    }

    #[test]
    fn a_bridge_is_let_through_also_where_the_record_of_another_was_removed() {
        in_namespace(|| {
            let shared = tempfile::tempdir().expect("a directory");
            let [one, two] = ["one", "two"].map(|name| network(name, shared.path()));
            let pod = SandboxId::new("pod");
            one.register(&pod, Vec::new()).expect("is made");
            fs::remove_dir_all(shared.path()).expect("is removed");
            two.register(&pod, Vec::new()).expect("is made");
            let limit = rules();
            let (_, limit) = limit.split_once("table ip pulselet_forwarding").expect("a table");
            assert!(limit.contains("\"two\""), "{limit}");
            one.disconnect(&pod, addresses(&one)).expect("is gone");
            two.disconnect(&pod, addresses(&two)).expect("is gone");
            assert!(!forwards(), "nobody needs it");
            assert_eq!(rules(), "");
        });
    }

    #[test]
    fn a_machine_that_forwarded_before_goes_on_without_a_limit() {
        in_namespace(|| {
            let shared = tempfile::tempdir().expect("a directory");
            fs::write(IP_FORWARD, "1").expect("is set");
            let (network, pod) = (network("one", shared.path()), SandboxId::new("pod"));
            network.register(&pod, Vec::new()).expect("is made");
            assert!(!rules().contains("hook forward"), "{}", rules());
            network.disconnect(&pod, addresses(&network)).expect("is gone");
            assert!(forwards());
        });
    }

    #[test]
    fn settings_that_change_with_forwarding_come_back() {
        in_namespace(|| {
            let shared = tempfile::tempdir().expect("a directory");
            let redirects = "/proc/sys/net/ipv4/conf/all/accept_redirects";
            fs::write(redirects, "0").expect("is set");
            let own = "/proc/sys/net/ipv4/conf/lo/forwarding";
            fs::write(own, "1").expect("is set");
            let (network, pod) = (network("one", shared.path()), SandboxId::new("pod"));
            network.register(&pod, Vec::new()).expect("is made");
            network.disconnect(&pod, addresses(&network)).expect("is gone");
            let read = |path| fs::read_to_string(path).expect("reads").trim().to_owned();
            assert_eq!(
                (read(redirects), read(own), forwards()),
                ("0".into(), "1".into(), false)
            );
        });
    }

    /// A neighbour of the machine, in a network namespace of its own.
    struct Neighbour {
        namespace: File,
        address: Ipv4Addr,
    }

    impl Neighbour {
        fn new(number: u8) -> Self {
            let run = |arguments: String| {
                let status = Command::new("ip").args(arguments.split(' ')).status();
                assert!(status.expect("runs").success(), "ip {arguments}");
            };
            let address = Ipv4Addr::new(192, 0, number, 2);
            let machine = File::open("/proc/thread-self/ns/net").expect("opens");
            unshare_namespaces(UnshareFlags::NEWNET).expect("has a namespace");
            let namespace = File::open("/proc/thread-self/ns/net").expect("opens");
            // The pair is made from here, with the machine as the other side.
            let netlink = Netlink::open().expect("opens");
            let peer = Peer {
                name: &format!("near{number}"),
                mac: mac_of(Ipv4Addr::new(192, 0, number, 1)),
                namespace: machine.as_fd(),
            };
            netlink.add_bridge("lan", mac_of(address)).expect("is made");
            let lan = netlink.link("lan").expect("asks").expect("is there");
            netlink.add_pair("cable", lan, &peer).expect("is made");
            run("link set cable up".to_owned());
            run(format!("address add {address}/24 dev lan"));
            run(format!("route add default via 192.0.{number}.1"));
            Self::enter(&machine);
            run(format!("address add 192.0.{number}.1/24 dev near{number}"));
            run(format!("link set near{number} up"));
            Self { namespace, address }
        }

        fn enter(namespace: &File) {
            let kind = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(namespace.as_fd(), kind).expect("is entered");
        }

        fn socket(&self) -> UdpSocket {
            let machine = File::open("/proc/thread-self/ns/net").expect("opens");
            Self::enter(&self.namespace);
            let socket = UdpSocket::bind((self.address, 0)).expect("binds");
            Self::enter(&machine);
            socket
        }
    }

    #[test]
    fn a_machine_that_forwards_for_pods_is_no_router_for_its_neighbours() {
        in_namespace(|| {
            let shared = tempfile::tempdir().expect("a directory");
            let [from, to] = [Neighbour::new(1), Neighbour::new(2)].map(|neighbour| neighbour.socket());
            let target = to.local_addr().expect("has one");
            let next = || {
                let mut buffer = [0; 16];
                let count = to.recv(&mut buffer).expect("comes");
                String::from_utf8_lossy(&buffer[..count]).into_owned()
            };
            fs::write(IP_FORWARD, "1").expect("is set");
            from.send_to(b"routed", target).expect("is sent");
            assert_eq!(
                next(),
                "routed",
                "the neighbours know each other's hardware addresses now"
            );
            fs::write(IP_FORWARD, "0").expect("is set");
            let (network, pod) = (network("one", shared.path()), SandboxId::new("pod"));
            network.register(&pod, Vec::new()).expect("is made");
            assert!(forwards());
            from.send_to(b"through", target).expect("is sent");
            network.disconnect(&pod, addresses(&network)).expect("is gone");
            fs::write(IP_FORWARD, "1").expect("is set");
            from.send_to(b"after", target).expect("is sent");
            assert_eq!(next(), "after", "a packet between neighbours was forwarded");
        });
    }
}
