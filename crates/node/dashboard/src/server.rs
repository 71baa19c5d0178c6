//! Listener and connections, and the task that follows the agent or the API.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::access::Access;
use crate::feed::PageFeed;
use crate::logs::LogViewers;
use crate::routes::Routes;
use crate::source::DashboardSource;

/// Connections at a time; more wait in the kernel's queue. A browser has six at most.
const MAX_CONNECTIONS: usize = 64;
/// For a browser to send the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to wait after a failed accept, which is out of descriptors more often than not.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

#[derive(Debug, Error)]
pub enum DashboardStartError {
    #[error("the listener has no address: {0}")]
    Address(io::Error),
    #[error("{0} can be reached from elsewhere: a dashboard listens on loopback only")]
    NotLoopback(SocketAddr),
}

/// A page that is served. It ends when this is dropped.
#[derive(Debug)]
pub struct Dashboard {
    address: SocketAddr,
    routes: Arc<Routes>,
    _tasks: JoinSet<()>,
}

impl Dashboard {
    /// Serves the pods of an agent or an API, which need not be there yet, in the background.
    pub fn start(listener: TcpListener, source: DashboardSource) -> Result<Self, DashboardStartError> {
        let address = listener.local_addr().map_err(DashboardStartError::Address)?;
        if !address.ip().is_loopback() {
            return Err(DashboardStartError::NotLoopback(address));
        }
        let feed = Arc::new(PageFeed::default());
        let routes = Arc::new(Routes {
            access: Access::new(address.port()),
            source: source.clone(),
            feed: Arc::clone(&feed),
            viewers: LogViewers::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(source.follow(feed));
        tasks.spawn(accept(listener, Arc::clone(&routes)));
        Ok(Self {
            address,
            routes,
            _tasks: tasks,
        })
    }

    /// Where a browser finds it, with the secret that opens it once; without it once that was used.
    pub fn url(&self) -> String {
        let address = self.address;
        match self.routes.access.secret() {
            Some(secret) => format!("http://{address}/?secret={secret}"),
            None => format!("http://{address}/"),
        }
    }
}

async fn accept(listener: TcpListener, routes: Arc<Routes>) {
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
        let routes = Arc::clone(&routes);
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let routes = Arc::clone(&routes);
                async move { Ok::<_, Infallible>(routes.answer(request).await) }
            });
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            if let Err(error) = served {
                tracing::debug!(%error, "a connection ended badly");
            }
            drop(slot);
        });
    }
}
