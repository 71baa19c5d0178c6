//! Who sends a request.
//!
//! There are five ways to prove who you are: a client certificate of our authority (name and groups are its subject),
//! a bearer token of the token file, one of a service account or one to bootstrap with (`tokens`), or nothing, which is
//! anonymous.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::pki::{self, PkiError};
use super::revocation::{RevocationError, RevocationList};
use super::tokens::{BootstrapToken, Proved, ServiceAccountTokens, TokenError, own_audiences};
use super::{ADMIN_GROUP, ANONYMOUS, NODE_GROUP, NODE_USER_PREFIX};
use crate::rest::status::ApiError;

/// Which credential was shown, among what else is known of somebody.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// Who is asking.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub user: String,
    /// Empty if nobody has given the user one.
    pub uid: String,
    pub groups: Vec<String>,
    /// What else is known, about the credential for example.
    pub extra: BTreeMap<String, Vec<String>>,
    /// Who really asks; `None` if nobody acts for another.
    pub impersonator: Option<Box<Identity>>,
}

/// What a caller is to the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Administrator,
    Node,
    /// A known user without any access to objects.
    Other,
    Anonymous,
}

impl Identity {
    fn anonymous() -> Self {
        Self {
            user: ANONYMOUS.to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            ..Self::default()
        }
    }

    /// As reviews and the audit log show it.
    pub(crate) fn shown(&self) -> Value {
        let mut shown = json!({"username": self.user, "groups": self.groups});
        if !self.uid.is_empty() {
            shown["uid"] = json!(self.uid);
        }
        if !self.extra.is_empty() {
            shown["extra"] = json!(self.extra);
        }
        shown
    }

    pub(crate) fn is_anonymous(&self) -> bool {
        self.user == ANONYMOUS
    }

    /// What the caller is to the cluster.
    pub(crate) fn standing(&self) -> Standing {
        if self.has_group(ADMIN_GROUP) {
            Standing::Administrator
        } else if self.node().is_some() {
            Standing::Node
        } else if self.is_anonymous() {
            Standing::Anonymous
        } else {
            Standing::Other
        }
    }

    pub(super) fn has_group(&self, group: &str) -> bool {
        self.groups.iter().any(|candidate| candidate == group)
    }

    /// The name of the node that is asking; `None` if it is somebody else.
    pub(crate) fn node(&self) -> Option<&str> {
        self.user
            .strip_prefix(NODE_USER_PREFIX)
            .filter(|name| !name.is_empty() && self.has_group(NODE_GROUP))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error("cannot use the certificate authority to verify clients: {message}")]
    BuildVerifier { message: String },
    #[error("cannot read the token file {path}: {source}")]
    ReadTokens { path: String, source: io::Error },
    #[error("line {line} of the token file {path} is not token,user,uid or token,user,uid,\"group,group\"")]
    ParseTokens { path: String, line: usize },
    #[error(transparent)]
    WriteTokens(#[from] PkiError),
    #[error("cannot use the list of revoked certificates: {0}")]
    Revoked(#[from] RevocationError),
}

/// Finds out who is asking.
#[derive(Debug)]
pub(crate) struct Authenticator {
    verifier: Arc<dyn ClientCertVerifier>,
    revoked: RevocationList,
    /// Identities by the hash of their token, so that looking one up takes the same time whatever it is.
    tokens: HashMap<[u8; 32], Identity>,
    service_accounts: ServiceAccountTokens,
}

impl Authenticator {
    /// Trusts the authority's certificates, but for those on a list, the tokens of a file, which is made with one for
    /// the administrator if there is none, and those of service accounts.
    pub(crate) fn new(
        authority: &CertificateDer<'static>,
        revoked: &Path,
        token_file: &Path,
        service_accounts: ServiceAccountTokens,
    ) -> Result<Self, AccessError> {
        let mut roots = RootCertStore::empty();
        let failed = |message: String| AccessError::BuildVerifier { message };
        roots
            .add(authority.clone())
            .map_err(|error| failed(error.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| failed(error.to_string()))?;
        let tokens = load_tokens(token_file)?;
        let revoked = RevocationList::open(revoked.to_owned())?;
        Ok(Self {
            verifier,
            revoked,
            tokens,
            service_accounts,
        })
    }

    /// The verifier for handshakes: it checks that the client has the key of the certificate it shows. Whether the
    /// certificate is any good is a question for the request, which can then be answered.
    pub(crate) fn verifier(&self) -> &Arc<dyn ClientCertVerifier> {
        &self.verifier
    }

    /// The identity a certificate proves; `None` if it has expired, was taken back, or is not of our authority.
    pub(crate) fn certificate_identity(&self, chain: &[CertificateDer<'_>]) -> Option<Identity> {
        let (end_entity, intermediates) = chain.split_first()?;
        self.verifier
            .verify_client_cert(end_entity, intermediates, UnixTime::now())
            .ok()?;
        let (_, certificate) = x509_parser::parse_x509_certificate(end_entity).ok()?;
        let subject = certificate.subject();
        let user = subject.iter_common_name().next()?.as_str().ok()?;
        if self.revoked.has(certificate.raw_serial(), user) {
            return None;
        }
        let groups = subject
            .iter_organization()
            .filter_map(|group| group.as_str().ok());
        let mut identity = authenticated(user, groups.map(str::to_owned));
        let digest = Sha256::digest(end_entity)
            .iter()
            .fold(String::new(), |mut text, byte| {
                // Writing to memory cannot fail.
                let _ = write!(text, "{byte:02x}");
                text
            });
        let credential = vec![format!("X509SHA256={digest}")];
        identity.extra.insert(CREDENTIAL_ID.to_owned(), credential);
        Some(identity)
    }

    /// Who sends a request over a connection with this certificate chain.
    pub(crate) async fn authenticate(
        &self,
        chain: Option<&[CertificateDer<'_>]>,
        headers: &HeaderMap,
    ) -> Result<Identity, ApiError> {
        // The certificate is verified anew for every request: a watch's connection may outlive its certificate.
        if let Some(identity) = chain.and_then(|chain| self.certificate_identity(chain)) {
            return Ok(identity);
        }
        let Some(header) = headers.get(AUTHORIZATION) else {
            return if chain.is_some() {
                Err(ApiError::unauthorized())
            } else {
                Ok(Identity::anonymous())
            };
        };
        let token = header.to_str().ok().and_then(|header| {
            let (scheme, token) = header.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        let token = token.ok_or_else(ApiError::unauthorized)?;
        match self.authenticate_token(token, &own_audiences()).await {
            Ok(proved) => Ok(proved.identity),
            Err(TokenError::Look(error)) => Err(error),
            Err(error @ (TokenError::Unknown | TokenError::Refused(_) | TokenError::Audience { .. })) => {
                tracing::debug!(%error, "a token was refused");
                Err(ApiError::unauthorized())
            }
        }
    }

    /// Who shows a token that is meant for one of these audiences.
    pub(crate) async fn authenticate_token(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Proved, TokenError> {
        let Some(identity) = self.tokens.get(&hash(token)) else {
            if let Some(token) = BootstrapToken::parse(token) {
                return self.service_accounts.verify_bootstrap(token, audiences).await;
            }
            return self.service_accounts.verify(token, audiences).await;
        };
        Proved::for_this_server(identity.clone(), audiences)
    }

    pub(crate) const fn service_accounts(&self) -> &ServiceAccountTokens {
        &self.service_accounts
    }
}

fn authenticated(user: &str, groups: impl Iterator<Item = String>) -> Identity {
    let mut groups: Vec<String> = groups.collect();
    groups.push("system:authenticated".to_owned());
    Identity {
        user: user.to_owned(),
        groups,
        ..Identity::default()
    }
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

fn load_tokens(path: &Path) -> Result<HashMap<[u8; 32], Identity>, AccessError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // 256 bits of randomness.
            let (first, second): (u128, u128) = (rand::random(), rand::random());
            let line = format!("{first:032x}{second:032x},admin,admin,\"{ADMIN_GROUP}\"\n");
            pki::write_private(path, line.as_bytes())?;
            line
        }
        Err(source) => {
            return Err(AccessError::ReadTokens {
                path: path.display().to_string(),
                source,
            });
        }
    };
    let mut tokens = HashMap::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (token, identity) = parse_token(line).ok_or_else(|| AccessError::ParseTokens {
            path: path.display().to_string(),
            line: index + 1,
        })?;
        tokens.insert(hash(token), identity);
    }
    Ok(tokens)
}

/// Reads a line `token,user,uid` or `token,user,uid,"group,group"`.
fn parse_token(line: &str) -> Option<(&str, Identity)> {
    let mut fields = line.splitn(4, ',');
    let (token, user, uid) = (
        fields.next()?.trim(),
        fields.next()?.trim(),
        fields.next()?.trim(),
    );
    if token.is_empty() || user.is_empty() {
        return None;
    }
    let groups = fields.next().unwrap_or_default().trim().trim_matches('"');
    let groups = groups.split(',').map(str::trim).filter(|group| !group.is_empty());
    let mut identity = authenticated(user, groups.map(str::to_owned));
    uid.clone_into(&mut identity.uid);
    Some((token, identity))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_lines_are_read_as_upstream_writes_them() {
        let (token, identity) = parse_token("secret,ann,1,\"a, b\"").unwrap();
        assert_eq!(
            (token, identity.user.as_str(), identity.uid.as_str()),
            ("secret", "ann", "1")
        );
        assert_eq!(identity.groups, ["a", "b", "system:authenticated"]);
        for line in ["", "a", "a,b", ",b,c"] {
            assert!(parse_token(line).is_none(), "{line}");
        }
    }

    #[test]
    fn a_node_needs_its_group() {
        let mut identity = authenticated("system:node:n1", std::iter::empty());
        assert_eq!(identity.node(), None);
        identity.groups.push(NODE_GROUP.to_owned());
        assert_eq!(identity.node(), Some("n1"));
    }
}
