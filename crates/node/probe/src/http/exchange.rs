//! One request and its answer over one connection, plain or TLS.

use std::io;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Scheme;
use super::request::{HeaderError, HttpRequest};
use super::response::{Body, Head, HeadReader, MAX_HEAD_BYTES, Malformed};
use crate::dial::{DialError, Ends};
use crate::report::{Failure, NetworkOutcome, RequestPhase};
use crate::tls::{self, TlsError};
use crate::wording;
use crate::{Prober, TimeLimits};

/// The buffer of a probe starts with room for the whole answer of a usual health page.
const INITIAL_BUFFER_BYTES: usize = 1024;

/// A complete answer, its body cut to what is kept.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) head: Head,
    pub(super) body: Vec<u8>,
}

#[derive(Debug, Error)]
pub(super) enum ExchangeError {
    #[error("{0}")]
    Request(#[from] HeaderError),
    #[error("{0}")]
    Dial(#[from] DialError),
    #[error("{0}")]
    Tls(#[from] TlsError),
    #[error("{}", stream_text(.source, .ends.as_ref()))]
    Stream {
        phase: RequestPhase,
        ends: Option<Ends>,
        source: io::Error,
    },
    #[error("{}", if *.midway { "unexpected EOF" } else { "EOF" })]
    Closed { phase: RequestPhase, midway: bool },
    #[error("net/http: HTTP/1.x transport connection broken: {source}")]
    Malformed { phase: RequestPhase, source: Malformed },
}

impl ExchangeError {
    pub(super) fn outcome(&self) -> NetworkOutcome {
        NetworkOutcome::Failure(match self {
            Self::Request(_) => Failure::Request,
            Self::Dial(error) => return error.outcome(),
            Self::Tls(TlsError::Handshake(error)) if tls::protocol_error(error).is_none() => {
                match error.kind() {
                    io::ErrorKind::UnexpectedEof => Failure::Closed(RequestPhase::Tls),
                    _ => Failure::of_stream(error, RequestPhase::Tls),
                }
            }
            Self::Tls(_) => Failure::Tls,
            Self::Stream { source, .. } if tls::protocol_error(source).is_some() => Failure::Tls,
            Self::Stream { source, phase, .. } => Failure::of_stream(source, *phase),
            Self::Closed { phase, .. } => Failure::Closed(*phase),
            Self::Malformed { .. } => Failure::Protocol,
        })
    }

    /// The phase in which an answer that had begun went wrong.
    pub(super) fn phase(&self) -> Option<RequestPhase> {
        match self {
            Self::Request(_) | Self::Dial(_) | Self::Tls(_) => None,
            Self::Stream { phase, .. } | Self::Closed { phase, .. } | Self::Malformed { phase, .. } => {
                Some(*phase)
            }
        }
    }

    fn with_ends(mut self, connection: Ends) -> Self {
        if let Self::Stream { ends, .. } = &mut self {
            *ends = Some(connection);
        }
        self
    }
}

fn stream_text(source: &io::Error, ends: Option<&Ends>) -> String {
    if let Some(error) = tls::protocol_error(source) {
        return tls::protocol_text(error);
    }
    let what = wording::os_error(source);
    match ends {
        Some(Ends { local, remote }) => format!("read tcp {local}->{remote}: read: {what}"),
        None => format!("read: {what}"),
    }
}

/// Connects, asks, reads the answer and leaves the connection to be closed by the server.
pub(super) async fn fetch(
    prober: &Prober,
    request: &HttpRequest,
    limits: &TimeLimits,
    phase: &mut RequestPhase,
) -> Result<Answer, ExchangeError> {
    let bytes = request.bytes.as_deref().map_err(Clone::clone)?;
    let connection = prober.dialer.connect(&request.url.target, limits, phase).await?;
    let ends = connection.ends;
    let broken = |source| ExchangeError::Stream {
        phase: RequestPhase::Connect,
        ends: Some(ends),
        source,
    };
    let mut tcp = connection.into_stream().map_err(broken)?;
    let fetched = match request.url.scheme {
        Scheme::Http => {
            tcp.set_nodelay(true).map_err(broken)?;
            exchange(&mut tcp, bytes, phase).await.map(|answer| (answer, tcp))
        }
        // Boxed: the state of a TLS session would make every plain probe larger.
        Scheme::Https => Box::pin(fetch_over_tls(prober, request, bytes, tcp, phase)).await,
    };
    let (answer, tcp) = fetched.map_err(|error| error.with_ends(ends))?;
    prober.lingering.see_off(tcp, limits.deadline);
    Ok(answer)
}

async fn fetch_over_tls(
    prober: &Prober,
    request: &HttpRequest,
    bytes: &[u8],
    tcp: TcpStream,
    phase: &mut RequestPhase,
) -> Result<(Answer, TcpStream), ExchangeError> {
    *phase = RequestPhase::Tls;
    let mut tls = prober.tls.connect(&request.url.target, tcp).await?;
    let answer = exchange(&mut tls, bytes, phase).await?;
    Ok((answer, tls.into_inner().0.into_tcp()))
}

async fn exchange<S>(
    stream: &mut S,
    request: &[u8],
    phase: &mut RequestPhase,
) -> Result<Answer, ExchangeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    *phase = RequestPhase::Headers;
    let unsent = send(stream, request).await.err();
    let mut reader = HeadReader::default();
    let mut buffer = Vec::with_capacity(INITIAL_BUFFER_BYTES);
    let head = loop {
        if receive(stream, &mut buffer, *phase).await? == 0 {
            return Err(match unsent {
                Some(source) if buffer.is_empty() => ExchangeError::Stream {
                    phase: *phase,
                    ends: None,
                    source,
                },
                _ => ExchangeError::Closed {
                    phase: *phase,
                    midway: !buffer.is_empty(),
                },
            });
        }
        let malformed = |source| ExchangeError::Malformed {
            phase: RequestPhase::Headers,
            source,
        };
        if let Some(head) = reader.read(&mut buffer).map_err(malformed)? {
            break head;
        }
    };
    *phase = RequestPhase::Body;
    let body = read_body(stream, &head, buffer).await?;
    Ok(Answer { head, body })
}

/// Sends the request. An error is not the end: a server may answer and close without reading, and what it said is
/// then still there to read.
async fn send<S: AsyncWrite + Unpin>(stream: &mut S, request: &[u8]) -> io::Result<()> {
    stream.write_all(request).await?;
    stream.flush().await
}

async fn read_body<S>(stream: &mut S, head: &Head, mut buffer: Vec<u8>) -> Result<Vec<u8>, ExchangeError>
where
    S: AsyncRead + Unpin,
{
    let phase = RequestPhase::Body;
    let malformed = |source| ExchangeError::Malformed { phase, source };
    let mut body = Body::new(head);
    let mut over = body.push(&buffer).map_err(malformed)?;
    while !over {
        buffer.clear();
        if receive(stream, &mut buffer, phase).await? == 0 {
            if body.may_end_here() {
                break;
            }
            return Err(ExchangeError::Closed { phase, midway: true });
        }
        over = body.push(&buffer).map_err(malformed)?;
    }
    Ok(body.into_bytes())
}

/// Reads once, growing a full buffer up to the bound of a head.
async fn receive<S>(stream: &mut S, buffer: &mut Vec<u8>, phase: RequestPhase) -> Result<usize, ExchangeError>
where
    S: AsyncRead + Unpin,
{
    if buffer.len() == buffer.capacity() {
        buffer.reserve_exact(buffer.capacity().clamp(INITIAL_BUFFER_BYTES, MAX_HEAD_BYTES));
    }
    match stream.read_buf(buffer).await {
        Ok(read) => Ok(read),
        // A TLS server that closes without saying so; the framing of the answer shows whether it was too early.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
        Err(source) => Err(ExchangeError::Stream {
            phase,
            ends: None,
            source,
        }),
    }
}
