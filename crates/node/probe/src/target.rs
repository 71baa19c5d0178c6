//! Where a probe goes: an address or a name, and a port number. Named ports are resolved by the caller.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// The endpoint of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    host: Host,
    port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Host {
    Address(IpAddr),
    Name(Box<str>),
}

impl Target {
    /// `host` is an IP address (IPv6 with or without brackets) or a name, which is looked up at every probe.
    pub fn new(host: &str, port: u16) -> Self {
        let bare = host
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(host);
        let host = bare
            .parse()
            .map_or_else(|_| Host::Name(bare.into()), Host::Address);
        Self { host, port }
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Self {
            host: Host::Address(address.ip()),
            port: address.port(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// As it stands in a URL: IPv6 addresses in brackets.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            // A name with a colon is an IPv6 address with a zone.
            Self::Name(name) if name.contains(':') => write!(f, "[{name}]"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_read_as_in_a_url() {
        let cases = [
            ("10.0.0.1", "10.0.0.1:80"),
            ("::1", "[::1]:80"),
            ("[::1]", "[::1]:80"),
            ("web.local", "web.local:80"),
            ("fe80::1%eth0", "[fe80::1%eth0]:80"),
        ];
        for (host, text) in cases {
            assert_eq!(Target::new(host, 80).to_string(), text);
        }
    }
}
