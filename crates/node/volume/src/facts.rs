//! What a node knows about its machine and the downward API passes on.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::Path;

use pulselet_model::ResourceTotals;

/// The facts that containers can ask for and that status reports.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    pub name: String,
    /// The address others would reach this machine at; loopback where it has no other.
    pub address: IpAddr,
    pub cpus: u32,
    pub memory_bytes: u64,
    /// What pods may have of it, which is less where something is reserved.
    pub allocatable: ResourceTotals,
}

impl NodeFacts {
    pub fn detect() -> Self {
        let uname = rustix::system::uname();
        let memory = rustix::system::sysinfo();
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let cpus = u32::try_from(cpus).unwrap_or(u32::MAX);
        #[expect(
            clippy::useless_conversion,
            reason = "the kernel's word is narrower on some machines"
        )]
        let memory_bytes = u64::from(memory.totalram).saturating_mul(u64::from(memory.mem_unit));
        Self {
            name: uname.nodename().to_string_lossy().to_lowercase(),
            address: outward_address().unwrap_or(Ipv4Addr::LOCALHOST.into()),
            cpus,
            memory_bytes,
            allocatable: ResourceTotals {
                cpu_millis: u64::from(cpus) * 1000,
                memory: memory_bytes,
                ..ResourceTotals::default()
            },
        }
    }

    /// All that the machine has. Its disk is the one with the node's data.
    pub fn capacity(&self, data_dir: &Path) -> ResourceTotals {
        let disk = rustix::fs::statvfs(data_dir);
        ResourceTotals {
            cpu_millis: u64::from(self.cpus) * 1000,
            memory: self.memory_bytes,
            ephemeral_storage: disk.map_or(0, |disk| disk.f_blocks.saturating_mul(disk.f_frsize)),
            ..ResourceTotals::default()
        }
    }
}

/// The local end of a route to the outside. Connecting a datagram socket sends nothing.
fn outward_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // An address reserved for documentation: any that is not local will do.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A node whose facts tests can count on.
    pub(crate) fn node_box() -> NodeFacts {
        NodeFacts {
            name: "box".into(),
            address: [192, 0, 2, 7].into(),
            cpus: 4,
            memory_bytes: 1 << 30,
            allocatable: ResourceTotals {
                cpu_millis: 4000,
                memory: 1 << 30,
                ..ResourceTotals::default()
            },
        }
    }
}
