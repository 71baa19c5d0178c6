//! The grpc probe: one Check call of `grpc.health.v1.Health` over plaintext HTTP/2, on a connection of its own.
//!
//! The call is made on `h2` itself and driven by the probe's own task. A channel with its reconnects, buffers and
//! background tasks is made to live long, which a probe must not.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::time::Duration;

use ::http::{HeaderMap, Method, Request, StatusCode, Version};
use bytes::{BufMut, Bytes, BytesMut};
use h2::RecvStream;
use h2::client::{Builder, SendRequest};
use prost::Message;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout_at;
use tonic::{Code, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::dial::DialError;
use crate::report::{Failure, NetworkOutcome, Report, RequestPhase};
use crate::target::Target;
use crate::wording;
use crate::{Prober, TimeLimits};

/// Bytes of headers and trailers taken from a server.
const MAX_HEADER_LIST_BYTES: u32 = 16 * 1024;

/// Bytes of a health answer; a real one has two. It is also the flow-control window, so a server cannot even send more.
const MAX_MESSAGE_BYTES: u32 = 4 * 1024;

/// Before each message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// A health check of a gRPC server.
#[derive(Debug, Clone)]
pub struct GrpcCheck {
    target: Target,
    service: String,
}

impl GrpcCheck {
    /// An empty `service` asks for the server as a whole.
    pub fn new(target: Target, service: impl Into<String>) -> Self {
        Self {
            target,
            service: service.into(),
        }
    }
}

#[derive(Debug, Error)]
enum CheckError {
    #[error("error: failed to connect service at \"{target}\": {source}")]
    Dial { target: Target, source: DialError },
    #[error("error: failed to connect service at \"{target}\": {}", wording::os_error(.source))]
    Register { target: Target, source: io::Error },
    #[error("error: health rpc probe failed: {source}")]
    Request { source: ::http::Error },
    #[error("error: health rpc probe failed: rpc error: code = Unavailable desc = {source}")]
    Transport { source: h2::Error },
    #[error(
        "error: health rpc probe failed: rpc error: code = Unavailable desc = the server closed the connection"
    )]
    Closed,
    #[error("error: health rpc probe failed: rpc error: code = Internal desc = {reason}")]
    Message { reason: &'static str },
    #[error("{}", status_text(.0))]
    Status(Box<Status>),
    #[error("service unhealthy (responded with \"{0}\")")]
    NotServing(String),
}

impl CheckError {
    fn outcome(&self, phase: RequestPhase) -> NetworkOutcome {
        NetworkOutcome::Failure(match self {
            Self::Dial { source, .. } => return source.outcome(),
            Self::Register { .. } => Failure::Connect,
            Self::Request { .. } => Failure::Request,
            Self::Transport { source } => match source.get_io() {
                Some(error) if error.kind() == io::ErrorKind::UnexpectedEof => Failure::Closed(phase),
                Some(error) => Failure::of_stream(error, phase),
                None => Failure::Protocol,
            },
            Self::Closed => Failure::Closed(phase),
            Self::Message { .. } => Failure::Protocol,
            Self::Status(status) => Failure::Rpc(code_name(status.code())),
            Self::NotServing(_) => Failure::NotServing,
        })
    }
}

pub(crate) async fn probe(prober: &Prober, check: &GrpcCheck, limits: TimeLimits) -> Report {
    let mut phase = RequestPhase::Connect;
    let checked = timeout_at(limits.deadline, run(prober, check, &limits, &mut phase)).await;
    let latency = limits.started.elapsed();
    let (outcome, detail) = match checked {
        Ok(Ok(())) => (NetworkOutcome::Success, "service healthy".to_owned()),
        Ok(Err(error)) => (error.outcome(phase), error.to_string()),
        Err(_) => (
            NetworkOutcome::Failure(Failure::Timeout(phase)),
            timeout_text(&check.target, limits.timeout, phase),
        ),
    };
    Report {
        connected: phase.is_connected(),
        outcome,
        detail,
        latency,
    }
}

fn timeout_text(target: &Target, timeout: Duration, phase: RequestPhase) -> String {
    let timeout = wording::duration(timeout);
    match phase {
        RequestPhase::Resolve | RequestPhase::Connect => {
            format!(
                "timeout: failed to connect service \"{target}\" within {timeout}: context deadline exceeded"
            )
        }
        RequestPhase::Tls | RequestPhase::Headers | RequestPhase::Body => {
            format!("timeout: health rpc did not complete within {timeout}")
        }
    }
}

async fn run(
    prober: &Prober,
    check: &GrpcCheck,
    limits: &TimeLimits,
    phase: &mut RequestPhase,
) -> Result<(), CheckError> {
    let target = || check.target.clone();
    let dialled = prober.dialer.connect(&check.target, limits, phase).await;
    let connection = dialled.map_err(|source| CheckError::Dial {
        target: target(),
        source,
    })?;
    let registered = |source| CheckError::Register {
        target: target(),
        source,
    };
    let tcp = connection.into_stream().map_err(registered)?;
    tcp.set_nodelay(true).map_err(registered)?;
    ask(tcp, check, phase).await
}

/// Makes the call over a connection and says what its answer means.
async fn ask<S>(stream: S, check: &GrpcCheck, phase: &mut RequestPhase) -> Result<(), CheckError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    *phase = RequestPhase::Headers;
    let (sender, connection) = handshake(stream).await?;
    let mut call = pin!(call(sender, check, phase));
    let ended = tokio::select! {
        biased;
        answer = &mut call => return verdict(&answer?),
        ended = connection => ended,
    };
    // The connection ended by itself, perhaps right behind the answer. Without it the call is over, one way or another.
    match (call.await, ended) {
        (Ok(answer), _) => verdict(&answer),
        (Err(CheckError::Status(status)), _) => Err(CheckError::Status(status)),
        (Err(_), Err(source)) => Err(CheckError::Transport { source }),
        (Err(_), Ok(())) => Err(CheckError::Closed),
    }
}

async fn handshake<S>(stream: S) -> Result<(SendRequest<Bytes>, h2::client::Connection<S, Bytes>), CheckError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    Builder::new()
        .enable_push(false)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .initial_window_size(MAX_MESSAGE_BYTES)
        .handshake(stream)
        .await
        .map_err(|source| CheckError::Transport { source })
}

/// Makes the call and returns the bytes of the answer's message.
async fn call(
    sender: SendRequest<Bytes>,
    check: &GrpcCheck,
    phase: &mut RequestPhase,
) -> Result<Bytes, CheckError> {
    let transport = |source| CheckError::Transport { source };
    let mut sender = sender.ready().await.map_err(transport)?;
    let (response, mut body) = sender.send_request(request(check)?, false).map_err(transport)?;
    body.send_data(message(check), true).map_err(transport)?;
    let (head, mut body) = response.await.map_err(transport)?.into_parts();
    // An answer without a message has its status among the headers.
    if let Some(status) = Status::from_header_map(&head.headers) {
        return finish(Bytes::new(), status);
    }
    if head.status != StatusCode::OK {
        return Err(CheckError::Status(Box::new(http_status(head.status))));
    }
    *phase = RequestPhase::Body;
    let message = receive(&mut body).await?;
    let trailers = body.trailers().await.map_err(transport)?;
    finish(message, trailers_status(trailers.as_ref()))
}

/// For a fuzzer: the call to a server that sends these bytes and leaves.
pub(crate) fn fuzz_answer(bytes: &[u8]) {
    let _ = verdict(&Bytes::copy_from_slice(bytes));
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let Ok(runtime) = runtime else { return };
    let _ = runtime.block_on(async {
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        theirs.write_all(bytes).await.ok();
        theirs.shutdown().await.ok();
        let check = GrpcCheck::new(Target::new("127.0.0.1", 1), "");
        ask(ours, &check, &mut RequestPhase::Headers).await
    });
}

fn finish(message: Bytes, status: Status) -> Result<Bytes, CheckError> {
    match status.code() {
        Code::Ok => Ok(message),
        _ => Err(CheckError::Status(Box::new(status))),
    }
}

fn request(check: &GrpcCheck) -> Result<Request<()>, CheckError> {
    Request::builder()
        .method(Method::POST)
        .version(Version::HTTP_2)
        .uri(format!("http://{}/grpc.health.v1.Health/Check", check.target))
        .header("content-type", "application/grpc")
        .header("user-agent", "kube-probe/1.36")
        .header("te", "trailers")
        .body(())
        .map_err(|source| CheckError::Request { source })
}

fn message(check: &GrpcCheck) -> Bytes {
    let request = HealthCheckRequest {
        service: check.service.clone(),
    };
    let length = request.encoded_len();
    let mut out = BytesMut::with_capacity(PREFIX_BYTES + length);
    out.put_u8(0);
    out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    request.encode(&mut out).expect("the buffer grows");
    out.freeze()
}

/// Reads all data. The window is never opened again, so that a server cannot send more than one window of it.
async fn receive(body: &mut RecvStream) -> Result<Bytes, CheckError> {
    let mut data = BytesMut::new();
    while let Some(piece) = poll_fn(|cx| body.poll_data(cx)).await {
        data.extend_from_slice(&piece.map_err(|source| CheckError::Transport { source })?);
        if data.len() >= MAX_MESSAGE_BYTES as usize {
            return Err(CheckError::Message {
                reason: "the answer is larger than a health check's",
            });
        }
    }
    Ok(data.freeze())
}

fn trailers_status(trailers: Option<&HeaderMap>) -> Status {
    trailers
        .and_then(Status::from_header_map)
        .unwrap_or_else(|| Status::unknown("the server's answer has no grpc-status"))
}

/// An HTTP answer without a gRPC status, by the mapping that all gRPC clients share.
fn http_status(status: StatusCode) -> Status {
    let code = match status.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502 | 503 | 504 => Code::Unavailable,
        _ => Code::Unknown,
    };
    let reason = status.canonical_reason().unwrap_or("");
    Status::new(
        code,
        format!(
            "unexpected HTTP status code received from server: {} ({reason})",
            status.as_u16()
        ),
    )
}

fn verdict(data: &Bytes) -> Result<(), CheckError> {
    let malformed = |reason| CheckError::Message { reason };
    let (prefix, message) = data
        .split_at_checked(PREFIX_BYTES)
        .ok_or(malformed("the answer has no message"))?;
    if prefix[0] != 0 {
        return Err(malformed("the answer is compressed, which was not asked for"));
    }
    if u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize != message.len() {
        return Err(malformed("the length of the answer's message is wrong"));
    }
    let decoded = HealthCheckResponse::decode(message);
    let status = decoded
        .map_err(|_| malformed("the answer is not a HealthCheckResponse"))?
        .status;
    match ServingStatus::try_from(status) {
        Ok(ServingStatus::Serving) => Ok(()),
        Ok(other) => Err(CheckError::NotServing(other.as_str_name().to_owned())),
        Err(_) => Err(CheckError::NotServing(status.to_string())),
    }
}

fn status_text(status: &Status) -> String {
    match status.code() {
        Code::Unimplemented => format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
            status.message()
        ),
        code => format!(
            "error: health rpc probe failed: rpc error: code = {} desc = {}",
            code_name(code),
            status.message()
        ),
    }
}

/// The names of the codes as gRPC clients print them.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}
