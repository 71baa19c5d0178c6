//! The other end of the socket, for the command line.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use pulselet_model::Pod;
use pulselet_runtime::ExecOptions;
use pulselet_vocabulary::PodName;
use pulselet_volume::LocalObject;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::exec::{self, ExecSession};
use super::{ControlRefusal, NodeView, encode, socket};
use crate::state::handed_objects::HandedObject;
use crate::{Added, EventRow, LogPlace, PodView};

/// Bytes of an answer that are read: the status of a full node.
const MAX_ANSWER: usize = 256 * 1024 * 1024;
/// How long the agent may take to begin an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest line of a stream, in bytes.
const MAX_LINE: usize = 1024 * 1024;

#[derive(Debug, Error)]
pub enum ControlClientError {
    #[error("no agent answers at {path} ({source}); {}", advice(source), path = path.display())]
    Connect { path: PathBuf, source: io::Error },
    #[error("the agent does not answer: {0}")]
    Send(hyper::Error),
    #[error("the agent does not answer within {ANSWER_TIMEOUT:?}")]
    Timeout,
    #[error("the answer broke off: {0}")]
    Receive(Box<dyn std::error::Error + Send + Sync>),
    #[error("the answer cannot be understood: {0}")]
    Decode(serde_json::Error),
    /// The agent's own words.
    #[error("{error}")]
    Refused { status: u16, error: String },
}

fn advice(error: &io::Error) -> &'static str {
    if error.kind() == io::ErrorKind::PermissionDenied {
        "it belongs to another user: use sudo, or name another --data-dir"
    } else {
        "start one with `pulselet node`, or name its --data-dir"
    }
}

/// Talks to the agent of a data directory. Each request has a connection of its own.
#[derive(Clone, Debug)]
pub struct ControlClient {
    socket: PathBuf,
}

impl ControlClient {
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
        }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub async fn pods(&self) -> Result<Vec<PodView>, ControlClientError> {
        self.get("/v1/pods").await
    }

    /// Hands an admitted pod over.
    pub async fn add(&self, pod: &Pod) -> Result<Added, ControlClientError> {
        let body = serde_json::to_vec(pod).map_err(ControlClientError::Decode)?;
        let response = self.send(Method::POST, "/v1/pods", body.into()).await?;
        decode(response).await
    }

    /// Hands admitted config maps and secrets over, for pods that come after them.
    pub async fn keep_objects(&self, objects: &[LocalObject]) -> Result<(), ControlClientError> {
        let objects: Vec<HandedObject> = objects.iter().cloned().map(Into::into).collect();
        let body = serde_json::to_vec(&objects).map_err(ControlClientError::Decode)?;
        let response = self.send(Method::POST, "/v1/objects", body.into()).await?;
        read(response).await.map(drop)
    }

    /// Stops a pod; without a grace period its own counts. It stays known, and stopped, unless it is forgotten.
    pub async fn stop(
        &self,
        pod: &PodName,
        grace: Option<Duration>,
        forgets: bool,
    ) -> Result<(), ControlClientError> {
        let grace = grace.map(|grace| format!("&gracePeriodSeconds={}", grace.as_secs()));
        let grace = grace.unwrap_or_default();
        let path = format!("{}?forget={forgets}{grace}", path_of(pod));
        let response = self.send(Method::DELETE, &path, Bytes::new()).await?;
        read(response).await.map(drop)
    }

    /// Runs a pod again that was stopped.
    pub async fn start(&self, pod: &PodName) -> Result<Added, ControlClientError> {
        let path = format!("{}/start", path_of(pod));
        decode(self.send(Method::POST, &path, Bytes::new()).await?).await
    }

    /// Gives a container another life, or all containers of the pod; their number.
    pub async fn restart(&self, pod: &PodName, container: Option<&str>) -> Result<usize, ControlClientError> {
        let container = container.map(|name| format!("?container={}", encode(name)));
        let path = format!("{}/restart{}", path_of(pod), container.unwrap_or_default());
        decode(self.send(Method::POST, &path, Bytes::new()).await?).await
    }

    /// Runs a command in a container; without a name the pod's only container is meant.
    pub async fn exec(
        &self,
        pod: &PodName,
        container: Option<&str>,
        options: &ExecOptions,
    ) -> Result<ExecSession, ControlClientError> {
        let mut path = format!(
            "{}/exec?tty={}&stdin={}",
            path_of(pod),
            options.tty,
            options.stdin
        );
        let container = container.map(|name| ("container", name));
        let term = options.term.as_deref().map(|term| ("term", term));
        let words = options.command.iter().map(|word| ("command", word.as_str()));
        for (key, value) in container.into_iter().chain(term).chain(words) {
            path.extend(["&", key, "=", &encode(value)]);
        }
        let request = Request::post(path)
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, exec::PROTOCOL)
            .body(Full::default())
            .expect("paths are encoded");
        let response = self.deliver(request).await?;
        let upgraded = hyper::upgrade::on(response).await;
        Ok(ExecSession::new(upgraded.map_err(ControlClientError::Send)?))
    }

    /// The node itself.
    pub async fn node(&self) -> Result<NodeView, ControlClientError> {
        self.get("/v1/node").await
    }

    /// A pod as it was admitted.
    pub async fn manifest(&self, pod: &PodName) -> Result<Pod, ControlClientError> {
        self.get(&format!("{}/manifest", path_of(pod))).await
    }

    /// What containers use, in the form of a kubelet's summary.
    pub async fn usage<T: DeserializeOwned>(&self) -> Result<T, ControlClientError> {
        self.get("/v1/usage").await
    }

    /// Where a container's log is; without a name the pod's only container is meant.
    pub async fn log(
        &self,
        pod: &PodName,
        container: Option<&str>,
        previous: bool,
    ) -> Result<LogPlace, ControlClientError> {
        let container = container.map(|name| format!("&container={}", encode(name)));
        let container = container.unwrap_or_default();
        let (namespace, name) = (encode(&pod.namespace), encode(&pod.name));
        self.get(&format!(
            "/v1/pods/{namespace}/{name}/log?previous={previous}{container}"
        ))
        .await
    }

    /// The events of a pod, aggregated, oldest first.
    pub async fn events(&self, uid: &str) -> Result<Vec<EventRow>, ControlClientError> {
        self.get(&format!("/v1/events/{}", encode(uid))).await
    }

    /// Kills and what led to them, as event lines in JSON.
    pub async fn history(
        &self,
        pod: Option<&PodName>,
        container: Option<&str>,
    ) -> Result<String, ControlClientError> {
        let pod = pod.map(ToString::to_string);
        let given = [("pod", pod.as_deref()), ("container", container)];
        let given = given.map(|(key, value)| value.map(|value| format!("{key}={}", encode(value))));
        let given: Vec<String> = given.into_iter().flatten().collect();
        let path = format!("/v1/history?{}", given.join("&"));
        let response = self.send(Method::GET, &path, Bytes::new()).await?;
        let bytes = read(response).await?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Event lines from now on.
    pub async fn lines(&self) -> Result<LineStream, ControlClientError> {
        let response = self.send(Method::GET, "/v1/lines", Bytes::new()).await?;
        Ok(LineStream {
            body: response.into_body(),
            buffer: BytesMut::new(),
        })
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ControlClientError> {
        decode(self.send(Method::GET, path, Bytes::new()).await?).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, ControlClientError> {
        let request = Request::builder().method(method).uri(path);
        self.deliver(request.body(Full::new(body)).expect("paths are encoded"))
            .await
    }

    async fn deliver(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, ControlClientError> {
        let stream = socket::connect(&self.socket).await;
        let stream = stream.map_err(|source| ControlClientError::Connect {
            path: self.socket.clone(),
            source,
        })?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(ControlClientError::Send)?;
        // Ends with the connection, which ends with the answer.
        tokio::spawn(connection.with_upgrades());
        let host = HeaderValue::from_static("pulselet");
        request.headers_mut().insert(header::HOST, host);
        let sent = tokio::time::timeout(ANSWER_TIMEOUT, sender.send_request(request)).await;
        let response = sent
            .map_err(|_| ControlClientError::Timeout)?
            .map_err(ControlClientError::Send)?;
        let status = response.status();
        if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        let status = status.as_u16();
        let bytes = read(response).await?;
        let refusal = serde_json::from_slice::<ControlRefusal>(&bytes).map_err(ControlClientError::Decode)?;
        Err(ControlClientError::Refused {
            status,
            error: refusal.error,
        })
    }
}

fn path_of(pod: &PodName) -> String {
    format!("/v1/pods/{}/{}", encode(&pod.namespace), encode(&pod.name))
}

async fn read(response: Response<Incoming>) -> Result<Bytes, ControlClientError> {
    let body = Limited::new(response.into_body(), MAX_ANSWER);
    let collected = body.collect().await.map_err(ControlClientError::Receive)?;
    Ok(collected.to_bytes())
}

async fn decode<T: DeserializeOwned>(response: Response<Incoming>) -> Result<T, ControlClientError> {
    serde_json::from_slice(&read(response).await?).map_err(ControlClientError::Decode)
}

/// Event lines as they come.
#[derive(Debug)]
pub struct LineStream {
    body: Incoming,
    buffer: BytesMut,
}

impl LineStream {
    /// The next line as JSON, without its newline; none when the agent has ended.
    pub async fn next(&mut self) -> Result<Option<String>, ControlClientError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end + 1);
                return Ok(Some(String::from_utf8_lossy(&line[..end]).into_owned()));
            }
            if self.buffer.len() > MAX_LINE {
                return Err(ControlClientError::Receive("a line is too long".into()));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(ControlClientError::Receive(error.into())),
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
            }
        }
    }
}
