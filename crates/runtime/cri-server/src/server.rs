//! [`CriServer`]: the socket, the endpoint for streams, and the end of both.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use http::header::HeaderValue;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use pulselet_cri_wire::v1::image_service_server::ImageServiceServer;
use pulselet_cri_wire::v1::runtime_service_server::RuntimeServiceServer;
use pulselet_runtime::Runtime;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::Service as _;

use crate::connections::serve_connections;
use crate::events::SANDBOX_EVENTS;
use crate::service::{Inner, Service};
use crate::stats::Samples;
use crate::streams::{self, Streams};

/// Bytes of a message, as kubelets have it.
const MAX_MESSAGE: usize = 16 << 20;
/// Clients at once: a kubelet has two connections, people with crictl one each.
const MAX_CLIENTS: usize = 256;
/// Calls of one client at once: exec probes of a full node, all in the same second.
const MAX_CALLS: u32 = 4096;
/// Between two looks whether a client that says nothing is still there.
const KEEP_ALIVE: Duration = Duration::from_mins(1);
/// How long calls under way may take to end when the server does. What they have begun goes on.
const LAST_CALLS: Duration = Duration::from_secs(5);
/// Who may use the socket: root and its group.
const SOCKET_MODE: u32 = 0o660;

/// Where and for what a server is.
#[derive(Debug)]
pub struct CriServerOptions {
    pub runtime: Arc<dyn Runtime>,
    pub socket: PathBuf,
    /// Where streams are served; port 0 is one that is free.
    pub stream_address: SocketAddr,
    /// A directory of the server's own, for the logs of containers whose clients want none.
    pub log_root: PathBuf,
    /// Names of images that clients are told not to remove.
    pub pinned_images: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum CriServeError {
    #[error("the runtime does not say what it is: {0}")]
    Version(#[source] pulselet_runtime::Error),
    #[error("cannot make {path}: {source}", path = path.display())]
    MakeDirectory { path: PathBuf, source: io::Error },
    #[error("another server listens at {path}", path = path.display())]
    InUse { path: PathBuf },
    #[error("{path} is there and is no socket", path = path.display())]
    NotASocket { path: PathBuf },
    #[error("cannot listen at {path}: {source}", path = path.display())]
    Listen { path: PathBuf, source: io::Error },
    #[error("cannot listen for streams at {address}: {source}")]
    ListenForStreams { address: SocketAddr, source: io::Error },
}

/// A server that runs. Dropping it leaves it running; [`stop`](Self::stop) ends it.
#[derive(Debug)]
pub struct CriServer {
    socket: PathBuf,
    stream_address: SocketAddr,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl CriServer {
    /// Listens, and answers clients from then on.
    pub async fn start(options: CriServerOptions) -> Result<Self, CriServeError> {
        let version = options.runtime.version().await.map_err(CriServeError::Version)?;
        let listener = listen(&options.socket).await?;
        let streams_failed = |source| CriServeError::ListenForStreams {
            address: options.stream_address,
            source,
        };
        let stream_listener = TcpListener::bind(options.stream_address)
            .await
            .map_err(streams_failed)?;
        let stream_address = stream_listener.local_addr().map_err(streams_failed)?;
        let streams = Streams::new(stream_address);
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let service = Service(Arc::new(Inner {
            runtime: Arc::clone(&options.runtime),
            version,
            streams: streams.clone(),
            log_root: options.log_root,
            pinned_images: options.pinned_images,
            sandbox_events: broadcast::Sender::new(SANDBOX_EVENTS),
            samples: Samples::default(),
        }));
        tasks.spawn(streams::serve(
            stream_listener,
            streams,
            options.runtime,
            stop.clone(),
        ));
        tasks.spawn(accept(listener, Calls::new(&service), stop.clone()));
        tasks.close();
        Ok(Self {
            socket: options.socket,
            stream_address,
            stop,
            tasks,
        })
    }

    pub fn stream_address(&self) -> SocketAddr {
        self.stream_address
    }

    /// Ends the server; containers run on. Calls under way have a moment to be answered.
    pub async fn stop(self) {
        // A client that connects from now on finds nobody, and tries again later.
        let _ = std::fs::remove_file(&self.socket);
        self.stop.cancel();
        if tokio::time::timeout(LAST_CALLS, self.tasks.wait()).await.is_err() {
            tracing::warn!("calls of clients were cut off; what they have begun goes on");
        }
    }
}

/// Listens at a path. A socket that nobody listens at is left from a server that was killed.
async fn listen(path: &Path) -> Result<UnixListener, CriServeError> {
    let failed = |source| CriServeError::Listen {
        path: path.to_owned(),
        source,
    };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|source| CriServeError::MakeDirectory {
            path: parent.to_owned(),
            source,
        })?;
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if !std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()) => {
            return Err(CriServeError::NotASocket {
                path: path.to_owned(),
            });
        }
        Ok(_) if UnixStream::connect(path).await.is_ok() => {
            return Err(CriServeError::InUse {
                path: path.to_owned(),
            });
        }
        Ok(_) => std::fs::remove_file(path).map_err(failed)?,
        Err(_) => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    let mode = std::fs::Permissions::from_mode(SOCKET_MODE);
    std::fs::set_permissions(path, mode).map_err(failed)?;
    Ok(listener)
}

/// Both services, by the paths of their calls.
#[derive(Debug, Clone)]
struct Calls {
    runtime: RuntimeServiceServer<Service>,
    images: ImageServiceServer<Service>,
}

impl Calls {
    fn new(service: &Service) -> Self {
        Self {
            runtime: RuntimeServiceServer::new(service.clone())
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
            images: ImageServiceServer::new(service.clone())
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
        }
    }

    async fn answer(mut self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let path = request.uri().path();
        let answer = if path.starts_with("/runtime.v1.RuntimeService/") {
            self.runtime.call(request).await?
        } else if path.starts_with("/runtime.v1.ImageService/") {
            self.images.call(request).await?
        } else {
            let text = "there is RuntimeService and ImageService of runtime.v1";
            Status::unimplemented(text).into_http()
        };
        Ok(with_usual_code(answer))
    }
}

/// A message that is too large is out of range for the library that reads it; all others say that room is exhausted.
fn with_usual_code(mut answer: Response<Body>) -> Response<Body> {
    let header = |name: &str, answer: &Response<Body>| {
        let value = answer.headers().get(name)?.to_str().ok()?;
        Some(value.to_owned())
    };
    let code = header("grpc-status", &answer);
    let is_too_large = header("grpc-message", &answer).is_some_and(|text| text.contains("too%20large"));
    if is_too_large && code == Some((Code::OutOfRange as i32).to_string()) {
        let usual = HeaderValue::from(Code::ResourceExhausted as i32);
        answer.headers_mut().insert("grpc-status", usual);
    }
    answer
}

/// Answers clients until told to stop.
async fn accept(listener: UnixListener, calls: Calls, stop: CancellationToken) {
    let next = |context: &mut Context<'_>| listener.poll_accept(context).map_ok(|(stream, _)| stream);
    let serve = |stream| client(stream, calls.clone(), stop.clone());
    serve_connections(MAX_CLIENTS, next, serve, &stop).await;
}

/// One client, from its connection to its end.
async fn client(stream: UnixStream, calls: Calls, stop: CancellationToken) {
    let service = service_fn(move |request| calls.clone().answer(request));
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_CALLS)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a client's connection broke");
    }
}
