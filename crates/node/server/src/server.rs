//! Listener, handshakes, connections and the sessions that grow out of them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use pulselet_agent::NodeHandle;
use pulselet_runtime::Runtime;
use socket2::{SockRef, TcpKeepalive};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::callers::CallerReview;
use crate::routes::Routes;
use crate::tls::{Client, ServingCertificate, Tls, TlsError};

/// Connections at a time, sessions not included; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 512;
/// Sessions at a time: commands, attached clients and forwarded ports.
const MAX_SESSIONS: usize = 256;
/// For a client to finish its handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// For a client without a certificate to send the head of a request, the time between requests included.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// The same for one that has shown a certificate. Clients keep idle connections for 90 s; an endpoint that gives up earlier
/// breaks the request that comes at that moment.
const KNOWN_HEADER_TIMEOUT: Duration = Duration::from_mins(3);
/// Bytes buffered per connection.
const BUFFER: usize = 64 * 1024;
/// How long to wait after a failed accept, which is out of descriptors more often than not.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// A client that has vanished without a word is noticed after a minute: the kernel asks after 30 s, then every 10 s.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;

/// What the endpoint is made of.
#[derive(Debug)]
pub struct Options {
    pub node: NodeHandle,
    /// The one the node uses.
    pub runtime: Arc<dyn Runtime>,
    pub listener: TcpListener,
    pub tls: Tls,
    /// Who knows callers that no certificate makes trusted; `None` if nobody does.
    pub callers: Option<Arc<dyn CallerReview>>,
}

#[derive(Debug, Error)]
pub enum NodeServeError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the listener has no address: {0}")]
    Address(io::Error),
}

/// A running endpoint. It ends when it is stopped, when it is dropped, and with its node.
#[derive(Debug)]
pub struct NodeServer {
    address: SocketAddr,
    certificate: Arc<ServingCertificate>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl NodeServer {
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The certificate that the endpoint shows.
    pub fn certificate(&self) -> Arc<ServingCertificate> {
        Arc::clone(&self.certificate)
    }

    /// Ends the endpoint with all of its connections and sessions; commands that run in sessions are killed.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.wait().await;
    }
}

impl Drop for NodeServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Serves a node's endpoint in the background.
pub fn serve(options: Options) -> Result<NodeServer, NodeServeError> {
    let (acceptor, certificate) = options.tls.acceptor()?;
    let address = options.listener.local_addr().map_err(NodeServeError::Address)?;
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    let node = options.node.clone();
    let sessions = Sessions {
        slots: Arc::new(Semaphore::new(MAX_SESSIONS)),
        stop: stop.clone(),
        tasks: tasks.clone(),
    };
    let routes = Arc::new(Routes {
        node: options.node,
        runtime: options.runtime,
        sessions,
        callers: options.callers,
    });
    let accepting = accept(options.listener, acceptor, routes);
    let stopped = stop.clone();
    tasks.spawn(async move {
        tokio::select! {
            () = accepting => {}
            () = stopped.cancelled() => {}
            () = node.ended() => stopped.cancel(),
        }
    });
    tasks.close();
    Ok(NodeServer {
        address,
        certificate,
        stop,
        tasks,
    })
}

/// The sessions of an endpoint: bounded, and ended with it.
#[derive(Debug, Clone)]
pub(crate) struct Sessions {
    slots: Arc<Semaphore>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// Room for a session that has not begun.
#[derive(Debug)]
pub(crate) struct SessionSlot {
    permit: tokio::sync::OwnedSemaphorePermit,
    sessions: Sessions,
}

impl Sessions {
    /// `None` when there are too many.
    pub(crate) fn slot(&self) -> Option<SessionSlot> {
        let permit = Arc::clone(&self.slots).try_acquire_owned().ok()?;
        let sessions = self.clone();
        Some(SessionSlot { permit, sessions })
    }
}

impl SessionSlot {
    pub(crate) fn begin(self, session: impl Future<Output = ()> + Send + 'static) {
        let Sessions { stop, tasks, .. } = self.sessions;
        tasks.spawn(async move {
            tokio::select! {
                () = session => {}
                () = stop.cancelled() => {}
            }
            drop(self.permit);
        });
    }
}

/// Accepts until the future is dropped; connections end with it.
async fn accept(listener: TcpListener, acceptor: TlsAcceptor, routes: Arc<Routes>) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let (acceptor, routes) = (acceptor.clone(), Arc::clone(&routes));
        connections.spawn(async move {
            serve_connection(stream, acceptor, routes).await;
            drop(slot);
        });
    }
}

async fn serve_connection(stream: TcpStream, acceptor: TlsAcceptor, routes: Arc<Routes>) {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    // A connection works without them, only not as well.
    let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "a TLS handshake failed");
            return;
        }
        Err(_) => return,
    };
    let client = Arc::new(Client::of(stream.get_ref().1.peer_certificates()));
    let idle = match *client {
        Client::Anonymous => HEADER_TIMEOUT,
        Client::Stranger { .. } | Client::Trusted => KNOWN_HEADER_TIMEOUT,
    };
    let service = service_fn(move |request| {
        let (routes, client) = (Arc::clone(&routes), Arc::clone(&client));
        async move { Ok::<_, std::convert::Infallible>(routes.answer(&client, request).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended badly");
    }
}
