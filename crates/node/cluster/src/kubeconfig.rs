//! Kubeconfig files: where an API server is, how it is recognised, and how we prove who we are.
//!
//! Read are the current context's cluster and user: certificates and keys inline or in files, tokens inline or in a
//! file, and credential programs. What needs no verification or a person (insecure-skip-tls-verify, passwords) is refused
//! with a reason rather than tried. A token in a file is read anew for every connection, because it is renewed there; so is
//! a credential program run.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;

use crate::exec_credential::{ExecCredentialError, ExecProgram};

/// Bytes of a kubeconfig or of a file it names; real ones have a few thousand.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
const DEFAULT_PORT: u16 = 443;

#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error("cannot read {path}: {source}", path = path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} has more than {MAX_FILE_BYTES} bytes", path = path.display())]
    TooLarge { path: PathBuf },
    #[error("{path} is not a kubeconfig: {message}", path = path.display())]
    Parse { path: PathBuf, message: String },
    #[error("the kubeconfig has no {what} {name:?}")]
    Missing { what: &'static str, name: String },
    #[error("the kubeconfig's server {server:?} is not an https address")]
    Server { server: String },
    #[error("the kubeconfig has no certificate-authority: without it the server cannot be recognised")]
    NoAuthority,
    #[error("the kubeconfig's user has neither a client certificate nor a token")]
    NoCredential,
    #[error("{field} of the kubeconfig cannot be used: {message}")]
    Decode { field: &'static str, message: String },
    #[error(transparent)]
    Exec(#[from] ExecCredentialError),
    #[error("the kubeconfig asks for {what}, which is not supported: use a client certificate or a token")]
    Unsupported { what: &'static str },
}

/// A server and a credential, ready to connect.
#[derive(Clone)]
pub struct Kubeconfig {
    /// Where it was read from: what is there may be renewed.
    source: PathBuf,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) server_name: ServerName<'static>,
    pub(crate) tls: Arc<ClientConfig>,
    authority: String,
    token: Option<Token>,
    program: Option<ExecProgram>,
    namespace: Option<String>,
}

#[derive(Clone)]
enum Token {
    Inline(String),
    File(PathBuf),
}

impl fmt::Debug for Kubeconfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kubeconfig(https://{}:{})", self.host, self.port)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct File {
    #[serde(default)]
    current_context: String,
    #[serde(default)]
    clusters: Vec<Named<ClusterEntry>>,
    #[serde(default)]
    contexts: Vec<Named<ContextEntry>>,
    #[serde(default)]
    users: Vec<Named<UserEntry>>,
}

#[derive(Deserialize)]
struct Named<T> {
    name: String,
    #[serde(alias = "cluster", alias = "context", alias = "user")]
    value: T,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct ClusterEntry {
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    tls_server_name: Option<String>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
    proxy_url: Option<String>,
}

#[derive(Deserialize)]
struct ContextEntry {
    cluster: String,
    user: String,
    namespace: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct UserEntry {
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    username: Option<String>,
    exec: Option<ExecProgram>,
    auth_provider: Option<serde_json::Value>,
}

impl Kubeconfig {
    /// Reads a kubeconfig and the files it names.
    pub fn load(path: &Path) -> Result<Self, KubeconfigError> {
        let bytes = read(path)?;
        let failed = |message: String| KubeconfigError::Parse {
            path: path.to_owned(),
            message,
        };
        let text = std::str::from_utf8(&bytes).map_err(|error| failed(error.to_string()))?;
        let file: File = serde_saphyr::from_str(text).map_err(|error| failed(error.to_string()))?;
        let context = find(file.contexts, "context", &file.current_context)?;
        let cluster = find(file.clusters, "cluster", &context.cluster)?;
        let user = find(file.users, "user", &context.user)?;
        let mut resolved = Self::resolve(cluster, user, path)?;
        resolved.namespace = context.namespace.filter(|namespace| !namespace.is_empty());
        Ok(resolved)
    }

    /// The namespace of the current context; `None` if it names none.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The same server with the credential that the file has now. What cannot be read, or is for another server, changes
    /// nothing: that takes a restart, at which it is checked and complained about.
    pub(crate) fn renewed(&self) -> Self {
        match Self::load(&self.source) {
            Ok(renewed) if (&renewed.host, renewed.port) == (&self.host, self.port) => renewed,
            Ok(_) => {
                tracing::warn!(kubeconfig = %self.source.display(), "it names another server now; restart to use that");
                self.clone()
            }
            Err(error) => {
                tracing::warn!(%error, "the kubeconfig cannot be read again; the credential from before is used");
                self.clone()
            }
        }
    }

    fn resolve(cluster: ClusterEntry, user: UserEntry, path: &Path) -> Result<Self, KubeconfigError> {
        let directory = path.parent().unwrap_or(Path::new("."));
        refuse_unsupported(&cluster, &user)?;
        let (host, port) = address(&cluster.server)?;
        let name = cluster.tls_server_name.unwrap_or_else(|| host.clone());
        let server_name = ServerName::try_from(name).map_err(|error| KubeconfigError::Decode {
            field: "the server's name",
            message: error.to_string(),
        })?;
        let member = |data: Option<String>, file: Option<PathBuf>, field| -> Result<Option<Vec<u8>>, _> {
            match (data, file) {
                (Some(data), _) => decode(&data, field).map(Some),
                (None, Some(file)) => read(&directory.join(file)).map(Some),
                (None, None) => Ok(None),
            }
        };
        let authority = member(
            cluster.certificate_authority_data,
            cluster.certificate_authority,
            "certificate-authority-data",
        )?
        .ok_or(KubeconfigError::NoAuthority)?;
        let certificate = member(
            user.client_certificate_data,
            user.client_certificate,
            "client-certificate-data",
        )?;
        let key = member(user.client_key_data, user.client_key, "client-key-data")?;
        let token = match (user.token, user.token_file) {
            (Some(token), _) => Some(Token::Inline(token)),
            (None, Some(file)) => Some(Token::File(directory.join(file))),
            (None, None) => None,
        };
        let program = match user.exec {
            Some(program) => Some(program.resolve(directory)?),
            None => None,
        };
        if program.is_none() && token.is_none() && (certificate.is_none() || key.is_none()) {
            return Err(KubeconfigError::NoCredential);
        }
        Ok(Self {
            source: path.to_owned(),
            host,
            port,
            server_name,
            tls: Arc::new(tls(&authority, certificate.zip(key))?),
            authority: String::from_utf8_lossy(&authority).into_owned(),
            token,
            program,
            namespace: None,
        })
    }

    /// Where the server is.
    pub(crate) fn url(&self) -> String {
        if self.host.contains(':') {
            format!("https://[{}]:{}", self.host, self.port)
        } else {
            format!("https://{}:{}", self.host, self.port)
        }
    }

    /// The name that the server's certificate must have.
    pub(crate) fn tls_name(&self) -> String {
        self.server_name.to_str().into_owned()
    }

    /// The certificates, in PEM, of the authority that the server's certificate is from.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// What to connect with, and the bearer token to send, as they are now.
    pub(crate) async fn credential(&self) -> Result<(Arc<ClientConfig>, Option<String>), KubeconfigError> {
        let Some(program) = &self.program else {
            return Ok((Arc::clone(&self.tls), self.token()?));
        };
        let credential = program.run().await?;
        let pair = credential.client_certificate_data.zip(credential.client_key_data);
        let config = match pair {
            Some((certificate, key)) => {
                let pair = (certificate.into_bytes(), key.into_bytes());
                Arc::new(tls(self.authority.as_bytes(), Some(pair))?)
            }
            None => Arc::clone(&self.tls),
        };
        Ok((config, credential.token))
    }

    /// The bearer token as it is now.
    fn token(&self) -> Result<Option<String>, KubeconfigError> {
        match &self.token {
            None => Ok(None),
            Some(Token::Inline(token)) => Ok(Some(token.clone())),
            Some(Token::File(path)) => {
                let bytes = read(path)?;
                Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned()))
            }
        }
    }
}

fn find<T>(entries: Vec<Named<T>>, what: &'static str, name: &str) -> Result<T, KubeconfigError> {
    let found = entries.into_iter().find(|entry| entry.name == name);
    let missing = || KubeconfigError::Missing {
        what,
        name: name.to_owned(),
    };
    found.map(|entry| entry.value).ok_or_else(missing)
}

fn refuse_unsupported(cluster: &ClusterEntry, user: &UserEntry) -> Result<(), KubeconfigError> {
    let asked = [
        (cluster.insecure_skip_tls_verify, "insecure-skip-tls-verify"),
        (cluster.proxy_url.is_some(), "a proxy"),
        (user.auth_provider.is_some(), "an auth-provider"),
        (user.username.is_some(), "a user name and a password"),
    ];
    match asked.into_iter().find(|(is_asked, _)| *is_asked) {
        Some((_, what)) => Err(KubeconfigError::Unsupported { what }),
        None => Ok(()),
    }
}

fn address(server: &str) -> Result<(String, u16), KubeconfigError> {
    let failed = || KubeconfigError::Server {
        server: server.to_owned(),
    };
    let uri: Uri = server.parse().map_err(|_| failed())?;
    if uri.scheme_str() != Some("https") || !matches!(uri.path(), "" | "/") {
        return Err(failed());
    }
    let host = uri.host().ok_or_else(failed)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Ok((host.to_owned(), uri.port_u16().unwrap_or(DEFAULT_PORT)))
}

fn read(path: &Path) -> Result<Vec<u8>, KubeconfigError> {
    use std::io::Read as _;
    let failed = |source| KubeconfigError::Read {
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(KubeconfigError::TooLarge {
            path: path.to_owned(),
        });
    }
    Ok(bytes)
}

fn decode(data: &str, field: &'static str) -> Result<Vec<u8>, KubeconfigError> {
    let text: String = data.split_whitespace().collect();
    STANDARD.decode(text).map_err(|error| KubeconfigError::Decode {
        field,
        message: error.to_string(),
    })
}

fn tls(authority: &[u8], client: Option<(Vec<u8>, Vec<u8>)>) -> Result<ClientConfig, KubeconfigError> {
    let failed = |field: &'static str| move |message: String| KubeconfigError::Decode { field, message };
    let certificates = |pem: &[u8], field: &'static str| -> Result<Vec<_>, KubeconfigError> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let found = found.map_err(|error| failed(field)(error.to_string()))?;
        if found.is_empty() {
            return Err(failed(field)("there is no certificate in it".to_owned()));
        }
        Ok(found)
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authority, "the certificate-authority")? {
        roots
            .add(certificate)
            .map_err(|error| failed("the certificate-authority")(error.to_string()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed("the TLS provider")(error.to_string()))?
        .with_root_certificates(roots);
    let mut config = match client {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(&certificate, "the client certificate")?;
            let key = PrivateKeyDer::from_pem_slice(&key)
                .map_err(|error| failed("the client key")(error.to_string()))?;
            config
                .with_client_auth_cert(chain, key)
                .map_err(|error| failed("the client certificate")(error.to_string()))?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(cluster: &str, user: &str) -> Result<Kubeconfig, KubeconfigError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\npreferences: {{}}\ncontexts:\n- name: c\n  context: \
             {{cluster: k, user: u}}\nclusters:\n- name: k\n  cluster: {cluster}\nusers:\n- name: u\n  user: {user}\n"
        );
        std::fs::write(&path, text).unwrap();
        Kubeconfig::load(&path)
    }

    fn refusal(cluster: &str, user: &str) -> String {
        load(cluster, user).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_a_reason() {
        let good = "{server: 'https://h:1', certificate-authority-data: eA==}";
        assert!(refusal("{server: 'http://h'}", "{token: t}").contains("not an https address"));
        assert!(refusal("{server: 'https://h'}", "{token: t}").contains("no certificate-authority"));
        assert!(refusal(good, "{}").contains("neither a client certificate nor a token"));
        assert!(refusal(good, "{token: t}").contains("no certificate in it"));
        let exec = "{exec: {apiVersion: v9, command: aws}}";
        assert!(refusal(good, exec).contains("credential program speaks \"v9\""));
        let insecure = "{server: 'https://h', insecure-skip-tls-verify: true}";
        assert!(refusal(insecure, "{token: t}").contains("insecure-skip-tls-verify"));
        let missing = Kubeconfig::load(Path::new("/nowhere/config")).unwrap_err();
        assert!(missing.to_string().starts_with("cannot read /nowhere/config"));
    }

    #[test]
    fn addresses_have_a_port_and_may_be_of_version_six() {
        assert_eq!(address("https://[::1]:6443").unwrap(), ("::1".to_owned(), 6443));
        assert_eq!(
            address("https://api.example").unwrap(),
            ("api.example".to_owned(), 443)
        );
        assert!(address("https://api.example/prefix").is_err());
    }
}
