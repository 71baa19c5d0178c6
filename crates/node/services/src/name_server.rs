//! The server that pods ask for names: at the bridge's address, by UDP and TCP.
//!
//! It listens before there is a bridge, and goes on when the bridge is made anew. Only pods and the machine itself are
//! answered: packets for that address could also come in by other links. Names of ours are answered at once; requests for
//! others wait for the machine's resolvers, with a bound for all clients and one for each, so that a pod that asks too much
//! troubles itself and not the others.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::ServiceCatalog;
use crate::answer::{self, Step, Transport};
use crate::upstream::Upstream;

/// Requests and connections that are under way, of all clients and of one.
const MAX_WORK: usize = 512;
const MAX_WORK_OF_CLIENT: usize = 64;
/// Datagrams are cut off there: no request is longer.
const MAX_REQUEST: usize = 4_096;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// How long a connection may be without a request, and how long an answer may take to be read.
const IDLE: Duration = Duration::from_secs(10);
/// How long to wait after a failure that may last, such as too many open files.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// A server that listens.
#[derive(Debug)]
pub struct NameServer {
    udp: UdpSocket,
    tcp: TcpListener,
}

/// What a server answers from.
pub struct NameSource {
    pub catalog: watch::Receiver<ServiceCatalog>,
    /// The cluster's domain, in lower case and without its last dot.
    pub domain: String,
    pub upstream: Upstream,
    /// Whether a client is answered.
    pub admits: Box<dyn Fn(IpAddr) -> bool + Send + Sync>,
}

impl std::fmt::Debug for NameSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NameSource")
            .field("domain", &self.domain)
            .field("upstream", &self.upstream)
            .finish_non_exhaustive()
    }
}

impl NameServer {
    /// Listens at an address that the machine need not have yet.
    pub fn bind(address: Ipv4Addr, port: u16) -> io::Result<Self> {
        let udp = socket(Type::DGRAM, Protocol::UDP)?;
        udp.bind(&SocketAddr::from((address, port)).into())?;
        let udp: std::net::UdpSocket = udp.into();
        let port = udp.local_addr()?.port();
        let tcp = socket(Type::STREAM, Protocol::TCP)?;
        // Connections of an agent before this one may not be over yet.
        tcp.set_reuse_address(true)?;
        tcp.bind(&SocketAddr::from((address, port)).into())?;
        tcp.listen(BACKLOG)?;
        Ok(Self {
            udp: UdpSocket::from_std(udp)?,
            tcp: TcpListener::from_std(tcp.into())?,
        })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.udp.local_addr()
    }

    /// Answers until it is dropped.
    pub async fn serve(self, source: NameSource) {
        let shared = Arc::new(Shared {
            source,
            work: Mutex::default(),
            turn: AtomicUsize::new(0),
        });
        let udp = Arc::new(self.udp);
        tokio::join!(serve_udp(udp, Arc::clone(&shared)), serve_tcp(self.tcp, shared));
    }
}

fn socket(kind: Type, protocol: Protocol) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, kind, Some(protocol))?;
    socket.set_freebind_v4(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

struct Shared {
    source: NameSource,
    /// What is under way, by client.
    work: Mutex<HashMap<IpAddr, usize>>,
    /// Grows with every request.
    turn: AtomicUsize,
}

/// A place in the work of a client, until it is dropped.
struct Place {
    shared: Arc<Shared>,
    client: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut work = self.shared.work.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = work.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                work.remove(&self.client);
            }
        }
    }
}

impl Shared {
    /// `None` if the client, or all of them, have too much under way.
    fn place(self: &Arc<Self>, client: IpAddr) -> Option<Place> {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = work.values().sum();
        let own = work.get(&client).copied().unwrap_or_default();
        if all >= MAX_WORK || own >= MAX_WORK_OF_CLIENT {
            return None;
        }
        *work.entry(client).or_default() += 1;
        Some(Place {
            shared: Arc::clone(self),
            client,
        })
    }

    fn step(&self, request: &[u8], transport: Transport) -> Step {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let catalog = self.source.catalog.borrow();
        answer::answer(request, &catalog, &self.source.domain, transport, turn)
    }

    /// Asks whoever knows. The answer says so if nobody does.
    async fn finish(&self, step: Step, request: &[u8], transport: Transport) -> Option<Vec<u8>> {
        match step {
            Step::Ignore => None,
            Step::Send(answer) => Some(answer),
            Step::Forward => {
                let answer = self.source.upstream.ask(request, transport).await;
                answer.or_else(|| answer::failure(request))
            }
            Step::Resolve(pending) => {
                let found = self.source.upstream.ask(&pending.question, transport).await;
                Some(pending.complete(found.as_deref()))
            }
        }
    }
}

async fn serve_udp(socket: Arc<UdpSocket>, shared: Arc<Shared>) {
    let mut buffer = vec![0; MAX_REQUEST];
    loop {
        let Ok((count, client)) = socket.recv_from(&mut buffer).await else {
            sleep(RETRY_PAUSE).await;
            continue;
        };
        if !(shared.source.admits)(client.ip()) {
            continue;
        }
        let request = &buffer[..count];
        // Whoever does not get an answer asks again: that one cannot be sent is no reason to do anything.
        match shared.step(request, Transport::Udp) {
            Step::Ignore => {}
            Step::Send(answer) => drop(socket.send_to(&answer, client).await),
            step @ (Step::Forward | Step::Resolve(_)) => match shared.place(client.ip()) {
                Some(place) => {
                    tokio::spawn(finish_udp(
                        Arc::clone(&socket),
                        place,
                        step,
                        request.to_vec(),
                        client,
                    ));
                }
                None => {
                    if let Some(answer) = answer::failure(request) {
                        drop(socket.send_to(&answer, client).await);
                    }
                }
            },
        }
    }
}

async fn finish_udp(socket: Arc<UdpSocket>, place: Place, step: Step, request: Vec<u8>, client: SocketAddr) {
    if let Some(answer) = place.shared.finish(step, &request, Transport::Udp).await {
        drop(socket.send_to(&answer, client).await);
    }
}

async fn serve_tcp(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((stream, client)) = listener.accept().await else {
            sleep(RETRY_PAUSE).await;
            continue;
        };
        if !(shared.source.admits)(client.ip()) {
            continue;
        }
        // One that has too many is closed.
        if let Some(place) = shared.place(client.ip()) {
            tokio::spawn(async move {
                // The client's end of it, or its silence.
                let _ = serve_connection(stream, &place.shared).await;
            });
        }
    }
}

async fn serve_connection(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    loop {
        let request = timeout(IDLE, read_message(&mut stream)).await??;
        let step = shared.step(&request, Transport::Tcp);
        let Some(answer) = shared.finish(step, &request, Transport::Tcp).await else {
            return Ok(());
        };
        let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
        let whole = [&length.to_be_bytes(), answer.as_slice()].concat();
        timeout(IDLE, stream.write_all(&whole)).await??;
    }
}

async fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u16().await?;
    let mut message = vec![0; usize::from(length)];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::{Message, Query, ResponseCode};
    use hickory_proto::rr::{Name, RecordType};

    use super::*;
    use crate::names::tests::{DOMAIN, catalog};

    const PATIENCE: Duration = Duration::from_secs(30);

    fn request(name: &str) -> Vec<u8> {
        let mut message = Message::query();
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
        message.to_vec().unwrap()
    }

    /// A server for clients of this test, and where it is.
    fn start(upstream: Vec<SocketAddr>, admitted: bool) -> (SocketAddr, watch::Sender<ServiceCatalog>) {
        let server = NameServer::bind(Ipv4Addr::LOCALHOST, 0).unwrap();
        let address = server.address().unwrap();
        let sender = watch::Sender::new(catalog());
        let source = NameSource {
            catalog: sender.subscribe(),
            domain: DOMAIN.to_owned(),
            upstream: Upstream::fixed(upstream, address.ip()),
            admits: Box::new(move |_| admitted),
        };
        tokio::spawn(server.serve(source));
        (address, sender)
    }

    async fn ask_udp(server: SocketAddr, name: &str) -> Message {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let request = request(name);
        socket.send_to(&request, server).await.unwrap();
        let mut buffer = vec![0; MAX_REQUEST];
        let received = timeout(PATIENCE, socket.recv(&mut buffer)).await;
        let count = received.expect("an answer in time").unwrap();
        let message = Message::from_vec(&buffer[..count]).unwrap();
        assert_eq!(message.metadata.id.to_be_bytes(), request[..2]);
        message
    }

    async fn ask_tcp(stream: &mut TcpStream, name: &str) -> Message {
        let request = request(name);
        let length = u16::try_from(request.len()).unwrap().to_be_bytes();
        stream
            .write_all(&[&length, request.as_slice()].concat())
            .await
            .unwrap();
        Message::from_vec(&timeout(PATIENCE, read_message(stream)).await.unwrap().unwrap()).unwrap()
    }

    #[tokio::test]
    async fn names_are_answered_by_both_transports_and_follow_the_catalog() {
        let (address, catalog) = start(Vec::new(), true);
        let name = "web.shop.svc.cluster.local.";
        assert_eq!(ask_udp(address, name).await.answers.len(), 1);
        let mut stream = TcpStream::connect(address).await.unwrap();
        assert_eq!(ask_tcp(&mut stream, name).await.answers.len(), 1);
        catalog.send_modify(|catalog| catalog.remove_service("shop", "web"));
        catalog.send_modify(|catalog| catalog.remove_pod("shop", "web"));
        let gone = ask_tcp(&mut stream, name).await;
        assert_eq!(gone.metadata.response_code, ResponseCode::NXDomain);
        let elsewhere = ask_udp(address, "example.com.").await;
        assert_eq!(elsewhere.metadata.response_code, ResponseCode::ServFail);
    }

    #[tokio::test]
    async fn other_names_are_asked_of_the_machines_resolvers() {
        // A server that knows the name stands for the machine's own; one where nobody listens comes first.
        let (knows, _catalog) = start(Vec::new(), true);
        let nobody = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let silent = nobody.local_addr().unwrap();
        drop(nobody);
        let server = NameServer::bind(Ipv4Addr::LOCALHOST, 0).unwrap();
        let address = server.address().unwrap();
        let empty = watch::Sender::new(ServiceCatalog::default());
        let source = NameSource {
            catalog: empty.subscribe(),
            domain: "elsewhere".to_owned(),
            upstream: Upstream::fixed(vec![silent, knows], Ipv4Addr::UNSPECIFIED.into()),
            admits: Box::new(|_| true),
        };
        tokio::spawn(server.serve(source));
        let name = "web.shop.svc.cluster.local.";
        assert_eq!(ask_udp(address, name).await.answers.len(), 1);
        let mut stream = TcpStream::connect(address).await.unwrap();
        assert_eq!(ask_tcp(&mut stream, name).await.answers.len(), 1);
    }

    #[tokio::test]
    async fn strangers_are_not_answered() {
        let (address, _catalog) = start(Vec::new(), false);
        let mut stream = TcpStream::connect(address).await.unwrap();
        let closed = timeout(PATIENCE, stream.read_u16()).await.unwrap();
        assert!(closed.is_err());
    }

    #[tokio::test]
    async fn a_client_has_so_much_under_way_and_no_more() {
        // Nobody answers there, so that requests stay under way.
        let deaf = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (address, _catalog) = start(vec![deaf.local_addr().unwrap()], true);
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        for _ in 0..=MAX_WORK_OF_CLIENT {
            socket.send_to(&request("example.com."), address).await.unwrap();
        }
        let mut buffer = vec![0; MAX_REQUEST];
        let count = timeout(PATIENCE, socket.recv(&mut buffer))
            .await
            .unwrap()
            .unwrap();
        let refused = Message::from_vec(&buffer[..count]).unwrap();
        assert_eq!(refused.metadata.response_code, ResponseCode::ServFail);
    }
}
