//! A node that means harm: what it answers to the server must not become harm to the server's clients.

use std::sync::Arc;

use http::Method;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::client::Client;
use crate::harness::TestServer;

/// Answers every request with the same bytes. Returns the port.
async fn answer_always(server: &TestServer, answer: &'static str) -> u16 {
    let issued = &server.node_certificate;
    let chain = CertificateDer::from_pem_slice(issued.certificate.as_bytes()).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("protocols")
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .expect("a certificate with its key");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut stream = acceptor.accept(stream).await.expect("a handshake");
                let mut head = [0; 4096];
                let _ = stream.read(&mut head).await;
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            });
        }
    });
    port
}

/// CVE-2020-8559: the answer to an upgrade is a redirect, and the client takes its credentials where that leads.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_does_not_send_clients_elsewhere() {
    let server = TestServer::start();
    let redirect = "HTTP/1.1 307 Temporary Redirect\r\nLocation: https://127.0.0.1:1/stolen\r\n\
                    Content-Length: 0\r\nConnection: close\r\n\r\n";
    let port = answer_always(&server, redirect).await;
    let mut client = Client::admin(&server).await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }});
    assert_eq!(client.post("/api/v1/nodes", &node).await.0, 201);
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"nodeName": "n1", "containers": [{"name": "app", "image": "app:1"}]},
    });
    assert_eq!(client.post(pods, &pod).await.0, 201);
    for (method, path) in [
        (Method::GET, "log"),
        (Method::POST, "exec?command=ls&stdout=1"),
        (Method::GET, "exec?command=ls&stdout=1"),
        (Method::POST, "attach?stdout=1"),
        (Method::POST, "portforward"),
    ] {
        let answer = client.send(method, &format!("{pods}/web/{path}"), "", "").await;
        assert!(answer.status().is_server_error(), "{path}: {}", answer.status());
        assert!(
            answer.headers().get("location").is_none(),
            "{path}: {:?}",
            answer.headers()
        );
        crate::client::collect(answer).await;
    }
}
