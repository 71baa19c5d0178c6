//! Requests to an API server, over one HTTP/2 connection per client that is made when it is needed.
//!
//! A [`Call`] is a plain value; [`ApiClient`] sends it. What must always hold: a request ends, by its answer or by its
//! timeout; an answer is read up to a limit; a connection that is silent is found out by pings, so that a watch does
//! not wait for a dead server. Retrying is the caller's business: only it knows what a lost answer means.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;

use crate::kubeconfig::{Kubeconfig, KubeconfigError};

/// From dialling to the end of the handshakes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// From sending a request to the end of its answer; watches excepted, which have their head by then.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a silent server is asked whether it is there, and how long it has to answer.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of one answer: a list of thousands of pods.
const MAX_ANSWER_BYTES: usize = 256 * 1024 * 1024;
const AGENT: &str = concat!("pulselet/", env!("CARGO_PKG_VERSION"));

#[derive(Debug, thiserror::Error)]
pub enum ApiClientError {
    #[error("cannot use the credential: {0}")]
    Credential(#[from] KubeconfigError),
    #[error("cannot connect to {server}: {source}")]
    Connect { server: String, source: std::io::Error },
    #[error("cannot speak HTTP/2 with {server}: {source}")]
    Handshake { server: String, source: hyper::Error },
    #[error("{server} did not answer within {after:?}")]
    Timeout { server: String, after: Duration },
    #[error("cannot send a request: {0}")]
    Send(hyper::Error),
    #[error("cannot read an answer: {0}")]
    Read(String),
    #[error("an answer is not what was asked for: {0}")]
    Decode(serde_json::Error),
    /// The server's answer is no.
    #[error("{message} ({code})")]
    Refused {
        code: StatusCode,
        reason: String,
        message: String,
    },
}

impl ApiClientError {
    fn has_code(&self, wanted: StatusCode) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == wanted)
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.has_code(StatusCode::NOT_FOUND)
    }

    pub(crate) fn is_not_allowed(&self) -> bool {
        self.has_code(StatusCode::METHOD_NOT_ALLOWED)
    }

    /// The server no longer has what happened since then.
    pub(crate) fn is_gone(&self) -> bool {
        self.has_code(StatusCode::GONE)
    }

    /// Whether another credential would help.
    pub(crate) fn is_about_credential(&self) -> bool {
        match self {
            Self::Credential(_) => true,
            Self::Refused { code, .. } => matches!(*code, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN),
            Self::Connect { .. }
            | Self::Handshake { .. }
            | Self::Timeout { .. }
            | Self::Send(_)
            | Self::Read(_)
            | Self::Decode(_) => false,
        }
    }

    /// Somebody else was faster, or the object is another by now.
    pub(crate) fn is_conflict(&self) -> bool {
        self.has_code(StatusCode::CONFLICT)
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    pub(crate) method: Method,
    /// With its query.
    pub(crate) path: String,
    pub(crate) content_type: &'static str,
    pub(crate) body: Bytes,
}

impl Call {
    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self {
            method: Method::GET,
            path: path.into(),
            content_type: "",
            body: Bytes::new(),
        }
    }

    fn with_body(method: Method, path: impl Into<String>, content_type: &'static str, body: &Value) -> Self {
        Self {
            method,
            path: path.into(),
            content_type,
            body: body.to_string().into(),
        }
    }

    pub(crate) fn create(path: impl Into<String>, object: &Value) -> Self {
        Self::with_body(Method::POST, path, "application/json", object)
    }

    /// Changes the named fields; null removes one, a list is replaced as a whole.
    pub(crate) fn merge(path: impl Into<String>, changes: &Value) -> Self {
        Self::with_body(Method::PATCH, path, "application/merge-patch+json", changes)
    }

    /// Removes an object at once, if it is this one.
    pub(crate) fn remove(path: impl Into<String>, uid: &str) -> Self {
        let options = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": uid},
        });
        Self::with_body(Method::DELETE, path, "application/json", &options)
    }
}

/// A connection to an API server. Clones share it.
#[derive(Clone, Debug)]
pub struct ApiClient {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: Kubeconfig,
    connection: Mutex<Option<Connection>>,
    /// Made so far.
    connections: AtomicU64,
}

#[derive(Clone, Debug)]
struct Connection {
    /// Tells it from those before and after it.
    number: u64,
    sender: SendRequest<Full<Bytes>>,
    token: Option<String>,
}

impl ApiClient {
    pub fn new(config: Kubeconfig) -> Self {
        Self {
            shared: Arc::new(Shared {
                config,
                connection: Mutex::new(None),
                connections: AtomicU64::new(0),
            }),
        }
    }

    /// A client of the same server with a connection of its own, for streams that must not get in the way of requests.
    pub(crate) fn apart(&self) -> Self {
        let apart = Self::new(self.shared.config.clone());
        // By now the kubeconfig may have another credential than at the start.
        apart.shared.connections.store(1, Ordering::Relaxed);
        apart
    }

    /// Where the server is, for people to read.
    pub(crate) fn server(&self) -> String {
        let Kubeconfig { host, port, .. } = &self.shared.config;
        format!("{host}:{port}")
    }

    fn late(&self, after: Duration) -> ApiClientError {
        let server = self.server();
        ApiClientError::Timeout { server, after }
    }

    /// The object or list that answers a request.
    pub(crate) async fn ask<T: DeserializeOwned>(&self, call: Call) -> Result<T, ApiClientError> {
        let work = async {
            let answer = self.open(call).await?;
            let bytes = read(answer.into_body()).await?;
            serde_json::from_slice(&bytes).map_err(ApiClientError::Decode)
        };
        tokio::time::timeout(REQUEST_TIMEOUT, work)
            .await
            .unwrap_or_else(|_| Err(self.late(REQUEST_TIMEOUT)))
    }

    /// Sends a request whose answer nobody needs.
    pub(crate) async fn send(&self, call: Call) -> Result<(), ApiClientError> {
        self.ask::<serde::de::IgnoredAny>(call).await.map(drop)
    }

    /// The body of an answer that goes on and on.
    pub(crate) async fn stream(&self, call: Call) -> Result<Incoming, ApiClientError> {
        tokio::time::timeout(REQUEST_TIMEOUT, self.open(call))
            .await
            .unwrap_or_else(|_| Err(self.late(REQUEST_TIMEOUT)))
            .map(Response::into_body)
    }

    /// The head of a good answer.
    async fn open(&self, call: Call) -> Result<Response<Incoming>, ApiClientError> {
        let mut connection = self.connection().await?;
        let mut request = Request::builder()
            .method(call.method)
            .uri(format!("https://{}{}", self.authority(), call.path))
            .header(USER_AGENT, AGENT)
            .header(ACCEPT, "application/json");
        if !call.content_type.is_empty() {
            request = request.header(CONTENT_TYPE, call.content_type);
        }
        if let Some(token) = &connection.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::new(call.body)).map_err(|error| {
            // Only a path that is none: all else is ours.
            ApiClientError::Read(format!("the request cannot be made: {error}"))
        })?;
        let answer = connection.sender.send_request(request).await;
        let answer = answer.map_err(ApiClientError::Send)?;
        let code = answer.status();
        if code.is_success() {
            return Ok(answer);
        }
        if code == StatusCode::UNAUTHORIZED {
            self.forget(&connection).await;
        }
        let bytes = read(answer.into_body()).await?;
        Err(refusal(code, &bytes))
    }

    /// Makes the next request over a new connection, with what the kubeconfig has then. Requests under way go on.
    pub(crate) async fn reconnect(&self) {
        *self.shared.connection.lock().await = None;
    }

    /// Leaves a connection whose credential no longer counts. The next one is made with what the kubeconfig has then, so
    /// that a renewed certificate needs no restart.
    async fn forget(&self, refused: &Connection) {
        let mut slot = self.shared.connection.lock().await;
        if slot.as_ref().is_some_and(|open| open.number == refused.number) {
            *slot = None;
        }
    }

    fn authority(&self) -> String {
        let Kubeconfig { host, port, .. } = &self.shared.config;
        if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        }
    }

    /// The open connection, or a new one.
    async fn connection(&self) -> Result<Connection, ApiClientError> {
        let mut slot = self.shared.connection.lock().await;
        if let Some(open) = slot.as_ref().filter(|open| !open.sender.is_closed()) {
            return Ok(open.clone());
        }
        let fresh = tokio::time::timeout(CONNECT_TIMEOUT, self.connect())
            .await
            .unwrap_or_else(|_| Err(self.late(CONNECT_TIMEOUT)))?;
        *slot = Some(fresh.clone());
        Ok(fresh)
    }

    async fn connect(&self) -> Result<Connection, ApiClientError> {
        let number = self.shared.connections.fetch_add(1, Ordering::Relaxed);
        // The first is made with what was checked at the start.
        let config = if number == 0 {
            self.shared.config.clone()
        } else {
            self.shared.config.renewed()
        };
        let failed = |source| ApiClientError::Connect {
            server: self.server(),
            source,
        };
        let (tls, token) = config.credential().await?;
        let stream = TcpStream::connect((config.host.as_str(), config.port))
            .await
            .map_err(failed)?;
        let _ = stream.set_nodelay(true);
        let connector = TlsConnector::from(tls);
        let stream = connector
            .connect(config.server_name.clone(), stream)
            .await
            .map_err(failed)?;
        let handshake = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream))
            .await;
        let (sender, driver) = handshake.map_err(|source| ApiClientError::Handshake {
            server: self.server(),
            source,
        })?;
        tokio::spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(%error, "the connection to the API ended");
            }
        });
        Ok(Connection {
            number,
            sender,
            token,
        })
    }
}

async fn read(body: Incoming) -> Result<Bytes, ApiClientError> {
    let collected = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
    collected
        .map(http_body_util::Collected::to_bytes)
        .map_err(|error| ApiClientError::Read(error.to_string()))
}

/// A server says no with a `Status`; what stands between may say it otherwise.
fn refusal(code: StatusCode, bytes: &[u8]) -> ApiClientError {
    let status: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let text = |field: &str| status[field].as_str().map(str::to_owned);
    ApiClientError::Refused {
        code,
        reason: text("reason").unwrap_or_default(),
        message: text("message").unwrap_or_else(|| "the server refused".to_owned()),
    }
}

/// An object as JSON.
pub(crate) fn to_value(object: &impl Serialize) -> Value {
    serde_json::to_value(object).expect("objects are plain data")
}
