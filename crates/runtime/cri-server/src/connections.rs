//! Connections of clients: so many at a time, each served until it ends or the server does.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Before another try where a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts and serves until told to stop, then waits for those that are being served.
pub(crate) async fn serve_connections<S, F>(
    at_once: usize,
    accept: impl Fn(&mut Context<'_>) -> Poll<io::Result<S>>,
    serve: impl Fn(S) -> F,
    stop: &CancellationToken,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(at_once));
    let connections = TaskTracker::new();
    let accepting = async {
        while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
            match poll_fn(&accept).await {
                Ok(stream) => {
                    let connection = serve(stream);
                    connections.spawn(async move {
                        connection.await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a client's connection cannot be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        () = stop.cancelled() => {}
    }
    connections.close();
    connections.wait().await;
}
