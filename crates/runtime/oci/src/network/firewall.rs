//! Translation of addresses by nftables: pods reach the world under the host's address, and the host's ports lead to
//! pods.
//!
//! Pods themselves reach neither the host's loopback addresses nor anything under an address that is none of theirs:
//! such packets are dropped before connections are tracked, and so before any translation.
//!
//! One table, named after the bridge, is replaced as a whole. It needs the `nft` program and a kernel that has
//! nftables; without them pods still reach the host and each other, and only host ports are an error.

use std::{
    fs,
    io::{self, Write as _},
    net::{IpAddr, Ipv4Addr},
    process::{Command, Stdio},
};

use pulselet_runtime::{PortMapping, Protocol};

use super::{nftables::Outline, services, subnet::Subnet};

/// Characters of nft's complaint that are passed on.
const MAX_COMPLAINT: usize = 500;

#[derive(Debug, thiserror::Error)]
pub(crate) enum FirewallError {
    #[error("host ports need the program nft, which cannot be run: {0}; install nftables")]
    Run(io::Error),
    #[error("host ports need nftables, which refuses: {complaint}")]
    Refused { complaint: String },
}

/// A port of the host that leads to a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Forward {
    pub(crate) mapping: PortMapping,
    pub(crate) pod: Ipv4Addr,
}

/// Replaces all rules but those for services.
pub(crate) fn install(bridge: &str, subnet: Subnet, forwards: &[Forward]) -> Result<(), FirewallError> {
    nft(&ruleset(bridge, subnet, forwards))
}

/// How much the table has of which chains and rules.
pub(super) fn outline(forwards: &[Forward]) -> Outline {
    Outline {
        chains: 5,
        rules: 7 + forwards.len(),
    }
}

pub(crate) fn remove(bridge: &str) {
    // Before the rule goes that keeps pods from the host's loopback addresses.
    route_loopback(bridge, false);
    // Without nft there is no table either.
    let tables = [table(bridge), services::table(bridge)];
    let _ = nft(&tables.map(|table| deletion(&table)).concat());
}

/// Adding a table first makes deleting it right in any case.
pub(super) fn deletion(table: &str) -> String {
    format!("add table ip {table}\ndelete table ip {table}\n")
}

/// Whether packets between the bridge and the host's loopback addresses are routed: a port of the host that is asked for
/// under 127.0.0.1 needs it. Only to be turned on while the rules are there that drop what pods send to these addresses.
pub(super) fn route_loopback(bridge: &str, on: bool) {
    if let Err(error) = fs::write(route_localnet(bridge), if on { "1" } else { "0" })
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(bridge, on, %error, "cannot change whether loopback addresses are routed to pods");
    }
}

/// Whether they are routed now; `None` without a bridge.
pub(super) fn routes_loopback(bridge: &str) -> Option<bool> {
    let text = fs::read_to_string(route_localnet(bridge)).ok()?;
    Some(text.trim() != "0")
}

fn route_localnet(bridge: &str) -> String {
    format!("/proc/sys/net/ipv4/conf/{bridge}/route_localnet")
}

pub(super) fn table(bridge: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    format!("pulselet_{}", bridge.chars().map(plain).collect::<String>())
}

/// The first chain sees packets as they came: an answer to a translated connection still goes to the bridge's address. A
/// connection from pod to pod that was translated gets the host's address as its source: the answer would go to the other pod
/// directly, which knows nothing of it.
fn ruleset(bridge: &str, subnet: Subnet, forwards: &[Forward]) -> String {
    let table = table(bridge);
    let ports: String = forwards.iter().map(forward_rule).collect();
    format!(
        "add table ip {table}\ndelete table ip {table}\ntable ip {table} {{\n\
         chain guard {{ type filter hook prerouting priority -300;\n\
         iifname \"{bridge}\" ip daddr 127.0.0.0/8 drop;\n\
         iifname \"{bridge}\" ip saddr != {subnet} drop;\n}}\n\
         chain ports {{\n{ports}}}\n\
         chain prerouting {{ type nat hook prerouting priority -100; fib daddr type local jump ports; }}\n\
         chain output {{ type nat hook output priority -100; fib daddr type local jump ports; }}\n\
         chain postrouting {{ type nat hook postrouting priority 100;\n\
         ip saddr {subnet} ip daddr != {subnet} masquerade;\n\
         ct status dnat ip saddr {subnet} ip daddr {subnet} masquerade;\n\
         ip saddr 127.0.0.0/8 oifname \"{bridge}\" masquerade;\n}}\n}}\n"
    )
}

fn forward_rule(forward: &Forward) -> String {
    let PortMapping {
        protocol,
        container_port,
        host_port,
        host_ip,
    } = &forward.mapping;
    let protocol = match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    };
    let address = match host_ip {
        Some(IpAddr::V4(address)) if !address.is_unspecified() => format!("ip daddr {address} "),
        Some(IpAddr::V4(_) | IpAddr::V6(_)) | None => String::new(),
    };
    format!(
        "{address}{protocol} dport {host_port} dnat to {}:{container_port};\n",
        forward.pod
    )
}

/// Runs a script as a whole or not at all.
pub(super) fn nft(script: &str) -> Result<(), FirewallError> {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(FirewallError::Run)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(script.as_bytes()).map_err(FirewallError::Run)?;
    }
    let output = child.wait_with_output().map_err(FirewallError::Run)?;
    if output.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let line = complaint.lines().next().unwrap_or("no reason given");
    Err(FirewallError::Refused {
        complaint: line.chars().take(MAX_COMPLAINT).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_lead_to_their_pods() {
        let forward = |host_ip, protocol| Forward {
            mapping: PortMapping {
                protocol,
                container_port: 80,
                host_port: 8080,
                host_ip,
            },
            pod: Ipv4Addr::new(10, 88, 0, 2),
        };
        let local = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert_eq!(
            forward_rule(&forward(local, Protocol::Tcp)),
            "ip daddr 127.0.0.1 tcp dport 8080 dnat to 10.88.0.2:80;\n"
        );
        assert_eq!(
            forward_rule(&forward(None, Protocol::Udp)),
            "udp dport 8080 dnat to 10.88.0.2:80;\n"
        );
        assert_eq!(table("pulselet-0"), "pulselet_pulselet_0");
    }
}
