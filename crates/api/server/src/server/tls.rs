//! TLS of the server: its certificate, and client certificates that are looked at but not insisted on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::NoServerSessionStorage;
use tokio_rustls::TlsAcceptor;

use super::ServeError;
use crate::access::Authenticator;
use crate::access::certificates::ClientCertificateVerifier;
use crate::access::own_certificate::OwnCertificate;
use crate::access::pki::Authority;

/// Names under which clients on this machine and in Pods know the server.
const NAMES: [&str; 5] = [
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

pub(super) fn acceptor(
    authority: &Arc<Authority>,
    authenticator: &Authenticator,
    address: IpAddr,
    service: Ipv4Addr,
) -> Result<TlsAcceptor, ServeError> {
    let mut addresses = vec![
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
        IpAddr::V4(service),
    ];
    if !address.is_unspecified() && !addresses.contains(&address) {
        addresses.push(address);
    }
    if address.is_unspecified() {
        addresses.extend(outward_address());
    }
    let hostname = hostname();
    let authority = Arc::clone(authority);
    let own = OwnCertificate::new(move || {
        let names: Vec<&str> = NAMES.into_iter().chain(hostname.as_deref()).collect();
        authority.issue_server("pulselet-api", &names, &addresses)
    })?;
    let verifier = Arc::new(ClientCertificateVerifier::new(Arc::clone(
        authenticator.verifier(),
    )));
    let failed = |source| ServeError::Tls { source };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(failed)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(own));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    resume_no_sessions(&mut config);
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Clients of an API keep their connection, and commands keep nothing from one run to the next. To remember sessions for them
/// would cost memory, with their certificates in it, and a client would be taken for who it was when its session began.
fn resume_no_sessions(config: &mut ServerConfig) {
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
}

/// Where others reach a server that listens on an address.
pub(super) fn reachable(address: SocketAddr) -> SocketAddr {
    if !address.ip().is_unspecified() {
        return address;
    }
    let ip = outward_address().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    SocketAddr::new(ip, address.port())
}

/// What this machine is called, as far as a certificate can say it.
fn hostname() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let name = name.trim().to_lowercase();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    (!name.is_empty() && name.bytes().all(is_plain)).then_some(name)
}

/// The local end of a route to the outside, where others reach a server that listens everywhere. Connecting a datagram
/// socket sends nothing, and the address is one reserved for documentation.
fn outward_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}
