//! Talks to a registry: the part of the OCI distribution protocol that pulling needs.
//!
//! Every answer that is kept in memory is bounded, error texts included. Registries on this machine are spoken to in plain
//! http, all others in https only, redirects included.
//!
//! Credentials go to the registry and to the token service that the registry itself names, over https or on its own host.
//! A redirect to another host takes none along, and what that host asks for is not answered. A request for a token is
//! never taken to another host, and one that posts a token is never repeated.

mod challenge;
mod error;

use std::net::IpAddr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION, RANGE,
    WWW_AUTHENTICATE,
};
use reqwest::{Client, Response, StatusCode, Url};
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::credentials::Auth;
use crate::digest::Digest;
use crate::image::MAX_MANIFEST_BYTES;
use crate::reference::Reference;
use challenge::Challenge;
pub use error::RegistryError;

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

/// One repository of one registry.
#[derive(Debug)]
pub(crate) struct Registry {
    http: Client,
    /// As the reference has it, for messages.
    name: String,
    /// `https://HOST/`.
    base: Url,
    repository: String,
    auth: Auth,
    /// What the registry wants to see, once it has said so.
    authorization: Mutex<Option<HeaderValue>>,
}

impl Registry {
    pub(crate) fn new(reference: &Reference, auth: Auth) -> Result<Self, RegistryError> {
        let name = reference.registry().to_owned();
        let scheme = if is_local(&name) { "http" } else { "https" };
        let host = if name == "docker.io" {
            "registry-1.docker.io"
        } else {
            name.as_str()
        };
        let address = || RegistryError::Address {
            registry: name.clone(),
        };
        let base = Url::parse(&format!("{scheme}://{host}")).map_err(|_| address())?;
        Self::connect(name, base, reference, auth)
    }

    /// The same repository at another address. Plain http is what the address says.
    pub(crate) fn at(base: Url, reference: &Reference, auth: Auth) -> Result<Self, RegistryError> {
        let name = base.authority().to_owned();
        Self::connect(name, base, reference, auth)
    }

    fn connect(name: String, base: Url, reference: &Reference, auth: Auth) -> Result<Self, RegistryError> {
        let builder = Client::builder()
            .user_agent(concat!("pulselet/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            // They are followed here, because it matters where to.
            .redirect(reqwest::redirect::Policy::none());
        let builder = match base.scheme() {
            // Nothing between us and this machine: no proxy, no certificates.
            "http" if is_local(base.authority()) => builder.no_proxy().tls_certs_only([]),
            "http" => builder,
            _ => builder.https_only(true),
        };
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
        let url = format!("{}v2/{}/{path}", self.base, self.repository);
        let url = Url::parse(&url).map_err(|_| RegistryError::Address {
            registry: self.name.clone(),
        })?;
        let used = self.authorization.lock().await.clone();
        let response = self
            .follow(url.clone(), headers, used.as_ref(), Redirects::Anywhere)
            .await?;
        // What another host asks for is no business of the registry's credentials.
        let is_own = response.url().origin() == self.base.origin();
        if response.status() != StatusCode::UNAUTHORIZED || !is_own {
            return Ok(response);
        }
        let fresh = self.authorize(&response, used.as_ref()).await?;
        self.follow(url, headers, Some(&fresh), Redirects::Anywhere).await
    }

    /// Gets what is behind a chain of redirects. Credentials do not leave the host that they were for.
    async fn follow(
        &self,
        mut url: Url,
        headers: &HeaderMap,
        mut authorization: Option<&HeaderValue>,
        redirects: Redirects,
    ) -> Result<Response, RegistryError> {
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.http.get(url.clone()).headers(headers.clone());
            if let Some(value) = authorization {
                request = request.header(AUTHORIZATION, value);
            }
            let response = request.send().await.map_err(|source| self.not_sent(source))?;
            let Some(next) = redirect_target(&response) else {
                return Ok(response);
            };
            if next.origin() != url.origin() {
                match redirects {
                    Redirects::Anywhere => authorization = None,
                    Redirects::SameHost => return Err(self.token_redirect()),
                }
            }
            url = next;
        }
        Err(RegistryError::TooManyRedirects {
            registry: self.name.clone(),
        })
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

    async fn token(&self, realm: Url, service: Option<&str>, scope: &str) -> Result<String, RegistryError> {
        if let Auth::RegistryToken(token) = &self.auth {
            return Ok(token.clone());
        }
        let on_own_host = realm.scheme() == self.base.scheme() && realm.host() == self.base.host();
        if realm.scheme() != "https" && !on_own_host {
            return Err(RegistryError::Realm {
                registry: self.name.clone(),
                realm: realm.origin().ascii_serialization(),
            });
        }
        let response = match &self.auth {
            Auth::IdentityToken(token) => self.exchange_token(realm, service, scope, token).await?,
            Auth::Basic { username, password } => {
                let credentials = HeaderValue::try_from(basic(username, password)).ok();
                self.ask_for_token(realm, service, scope, credentials).await?
            }
            Auth::Anonymous | Auth::RegistryToken(_) => {
                self.ask_for_token(realm, service, scope, None).await?
            }
        };
        let response = self.succeeded(response, || "token service".to_owned()).await?;
        let bytes = self.read(response, MAX_TOKEN_BYTES).await?;
        token_in(&bytes).ok_or_else(|| RegistryError::Token {
            registry: self.name.clone(),
        })
    }

    async fn ask_for_token(
        &self,
        mut realm: Url,
        service: Option<&str>,
        scope: &str,
        mut credentials: Option<HeaderValue>,
    ) -> Result<Response, RegistryError> {
        realm.query_pairs_mut().append_pair("scope", scope);
        if let Some(service) = service {
            realm.query_pairs_mut().append_pair("service", service);
        }
        if let Some(value) = &mut credentials {
            value.set_sensitive(true);
        }
        self.follow(
            realm,
            &HeaderMap::new(),
            credentials.as_ref(),
            Redirects::SameHost,
        )
        .await
    }

    /// The token is in the body, which a redirect would take along: none is followed.
    async fn exchange_token(
        &self,
        realm: Url,
        service: Option<&str>,
        scope: &str,
        token: &str,
    ) -> Result<Response, RegistryError> {
        let body = [
            ("grant_type", "refresh_token"),
            ("client_id", "pulselet"),
            ("service", service.unwrap_or_default()),
            ("scope", scope),
            ("refresh_token", token),
        ];
        let request = self
            .http
            .post(realm)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(form(&body));
        let response = request.send().await.map_err(|source| self.not_sent(source))?;
        if response.status().is_redirection() {
            return Err(self.token_redirect());
        }
        Ok(response)
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

    fn token_redirect(&self) -> RegistryError {
        RegistryError::TokenRedirect {
            registry: self.name.clone(),
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

/// Where a request may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Redirects {
    /// Without credentials, where it is another host.
    Anywhere,
    SameHost,
}

/// Where an answer says that the thing is; `None` if it is the thing itself, or makes no sense.
fn redirect_target(response: &Response) -> Option<Url> {
    let redirects = matches!(
        response.status(),
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    );
    let location = response.headers().get(LOCATION).filter(|_| redirects)?;
    response.url().join(location.to_str().ok()?).ok()
}

/// For a fuzzer: what is made of a header and of a body, by the same functions as in a pull.
pub(crate) fn fuzz_answer(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Some(Challenge::Bearer {
            realm,
            service,
            scope,
        }) = Challenge::first(text.lines())
        {
            let scope = scope.unwrap_or_default();
            let _ = form(&[("service", &service.unwrap_or_default()), ("scope", &scope)]);
            let _ = Url::parse(&realm);
        }
        let _ = Url::parse("https://registry.example/v2/").map(|url| url.join(text));
        let _ = is_local(text);
    }
    if let Ok(value) = HeaderValue::from_bytes(bytes) {
        let _ = range_start(&HeaderMap::from_iter([(CONTENT_RANGE, value)]));
    }
    let _ = token_in(bytes);
    assert!(error_message(bytes).chars().count() <= MAX_ERROR_CHARS.max("no reason given".len()));
}

/// The token in the answer of a token service.
fn token_in(answer: &[u8]) -> Option<String> {
    let answer: TokenAnswer = serde_json::from_slice(answer).ok()?;
    let token = answer.token.or(answer.access_token)?;
    (!token.is_empty()).then_some(token)
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
