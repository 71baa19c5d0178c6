//! TLS of the endpoint: its certificate, and who its clients are.
//!
//! A client shows a certificate that was signed by the given authority, or none. What it is called decides what it may
//! ask. A certificate of another authority does not even finish the handshake.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, SanType};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use thiserror::Error;
use tokio_rustls::TlsAcceptor;

/// Members of this group may ask for everything.
const ADMIN_GROUP: &str = "system:masters";
/// API servers call themselves so towards nodes, whatever groups they are in.
const API_SERVERS: [&str; 3] = [
    "kube-apiserver-kubelet-client",
    "kube-apiserver",
    "system:kube-apiserver",
];

/// What the endpoint needs for TLS, in PEM.
#[derive(Clone)]
pub struct Tls {
    /// The certificate, followed by those between it and its authority.
    pub certificates: String,
    pub key: String,
    /// The authorities that sign the certificates of clients.
    pub client_authorities: String,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

#[derive(Debug, Error)]
pub enum TlsError {
    #[error("cannot read {what}: {source}")]
    ReadPem {
        what: &'static str,
        source: rustls::pki_types::pem::Error,
    },
    #[error("there is no certificate to serve with")]
    NoCertificate,
    #[error("there is no certificate of an authority for clients")]
    NoAuthority,
    #[error("cannot use the authority for clients: {message}")]
    UseAuthority { message: String },
    #[error("cannot use the certificate: {0}")]
    UseCertificate(rustls::Error),
    #[error("cannot make a certificate: {0}")]
    MakeCertificate(#[from] rcgen::Error),
}

impl Tls {
    /// A certificate that nobody has signed, as a kubelet makes one when it is given none. An API server that has no
    /// authority for nodes takes it.
    pub fn self_signed(
        names: &[&str],
        addresses: &[IpAddr],
        client_authorities: impl Into<String>,
    ) -> Result<Self, TlsError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let common_name = names.first().copied().unwrap_or("pulselet-node");
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        for name in names {
            let name = (*name).try_into()?;
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        let addresses = addresses.iter().map(|address| SanType::IpAddress(*address));
        params.subject_alt_names.extend(addresses);
        let key = KeyPair::generate()?;
        Ok(Self {
            certificates: params.self_signed(&key)?.pem(),
            key: key.serialize_pem(),
            client_authorities: client_authorities.into(),
        })
    }

    pub(crate) fn acceptor(&self) -> Result<(TlsAcceptor, Arc<ServingCertificate>), TlsError> {
        let serving = Arc::new(ServingCertificate::new(&self.certificates, &self.key)?);
        let failed = |message: String| TlsError::UseAuthority { message };
        let mut roots = RootCertStore::empty();
        for authority in certificates("the authority for clients", &self.client_authorities)? {
            roots.add(authority).map_err(|error| failed(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(TlsError::NoAuthority);
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .map_err(|error| failed(error.to_string()))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsError::UseCertificate)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::clone(&serving) as _);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok((TlsAcceptor::from(Arc::new(config)), serving))
    }
}

/// The certificate that an endpoint shows, which may be replaced while it serves.
#[derive(Debug)]
pub struct ServingCertificate {
    current: RwLock<Arc<CertifiedKey>>,
}

impl ServingCertificate {
    fn new(certificates: &str, key: &str) -> Result<Self, TlsError> {
        let current = RwLock::new(certified(certificates, key)?);
        Ok(Self { current })
    }

    /// Shows another certificate from the next connection on. Both are in PEM.
    pub fn replace(&self, certificates: &str, key: &str) -> Result<(), TlsError> {
        let certified = certified(certificates, key)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = certified;
        Ok(())
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(&current))
    }
}

fn certified(pem: &str, key: &str) -> Result<Arc<CertifiedKey>, TlsError> {
    let chain = certificates("the certificate", pem)?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|source| TlsError::ReadPem {
        what: "the key",
        source,
    })?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate);
    }
    let provider = rustls::crypto::ring::default_provider();
    let certified = CertifiedKey::from_der(chain, key, &provider).map_err(TlsError::UseCertificate)?;
    Ok(Arc::new(certified))
}

fn certificates(what: &'static str, pem: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|source| TlsError::ReadPem { what, source })
}

/// What a client may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Client {
    /// It has shown no certificate.
    Anonymous,
    /// It is known, and has business here only if the API says so.
    Stranger { user: String, groups: Vec<String> },
    /// An API server or an administrator.
    Trusted,
}

impl Client {
    /// Who has shown this chain, which the handshake has verified.
    pub(crate) fn of(chain: Option<&[CertificateDer<'_>]>) -> Self {
        let Some(end_entity) = chain.and_then(<[_]>::first) else {
            return Self::Anonymous;
        };
        let nameless = Self::Stranger {
            user: String::new(),
            groups: Vec::new(),
        };
        let Ok((_, certificate)) = x509_parser::parse_x509_certificate(end_entity) else {
            return nameless;
        };
        let subject = certificate.subject();
        let user = subject
            .iter_common_name()
            .next()
            .and_then(|name| name.as_str().ok());
        let groups: Vec<&str> = subject
            .iter_organization()
            .filter_map(|group| group.as_str().ok())
            .collect();
        match user {
            Some(user) if API_SERVERS.contains(&user) || groups.contains(&ADMIN_GROUP) => Self::Trusted,
            Some(user) => Self::Stranger {
                user: user.to_owned(),
                groups: groups.into_iter().map(str::to_owned).collect(),
            },
            None => nameless,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(name: &str, group: Option<&str>) -> Client {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        Client::of(Some(&[certificate.der().clone()]))
    }

    #[test]
    fn api_servers_and_administrators_are_trusted() {
        assert_eq!(client("kube-apiserver-kubelet-client", None), Client::Trusted);
        assert_eq!(client("ann", Some("system:masters")), Client::Trusted);
        let (user, groups) = ("system:node:n1".to_owned(), vec!["system:nodes".to_owned()]);
        assert_eq!(
            client(&user, Some("system:nodes")),
            Client::Stranger { user, groups }
        );
        assert_eq!(Client::of(None), Client::Anonymous);
        let nonsense = CertificateDer::from(vec![1, 2, 3]);
        let (user, groups) = (String::new(), Vec::new());
        assert_eq!(Client::of(Some(&[nonsense])), Client::Stranger { user, groups });
    }

    #[test]
    fn unusable_material_is_refused() {
        let own = Tls::self_signed(&["n1"], &[], "").unwrap();
        let with = |change: fn(&mut Tls)| {
            let mut tls = own.clone();
            tls.client_authorities.clone_from(&tls.certificates);
            change(&mut tls);
            tls.acceptor().err().map(|error| error.to_string())
        };
        assert_eq!(with(|_| {}), None);
        assert!(with(|tls| tls.client_authorities.clear()).is_some());
        assert!(with(|tls| tls.key.clear()).is_some());
        assert!(with(|tls| tls.certificates.clear()).is_some());
    }

    #[test]
    fn a_certificate_is_replaced_by_one_that_fits_or_not_at_all() {
        let first = Tls::self_signed(&["n1"], &[], "").unwrap();
        let second = Tls::self_signed(&["n1"], &[], "").unwrap();
        let serving = ServingCertificate::new(&first.certificates, &first.key).unwrap();
        let shown = || serving.current.read().unwrap().cert.clone();
        let before = shown();
        assert!(
            serving.replace(&second.certificates, &first.key).is_err(),
            "another's key"
        );
        assert!(serving.replace("", &first.key).is_err());
        assert_eq!(shown(), before);
        serving.replace(&second.certificates, &second.key).unwrap();
        assert_ne!(shown(), before);
    }
}
