//! Where the ports of services lead on a machine that has no proxy of a cluster.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::Protocol;

/// A port of a service, and the pods behind it that take connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRoute {
    /// The service's own address, which no machine has.
    pub address: Ipv4Addr,
    pub protocol: Protocol,
    pub port: u16,
    /// The port of the machine that leads to the same; `None` if the service has none.
    pub node_port: Option<u16>,
    /// Empty if nobody takes connections: they are refused then.
    pub backends: Vec<SocketAddrV4>,
    pub choice: BackendChoice,
}

/// Which of a service's backends a new connection goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendChoice {
    Random,
    /// The one that this client had before, as long as it is there.
    ByClient,
}
