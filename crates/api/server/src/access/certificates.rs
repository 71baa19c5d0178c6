//! Which certificates pass the handshake, of clients and of nodes.
//!
//! Both verifiers let some certificates through that their authority would refuse, and leave it to the authority's
//! verifier that whoever shows a certificate has its key.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};

use super::pki::PkiError;

/// The three methods of a verifier that prove possession of the key. `rustls` has them in two traits, one per side of a
/// connection, so a type cannot share them.
macro_rules! signatures_checked_by_authority {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            self.authority
                .verify_tls12_signature(message, certificate, signature)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            self.authority
                .verify_tls13_signature(message, certificate, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.authority.supported_verify_schemes()
        }
    };
}

/// Lets every client certificate through whose key the client has. A bad one is then answered with 401 and a `Status`,
/// which a client can read, instead of a broken handshake, which it cannot.
#[derive(Debug)]
pub(crate) struct ClientCertificateVerifier {
    authority: Arc<dyn ClientCertVerifier>,
}

impl ClientCertificateVerifier {
    pub(crate) fn new(authority: Arc<dyn ClientCertVerifier>) -> Self {
        Self { authority }
    }
}

impl ClientCertVerifier for ClientCertificateVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.authority.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    signatures_checked_by_authority!();
}

/// Accepts what our authority has signed if it is good, and everything that it has not signed.
#[derive(Debug)]
pub(crate) struct NodeCertificateVerifier {
    authority: Arc<WebPkiServerVerifier>,
}

impl NodeCertificateVerifier {
    pub(crate) fn new(
        authority: &CertificateDer<'static>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, PkiError> {
        let failed = |message| PkiError::Use { message };
        let mut roots = RootCertStore::empty();
        roots
            .add(authority.clone())
            .map_err(|error| failed(error.to_string()))?;
        let authority = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
            .build()
            .map_err(|error| failed(error.to_string()))?;
        Ok(Self { authority })
    }
}

impl ServerCertVerifier for NodeCertificateVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self
            .authority
            .verify_server_cert(end_entity, intermediates, name, ocsp, now)
        {
            Err(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    signatures_checked_by_authority!();
}

#[cfg(test)]
mod tests {
    use super::super::pki::Authority;
    use super::*;

    #[test]
    fn our_own_certificates_are_looked_at_closely() {
        let directory = tempfile::tempdir().unwrap();
        let ours = Authority::load_or_create(&directory.path().join("ours")).unwrap();
        let impostor = Authority::load_or_create(&directory.path().join("impostor")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = NodeCertificateVerifier::new(ours.certificate(), &provider).unwrap();
        let accepts = |certificate: &CertificateDer<'_>, name: &'static str| {
            let name = ServerName::try_from(name).unwrap();
            verifier
                .verify_server_cert(certificate, &[], &name, &[], UnixTime::now())
                .is_ok()
        };
        let certificate = ours.issue_server("n1", &["n1"], &[]).unwrap().certificate;
        assert!(accepts(&certificate, "n1"));
        assert!(!accepts(&certificate, "n2"), "a certificate of another node");
        let certificate = impostor.issue_server("n1", &["n1"], &[]).unwrap().certificate;
        assert!(!accepts(&certificate, "n1"), "an authority of our name, not ours");
        let params = rcgen::CertificateParams::new(["n1".to_owned()]).unwrap();
        let own = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        assert!(
            accepts(own.der(), "n1"),
            "as upstream, without an authority for nodes"
        );
    }
}
