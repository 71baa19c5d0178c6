//! The members of an etcd cluster, and which of them is asked.
//!
//! Any member answers for all of them, so one is asked until it fails, and then the next. What must always hold: a read may
//! be asked again anywhere; a write is asked again only if it surely never left this machine or was surely not taken. What may
//! have happened is reported as [`StoreError::Unanswered`], never as done and never as not done.

use std::error::Error as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pulselet_etcd_wire::kv_client::KvClient;
use pulselet_etcd_wire::watch_client::WatchClient;
use pulselet_etcd_wire::{
    CompactionRequest, RangeRequest, RangeResponse, TxnRequest, TxnResponse, WatchCreateRequest,
    WatchRequest, WatchResponse, watch_request,
};
use tokio::time::{Instant, sleep, timeout};
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, ConnectError, Request, Response, Status, Streaming};

use super::EtcdConfig;
use crate::StoreError;

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long one member may take for a read. etcd itself gives up after about seven seconds without a leader.
const READ_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a request may take, with all members that are asked.
const DEADLINE: Duration = Duration::from_secs(10);
/// The pause after every member was asked in vain.
const ROUND_PAUSE: Duration = Duration::from_millis(100);
/// How often a connection with a request under way is tried. Members refuse more than one try in five seconds.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of an answer. A page of objects that has more is asked for in smaller ones, see [`super::read`].
const MAX_ANSWER_BYTES: usize = 32 << 20;
/// Bytes under way on one connection, and in one stream.
const CONNECTION_WINDOW: u32 = 4 << 20;
const STREAM_WINDOW: u32 = 1 << 20;
/// Makes a member that has lost its cluster say so, instead of being silent.
const REQUIRE_LEADER: &str = "hasleader";

#[derive(Debug)]
pub(super) struct Members {
    members: Vec<Member>,
    /// Which of them is asked.
    current: AtomicUsize,
}

#[derive(Debug)]
struct Member {
    address: String,
    channel: Channel,
}

/// What a failure says about a write.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// It never left, or was turned away: it can be asked again.
    NotTaken,
    /// The cluster has looked at it and refused it.
    Refused,
    /// Nobody knows.
    Unknown,
}

impl Members {
    pub(super) fn new(config: &EtcdConfig) -> Result<Self, StoreError> {
        let tls = tls(config)?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let member = |address: &String| {
            let failed = |error: tonic::transport::Error| StoreError::Unreachable {
                message: format!("{address}: {}", described(&error)),
            };
            let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}")).map_err(failed)?;
            if let Some(tls) = &tls {
                endpoint = endpoint.tls_config(tls.clone()).map_err(failed)?;
            }
            let endpoint = endpoint
                .connect_timeout(CONNECT_TIMEOUT)
                .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
                .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .initial_stream_window_size(STREAM_WINDOW);
            Ok(Member {
                address: address.clone(),
                channel: endpoint.connect_lazy(),
            })
        };
        Ok(Self {
            members: config
                .members
                .iter()
                .map(member)
                .collect::<Result<_, StoreError>>()?,
            current: AtomicUsize::new(0),
        })
    }

    fn current(&self) -> (usize, &Member) {
        let turn = self.current.load(Ordering::Relaxed);
        (turn, &self.members[turn % self.members.len()])
    }

    /// The next member is asked from now on, unless somebody has seen to that already.
    fn turn_from(&self, turn: usize) {
        let next = turn.wrapping_add(1);
        let _ = self
            .current
            .compare_exchange(turn, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether every member has had its turn since `turn`.
    const fn is_round(&self, attempts: usize) -> bool {
        attempts.is_multiple_of(self.members.len())
    }

    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        self.read(|mut client| {
            let request = request.clone();
            async move { client.range(request).await }
        })
        .await
    }

    /// Asks one member after the other until one answers or time is up.
    async fn read<T, F>(&self, ask: impl Fn(KvClient<Channel>) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let end = Instant::now() + DEADLINE;
        let mut attempts = 0;
        loop {
            let (turn, member) = self.current();
            let asked = timeout(READ_TIMEOUT, ask(member.kv())).await;
            let status = match asked {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) if is_final(&status) => return Err(status),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("no answer in time"),
            };
            self.turn_from(turn);
            attempts += 1;
            if Instant::now() >= end {
                return Err(member.named(&status));
            }
            if self.is_round(attempts) {
                sleep(ROUND_PAUSE).await;
            }
        }
    }

    /// Makes a transaction, once.
    pub(super) async fn write(&self, request: TxnRequest) -> Result<TxnResponse, StoreError> {
        let end = Instant::now() + DEADLINE;
        let mut attempts = 0;
        loop {
            let (turn, member) = self.current();
            let mut client = member.kv();
            let asked = timeout(DEADLINE, client.txn(leader_required(request.clone()))).await;
            let status = match asked {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("no answer in time"),
            };
            let message = member.named(&status).message().to_owned();
            match fate(&status) {
                Fate::Refused if is_too_large(&status) => return Err(StoreError::TooLarge),
                Fate::Refused => return Err(StoreError::Write { message }),
                Fate::Unknown => {
                    self.turn_from(turn);
                    return Err(StoreError::Unanswered { message });
                }
                Fate::NotTaken => {}
            }
            self.turn_from(turn);
            attempts += 1;
            if Instant::now() >= end {
                return Err(StoreError::Unreachable { message });
            }
            if self.is_round(attempts) {
                sleep(ROUND_PAUSE).await;
            }
        }
    }

    /// Forgets the past up to a revision. Whether it was done shows at the next time.
    pub(super) async fn compact(&self, revision: i64) -> Result<(), Status> {
        let (turn, member) = self.current();
        let mut client = member.kv();
        let asked = timeout(READ_TIMEOUT, client.compact(CompactionRequest { revision })).await;
        match asked {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(status)) => Err(status),
            Err(_) => {
                self.turn_from(turn);
                Err(Status::deadline_exceeded("no answer in time"))
            }
        }
    }

    /// Opens a watch at the member that is asked now. Only what it answers is a member's doing: a silent one is for the caller
    /// to leave, with [`Self::leave`].
    pub(super) async fn watch(
        &self,
        create: WatchCreateRequest,
    ) -> Result<(OpenWatch, Streaming<WatchResponse>), Status> {
        let (turn, member) = self.current();
        let create = WatchRequest {
            request_union: Some(watch_request::RequestUnion::CreateRequest(create)),
        };
        // The watch ends when the stream of requests does, so that has to stay open.
        let (requests, outgoing) = tokio::sync::mpsc::channel(1);
        requests
            .try_send(create)
            .map_err(|_| Status::internal("the first request has no room"))?;
        let outgoing = futures_util::stream::unfold(outgoing, |mut outgoing| async move {
            outgoing.recv().await.map(|request| (request, outgoing))
        });
        let mut client = WatchClient::new(member.channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES);
        let opened = timeout(READ_TIMEOUT, client.watch(leader_required(outgoing))).await;
        let opened = opened.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time")));
        match opened {
            Ok(answers) => Ok((
                OpenWatch {
                    turn,
                    _requests: requests,
                },
                answers.into_inner(),
            )),
            Err(status) => {
                self.turn_from(turn);
                Err(member.named(&status))
            }
        }
    }

    /// The member of a watch is no longer asked.
    pub(super) fn leave(&self, watch: &OpenWatch) {
        self.turn_from(watch.turn);
    }
}

/// A watch that is open as long as this is there.
#[derive(Debug)]
pub(super) struct OpenWatch {
    turn: usize,
    _requests: tokio::sync::mpsc::Sender<WatchRequest>,
}

impl Member {
    fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES)
    }

    /// The failure, with the name of the member whose it is.
    fn named(&self, status: &Status) -> Status {
        Status::new(status.code(), format!("{}: {}", self.address, described(status)))
    }
}

fn leader_required<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request
        .metadata_mut()
        .insert(REQUIRE_LEADER, MetadataValue::from_static("true"));
    request
}

/// Whether asking another member would change nothing.
fn is_final(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::OutOfRange
            | Code::InvalidArgument
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::Unimplemented
    )
}

fn is_too_large(status: &Status) -> bool {
    status.message().contains("request is too large")
}

fn fate(status: &Status) -> Fate {
    if was_not_sent(status) || status.message().contains("too many requests") {
        return Fate::NotTaken;
    }
    // A full database is refused before anything is proposed.
    let is_full = status.message().contains("database space exceeded");
    if is_final(status) || is_full || is_too_large(status) {
        Fate::Refused
    } else {
        Fate::Unknown
    }
}

/// Whether there was no connection to send anything on.
fn was_not_sent(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// An error with what lies below it: tonic's own texts say little.
fn described(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = match error.downcast_ref::<Status>() {
        Some(status) => status.message().to_owned(),
        None => error.to_string(),
    };
    let mut source = error.source();
    while let Some(below) = source {
        let more = below.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = below.source();
    }
    text
}

/// How members are spoken to; `None` if in plain text.
fn tls(config: &EtcdConfig) -> Result<Option<ClientTlsConfig>, StoreError> {
    let Some(tls) = &config.tls else { return Ok(None) };
    let read = |path: &std::path::Path| {
        std::fs::read(path).map_err(|source| StoreError::ReadCredential {
            path: path.display().to_string(),
            source,
        })
    };
    let mut client = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&tls.authority)?));
    if let Some((certificate, key)) = &tls.client {
        client = client.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    Ok(Some(client))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_surely_did_not_happen_is_asked_again() {
        for (status, expected) in [
            (Status::unavailable("etcdserver: leader changed"), Fate::Unknown),
            (Status::unavailable("etcdserver: no leader"), Fate::Unknown),
            (Status::unavailable("connection reset"), Fate::Unknown),
            (
                Status::unavailable("etcdserver: request timed out"),
                Fate::Unknown,
            ),
            (Status::cancelled("the stream has ended"), Fate::Unknown),
            (Status::unknown("h2 protocol error"), Fate::Unknown),
            (Status::deadline_exceeded("no answer in time"), Fate::Unknown),
            (
                Status::resource_exhausted("etcdserver: too many requests"),
                Fate::NotTaken,
            ),
            (
                Status::resource_exhausted("etcdserver: mvcc: database space exceeded"),
                Fate::Refused,
            ),
            (
                Status::invalid_argument("etcdserver: request is too large"),
                Fate::Refused,
            ),
            (
                Status::permission_denied("etcdserver: permission denied"),
                Fate::Refused,
            ),
        ] {
            assert_eq!(fate(&status), expected, "{status:?}");
        }
    }

    #[tokio::test]
    async fn a_write_that_never_left_is_told_from_one_that_may_have() {
        // Nobody listens on the port of a socket that was closed.
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = socket.local_addr().expect("an address");
        drop(socket);
        let member = Endpoint::from_shared(format!("http://{address}")).expect("an endpoint");
        let mut client = KvClient::new(member.connect_lazy());
        let status = client
            .txn(TxnRequest::default())
            .await
            .expect_err("nobody is there");
        assert_eq!(fate(&status), Fate::NotTaken, "{status:?}");

        // One who takes the request and then hangs up.
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("an address");
        let hangs_up = tokio::spawn(async move {
            use tokio::io::AsyncReadExt as _;
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut buffer = [0; 1024];
            let _ = stream.read(&mut buffer).await;
        });
        let member = Endpoint::from_shared(format!("http://{address}")).expect("an endpoint");
        let mut client = KvClient::new(member.connect_lazy());
        let status = client.txn(TxnRequest::default()).await.expect_err("it hung up");
        assert_eq!(fate(&status), Fate::Unknown, "{status:?}");
        hangs_up.await.expect("it ends");
    }
}
