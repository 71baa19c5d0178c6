//! Certificates that the server has for itself: to serve with, and to come to nodes with.
//!
//! What must always hold: what is shown is good by the machine's clock at that moment. A certificate is made anew when two
//! thirds of its time are over, and when the clock was set to before its time, so nobody restarts a server for it.

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use jiff::Timestamp;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::pki::{Credential, PkiError};

type Issue = dyn Fn() -> Result<Credential, PkiError> + Send + Sync;

pub(crate) struct OwnCertificate {
    issue: Box<Issue>,
    current: RwLock<Issued>,
}

struct Issued {
    /// When it is shown, in seconds of the epoch.
    shown: Range<i64>,
    certified: Arc<CertifiedKey>,
}

impl std::fmt::Debug for OwnCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OwnCertificate")
    }
}

impl Issued {
    fn new(credential: Credential) -> Result<Self, PkiError> {
        let provider = rustls::crypto::ring::default_provider();
        let shown = credential.first_two_thirds().unwrap_or(0..0);
        let certified = CertifiedKey::from_der(vec![credential.certificate], credential.key, &provider);
        let certified = certified.map_err(|error| PkiError::Use {
            message: error.to_string(),
        })?;
        Ok(Self {
            shown,
            certified: Arc::new(certified),
        })
    }
}

impl OwnCertificate {
    pub(crate) fn new(
        issue: impl Fn() -> Result<Credential, PkiError> + Send + Sync + 'static,
    ) -> Result<Self, PkiError> {
        let current = RwLock::new(Issued::new(issue()?)?);
        Ok(Self {
            issue: Box::new(issue),
            current,
        })
    }

    /// What is to be shown at a moment.
    fn at(&self, now: i64) -> Arc<CertifiedKey> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        if current.shown.contains(&now) {
            return Arc::clone(&current.certified);
        }
        drop(current);
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        // Somebody else may have been here first.
        if !current.shown.contains(&now) {
            match (self.issue)().and_then(Issued::new) {
                Ok(issued) => {
                    *current = issued;
                    tracing::info!("a certificate of the server's own was renewed");
                }
                Err(error) => {
                    tracing::error!(%error, "a certificate of the server's own cannot be renewed");
                }
            }
        }
        Arc::clone(&current.certified)
    }

    fn now(&self) -> Arc<CertifiedKey> {
        self.at(Timestamp::now().as_second())
    }
}

impl ResolvesServerCert for OwnCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.now())
    }
}

impl ResolvesClientCert for OwnCertificate {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.now())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::pki::Authority;
    use super::*;

    const DAY: i64 = 24 * 3600;

    #[test]
    fn what_is_shown_follows_the_clock() {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::load_or_create(directory.path()).unwrap();
        let own = OwnCertificate::new(move || authority.issue_server("api", &["api"], &[])).unwrap();
        let now = Timestamp::now().as_second();
        let shown = |days: i64| own.at(now + days * DAY).cert.clone();
        let first = shown(0);
        assert_eq!(shown(200), first, "half a year later");
        assert_eq!(shown(0), first);
        let second = shown(300);
        assert_ne!(second, first, "most of a year later");
        assert_ne!(shown(-5), second, "the clock was set back");
    }
}
