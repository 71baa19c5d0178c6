//! A small https client: one connection, requests one after another.

use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::harness::TestServer;

/// How a client proves who it is.
pub(crate) enum Credential {
    Nothing,
    Token(String),
    /// From a kubeconfig.
    Kubeconfig(std::path::PathBuf),
    Certificate(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>),
}

pub(crate) struct Client {
    sender: SendRequest<Full<Bytes>>,
    token: Option<String>,
    /// What it accepts; empty if it does not say.
    pub(crate) accept: &'static str,
}

/// A decoded member of a kubeconfig.
fn member(kubeconfig: &Path, name: &str) -> Vec<u8> {
    let text = std::fs::read_to_string(kubeconfig).expect("a kubeconfig");
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(&format!("{name}: ")).map(str::to_owned))
        .expect("the member is there");
    STANDARD.decode(line).expect("base64")
}

/// An encrypted connection to a server, and the token that goes with it.
pub(crate) async fn connect_tls(
    server: &TestServer,
    credential: Credential,
    protocol: &[u8],
) -> (TlsStream<TcpStream>, Option<String>) {
    let mut roots = rustls::RootCertStore::empty();
    let authority = member(&server.kubeconfig, "certificate-authority-data");
    roots
        .add(CertificateDer::from_pem_slice(&authority).expect("a certificate"))
        .expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("protocols")
        .with_root_certificates(roots);
    let mut token = None;
    let mut config = match credential {
        Credential::Nothing => config.with_no_client_auth(),
        Credential::Token(text) => {
            token = Some(text);
            config.with_no_client_auth()
        }
        Credential::Kubeconfig(path) => {
            let certificate = CertificateDer::from_pem_slice(&member(&path, "client-certificate-data"));
            let key = PrivateKeyDer::from_pem_slice(&member(&path, "client-key-data"));
            config
                .with_client_auth_cert(vec![certificate.expect("a certificate")], key.expect("a key"))
                .expect("a client certificate")
        }
        Credential::Certificate(chain, key) => config
            .with_client_auth_cert(chain, key)
            .expect("a client certificate"),
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(server.address).await.expect("a connection");
    let name = ServerName::from(server.address.ip());
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .expect("a handshake");
    (stream, token)
}

impl Client {
    pub(crate) async fn connect(server: &TestServer, credential: Credential) -> Self {
        let (stream, token) = connect_tls(server, credential, b"http/1.1").await;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .expect("http");
        tokio::spawn(connection);
        Self {
            sender,
            token,
            accept: "",
        }
    }

    pub(crate) async fn admin(server: &TestServer) -> Self {
        Self::connect(server, Credential::Kubeconfig(server.kubeconfig.clone())).await
    }

    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &str,
        content_type: &str,
        body: impl Into<Bytes>,
    ) -> Response<Incoming> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost");
        if !content_type.is_empty() {
            request = request.header("content-type", content_type);
        }
        if !self.accept.is_empty() {
            request = request.header("accept", self.accept);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Full::new(body.into())).expect("a request");
        self.sender.ready().await.expect("the connection is open");
        self.sender.send_request(request).await.expect("an answer")
    }

    /// The code and the JSON of an answer.
    pub(crate) async fn json(&mut self, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
        let body = body.map(Value::to_string).unwrap_or_default();
        let answer = self.send(method, path, "application/json", body).await;
        let (code, bytes) = collect(answer).await;
        let value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        (code.as_u16(), value)
    }

    pub(crate) async fn get(&mut self, path: &str) -> (u16, Value) {
        self.json(Method::GET, path, None).await
    }

    pub(crate) async fn post(&mut self, path: &str, body: &Value) -> (u16, Value) {
        self.json(Method::POST, path, Some(body)).await
    }

    /// Starts a watch; the connection is its own from then on.
    pub(crate) async fn watch(mut self, path: &str) -> Events {
        let answer = self.send(Method::GET, path, "", "").await;
        assert_eq!(answer.status(), StatusCode::OK);
        Events {
            body: answer.into_body(),
            read: Vec::new(),
            _client: self,
        }
    }
}

pub(crate) async fn collect(answer: Response<Incoming>) -> (StatusCode, Bytes) {
    let code = answer.status();
    let body = answer.into_body().collect().await.expect("a whole answer");
    (code, body.to_bytes())
}

/// The events of a watch.
pub(crate) struct Events {
    body: Incoming,
    read: Vec<u8>,
    _client: Client,
}

impl Events {
    /// The next event, or none when the watch is over.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("a line is JSON"));
            }
            let frame = self.body.frame().await?.expect("the stream is whole");
            self.read.extend_from_slice(&frame.into_data().expect("data"));
        }
    }

    /// Type and name of the next event.
    pub(crate) async fn next_named(&mut self) -> (String, String) {
        let event = self.next().await.expect("the watch goes on");
        let text = |pointer: &str| {
            event
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        (text("/type"), text("/object/metadata/name"))
    }
}
