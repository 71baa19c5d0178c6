//! The demo's port: http/1.1, http/2 and gRPC health checks, with or without TLS.

use std::convert::Infallible;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::health::{Health, Timeline};
use crate::cli::DemoArgs;
use crate::exit::Failure;

/// The path of a gRPC health check.
const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
/// A gRPC message: uncompressed, two bytes long, field 1 of `HealthCheckResponse` with the status.
const SERVING: [u8; 7] = [0, 0, 0, 0, 2, 0x08, 1];
const NOT_SERVING: [u8; 7] = [0, 0, 0, 0, 2, 0x08, 2];

type Answer = Response<BoxBody<Bytes, Infallible>>;

pub(super) struct Server {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    handler: Arc<Handler>,
}

#[derive(Debug)]
struct Handler {
    timeline: Arc<Timeline>,
    redirect_to: Option<HeaderValue>,
}

impl Server {
    pub(super) async fn bind(port: u16, args: &DemoArgs, timeline: Arc<Timeline>) -> Result<Self, Failure> {
        // The dual-stack address takes IPv4 as well; a machine without IPv6 has only the other.
        let any_v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let listener = match TcpListener::bind(any_v6).await {
            Ok(listener) => listener,
            Err(_) => TcpListener::bind(("0.0.0.0", port)).await.map_err(|error| {
                Failure::environment(format!("cannot listen on port {port}: {error}"))
                    .with_hint("choose another with --port")
            })?,
        };
        let tls = if args.tls { Some(acceptor()?) } else { None };
        let redirect_to = args
            .redirect_to
            .as_deref()
            .map(HeaderValue::from_str)
            .transpose()
            .map_err(|error| Failure::usage(format!("cannot redirect there: {error}")))?;
        Ok(Self {
            listener,
            tls,
            handler: Arc::new(Handler {
                timeline,
                redirect_to,
            }),
        })
    }

    /// Answers until the process ends.
    pub(super) async fn serve(self) -> Result<(), Failure> {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                continue;
            };
            let handler = Arc::clone(&self.handler);
            let tls = self.tls.clone();
            tokio::spawn(async move {
                if handler.timeline.now() == Health::Deadlocked {
                    // Keeps the connection and never answers.
                    let _kept = stream;
                    return std::future::pending().await;
                }
                match tls {
                    None => answer(stream, handler).await,
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            answer(stream, handler).await;
                        }
                    }
                }
            });
        }
    }
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, handler: Arc<Handler>) {
    let service = service_fn(move |request| {
        let handler = Arc::clone(&handler);
        async move { handler.answer(&request).await }
    });
    // A client that breaks off is its own business.
    let _ = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

impl Handler {
    async fn answer(&self, request: &Request<Incoming>) -> Result<Answer, http::Error> {
        let health = self.timeline.now();
        if health == Health::Deadlocked {
            std::future::pending::<()>().await;
        }
        if request.uri().path() == HEALTH_CHECK {
            return grpc_answer(health == Health::Good);
        }
        if let Some(target) = &self.redirect_to {
            return Response::builder()
                .status(StatusCode::FOUND)
                .header(header::LOCATION, target)
                .body(BoxBody::default());
        }
        let (status, text) = match health {
            Health::Good => (StatusCode::OK, "ok\n"),
            Health::Failing | Health::Deadlocked => (StatusCode::SERVICE_UNAVAILABLE, "not well\n"),
        };
        Response::builder().status(status).body(Full::from(text).boxed())
    }
}

fn grpc_answer(serving: bool) -> Result<Answer, http::Error> {
    let message = Bytes::from_static(if serving { &SERVING } else { &NOT_SERVING });
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(message)
        .with_trailers(std::future::ready(Some(Ok(trailers))))
        .boxed();
    Response::builder()
        .header(header::CONTENT_TYPE, "application/grpc")
        .body(body)
}

/// TLS with a certificate made for this run.
fn acceptor() -> Result<TlsAcceptor, Failure> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])
        .map_err(|error| Failure::environment(format!("cannot make a certificate: {error}")))?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())
        .map_err(|error| Failure::environment(format!("cannot use the certificate's key: {error}")))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            builder
                .with_no_client_auth()
                .with_single_cert(vec![made.cert.der().clone()], key)
        })
        .map_err(|error| Failure::environment(format!("cannot set up TLS: {error}")))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
