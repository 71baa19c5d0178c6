//! A small HTTP server for both of the node's doors: metrics and health on TCP, requests on the unix socket.
//!
//! Connections and their idle time are bounded; what a request means is the caller's.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Connections served at once on one listener; more wait in the kernel's queue.
pub(crate) const CONNECTIONS: usize = 64;
/// How long a client may take for its request's head.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes buffered per connection.
const BUFFER: usize = 64 * 1024;
/// How long to wait after a failed accept, which is out of descriptors more often than not.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Something that accepts connections.
pub(crate) trait Listener: Send {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    fn accept(&mut self) -> impl Future<Output = std::io::Result<Self::Stream>> + Send;
}

impl Listener for tokio::net::TcpListener {
    type Stream = tokio::net::TcpStream;
    async fn accept(&mut self) -> std::io::Result<Self::Stream> {
        tokio::net::TcpListener::accept(self)
            .await
            .map(|(stream, _)| stream)
    }
}

impl Listener for tokio::net::UnixListener {
    type Stream = tokio::net::UnixStream;
    async fn accept(&mut self) -> std::io::Result<Self::Stream> {
        tokio::net::UnixListener::accept(self)
            .await
            .map(|(stream, _)| stream)
    }
}

/// Answers requests. Implementors are shared by all connections.
pub(crate) trait Answering: Send + Sync + 'static {
    fn answer(self: Arc<Self>, request: Request<Incoming>) -> impl Future<Output = Response<Body>> + Send;
}

/// Serves until the future is dropped; connections end with it.
pub(crate) async fn serve<L: Listener, A: Answering>(mut listener: L, answering: Arc<A>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let answering = Arc::clone(&answering);
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let answering = Arc::clone(&answering);
                async move { Ok::<_, Infallible>(answering.answer(request).await) }
            });
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .max_buf_size(BUFFER)
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades()
                .await;
            if let Err(error) = served {
                tracing::debug!(%error, "a connection ended badly");
            }
            drop(place);
        });
    }
}

/// A complete answer.
pub(crate) fn full(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(UnsyncBoxBody::new(Full::new(body.into())));
    *response.status_mut() = status;
    let value = hyper::header::HeaderValue::from_static(content_type);
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, value);
    response
}
