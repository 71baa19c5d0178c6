//! Connections to nodes: where a node is, and who is at the other end.
//!
//! A node says where it listens in its `Node`. A server certificate that our authority has signed must be good in every
//! respect; one that somebody else has signed, its own node most often, is taken as it is, as upstream API servers do
//! unless they are given an authority for nodes. What the node sees of us is a client certificate of our authority.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::proxy::PodAddress;
use crate::access::certificates::NodeCertificateVerifier;
use crate::access::own_certificate::OwnCertificate;
use crate::access::pki::{Authority, PkiError};
use crate::registry::object::Object;
use crate::rest::Body;
use crate::server::keep_alive;

/// How long dialing may take, from the first packet to the end of the handshake.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// The port of a kubelet whose `Node` does not name one.
const DEFAULT_PORT: u16 = 10250;
/// The name under which API servers come to nodes.
const CLIENT_NAME: &str = "kube-apiserver-kubelet-client";

#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("node {0:?} has no address")]
    NoAddress(String),
    #[error("{address:?} is not an address")]
    Address { address: String },
    #[error("dial tcp {address}: {source}")]
    Connect { address: String, source: io::Error },
    #[error("dial tcp {address}: i/o timeout")]
    TimedOut { address: String },
    #[error("{address} does not speak HTTP: {source}")]
    Http { address: String, source: hyper::Error },
}

/// Makes connections to nodes.
pub(super) struct Dialer {
    connector: TlsConnector,
    /// For pods, which are shown no certificate.
    anonymous: TlsConnector,
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dialer")
    }
}

impl Dialer {
    pub(super) fn new(authority: &Arc<Authority>) -> Result<Self, PkiError> {
        let issuer = Arc::clone(authority);
        let own =
            OwnCertificate::new(move || issuer.issue_client(CLIENT_NAME, &[crate::access::ADMIN_GROUP]))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let failed = |error: rustls::Error| PkiError::Use {
            message: error.to_string(),
        };
        let verifier = Arc::new(NodeCertificateVerifier::new(authority.certificate(), &provider)?);
        let builder = || {
            let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
            let builder = builder.with_safe_default_protocol_versions().map_err(failed)?;
            let verifier = Arc::clone(&verifier);
            Ok::<_, PkiError>(builder.dangerous().with_custom_certificate_verifier(verifier))
        };
        let mut anonymous = builder()?.with_no_client_auth();
        anonymous.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut config = builder()?.with_client_cert_resolver(Arc::new(own));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            connector: TlsConnector::from(Arc::new(config)),
            anonymous: TlsConnector::from(Arc::new(anonymous)),
        })
    }

    /// A connection to a port of a pod.
    pub(super) async fn dial_pod(&self, pod: &PodAddress) -> Result<SendRequest<Body>, DialError> {
        let address = SocketAddr::new(pod.address, pod.port).to_string();
        let dialing = async {
            let failed = |source| DialError::Connect {
                address: address.clone(),
                source,
            };
            let stream = TcpStream::connect(&address).await.map_err(failed)?;
            keep_alive(&stream);
            if !pod.is_tls {
                return speak(stream, &address).await;
            }
            let name = ServerName::from(pod.address);
            let stream = self.anonymous.connect(name, stream).await.map_err(failed)?;
            speak(stream, &address).await
        };
        let dialed = tokio::time::timeout(DIAL_TIMEOUT, dialing).await;
        dialed.unwrap_or_else(|_| {
            Err(DialError::TimedOut {
                address: address.clone(),
            })
        })
    }

    /// A connection on which one request can be sent; it may become something else.
    pub(super) async fn dial(&self, node: &Object) -> Result<SendRequest<Body>, DialError> {
        let (host, port) = place(node)?;
        let address = if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        };
        let dialing = self.handshake(&host, &address);
        let Ok(dialed) = tokio::time::timeout(DIAL_TIMEOUT, dialing).await else {
            return Err(DialError::TimedOut { address });
        };
        dialed
    }

    async fn handshake(&self, host: &str, address: &str) -> Result<SendRequest<Body>, DialError> {
        let failed = |source| DialError::Connect {
            address: address.to_owned(),
            source,
        };
        let name = ServerName::try_from(host.to_owned()).map_err(|_| DialError::Address {
            address: host.to_owned(),
        })?;
        let stream = TcpStream::connect(address).await.map_err(failed)?;
        keep_alive(&stream);
        let stream = self.connector.connect(name, stream).await.map_err(failed)?;
        speak(stream, address).await
    }
}

/// Begins to speak HTTP over a connection.
async fn speak<S>(stream: S, address: &str) -> Result<SendRequest<Body>, DialError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let shaken = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = shaken.map_err(|source| DialError::Http {
        address: address.to_owned(),
        source,
    })?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "the connection to a node or a pod failed");
        }
    });
    Ok(sender)
}

/// Where a node listens: its internal address, else its name, else whatever it has. One of ours that listens elsewhere
/// than at its machine's address names that last.
fn place(node: &Object) -> Result<(String, u16), DialError> {
    let status = &node.value()["status"];
    let addresses = status["addresses"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let of_kind = |kind: &str| {
        let all = addresses.iter().filter(|address| address["type"] == kind);
        all.filter_map(|address| address["address"].as_str()).next_back()
    };
    let kinds = [
        "InternalIP",
        "Hostname",
        "InternalDNS",
        "ExternalIP",
        "ExternalDNS",
    ];
    let host = kinds
        .into_iter()
        .find_map(of_kind)
        .ok_or_else(|| DialError::NoAddress(node.name().to_owned()))?;
    let port = status["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64();
    let port = port
        .and_then(|port| u16::try_from(port).ok())
        .filter(|port| *port > 0);
    Ok((host.to_owned(), port.unwrap_or(DEFAULT_PORT)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(status: &Value) -> Option<(String, u16)> {
        let node = json!({"metadata": {"name": "n1"}, "status": status});
        place(&Object::new(node).unwrap()).ok()
    }

    #[test]
    fn a_node_is_where_it_says() {
        let addresses = json!([
            {"type": "Hostname", "address": "n1"},
            {"type": "InternalIP", "address": "10.0.0.1"},
        ]);
        let status = json!({
            "addresses": addresses,
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10251}},
        });
        assert_eq!(found(&status), Some(("10.0.0.1".to_owned(), 10251)));
        let name = json!({"addresses": [addresses[0]], "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}});
        assert_eq!(found(&name), Some(("n1".to_owned(), DEFAULT_PORT)));
        // One that listens on this machine only says so beside its own address.
        let both = json!({"addresses": [addresses[1], {"type": "InternalIP", "address": "127.0.0.1"}]});
        assert_eq!(found(&both), Some(("127.0.0.1".to_owned(), DEFAULT_PORT)));
        assert_eq!(found(&json!({})), None);
        assert_eq!(found(&json!({"addresses": "x"})), None);
    }
}
