//! TLS for probes: encrypted, but nobody's identity is checked, as a probe goes to an address that the node itself
//! gave out and certificates are made for names.
//!
//! Neither the chain nor the server's signature is looked at. Beside the time this saves, a certificate that
//! stricter parsers reject (version 1, small keys) still serves a probe, as it does upstream.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{AlertDescription, ClientConfig, DigitallySignedStruct, InvalidMessage, SignatureScheme};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::target::{Host, Target};
use crate::wording;

/// What an HTTP server's answer to a TLS greeting starts with.
const PLAIN_HTTP: &[u8; 5] = b"HTTP/";

pub(crate) type Stream = TlsStream<Sniffed>;

#[derive(Clone)]
pub(crate) struct Tls {
    connector: TlsConnector,
}

#[derive(Debug, Error)]
pub(crate) enum TlsError {
    #[error("http: server gave HTTP response to HTTPS client")]
    PlainHttp,
    #[error("tls: {0} is no valid server name")]
    Name(String),
    #[error("{}", handshake_text(.0))]
    Handshake(#[source] io::Error),
}

impl Tls {
    pub(crate) fn new() -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has suites for the default versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate))
            .with_no_client_auth();
        Self {
            connector: TlsConnector::from(Arc::new(config)),
        }
    }

    pub(crate) async fn connect(&self, target: &Target, tcp: TcpStream) -> Result<Stream, TlsError> {
        let name = match target.host() {
            Host::Address(ip) => ServerName::IpAddress((*ip).into()),
            Host::Name(name) => ServerName::try_from(name.as_ref())
                .map_err(|_| TlsError::Name(wording::quoted(name.as_bytes())))?
                .to_owned(),
        };
        // Several small writes in a row: none should wait for the acknowledgement of the one before.
        tcp.set_nodelay(true).map_err(TlsError::Handshake)?;
        match self
            .connector
            .connect(name, Sniffed::new(tcp))
            .into_fallible()
            .await
        {
            Ok(stream) => Ok(stream),
            Err((_, sniffed)) if sniffed.first == *PLAIN_HTTP => Err(TlsError::PlainHttp),
            Err((error, _)) => Err(TlsError::Handshake(error)),
        }
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

/// The rustls error inside an IO error, if it is one: an alert or a message that makes no sense.
pub(crate) fn protocol_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// A TLS failure in Go's words.
pub(crate) fn protocol_text(error: &rustls::Error) -> String {
    match error {
        rustls::Error::AlertReceived(alert) => format!("remote error: tls: {}", alert_text(*alert)),
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "tls: first record does not look like a TLS handshake".to_owned()
        }
        other => format!("tls: {other}"),
    }
}

fn handshake_text(error: &io::Error) -> String {
    match protocol_error(error) {
        Some(error) => protocol_text(error),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        None => format!("read tcp: {}", wording::os_error(error)),
    }
}

/// `HandshakeFailure` as `handshake failure`.
fn alert_text(alert: AlertDescription) -> String {
    let mut text = String::new();
    for letter in format!("{alert:?}").chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push(' ');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![
            SignatureScheme::ECDSA_NISTP256_SHA256,
            SignatureScheme::ECDSA_NISTP384_SHA384,
            SignatureScheme::ECDSA_NISTP521_SHA512,
            SignatureScheme::ED25519,
            SignatureScheme::RSA_PSS_SHA256,
            SignatureScheme::RSA_PSS_SHA384,
            SignatureScheme::RSA_PSS_SHA512,
            SignatureScheme::RSA_PKCS1_SHA256,
            SignatureScheme::RSA_PKCS1_SHA384,
            SignatureScheme::RSA_PKCS1_SHA512,
        ]
    }
}

/// A connection that remembers the first bytes the server sent, to distinguish a plain HTTP server from a broken TLS one.
#[derive(Debug)]
pub(crate) struct Sniffed {
    tcp: TcpStream,
    first: [u8; PLAIN_HTTP.len()],
    seen: usize,
}

impl Sniffed {
    fn new(tcp: TcpStream) -> Self {
        Self {
            tcp,
            first: [0; PLAIN_HTTP.len()],
            seen: 0,
        }
    }

    pub(crate) fn into_tcp(self) -> TcpStream {
        self.tcp
    }

    fn note(&mut self, read: &[u8]) {
        let missing = &mut self.first[self.seen..];
        let count = missing.len().min(read.len());
        missing[..count].copy_from_slice(&read[..count]);
        self.seen += count;
    }
}

impl AsyncRead for Sniffed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.tcp).poll_read(cx, buf))?;
        self.note(&buf.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Sniffed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_read_as_in_go() {
        let alert = rustls::Error::AlertReceived(AlertDescription::HandshakeFailure);
        assert_eq!(protocol_text(&alert), "remote error: tls: handshake failure");
        let garbage = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
        assert_eq!(
            protocol_text(&garbage),
            "tls: first record does not look like a TLS handshake"
        );
    }
}
