//! Credentials for registries from secrets that hold docker's configuration.
//!
//! Which entry fits an image follows a kubelet: by host and path, longest first, with `*` inside a part of the host.
//! Secrets are never printed.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pulselet_model::openapi::api::core::v1::Secret;
use pulselet_runtime::RegistryCredentials;
use serde::Deserialize;
use thiserror::Error;

/// How docker names its own registry in such files.
const DOCKER_HUB: &str = "index.docker.io";
/// Entries tried for one image, so that a wall of wrong ones cannot hold up a node.
const MAX_CANDIDATES: usize = 8;

#[derive(Debug, Error)]
pub(super) enum PullSecretError {
    #[error("its type {kind:?} is not one for images")]
    Kind { kind: String },
    #[error("it has no key {key:?}")]
    NoKey { key: &'static str },
    #[error("its key {key:?} cannot be understood: {source}")]
    Parse {
        key: &'static str,
        source: serde_json::Error,
    },
}

/// Credentials by registry.
#[derive(Debug, Default)]
pub(super) struct Keyring {
    /// The patterns of one secret, longest first, those of earlier secrets before those of later ones.
    entries: Vec<(String, AuthEntry)>,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    auths: BTreeMap<String, AuthEntry>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AuthEntry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
    registrytoken: String,
}

impl fmt::Debug for AuthEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthEntry(..)")
    }
}

impl AuthEntry {
    /// None if it holds nothing that can be used.
    fn credentials(&self) -> Option<RegistryCredentials> {
        if !self.registrytoken.is_empty() {
            return Some(RegistryCredentials::RegistryToken(self.registrytoken.clone()));
        }
        if !self.identitytoken.is_empty() {
            return Some(RegistryCredentials::IdentityToken(self.identitytoken.clone()));
        }
        let (username, password) = if self.auth.is_empty() {
            (self.username.clone(), self.password.clone())
        } else {
            let text = String::from_utf8(STANDARD.decode(self.auth.trim()).ok()?).ok()?;
            let (username, password) = text.split_once(':')?;
            // Docker once padded with zeros.
            (username.to_owned(), password.trim_end_matches('\0').to_owned())
        };
        (!username.is_empty()).then_some(RegistryCredentials::Basic { username, password })
    }
}

impl Keyring {
    /// Adds what a secret holds.
    pub(super) fn add(&mut self, secret: &Secret) -> Result<(), PullSecretError> {
        let read = |key: &'static str| {
            let data = secret.data.as_ref().and_then(|data| data.get(key));
            data.map(|data| data.0.as_slice())
                .ok_or(PullSecretError::NoKey { key })
        };
        let auths = match secret.type_.as_deref().unwrap_or_default() {
            "kubernetes.io/dockerconfigjson" => {
                let key = ".dockerconfigjson";
                let config: Config = serde_json::from_slice(read(key)?)
                    .map_err(|source| PullSecretError::Parse { key, source })?;
                config.auths
            }
            "kubernetes.io/dockercfg" => {
                let key = ".dockercfg";
                serde_json::from_slice(read(key)?).map_err(|source| PullSecretError::Parse { key, source })?
            }
            kind => {
                return Err(PullSecretError::Kind {
                    kind: kind.to_owned(),
                });
            }
        };
        let mut entries: Vec<_> = auths
            .into_iter()
            .map(|(location, entry)| (pattern(&location), entry))
            .collect();
        entries.sort_by(|a, b| b.0.cmp(&a.0));
        self.entries.append(&mut entries);
        Ok(())
    }

    /// What can be tried for an image, in order.
    pub(super) fn candidates(&self, image: &str) -> Vec<RegistryCredentials> {
        let (registry, path) = place(image);
        let fitting = self
            .entries
            .iter()
            .filter(|(pattern, _)| fits(pattern, registry, path));
        let credentials = fitting.filter_map(|(_, entry)| entry.credentials());
        credentials.take(MAX_CANDIDATES).collect()
    }
}

/// A location as host and path, without what docker puts around them.
fn pattern(location: &str) -> String {
    let rest = location
        .strip_prefix("https://")
        .or_else(|| location.strip_prefix("http://"))
        .unwrap_or(location);
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let path = match path.split_once('/') {
        Some(("v1" | "v2", below)) => below,
        _ => path,
    };
    let path = path.trim_matches('/');
    if path.is_empty() {
        host.to_owned()
    } else {
        format!("{host}/{path}")
    }
}

/// The registry of an image, and the rest of its name.
fn place(image: &str) -> (&str, &str) {
    match image.split_once('/') {
        Some(("docker.io", path)) => (DOCKER_HUB, path),
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => (host, path),
        Some(_) | None => (DOCKER_HUB, image),
    }
}

fn fits(pattern: &str, registry: &str, path: &str) -> bool {
    let (host, prefix) = pattern.split_once('/').unwrap_or((pattern, ""));
    host_fits(host, registry) && path.starts_with(prefix)
}

/// Part by part, so that `*` never reaches over a dot; ports must be equal.
fn host_fits(pattern: &str, host: &str) -> bool {
    let (pattern, pattern_port) = pattern.split_once(':').unwrap_or((pattern, ""));
    let (host, port) = host.split_once(':').unwrap_or((host, ""));
    let patterns: Vec<&str> = pattern.split('.').collect();
    let parts: Vec<&str> = host.split('.').collect();
    pattern_port == port
        && patterns.len() == parts.len()
        && patterns
            .iter()
            .zip(parts)
            .all(|(pattern, part)| part_fits(pattern, part))
}

/// `*` is any text.
fn part_fits(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let Some(mut rest) = text.strip_prefix(pieces.next().unwrap_or_default()) else {
        return false;
    };
    let mut pieces = pieces.peekable();
    if pieces.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(piece) = pieces.next() {
        if pieces.peek().is_none() {
            return rest.ends_with(piece);
        }
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn secret(kind: &str, key: &str, content: &Value) -> Secret {
        let data = STANDARD.encode(content.to_string());
        serde_json::from_value(json!({"type": kind, "data": {key: data}})).unwrap()
    }

    fn users(keyring: &Keyring, image: &str) -> Vec<String> {
        let user = |credentials| match credentials {
            RegistryCredentials::Basic { username, .. } => username,
            RegistryCredentials::IdentityToken(token) | RegistryCredentials::RegistryToken(token) => token,
        };
        keyring.candidates(image).into_iter().map(user).collect()
    }

    #[test]
    fn entries_are_found_by_host_and_path_the_longest_first() {
        let auths = json!({
            "https://index.docker.io/v1/": {"auth": STANDARD.encode("hub:pass:word")},
            "registry.example": {"username": "all", "password": "x"},
            "registry.example/team": {"username": "team", "password": "x"},
            "registry.example:5000": {"username": "port", "password": "x"},
            "*.cloud.example": {"username": "cloud", "password": "x"},
            "a*b.example": {"identitytoken": "token"},
            "https://broken.example": {"auth": "???"},
        });
        let mut keyring = Keyring::default();
        let config = json!({"auths": auths, "credHelpers": {"gcr.io": "gcloud"}});
        keyring
            .add(&secret(
                "kubernetes.io/dockerconfigjson",
                ".dockerconfigjson",
                &config,
            ))
            .unwrap();
        let old = json!({"http://registry.example/v2/": {"username": "old", "password": "y"}});
        keyring
            .add(&secret("kubernetes.io/dockercfg", ".dockercfg", &old))
            .unwrap();
        let cases: [(&str, &[&str]); 11] = [
            ("busybox", &["hub"]),
            ("library/busybox:1", &["hub"]),
            ("docker.io/library/busybox", &["hub"]),
            ("registry.example/team/app:1", &["team", "all", "old"]),
            ("registry.example/other", &["all", "old"]),
            ("registry.example:5000/team/app", &["port"]),
            ("eu.cloud.example/app", &["cloud"]),
            ("x.eu.cloud.example/app", &[]),
            ("axyb.example/app", &["token"]),
            ("axyc.example/app", &[]),
            ("broken.example/app", &[]),
        ];
        for (image, expected) in cases {
            assert_eq!(users(&keyring, image), expected, "{image}");
        }
        let hub = keyring.candidates("busybox").remove(0);
        let password = "pass:word".to_owned();
        let username = "hub".to_owned();
        assert!(hub == RegistryCredentials::Basic { username, password });
        assert!(!format!("{keyring:?}").contains("pass"));
    }

    #[test]
    fn what_is_no_pull_secret_says_why() {
        let mut keyring = Keyring::default();
        let opaque = secret("Opaque", "k", &json!({}));
        assert!(matches!(keyring.add(&opaque), Err(PullSecretError::Kind { .. })));
        let empty = secret("kubernetes.io/dockercfg", "k", &json!({}));
        assert!(matches!(keyring.add(&empty), Err(PullSecretError::NoKey { .. })));
        let odd = secret("kubernetes.io/dockercfg", ".dockercfg", &json!([1]));
        assert!(matches!(keyring.add(&odd), Err(PullSecretError::Parse { .. })));
    }
}
