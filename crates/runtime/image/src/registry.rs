//! Talks to a registry: the part of the OCI distribution protocol that pulling needs.
//!
//! Every answer that is kept in memory is bounded, error texts included. Credentials go to the registry and to the token
//! service it names, never along with a redirect to another host. Registries on this machine are spoken to in plain http,
//! all others in https only, redirects included.

mod challenge;

use std::net::IpAddr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_RANGE, HeaderMap, HeaderValue, RANGE, WWW_AUTHENTICATE,
};
use reqwest::{Client, Response, StatusCode, Url};
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::credentials::Auth;
use crate::digest::Digest;
use crate::image::MAX_MANIFEST_BYTES;
use crate::reference::Reference;
use challenge::Challenge;

/// Until a connection stands.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Without a single byte.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Redirects of one request; registries use one, to where blobs lie.
const MAX_REDIRECTS: usize = 5;
/// Bytes of a token service's answer.
const MAX_TOKEN_BYTES: u64 = 1 << 20;
/// Bytes of an error's text that are read.
const MAX_ERROR_BYTES: u64 = 64 << 10;
/// Characters of it that are shown.
const MAX_ERROR_CHARS: usize = 300;

const MANIFEST_TYPES: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("cannot prepare a connection to {registry}: {source}")]
    Prepare {
        registry: String,
        source: reqwest::Error,
    },
    #[error("cannot reach {registry}: {}", innermost(source))]
    Send {
        registry: String,
        source: reqwest::Error,
    },
    #[error("the connection to {registry} broke: {}", innermost(source))]
    Read {
        registry: String,
        source: reqwest::Error,
    },
    #[error("{registry} has no {what}")]
    NotFound { registry: String, what: String },
    #[error("{registry} does not let us have {repository}: {message}")]
    Denied {
        registry: String,
        repository: String,
        message: String,
    },
    #[error("{registry} answered {status}: {message}")]
    Status {
        registry: String,
        status: StatusCode,
        message: String,
    },
    #[error("{registry} asks for credentials in a way that is not understood")]
    Challenge { registry: String },
    #[error("the token service of {registry} sent no token")]
    Token { registry: String },
    #[error("{registry} sent more than {limit} bytes")]
    TooLarge { registry: String, limit: u64 },
    #[error("{registry} sent a manifest with the digest {actual} for {expected}")]
    ManifestCorrupt {
        registry: String,
        expected: Digest,
        actual: Digest,
    },
}

impl RegistryError {
    /// Whether the same may work a little later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Send { source, .. } => !source.is_builder() && !source.is_redirect(),
            Self::Read { .. } => true,
            Self::Status { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            Self::Prepare { .. }
            | Self::NotFound { .. }
            | Self::Denied { .. }
            | Self::Challenge { .. }
            | Self::Token { .. }
            | Self::TooLarge { .. }
            | Self::ManifestCorrupt { .. } => false,
        }
    }
}

/// What is behind the general words of the http library.
fn innermost(error: &reqwest::Error) -> String {
    let mut error: &dyn std::error::Error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// One repository of one registry.
#[derive(Debug)]
pub(crate) struct Registry {
    http: Client,
    /// As the reference has it, for messages.
    name: String,
    /// `https://HOST`.
    base: String,
    repository: String,
    auth: Auth,
    /// What the registry wants to see, once it has said so.
    authorization: Mutex<Option<HeaderValue>>,
}

impl Registry {
    pub(crate) fn new(reference: &Reference, auth: Auth) -> Result<Self, RegistryError> {
        let name = reference.registry().to_owned();
        let builder = Client::builder()
            .user_agent(concat!("pulselet/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .redirect(reqwest::redirect::Policy::limited(MAX_REDIRECTS));
        let (scheme, builder) = if is_local(&name) {
            // Nothing between us and this machine: no proxy, no certificates.
            ("http", builder.no_proxy().tls_certs_only([]))
        } else {
            ("https", builder.https_only(true))
        };
        let host = if name == "docker.io" {
            "registry-1.docker.io"
        } else {
            name.as_str()
        };
        let base = format!("{scheme}://{host}");
        let http = builder.build().map_err(|source| RegistryError::Prepare {
            registry: name.clone(),
            source,
        })?;
        Ok(Self {
            http,
            name,
            base,
            repository: reference.repository().to_owned(),
            auth,
            authorization: Mutex::new(None),
        })
    }

    /// The manifest or index behind a tag or digest, and its digest.
    pub(crate) async fn manifest(&self, reference: &Reference) -> Result<(Vec<u8>, Digest), RegistryError> {
        let expected = reference.digest();
        let which = match (expected, reference.tag()) {
            (Some(digest), _) => digest.to_string(),
            (None, tag) => tag.unwrap_or("latest").to_owned(),
        };
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(MANIFEST_TYPES));
        let response = self.get(&format!("manifests/{which}"), &headers).await?;
        let separator = if expected.is_some() { '@' } else { ':' };
        let what = || format!("image {}{separator}{which}", self.repository);
        let response = self.succeeded(response, what).await?;
        let bytes = self.read(response, MAX_MANIFEST_BYTES).await?;
        let actual = Digest::of(&bytes);
        match expected {
            Some(expected) if expected != actual => Err(RegistryError::ManifestCorrupt {
                registry: self.name.clone(),
                expected,
                actual,
            }),
            _ => Ok((bytes, actual)),
        }
    }

    /// A blob from a byte on. The registry may send all of it instead: the second value says where it starts.
    pub(crate) async fn blob(&self, digest: Digest, offset: u64) -> Result<(Response, u64), RegistryError> {
        let mut headers = HeaderMap::new();
        if offset > 0
            && let Ok(range) = HeaderValue::try_from(format!("bytes={offset}-"))
        {
            headers.insert(RANGE, range);
        }
        let response = self.get(&format!("blobs/{digest}"), &headers).await?;
        let response = self.succeeded(response, || format!("blob {digest}")).await?;
        let start = match response.status() {
            StatusCode::PARTIAL_CONTENT => range_start(response.headers()).unwrap_or(offset),
            _ => 0,
        };
        Ok((response, start))
    }

    /// The next bytes of a body; `None` at its end.
    pub(crate) async fn chunk(&self, response: &mut Response) -> Result<Option<bytes::Bytes>, RegistryError> {
        response.chunk().await.map_err(|source| RegistryError::Read {
            registry: self.name.clone(),
            source: source.without_url(),
        })
    }

    /// Asks, and asks again with credentials if the registry wants some.
    async fn get(&self, path: &str, headers: &HeaderMap) -> Result<Response, RegistryError> {
        let url = format!("{}/v2/{}/{path}", self.base, self.repository);
        let used = self.authorization.lock().await.clone();
        let response = self.send(&url, headers, used.as_ref()).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(response);
        }
        let fresh = self.authorize(&response, used.as_ref()).await?;
        self.send(&url, headers, Some(&fresh)).await
    }

    async fn send(
        &self,
        url: &str,
        headers: &HeaderMap,
        authorization: Option<&HeaderValue>,
    ) -> Result<Response, RegistryError> {
        let mut request = self.http.get(url).headers(headers.clone());
        if let Some(value) = authorization {
            request = request.header(AUTHORIZATION, value);
        }
        request.send().await.map_err(|source| self.not_sent(source))
    }

    /// Gets what the registry wants to see, unless another request got it meanwhile.
    async fn authorize(
        &self,
        response: &Response,
        used: Option<&HeaderValue>,
    ) -> Result<HeaderValue, RegistryError> {
        let mut current = self.authorization.lock().await;
        if let Some(value) = current.as_ref().filter(|value| Some(*value) != used) {
            return Ok(value.clone());
        }
        let not_understood = || RegistryError::Challenge {
            registry: self.name.clone(),
        };
        let challenges = response.headers().get_all(WWW_AUTHENTICATE);
        let challenge = Challenge::first(challenges.iter().filter_map(|value| value.to_str().ok()));
        let text = match challenge.ok_or_else(not_understood)? {
            Challenge::Basic => match &self.auth {
                Auth::Basic { username, password } => basic(username, password),
                Auth::Anonymous | Auth::IdentityToken(_) | Auth::RegistryToken(_) => {
                    return Err(self.denied("it wants a user name and password"));
                }
            },
            Challenge::Bearer {
                realm,
                service,
                scope,
            } => {
                let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", self.repository));
                let realm = Url::parse(&realm).map_err(|_| not_understood())?;
                format!("Bearer {}", self.token(realm, service.as_deref(), &scope).await?)
            }
        };
        let mut value = HeaderValue::try_from(text).map_err(|_| not_understood())?;
        value.set_sensitive(true);
        *current = Some(value.clone());
        Ok(value)
    }

    async fn token(
        &self,
        mut realm: Url,
        service: Option<&str>,
        scope: &str,
    ) -> Result<String, RegistryError> {
        let request = match &self.auth {
            Auth::RegistryToken(token) => return Ok(token.clone()),
            Auth::IdentityToken(token) => {
                let body = [
                    ("grant_type", "refresh_token"),
                    ("client_id", "pulselet"),
                    ("service", service.unwrap_or_default()),
                    ("scope", scope),
                    ("refresh_token", token),
                ];
                let form = form(&body);
                let kind = "application/x-www-form-urlencoded";
                self.http
                    .post(realm)
                    .header(reqwest::header::CONTENT_TYPE, kind)
                    .body(form)
            }
            Auth::Anonymous | Auth::Basic { .. } => {
                realm.query_pairs_mut().append_pair("scope", scope);
                if let Some(service) = service {
                    realm.query_pairs_mut().append_pair("service", service);
                }
                let request = self.http.get(realm);
                match &self.auth {
                    Auth::Basic { username, password } => request.basic_auth(username, Some(password)),
                    Auth::Anonymous | Auth::IdentityToken(_) | Auth::RegistryToken(_) => request,
                }
            }
        };
        let response = request.send().await.map_err(|source| self.not_sent(source))?;
        let response = self.succeeded(response, || "token service".to_owned()).await?;
        let bytes = self.read(response, MAX_TOKEN_BYTES).await?;
        let answer: Option<TokenAnswer> = serde_json::from_slice(&bytes).ok();
        answer
            .and_then(|answer| answer.token.or(answer.access_token))
            .filter(|token| !token.is_empty())
            .ok_or_else(|| RegistryError::Token {
                registry: self.name.clone(),
            })
    }

    /// Turns the answers that say no into errors.
    async fn succeeded(
        &self,
        response: Response,
        what: impl FnOnce() -> String,
    ) -> Result<Response, RegistryError> {
        let status = response.status();
        if matches!(status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
            return Ok(response);
        }
        // What cannot be read of an error is not worth another one.
        let body = self.read(response, MAX_ERROR_BYTES).await.unwrap_or_default();
        let message = error_message(&body);
        let registry = self.name.clone();
        Err(match status {
            StatusCode::NOT_FOUND => RegistryError::NotFound {
                registry,
                what: what(),
            },
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => self.denied(&message),
            _ => RegistryError::Status {
                registry,
                status,
                message,
            },
        })
    }

    async fn read(&self, mut response: Response, limit: u64) -> Result<Vec<u8>, RegistryError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = self.chunk(&mut response).await? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() as u64 > limit {
                return Err(RegistryError::TooLarge {
                    registry: self.name.clone(),
                    limit,
                });
            }
        }
        Ok(bytes)
    }

    fn not_sent(&self, source: reqwest::Error) -> RegistryError {
        RegistryError::Send {
            registry: self.name.clone(),
            source: source.without_url(),
        }
    }

    fn denied(&self, message: &str) -> RegistryError {
        RegistryError::Denied {
            registry: self.name.clone(),
            repository: self.repository.clone(),
            message: message.to_owned(),
        }
    }
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

#[derive(Deserialize)]
struct ErrorAnswer {
    errors: Vec<ErrorEntry>,
}

#[derive(Deserialize)]
struct ErrorEntry {
    #[serde(default)]
    message: String,
}

/// What a registry says about an error, on one line.
fn error_message(body: &[u8]) -> String {
    let text = match serde_json::from_slice::<ErrorAnswer>(body) {
        Ok(answer) => answer
            .errors
            .into_iter()
            .map(|entry| entry.message)
            .collect::<Vec<_>>()
            .join("; "),
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    let line: String = text
        .chars()
        .map(|char| if char.is_control() { ' ' } else { char })
        .take(MAX_ERROR_CHARS)
        .collect();
    let line = line.trim();
    if line.is_empty() {
        "no reason given".to_owned()
    } else {
        line.to_owned()
    }
}

fn basic(username: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{username}:{password}")))
}

fn form(fields: &[(&str, &str)]) -> String {
    // A query is encoded as a form is.
    Url::parse_with_params("form:", fields)
        .ok()
        .and_then(|url| url.query().map(str::to_owned))
        .unwrap_or_default()
}

/// The first byte of `bytes START-END/TOTAL`.
fn range_start(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    range
        .strip_prefix("bytes ")?
        .split('-')
        .next()?
        .trim()
        .parse()
        .ok()
}

/// Whether a registry is on this machine.
fn is_local(registry: &str) -> bool {
    let host = match registry.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => registry.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_registries_on_this_machine_are_local() {
        for registry in [
            "localhost",
            "localhost:5000",
            "127.0.0.1:5000",
            "127.1.2.3",
            "[::1]:5000",
        ] {
            assert!(is_local(registry), "{registry}");
        }
        for registry in [
            "docker.io",
            "localhost.example.com",
            "10.0.0.1:5000",
            "[2001:db8::1]:5000",
            "127.example.com",
        ] {
            assert!(!is_local(registry), "{registry}");
        }
    }

    #[test]
    fn errors_of_registries_are_one_line() {
        let body = br#"{"errors":[{"code":"DENIED","message":"no\nway"},{"code":"X"}]}"#;
        assert_eq!(error_message(body), "no way;");
        assert_eq!(error_message(b"<html>"), "<html>");
        assert_eq!(error_message(b""), "no reason given");
        assert_eq!(error_message(&[b'x'; 5000]).len(), MAX_ERROR_CHARS);
    }

    #[test]
    fn forms_are_encoded() {
        assert_eq!(form(&[("scope", "a:b c"), ("t", "&")]), "scope=a%3Ab+c&t=%26");
    }
}
