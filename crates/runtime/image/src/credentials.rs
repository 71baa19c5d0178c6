//! Who we are to a registry: credentials, and the file in which docker keeps them.
//!
//! Secrets are never printed. Where docker gave one to a credential helper, that is asked.

mod helper;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

pub use helper::HelperError;

/// Bytes of the file; a login takes some hundred.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// How docker names its own registry in that file, and to helpers.
const DOCKER_HUB_KEY: &str = "index.docker.io";
const DOCKER_HUB_SERVER: &str = "https://index.docker.io/v1/";

#[derive(Clone, PartialEq, Eq, Default)]
pub enum Auth {
    #[default]
    Anonymous,
    Basic {
        username: String,
        password: String,
    },
    /// Is exchanged for a token of the registry.
    IdentityToken(String),
    /// Is sent as it is.
    RegistryToken(String),
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anonymous => "Anonymous",
            Self::Basic { .. } => "Basic(..)",
            Self::IdentityToken(_) => "IdentityToken(..)",
            Self::RegistryToken(_) => "RegistryToken(..)",
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} has more than {MAX_CONFIG_BYTES} bytes")]
    TooLarge { path: PathBuf },
    #[error("cannot understand {path}: {source}")]
    Parse {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("the credentials for {registry} in docker's config.json are malformed")]
    Malformed { registry: String },
    #[error("docker keeps the credentials for {registry} in the helper {helper:?}: {source}")]
    Helper {
        registry: String,
        helper: String,
        source: HelperError,
    },
}

/// Docker's `config.json`, as far as it is about credentials.
#[derive(Debug, Default)]
pub struct DockerConfig {
    /// By host.
    auths: BTreeMap<String, WireAuth>,
    helpers: BTreeMap<String, String>,
    default_helper: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireConfig {
    auths: Option<BTreeMap<String, WireAuth>>,
    cred_helpers: Option<BTreeMap<String, String>>,
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireAuth {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
    registrytoken: String,
}

impl fmt::Debug for WireAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WireAuth(..)")
    }
}

impl DockerConfig {
    /// Where docker has it: `$DOCKER_CONFIG/config.json`, else `$HOME/.docker/config.json`.
    pub fn default_path() -> Option<PathBuf> {
        let set = |name| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let directory = set("DOCKER_CONFIG").or_else(|| Some(set("HOME")?.join(".docker")))?;
        Some(directory.join("config.json"))
    }

    /// A file that does not exist is one without credentials.
    pub fn read(path: &Path) -> Result<Self, CredentialsError> {
        let failed = |source| CredentialsError::Read {
            path: path.to_owned(),
            source,
        };
        let mut bytes = Vec::new();
        match File::open(path) {
            Ok(file) => file
                .take(MAX_CONFIG_BYTES + 1)
                .read_to_end(&mut bytes)
                .map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(failed(error)),
        };
        if bytes.len() as u64 > MAX_CONFIG_BYTES {
            return Err(CredentialsError::TooLarge {
                path: path.to_owned(),
            });
        }
        Self::parse(&bytes).map_err(|source| CredentialsError::Parse {
            path: path.to_owned(),
            source,
        })
    }

    fn parse(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        let wire: WireConfig = serde_json::from_slice(bytes)?;
        Ok(Self {
            auths: wire
                .auths
                .unwrap_or_default()
                .into_iter()
                .map(|(key, auth)| (host(&key).to_owned(), auth))
                .collect(),
            helpers: wire.cred_helpers.unwrap_or_default(),
            default_helper: wire.creds_store.filter(|helper| !helper.is_empty()),
        })
    }

    /// The credentials for a registry, as [`Reference::registry`](crate::Reference::registry) names it.
    pub async fn auth(&self, registry: &str) -> Result<Auth, CredentialsError> {
        let (key, server) = if registry == "docker.io" {
            (DOCKER_HUB_KEY, DOCKER_HUB_SERVER)
        } else {
            (registry, registry)
        };
        let ask = async |helper: &str| {
            let asked = helper::ask(helper, server).await;
            asked.map_err(|source| CredentialsError::Helper {
                registry: registry.to_owned(),
                helper: helper.to_owned(),
                source,
            })
        };
        if let Some(name) = self.helpers.get(key).or_else(|| self.helpers.get(registry)) {
            return ask(name).await;
        }
        let Some(entry) = self.auths.get(key).or_else(|| self.auths.get(registry)) else {
            return Ok(Auth::Anonymous);
        };
        let auth = entry.decode().ok_or_else(|| CredentialsError::Malformed {
            registry: registry.to_owned(),
        })?;
        match &self.default_helper {
            // Docker leaves an empty entry where it gave the secret to its helper.
            Some(name) if auth == Auth::Anonymous => ask(name).await,
            _ => Ok(auth),
        }
    }
}

impl WireAuth {
    fn decode(&self) -> Option<Auth> {
        if !self.registrytoken.is_empty() {
            return Some(Auth::RegistryToken(self.registrytoken.clone()));
        }
        if !self.identitytoken.is_empty() {
            return Some(Auth::IdentityToken(self.identitytoken.clone()));
        }
        if !self.auth.is_empty() {
            let decoded = String::from_utf8(STANDARD.decode(self.auth.trim()).ok()?).ok()?;
            let (username, password) = decoded.split_once(':')?;
            // Docker once padded with zeros.
            let password = password.trim_end_matches('\0');
            return Some(Auth::Basic {
                username: username.to_owned(),
                password: password.to_owned(),
            });
        }
        if self.username.is_empty() {
            return Some(Auth::Anonymous);
        }
        Some(Auth::Basic {
            username: self.username.clone(),
            password: self.password.clone(),
        })
    }
}

/// The host of a key, which may be a URL: `https://index.docker.io/v1/`.
fn host(key: &str) -> &str {
    let rest = key
        .strip_prefix("https://")
        .or_else(|| key.strip_prefix("http://"))
        .unwrap_or(key);
    rest.split('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn basic(username: &str, password: &str) -> Auth {
        Auth::Basic {
            username: username.to_owned(),
            password: password.to_owned(),
        }
    }

    #[tokio::test]
    async fn credentials_are_found_by_registry() {
        let config = DockerConfig::parse(
            br#"{"auths": {
                "https://index.docker.io/v1/": {"auth": "dXNlcjpwYXNzOndvcmQ="},
                "localhost:5000": {"username": "a", "password": "b"},
                "ghcr.io": {"identitytoken": "t"},
                "broken.example": {"auth": "???"}
            }, "credHelpers": {"gcr.io": "../x"}, "HttpHeaders": {}}"#,
        )
        .unwrap();
        assert_eq!(
            config.auth("docker.io").await.unwrap(),
            basic("user", "pass:word")
        );
        assert_eq!(config.auth("localhost:5000").await.unwrap(), basic("a", "b"));
        assert_eq!(
            config.auth("ghcr.io").await.unwrap(),
            Auth::IdentityToken("t".to_owned())
        );
        assert_eq!(config.auth("quay.io").await.unwrap(), Auth::Anonymous);
        assert!(matches!(
            config.auth("gcr.io").await,
            Err(CredentialsError::Helper { .. })
        ));
        assert!(matches!(
            config.auth("broken.example").await,
            Err(CredentialsError::Malformed { .. })
        ));
    }

    #[tokio::test]
    async fn a_helper_matters_only_where_there_was_a_login() {
        let config =
            DockerConfig::parse(br#"{"auths": {"a.example": {}}, "credsStore": "no-such-helper"}"#).unwrap();
        assert!(matches!(
            config.auth("a.example").await,
            Err(CredentialsError::Helper { .. })
        ));
        assert_eq!(config.auth("b.example").await.unwrap(), Auth::Anonymous);
    }

    #[tokio::test]
    async fn secrets_are_not_printed() {
        let config =
            DockerConfig::parse(br#"{"auths": {"a": {"username": "u", "password": "hunter2"}}}"#).unwrap();
        let printed = format!("{config:?} {:?}", config.auth("a").await.unwrap());
        assert!(!printed.contains("hunter2"));
    }
}
