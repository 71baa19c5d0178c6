//! The endpoint for streams: exec, attach and port-forward.
//!
//! A call for streams is answered with an address that has a token in it. Whoever comes with the token first, within a
//! minute, gets the streams; then it is good for nothing. The endpoint listens on this machine alone unless it is told
//! otherwise: the token is all that a client shows.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Context;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use pulselet_runtime::{ContainerId, Runtime, SandboxId};
use pulselet_sessions::{ForwardTarget, SessionStart, WantedStreams, forward_ports, run_command};
use pulselet_streaming::{NegotiatedProtocol, StreamConnection, StreamPurpose, negotiate};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;

use crate::connections::serve_connections;

/// How long a client may take from the answer to its use.
const TOKEN_LIFE: Duration = Duration::from_mins(1);
/// Addresses that nobody has used yet.
const MAX_TOKENS: usize = 1000;
/// Connections at once; each may have a command behind it.
const MAX_CONNECTIONS: usize = 2000;
/// How long a client may take to send its request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// What an address stands for.
#[derive(Debug)]
pub(crate) enum Session {
    Command {
        container: ContainerId,
        wanted: WantedStreams,
        start: SessionStart,
    },
    Forward {
        sandbox: SandboxId,
        /// For messages.
        pod: String,
        ports: Vec<u16>,
    },
}

impl Session {
    fn kind(&self) -> &'static str {
        match self {
            Self::Command {
                start: SessionStart::Exec(_),
                ..
            } => "exec",
            Self::Command {
                start: SessionStart::Attach(_),
                ..
            } => "attach",
            Self::Forward { .. } => "portforward",
        }
    }

    fn purpose(&self) -> StreamPurpose {
        match self {
            Self::Command { .. } => StreamPurpose::Command,
            Self::Forward { .. } => StreamPurpose::PortForward,
        }
    }
}

/// The addresses that are good for something. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Streams {
    address: SocketAddr,
    offered: Arc<Mutex<HashMap<String, (Instant, Session)>>>,
}

impl Streams {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            offered: Arc::default(),
        }
    }

    /// An address for the session.
    pub(crate) fn offer(&self, session: Session) -> Result<String, Status> {
        let token = format!("{:032x}", rand::random::<u128>());
        let url = format!("http://{}/{}/{token}", self.address, session.kind());
        let now = Instant::now();
        let mut offered = self.offered();
        offered.retain(|_, (until, _)| *until > now);
        if offered.len() >= MAX_TOKENS {
            return Err(Status::resource_exhausted(
                "too many addresses for streams wait to be used: try again in a minute",
            ));
        }
        offered.insert(token, (now + TOKEN_LIFE, session));
        Ok(url)
    }

    /// What a path stands for, which then stands for nothing.
    fn take(&self, path: &str) -> Option<Session> {
        let (kind, token) = path.strip_prefix('/')?.split_once('/')?;
        let mut offered = self.offered();
        let (until, session) = offered.get(token)?;
        if session.kind() != kind || *until <= Instant::now() {
            return None;
        }
        offered.remove(token).map(|(_, session)| session)
    }

    fn offered(&self) -> std::sync::MutexGuard<'_, HashMap<String, (Instant, Session)>> {
        self.offered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves clients until told to stop; sessions end with that.
pub(crate) async fn serve(
    listener: TcpListener,
    streams: Streams,
    runtime: Arc<dyn Runtime>,
    stop: CancellationToken,
) {
    let next = |context: &mut Context<'_>| listener.poll_accept(context).map_ok(|(stream, _)| stream);
    let serve = |stream| connection(stream, streams.clone(), Arc::clone(&runtime), stop.clone());
    serve_connections(MAX_CONNECTIONS, next, serve, &stop).await;
}

async fn connection(
    stream: tokio::net::TcpStream,
    streams: Streams,
    runtime: Arc<dyn Runtime>,
    stop: CancellationToken,
) {
    // Keys that a person types are not to wait for more.
    let _ = stream.set_nodelay(true);
    let sessions = TaskTracker::new();
    let service = service_fn(|request| {
        let answer = answer(request, &streams, &runtime, &sessions, &stop);
        async move { Ok::<_, Infallible>(answer) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::select! {
        served = served => {
            if let Err(error) = served {
                tracing::debug!(%error, "a connection for streams broke");
            }
        }
        () = stop.cancelled() => {}
    }
    sessions.close();
    sessions.wait().await;
}

fn answer(
    request: Request<Incoming>,
    streams: &Streams,
    runtime: &Arc<dyn Runtime>,
    sessions: &TaskTracker,
    stop: &CancellationToken,
) -> Response<Full<Bytes>> {
    let Some(session) = streams.take(request.uri().path()) else {
        return text(
            StatusCode::NOT_FOUND,
            "there is no such address: it is good for one use within a minute",
        );
    };
    let protocol = match negotiate(request.headers(), session.purpose()) {
        Ok(protocol) => protocol,
        Err(error) => return text(error.status(), &error.to_string()),
    };
    let granted = protocol.answer().map(|()| Full::default());
    let (runtime, stop) = (Arc::clone(runtime), stop.clone());
    sessions.spawn(async move {
        let session = async {
            match hyper::upgrade::on(request).await {
                Ok(stream) => {
                    let connection = protocol.start(TokioIo::new(stream));
                    run(connection, &protocol, session, runtime).await;
                }
                Err(error) => tracing::debug!(%error, "a client left before its streams began"),
            }
        };
        tokio::select! {
            () = session => {}
            () = stop.cancelled() => {}
        }
    });
    granted
}

async fn run(
    connection: StreamConnection,
    protocol: &NegotiatedProtocol,
    session: Session,
    runtime: Arc<dyn Runtime>,
) {
    match session {
        Session::Command {
            container,
            wanted,
            start,
        } => run_command(connection, protocol, wanted, &start, &*runtime, &container).await,
        Session::Forward { sandbox, pod, ports } => {
            let target = ForwardTarget {
                runtime,
                sandbox,
                pod,
            };
            forward_ports(connection, protocol, target, &ports).await;
        }
    }
}

fn text(status: StatusCode, message: &str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from(format!("{message}\n"))));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forward() -> Session {
        Session::Forward {
            sandbox: SandboxId::new("s"),
            pod: "web".into(),
            ports: Vec::new(),
        }
    }

    fn path(url: &str) -> &str {
        &url["http://127.0.0.1:7".len()..]
    }

    #[test]
    fn an_address_is_good_for_one_use() {
        let streams = Streams::new(([127, 0, 0, 1], 7).into());
        let url = streams.offer(forward()).expect("has room");
        assert!(url.starts_with("http://127.0.0.1:7/portforward/"), "{url}");
        let other = path(&url).replace("portforward", "exec");
        assert!(streams.take(&other).is_none(), "it is no command");
        assert!(streams.take(path(&url)).is_some());
        assert!(streams.take(path(&url)).is_none(), "it was used");
        for nonsense in ["", "/", "/exec", "/exec/", "exec/x"] {
            assert!(streams.take(nonsense).is_none(), "{nonsense}");
        }
    }

    #[test]
    fn addresses_that_nobody_uses_are_bounded_and_end() {
        let streams = Streams::new(([127, 0, 0, 1], 7).into());
        for _ in 0..MAX_TOKENS {
            streams.offer(forward()).expect("has room");
        }
        let full = streams.offer(forward()).expect_err("is full");
        assert_eq!(full.code(), tonic::Code::ResourceExhausted);
        for (until, _) in streams.offered().values_mut() {
            *until = Instant::now();
        }
        let url = streams.offer(forward()).expect("has room again");
        assert_eq!(streams.offered().len(), 1);
        for (until, _) in streams.offered().values_mut() {
            *until = Instant::now();
        }
        assert!(streams.take(path(&url)).is_none(), "it is too late");
    }
}
