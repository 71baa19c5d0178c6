//! One connection, from its handshake to its end.
//!
//! What must always hold: a handshake takes a bounded time, and so does waiting for a request. A client that has not
//! said who it is gets little time and is cut off; one that has may keep its connection idle and is told when it ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use super::connections::{RequestGuard, Tracked};
use crate::rest::handler::Handler;
use crate::rest::{Body, BodyError};

/// How long a client may take to finish its handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a known client whose connection has been idle for too long may take to read what is left for it.
const DRAIN_TIMEOUT: Duration = Duration::from_mins(1);
/// How often a silent HTTP/2 client is asked whether it is there, and how long it has to answer.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// How many requests may be under way on one HTTP/2 connection, as upstream has it.
const MAX_STREAMS: u32 = 250;

/// A peer that has vanished is noticed after a minute: the kernel asks after 30 s, then every 10 s.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;

pub(super) async fn serve(
    (stream, source): (TcpStream, SocketAddr),
    acceptor: TlsAcceptor,
    handler: Arc<Handler>,
    tracked: Arc<Tracked>,
    stopped: watch::Receiver<bool>,
) {
    keep_alive(&stream);
    let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream));
    let shaken = tokio::select! {
        shaken = handshake => shaken,
        () = tracked.closed() => return,
    };
    let stream = match shaken {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "the TLS handshake with a client failed");
            return;
        }
        Err(_) => return,
    };
    let chain = stream.get_ref().1.peer_certificates().map(<[_]>::to_vec);
    let chain = Arc::new(chain);
    if handler.trusts(chain.as_deref()) {
        tracked.identify();
    }
    let requests = Arc::clone(&tracked);
    let service = service_fn(move |request: Request<Incoming>| {
        let (handler, chain) = (Arc::clone(&handler), Arc::clone(&chain));
        let tracked = Arc::clone(&requests);
        async move {
            let caller = handler.authenticate(chain.as_deref(), request.headers()).await;
            if caller.as_ref().is_ok_and(|caller| !caller.is_anonymous()) {
                tracked.identify();
            }
            let guard = tracked.begin_request();
            let request = request.map(|body| body.map_err(body_failed).boxed_unsync());
            let answer = handler.handle(caller, source, request).await;
            Ok::<_, std::convert::Infallible>(held(answer, guard))
        }
    });
    drive(TokioIo::new(stream), service, &tracked, stopped).await;
}

/// The request is under way until its answer has been taken.
fn held(answer: Response<Body>, guard: RequestGuard) -> Response<Body> {
    answer.map(|body| {
        let body = body.map_err(move |error| {
            let _held = &guard;
            error
        });
        body.boxed_unsync()
    })
}

fn body_failed(error: hyper::Error) -> BodyError {
    Box::new(error)
}

/// Serves requests until the client leaves, another connection needs the room, nothing has come for too long, or the
/// server stops.
async fn drive<I, S>(io: I, service: S, tracked: &Tracked, mut stopped: watch::Receiver<bool>)
where
    I: Read + Write + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Into<BodyError>,
{
    let builder = connection_builder();
    let connection = builder.serve_connection_with_upgrades(io, service);
    tokio::pin!(connection);
    let mut is_stopping = false;
    // Set when the connection has been idle for too long and is about to end.
    let mut drained_by: Option<Instant> = None;
    loop {
        let wake = drained_by.unwrap_or_else(|| tracked.idle_deadline());
        tokio::select! {
            served = connection.as_mut() => {
                if let Err(error) = served {
                    tracing::debug!(error, "the connection of a client failed");
                }
                return;
            }
            () = tracked.closed() => return,
            () = stop_requested(&mut stopped), if !is_stopping => {
                is_stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            () = tokio::time::sleep_until(wake) => {
                let now = Instant::now();
                if drained_by.is_some() {
                    return;
                }
                if tracked.idle_deadline() > now {
                    continue;
                }
                if !tracked.is_known() {
                    return;
                }
                connection.as_mut().graceful_shutdown();
                drained_by = Some(now + DRAIN_TIMEOUT);
            }
        }
    }
}

/// Asks the TCP peer now and then whether it is there.
pub(crate) fn keep_alive(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    // A connection works without them, only not as well.
    let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
    let _ = stream.set_nodelay(true);
}

async fn stop_requested(stopped: &mut watch::Receiver<bool>) {
    // A sender that is gone means the same.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

fn connection_builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // hyper counts the time between requests, too. `drive` counts it by what is known of the client.
        .header_read_timeout(None);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(MAX_STREAMS);
    builder
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::{Empty, Full};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
    use tokio::task::JoinHandle;

    use super::super::connections::{ConnectionLimits, Connections};
    use super::*;

    /// Serves "ok" to one client, which proves who it is with its first request or never does.
    fn serve_one(is_known: bool) -> (DuplexStream, JoinHandle<()>) {
        let (client, server) = tokio::io::duplex(64 * 1024);
        let tracked = Connections::new(ConnectionLimits::of_process()).open();
        let requests = Arc::clone(&tracked);
        let service = service_fn(move |_: Request<Incoming>| {
            if is_known {
                requests.identify();
            }
            let guard = requests.begin_request();
            let body = Full::new(Bytes::from_static(b"ok")).map_err(|never| match never {});
            let answer = held(Response::new(body.boxed_unsync()), guard);
            async move { Ok::<_, std::convert::Infallible>(answer) }
        });
        let serving = tokio::spawn(async move {
            let (_stop, stopped) = watch::channel(false);
            drive(TokioIo::new(server), service, &tracked, stopped).await;
        });
        (client, serving)
    }

    /// For how long a connection lasts after its only request.
    async fn idle_time(is_http2: bool, is_known: bool) -> Duration {
        let (client, serving) = serve_one(is_known);
        let request = Request::new(Empty::<Bytes>::new());
        let io = TokioIo::new(client);
        if is_http2 {
            let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), io);
            let (mut sender, connection) = handshake.await.unwrap();
            tokio::spawn(connection);
            let answer = sender.send_request(request).await.unwrap();
            answer.into_body().collect().await.unwrap();
            let start = Instant::now();
            serving.await.unwrap();
            return start.elapsed();
        }
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        let answer = sender.send_request(request).await.unwrap();
        answer.into_body().collect().await.unwrap();
        let start = Instant::now();
        serving.await.unwrap();
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_known_client_keeps_its_idle_connection_for_longer_than_clients_want_to() {
        for is_http2 in [false, true] {
            let idle = idle_time(is_http2, true).await;
            assert!(idle > Duration::from_secs(90), "HTTP/2: {is_http2}: {idle:?}");
            assert!(idle < Duration::from_mins(5), "HTTP/2: {is_http2}: {idle:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_anonymous_client_does_not_keep_its_connection_for_long() {
        for is_http2 in [false, true] {
            let idle = idle_time(is_http2, false).await;
            assert!(idle <= Duration::from_secs(31), "HTTP/2: {is_http2}: {idle:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_never_sent_whole_is_not_waited_for() {
        for beginning in [
            "",
            "GET",
            "GET / HTTP/1.1\r\nx: y",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ] {
            let (mut client, serving) = serve_one(false);
            let start = Instant::now();
            client.write_all(beginning.as_bytes()).await.unwrap();
            serving.await.unwrap();
            assert!(start.elapsed() <= Duration::from_secs(31), "{beginning:?}");
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).await.unwrap();
        }
    }
}
