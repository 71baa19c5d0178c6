//! Requests by hand, and the connection that is left of one that was upgraded.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::world::{Identity, PATIENCE, World};

pub(crate) type Stream = TlsStream<TcpStream>;

/// What was answered: code, headers in lower case, and what of the body is asked for.
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) head: String,
    pub(crate) stream: Stream,
}

impl Answer {
    /// The rest of the connection; chunked bodies with their chunks.
    pub(crate) async fn body(mut self) -> String {
        let mut body = Vec::new();
        let reading = self.stream.read_to_end(&mut body);
        let read = tokio::time::timeout(PATIENCE, reading).await;
        // However the other side hangs up, this is what it said.
        let _ = read.expect("the answer ends");
        String::from_utf8_lossy(&body).into_owned()
    }
}

/// Connects, or says why not.
pub(crate) async fn connect(world: &World, identity: Option<Identity>) -> std::io::Result<Stream> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone));
    let config = match identity {
        Some((certificate, key)) => builder
            .with_client_auth_cert(vec![certificate], key)
            .expect("a certificate"),
        None => builder.with_no_client_auth(),
    };
    let stream = TcpStream::connect(world.address).await?;
    let name = ServerName::try_from("n1").expect("a name");
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Sends a request and reads the head of its answer.
pub(crate) async fn ask(mut stream: Stream, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = format!("{method} {path} HTTP/1.1\r\nHost: n1\r\n");
    for (name, value) in headers {
        request.extend([name, ": ", value, "\r\n"]);
    }
    if headers.is_empty() {
        request.push_str("Connection: close\r\n");
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).await.expect("it is sent");
    let mut head = Vec::new();
    let reading = async {
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("an answer"));
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("an answer");
    let head = String::from_utf8(head).expect("text").to_ascii_lowercase();
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Answer {
        code: code.expect("a code"),
        head,
        stream,
    }
}

pub(crate) async fn get(world: &World, path: &str) -> Answer {
    let stream = connect(world, Some(world.administrator()))
        .await
        .expect("a connection");
    ask(stream, "GET", path, &[]).await
}

/// The connection that a request for an upgrade becomes.
pub(crate) async fn upgrade(world: &World, method: &str, path: &str, headers: &[(&str, &str)]) -> Stream {
    let stream = connect(world, Some(world.administrator()))
        .await
        .expect("a connection");
    let answer = ask(stream, method, path, headers).await;
    let (code, head) = (answer.code, answer.head);
    assert_eq!(code, 101, "{head}");
    let (_, protocol) = headers.last().expect("a protocol");
    assert!(head.contains(&protocol.to_ascii_lowercase()), "{head}");
    answer.stream
}

/// The endpoint's certificate is its own.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}
