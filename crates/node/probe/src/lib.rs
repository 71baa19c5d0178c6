//! Health probes over a network: httpGet, tcpSocket and grpc, and the httpGet of lifecycle hooks.
//!
//! A probe is a plain value; a [`Prober`] runs it and returns a [`Report`]. What always holds:
//! - the timeout covers everything, from the name lookup to the last byte of the answer;
//! - a server, however hostile, costs at most that time and a small fixed memory;
//! - every probe has a connection of its own, and no proxy setting of this process is looked at;
//! - an HTTP connection is left for the server to close, after the report is made, so that it leaves no local port
//!   in `TIME_WAIT`;
//! - a look sends one request at most, and none unless it is connected in time;
//! - there is no global state.
//!
//! When to probe, what a result counts for, named ports, and exec are left to others.

mod dial;
#[doc(hidden)]
pub mod fuzzing;
mod grpc;
mod http;
mod linger;
mod report;
mod target;
mod tcp;
mod tls;
mod wording;

use std::time::Duration;

use tokio::time::Instant;

pub use self::grpc::GrpcCheck;
pub use self::http::{HttpRequest, Purpose, Scheme};
pub use self::report::{Failure, Fault, NetworkOutcome, Report, RequestPhase};
pub use self::target::Target;

/// Ten years: longer than any machine is up, and well within what a clock can show.
const FAR_AWAY: Duration = Duration::from_hours(10 * 365 * 24);

/// A probe of any of the network handlers.
#[derive(Debug, Clone)]
pub enum NetworkProbe {
    Http(HttpRequest),
    Tcp(Target),
    Grpc(GrpcCheck),
}

/// Runs probes. Make one and share it: it holds the TLS settings and the bounds on what goes on in the background.
///
/// Its methods need a tokio runtime with IO and time. Dropping a returned future ends the probe.
#[derive(Debug)]
pub struct Prober {
    dialer: dial::Dialer,
    tls: tls::Tls,
    lingering: linger::Lingering,
}

impl Prober {
    pub fn new() -> Self {
        Self {
            dialer: dial::Dialer::new(),
            tls: tls::Tls::new(),
            lingering: linger::Lingering::new(),
        }
    }

    pub async fn run(&self, probe: &NetworkProbe, timeout: Duration) -> Report {
        self.run_within(probe, TimeLimits::new(timeout)).await
    }

    /// A probe that the program should notice as little as possible: it gives up unless it is connected within `connect`,
    /// and follows no redirect, so that one request is sent at most. [`Report::connected`] says whether one was.
    pub async fn look(&self, probe: &NetworkProbe, connect: Duration, timeout: Duration) -> Report {
        self.run_within(probe, TimeLimits::look(connect, timeout)).await
    }

    async fn run_within(&self, probe: &NetworkProbe, limits: TimeLimits) -> Report {
        match probe {
            NetworkProbe::Http(request) => http::probe(self, request, limits).await,
            NetworkProbe::Tcp(target) => tcp::probe(self, target, limits).await,
            // Boxed: an HTTP/2 connection is many times the size of the others.
            NetworkProbe::Grpc(check) => Box::pin(grpc::probe(self, check, limits)).await,
        }
    }

    /// Success is a status of 200..=299 at the end of the redirects. An answer of 3xx, such as a redirect to another
    /// host, is a warning.
    pub async fn http(&self, request: &HttpRequest, timeout: Duration) -> Report {
        http::probe(self, request, TimeLimits::new(timeout)).await
    }

    /// Success is a connection.
    pub async fn tcp(&self, target: &Target, timeout: Duration) -> Report {
        tcp::probe(self, target, TimeLimits::new(timeout)).await
    }

    /// Success is the answer SERVING.
    pub async fn grpc(&self, check: &GrpcCheck, timeout: Duration) -> Report {
        grpc::probe(self, check, TimeLimits::new(timeout)).await
    }

    /// The httpGet of a lifecycle hook: success is any answer, whatever its status. A warning says that TLS was asked
    /// for and could not be used.
    pub async fn hook(&self, request: &HttpRequest, timeout: Duration) -> Report {
        http::hook(self, request, timeout).await
    }
}

/// What bounds a probe that starts now.
#[derive(Debug, Clone, Copy)]
struct TimeLimits {
    started: Instant,
    timeout: Duration,
    deadline: Instant,
    /// When a look gives up unless it is connected; `None` for an ordinary probe.
    connect_by: Option<Instant>,
}

impl TimeLimits {
    fn new(timeout: Duration) -> Self {
        let started = Instant::now();
        Self {
            started,
            timeout,
            deadline: deadline(started, timeout),
            connect_by: None,
        }
    }

    fn look(connect: Duration, timeout: Duration) -> Self {
        let limits = Self::new(timeout);
        let connect_by = Some(deadline(limits.started, connect.min(timeout)));
        Self { connect_by, ..limits }
    }

    fn is_look(&self) -> bool {
        self.connect_by.is_some()
    }
}

/// When a probe that starts now must be over. A timeout beyond what a clock can show is no timeout.
fn deadline(started: Instant, timeout: Duration) -> Instant {
    started.checked_add(timeout).unwrap_or_else(|| started + FAR_AWAY)
}

impl Default for Prober {
    fn default() -> Self {
        Self::new()
    }
}
