//! What a probe found: the outcome as a type, its text as a Kubernetes user knows it, and the time it took.
//!
//! A [`Failure`] says something about the container and counts against it. A [`Fault`] says that the probe could
//! not be made on this machine and says nothing about the container. What follows from either is left to the
//! probe worker.

use std::fmt;
use std::io;
use std::time::Duration;

use rustix::io::Errno;

/// The result of one probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub outcome: NetworkOutcome,
    /// The words for events and history. Of a success it is what the server said (at most 10 KiB); the body of an
    /// answer never shows in the text of a failure.
    pub detail: String,
    /// From the start of the probe until its outcome was known.
    pub latency: Duration,
    /// A connection was made, so the server may have seen the probe.
    pub connected: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkOutcome {
    Success,
    /// Counts as a success, but the user should know of it.
    Warning,
    Failure(Failure),
    Error(Fault),
}

/// Why a probe failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The host name has no address.
    Resolve,
    /// Nobody listens there.
    Refused,
    /// There is no route to the address.
    Unreachable,
    /// The connection could not be made for another reason.
    Connect,
    /// The timeout ended while the probe was in this phase.
    Timeout(RequestPhase),
    /// The server broke the connection off.
    Reset(RequestPhase),
    /// The server closed the connection before its answer was complete.
    Closed(RequestPhase),
    /// The TLS handshake failed, or the server sent a TLS alert.
    Tls,
    /// The answer is not HTTP, or not HTTP/2 for a grpc probe.
    Protocol,
    /// The answer's status code is not one of 200..=399.
    Status(u16),
    /// A redirect that cannot be followed: one too many, or a location that makes no sense.
    Redirect,
    /// The probe's own fields cannot be sent as a request.
    Request,
    /// The health service answered with an error; its code as gRPC names it.
    Rpc(&'static str),
    /// The health service answered, with a state other than SERVING.
    NotServing,
}

/// Why a probe could not be made at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// This process or machine has no descriptor or memory left for one more socket.
    OpenSocket,
}

/// How far a probe has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestPhase {
    Resolve,
    Connect,
    Tls,
    Headers,
    Body,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolve => f.write_str("name not found"),
            Self::Refused => f.write_str("refused"),
            Self::Unreachable => f.write_str("unreachable"),
            Self::Connect => f.write_str("no connection"),
            Self::Timeout(phase) => write!(f, "timeout ({phase})"),
            Self::Reset(phase) => write!(f, "reset ({phase})"),
            Self::Closed(phase) => write!(f, "closed ({phase})"),
            Self::Tls => f.write_str("tls error"),
            Self::Protocol => f.write_str("protocol error"),
            Self::Status(code) => write!(f, "status {code}"),
            Self::Redirect => f.write_str("bad redirect"),
            Self::Request => f.write_str("bad request fields"),
            Self::Rpc(code) => write!(f, "rpc error {code}"),
            Self::NotServing => f.write_str("not serving"),
        }
    }
}

impl RequestPhase {
    /// Whether a connection was there.
    pub(crate) fn is_connected(self) -> bool {
        match self {
            Self::Resolve | Self::Connect => false,
            Self::Tls | Self::Headers | Self::Body => true,
        }
    }
}

impl fmt::Display for RequestPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolve => "resolve",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Headers => "headers",
            Self::Body => "body",
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OpenSocket => f.write_str("no socket"),
        }
    }
}

impl NetworkOutcome {
    /// Judges an error of the connect call.
    pub(crate) fn of_connect(error: &io::Error) -> Self {
        match errno(error) {
            Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                Self::Error(Fault::OpenSocket)
            }
            Some(Errno::CONNREFUSED) => Self::Failure(Failure::Refused),
            Some(Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::HOSTDOWN | Errno::NETDOWN) => {
                Self::Failure(Failure::Unreachable)
            }
            Some(Errno::TIMEDOUT) => Self::Failure(Failure::Timeout(RequestPhase::Connect)),
            Some(Errno::CONNRESET) => Self::Failure(Failure::Reset(RequestPhase::Connect)),
            _ => Self::Failure(Failure::Connect),
        }
    }
}

impl Failure {
    /// Judges an error of an established connection.
    pub(crate) fn of_stream(error: &io::Error, phase: RequestPhase) -> Self {
        match errno(error) {
            Some(Errno::HOSTUNREACH | Errno::NETUNREACH) => Self::Unreachable,
            Some(Errno::TIMEDOUT) => Self::Timeout(phase),
            _ => Self::Reset(phase),
        }
    }
}

fn errno(error: &io::Error) -> Option<Errno> {
    Errno::from_io_error(error)
}
