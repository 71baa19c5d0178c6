//! The way to a node: logs, exec, attach and port-forward are answered there, not here. So is what pods and nodes serve
//! themselves (`proxy`).
//!
//! The server checks the request, finds the Pod's node and hands the request over in the form a kubelet takes. An
//! answer that grants an upgrade is followed by the bytes of both sides, whatever protocol they speak: WebSocket and
//! SPDY simply pass through. A client that leaves takes the connection to the node with it, and the other way round.

mod dial;
mod proxy;
mod service;
mod target;
pub(crate) mod usage;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Collected, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::access::pki::{Authority, PkiError};
use crate::registry::Registry;
use crate::registry::object::Object;
use crate::registry::resource::{ObjectPath, ResourceKind};
use crate::rest::room::Permit;
use crate::rest::status::{ApiError, StatusReason};
use crate::rest::{Body, BodyError};
use dial::{DialError, Dialer};
use proxy::PodAddress;
pub(crate) use proxy::ProxyPath;
pub(crate) use target::{NodeRequest, target};

/// How long a node may take to begin its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How many bytes of a node's complaint are read.
const MAX_COMPLAINT: usize = 16 * 1024;
/// How many bytes a document of a node may have: far more than a summary of all the pods a node can have.
const MAX_DOCUMENT: usize = 32 * 1024 * 1024;
/// How many bytes are held between a client and a node, in each direction.
const JOIN_BUFFER: usize = 32 * 1024;
/// Headers that concern one connection and not the next.
const HOP_BY_HOP: [HeaderName; 4] = [
    CONNECTION,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
];

#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    #[error("error dialing backend: {0}")]
    Dial(#[from] DialError),
    #[error("error dialing backend: the request to node {node:?} failed: {source}")]
    Ask { node: String, source: hyper::Error },
    #[error("error dialing backend: node {node:?} does not answer")]
    NoAnswer { node: String },
    #[error("node {node:?} sends the request elsewhere ({code}), which no node may")]
    Redirect { node: String, code: StatusCode },
    #[error("error trying to reach {peer}: it sends the request elsewhere ({code})")]
    ProxyRedirect { peer: String, code: StatusCode },
}

impl From<NodeError> for ApiError {
    fn from(error: NodeError) -> Self {
        Self::new(StatusReason::ServiceUnavailable, error.to_string())
    }
}

/// Carries requests to nodes.
#[derive(Debug)]
pub(crate) struct Nodes {
    registry: Registry,
    dialer: Dialer,
    /// Ends the streams between clients and nodes.
    over: CancellationToken,
    _guard: DropGuard,
}

impl Nodes {
    pub(crate) fn new(registry: Registry, authority: &Arc<Authority>) -> Result<Self, PkiError> {
        let over = CancellationToken::new();
        Ok(Self {
            registry,
            dialer: Dialer::new(authority)?,
            _guard: over.clone().drop_guard(),
            over,
        })
    }

    /// Sends a request to a node and returns its answer. The permit is held as long as bytes flow.
    pub(crate) async fn forward(
        &self,
        target: NodeRequest,
        mut request: Request<Body>,
        permit: Permit,
    ) -> Result<Response<Body>, ApiError> {
        let node = self.registry.get(&node_path(&target.node)).await?;
        let sender = self.dialer.dial(&node).await.map_err(NodeError::Dial)?;
        let upgrade = hyper::upgrade::on(&mut request);
        let asked = translate(&target.path, &target.node, &request);
        let answer = self
            .exchange(&target.node, sender, asked, upgrade, permit)
            .await?;
        // Whoever follows it takes his credentials along, to wherever the node likes.
        if answer.status().is_redirection() {
            let (node, code) = (target.node, answer.status());
            return Err(NodeError::Redirect { node, code }.into());
        }
        Ok(answer)
    }

    /// Sends a request to what a pod or a node serves itself.
    pub(crate) async fn proxy(
        &self,
        path: &ProxyPath,
        mut request: Request<Body>,
        permit: Permit,
    ) -> Result<Response<Body>, ApiError> {
        let target = self.registry.get(&path.target()).await?;
        let (sender, host) = if path.is_node() {
            path.check_node(&target)?;
            let sender = self.dialer.dial(&target).await.map_err(NodeError::Dial)?;
            (sender, target.name().to_owned())
        } else if path.is_service() {
            let (pods, _) = self
                .registry
                .all(ResourceKind::Pod, Some(target.namespace()))
                .await?;
            self.dial_first(&service::addresses(path, &target, &pods)?)
                .await?
        } else {
            self.dial_first(&[path.pod_address(&target)?]).await?
        };
        let upgrade = hyper::upgrade::on(&mut request);
        let passed_on = path.passed_on(request.uri().query());
        let mut asked = translate(&passed_on, &host, &request);
        if let Some(length) = request.headers().get(CONTENT_LENGTH) {
            asked.headers_mut().insert(CONTENT_LENGTH, length.clone());
        }
        *asked.body_mut() = request.into_body();
        let mut answer = self.exchange(&host, sender, asked, upgrade, permit).await?;
        if path.rewrite(&mut answer, &host) {
            return Ok(answer);
        }
        let (peer, code) = (host, answer.status());
        Err(NodeError::ProxyRedirect { peer, code }.into())
    }

    /// A connection to the first of these addresses that takes one, and its name.
    async fn dial_first(&self, addresses: &[PodAddress]) -> Result<(SendRequest<Body>, String), ApiError> {
        let mut failed = None;
        for address in addresses {
            match self.dialer.dial_pod(address).await {
                Ok(sender) => {
                    let host = std::net::SocketAddr::new(address.address, address.port);
                    return Ok((sender, host.to_string()));
                }
                Err(error) => failed = Some(NodeError::Dial(error).into()),
            }
        }
        Err(failed.unwrap_or_else(ApiError::no_such_path))
    }

    /// Sends a request over a connection of its own and returns the answer.
    async fn exchange(
        &self,
        peer: &str,
        mut sender: SendRequest<Body>,
        request: Request<Body>,
        upgrade: hyper::upgrade::OnUpgrade,
        permit: Permit,
    ) -> Result<Response<Body>, ApiError> {
        let node = || peer.to_owned();
        let asking = sender.send_request(request);
        let answer = match tokio::time::timeout(ANSWER_TIMEOUT, asking).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(source)) => return Err(NodeError::Ask { node: node(), source }.into()),
            Err(_) => return Err(NodeError::NoAnswer { node: node() }.into()),
        };
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(self.join(upgrade, answer, permit));
        }
        let mut answer = answer.map(|body| {
            let body = body.map_err(|error| Box::new(error) as BodyError);
            let body = body.map_frame(move |frame| {
                let _held = &permit;
                frame
            });
            body.boxed_unsync()
        });
        for name in HOP_BY_HOP {
            answer.headers_mut().remove(name);
        }
        Ok(answer)
    }

    /// Reads a document of a node.
    pub(crate) async fn fetch(&self, node: &Object, path: &'static str) -> Result<Bytes, ApiError> {
        let name = node.name();
        let mut sender = self.dialer.dial(node).await.map_err(NodeError::Dial)?;
        let mut request = Request::new(empty());
        *request.uri_mut() = http::Uri::from_static(path);
        request
            .headers_mut()
            .insert(HOST, http::HeaderValue::from_static("node"));
        let failed = |source| NodeError::Ask {
            node: name.to_owned(),
            source,
        };
        let answer = sender.send_request(request).await.map_err(failed)?;
        if answer.status() != StatusCode::OK {
            let why = format!("node {name:?} answers {} at {path}", answer.status());
            return Err(ApiError::new(StatusReason::ServiceUnavailable, why));
        }
        let document = Limited::new(answer.into_body(), MAX_DOCUMENT).collect().await;
        let document = document.map_err(|error| {
            let why = format!("what node {name:?} has at {path} cannot be read: {error}");
            ApiError::new(StatusReason::ServiceUnavailable, why)
        })?;
        Ok(document.to_bytes())
    }

    /// Lets the bytes of an upgraded connection flow between client and node.
    fn join(
        &self,
        client: hyper::upgrade::OnUpgrade,
        answer: Response<Incoming>,
        permit: Permit,
    ) -> Response<Body> {
        let (parts, body) = answer.into_parts();
        let granted = Response::from_parts(parts.clone(), empty());
        let node = hyper::upgrade::on(Response::from_parts(parts, body));
        let over = self.over.clone();
        tokio::spawn(async move {
            let joined = async {
                let (client, node) = tokio::try_join!(client, node)?;
                let (mut client, mut node) = (TokioIo::new(client), TokioIo::new(node));
                // How a stream ends concerns its two ends only.
                let _ = tokio::io::copy_bidirectional_with_sizes(
                    &mut client,
                    &mut node,
                    JOIN_BUFFER,
                    JOIN_BUFFER,
                )
                .await;
                Ok::<_, hyper::Error>(())
            };
            tokio::select! {
                joined = joined => if let Err(error) = joined {
                    tracing::debug!(%error, "the stream between a client and a node did not begin");
                },
                () = over.cancelled() => {}
            }
            drop(permit);
        });
        granted
    }
}

/// Turns what a node says against a request for a log into a `Status`. A kubelet complains in plain text.
pub(crate) async fn complaint(answer: Response<Body>) -> ApiError {
    let reason = match answer.status() {
        StatusCode::BAD_REQUEST => StatusReason::BadRequest,
        StatusCode::NOT_FOUND => StatusReason::NotFound,
        StatusCode::TOO_MANY_REQUESTS => StatusReason::TooManyRequests,
        StatusCode::SERVICE_UNAVAILABLE => StatusReason::ServiceUnavailable,
        _ => StatusReason::InternalError,
    };
    // Boxed: the compiler cannot see through it that it may move between threads.
    let collecting: BoxFuture<'static, Result<Collected<Bytes>, BodyError>> =
        Box::pin(Limited::new(answer.into_body(), MAX_COMPLAINT).collect());
    let text = match collecting.await {
        Ok(text) => String::from_utf8_lossy(&text.to_bytes()).trim().to_owned(),
        Err(error) => format!("the node's answer cannot be read: {error}"),
    };
    ApiError::new(reason, text)
}

fn node_path(name: &str) -> ObjectPath {
    ObjectPath {
        endpoint: ResourceKind::Node.storage(),
        namespace: None,
        name: Some(name.to_owned()),
        subresource: None,
    }
}

/// The request as the node gets it. The client's credentials are left out, because they do not concern the node.
fn translate(path: &str, host: &str, request: &Request<Body>) -> Request<Body> {
    let mut translated = Request::new(empty());
    *translated.method_mut() = request.method().clone();
    *translated.uri_mut() = path.parse().unwrap_or_default();
    let headers = translated.headers_mut();
    *headers = request.headers().clone();
    for name in [AUTHORIZATION, CONTENT_LENGTH, TRANSFER_ENCODING] {
        headers.remove(name);
    }
    remove_impersonation(headers);
    let host = http::HeaderValue::from_str(host);
    headers.insert(HOST, host.unwrap_or(http::HeaderValue::from_static("node")));
    translated
}

fn remove_impersonation(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .keys()
        .filter(|name| name.as_str().starts_with("impersonate-"))
        .cloned()
        .collect();
    for name in named {
        headers.remove(name);
    }
}

fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}
