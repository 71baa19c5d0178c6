//! Opening connections: name lookup and a non-blocking connect.
//!
//! Nothing here has a time limit of its own; the probe as a whole has one, and dropping the future ends everything
//! except a lookup that already runs in the C library. Those cannot be cancelled, so their number is bounded.

use std::io;
use std::net::{SocketAddr, TcpStream as StdTcpStream, ToSocketAddrs};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::TimeLimits;
use crate::report::{Failure, NetworkOutcome, RequestPhase};
use crate::target::{Host, Target};
use crate::wording;

/// Lookups under way at once. A dead resolver holds a thread for many seconds each; further probes wait for a place
/// within their own timeout.
const MAX_LOOKUPS: usize = 16;

/// Addresses tried for one name; more would leave each too small a share of the timeout.
const MAX_ADDRESSES: usize = 8;

#[derive(Debug)]
pub(crate) struct Dialer {
    lookups: Arc<Semaphore>,
}

#[derive(Debug, Error)]
pub(crate) enum DialError {
    #[error("dial tcp: lookup {name}: {reason}")]
    Lookup { name: Box<str>, reason: String },
    #[error("dial tcp {address}: {}", connect_text(.source))]
    Connect { address: SocketAddr, source: io::Error },
    /// A look was not connected in time.
    #[error("dial tcp {target}: i/o timeout")]
    TooSlow { target: Target, phase: RequestPhase },
}

/// An established connection.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: Socket,
    pub(crate) ends: Ends,
}

/// The local and the remote address of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
}

/// A connection that was established at once has not met the reactor, which makes a tcp probe nearly free.
#[derive(Debug)]
enum Socket {
    Unregistered(StdTcpStream),
    Registered(TcpStream),
}

impl Connection {
    pub(crate) fn into_stream(self) -> io::Result<TcpStream> {
        match self.socket {
            Socket::Unregistered(socket) => TcpStream::from_std(socket),
            Socket::Registered(stream) => Ok(stream),
        }
    }
}

impl Socket {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Unregistered(socket) => socket.local_addr(),
            Self::Registered(stream) => stream.local_addr(),
        }
    }
}

impl Ends {
    /// A connect to a free local port can be given that very port as its source, and then meets itself.
    fn meet(&self) -> bool {
        self.local.port() == self.remote.port() && self.local.ip() == self.remote.ip()
    }
}

impl DialError {
    pub(crate) fn outcome(&self) -> NetworkOutcome {
        match self {
            Self::Lookup { .. } => NetworkOutcome::Failure(Failure::Resolve),
            Self::Connect { source, .. } => NetworkOutcome::of_connect(source),
            Self::TooSlow { phase, .. } => NetworkOutcome::Failure(Failure::Timeout(*phase)),
        }
    }
}

impl Dialer {
    pub(crate) fn new() -> Self {
        Self {
            lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)),
        }
    }

    /// Connects to the first address of `target` that answers. The time that a look has to connect is kept here, the
    /// whole probe's deadline by the caller.
    pub(crate) async fn connect(
        &self,
        target: &Target,
        limits: &TimeLimits,
        phase: &mut RequestPhase,
    ) -> Result<Connection, DialError> {
        let Some(connect_by) = limits.connect_by else {
            return self.dial(target, limits.deadline, phase).await;
        };
        let dialled = timeout_at(connect_by, self.dial(target, connect_by, phase)).await;
        dialled.unwrap_or_else(|_| {
            let target = target.clone();
            Err(DialError::TooSlow {
                target,
                phase: *phase,
            })
        })
    }

    /// `deadline` only divides the time between the addresses of a name.
    async fn dial(
        &self,
        target: &Target,
        deadline: Instant,
        phase: &mut RequestPhase,
    ) -> Result<Connection, DialError> {
        match target.host() {
            Host::Address(ip) => {
                *phase = RequestPhase::Connect;
                connect(SocketAddr::new(*ip, target.port())).await
            }
            Host::Name(name) => {
                *phase = RequestPhase::Resolve;
                let addresses = self.lookup(name, target.port()).await?;
                *phase = RequestPhase::Connect;
                connect_any(&addresses, deadline).await
            }
        }
    }

    async fn lookup(&self, name: &str, port: u16) -> Result<Vec<SocketAddr>, DialError> {
        let failed = |reason: String| DialError::Lookup {
            name: name.into(),
            reason,
        };
        let place = Arc::clone(&self.lookups)
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        let query = (name.to_owned(), port);
        let answer = tokio::task::spawn_blocking(move || {
            let found = query
                .to_socket_addrs()
                .map(|all| all.take(MAX_ADDRESSES).collect::<Vec<_>>());
            drop(place);
            found
        });
        match answer.await {
            Ok(Ok(addresses)) if addresses.is_empty() => Err(failed("no such host".to_owned())),
            Ok(Ok(addresses)) => Ok(addresses),
            Ok(Err(error)) => Err(failed(lookup_text(&error))),
            Err(error) => Err(failed(error.to_string())),
        }
    }
}

/// Tries the addresses in order, each with its share of the time that is left, and reports the first error.
async fn connect_any(addresses: &[SocketAddr], deadline: Instant) -> Result<Connection, DialError> {
    let mut first_error = None;
    for (index, &address) in addresses.iter().enumerate() {
        let now = Instant::now();
        let untried = u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
        let share = deadline.saturating_duration_since(now) / untried;
        let error = match timeout_at(now + share, connect(address)).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => error,
            Err(_) => DialError::Connect {
                address,
                source: Errno::TIMEDOUT.into(),
            },
        };
        first_error.get_or_insert(error);
    }
    Err(first_error.expect("a lookup never answers with an empty list"))
}

async fn connect(address: SocketAddr) -> Result<Connection, DialError> {
    let failed = |source| DialError::Connect { address, source };
    let (socket, established) = begin(address).map_err(failed)?;
    let socket = if established {
        Socket::Unregistered(socket)
    } else {
        Socket::Registered(finish(socket).await.map_err(failed)?)
    };
    let ends = Ends {
        local: socket.local_addr().map_err(failed)?,
        remote: address,
    };
    if ends.meet() {
        return Err(failed(Errno::CONNREFUSED.into()));
    }
    Ok(Connection { socket, ends })
}

/// Starts a connect and says whether it is already over.
///
/// On one machine the handshake is over before the first call returns, only the call does not know it yet. Asking
/// once more spares the reactor.
fn begin(address: SocketAddr) -> io::Result<(StdTcpStream, bool)> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    for _ in 0..2 {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok((socket.into(), true)),
            Err(Errno::INPROGRESS | Errno::ALREADY | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok((socket.into(), false))
}

async fn finish(socket: StdTcpStream) -> io::Result<TcpStream> {
    let stream = TcpStream::from_std(socket)?;
    stream.writable().await?;
    match stream.take_error()? {
        Some(error) => Err(error),
        None => Ok(stream),
    }
}

fn connect_text(source: &io::Error) -> String {
    match NetworkOutcome::of_connect(source) {
        NetworkOutcome::Error(_) => format!("socket: {}", wording::os_error(source)),
        NetworkOutcome::Success | NetworkOutcome::Warning | NetworkOutcome::Failure(_) => {
            format!("connect: {}", wording::os_error(source))
        }
    }
}

fn lookup_text(error: &io::Error) -> String {
    let text = error.to_string();
    if text.contains("not known") || text.contains("No address") {
        return "no such host".to_owned();
    }
    text.rsplit(": ").next().unwrap_or(&text).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_descriptors_is_not_the_containers_fault() {
        let address = "10.0.0.1:80".parse().expect("an address");
        let error = DialError::Connect {
            address,
            source: Errno::MFILE.into(),
        };
        assert_eq!(
            error.to_string(),
            "dial tcp 10.0.0.1:80: socket: too many open files"
        );
        assert!(matches!(error.outcome(), NetworkOutcome::Error(_)));
    }

    #[tokio::test]
    async fn a_name_is_tried_address_by_address() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        let open = listener.local_addr().expect("address");
        let closed: SocketAddr = {
            let gone = std::net::TcpListener::bind("127.0.0.2:0").expect("bind");
            gone.local_addr().expect("address")
        };
        let deadline = Instant::now() + std::time::Duration::from_secs(30);
        assert!(connect_any(&[closed, open], deadline).await.is_ok());
        let error = connect_any(&[closed, closed], deadline)
            .await
            .expect_err("nobody listens");
        assert_eq!(error.outcome(), NetworkOutcome::Failure(Failure::Refused));
    }

    #[test]
    fn a_socket_can_meet_itself() {
        use rustix::net::{bind, connect, getsockname, socket};
        let raw = socket(AddressFamily::INET, SocketType::STREAM, None).expect("socket");
        bind(&raw, &"127.0.0.1:0".parse::<SocketAddr>().expect("address")).expect("bind");
        let remote: SocketAddr = getsockname(&raw)
            .expect("name")
            .try_into()
            .expect("an IP address");
        connect(&raw, &remote).expect("a socket can connect to itself");
        let local = Socket::Unregistered(raw.into()).local_addr().expect("name");
        assert!(Ends { local, remote }.meet());
    }
}
