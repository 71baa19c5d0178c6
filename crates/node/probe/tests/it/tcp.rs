//! The tcpSocket probe.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use pulselet_probe::{Failure, NetworkOutcome, NetworkProbe, Prober, RequestPhase, Target};
use socket2::{Domain, Socket, Type};

use crate::{AMPLE, SHORT};

/// A port on which nobody listens. It stays taken while other tests look for one, since the socket behind it lives as
/// long as the process.
pub(crate) fn closed_port() -> SocketAddr {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("socket");
    socket
        .bind(&"127.0.0.1:0".parse::<SocketAddr>().expect("address").into())
        .expect("bind");
    let address = socket
        .local_addr()
        .expect("address")
        .as_socket()
        .expect("an IP address");
    std::mem::forget(socket);
    address
}

/// A listener that accepts nobody and has no room for one more: a connect to it gets no answer at all.
pub(crate) struct FullBacklog {
    pub(crate) address: SocketAddr,
    _sockets: Vec<Socket>,
}

impl FullBacklog {
    pub(crate) fn new() -> Self {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("socket");
        listener
            .bind(&"127.0.0.1:0".parse::<SocketAddr>().expect("address").into())
            .expect("bind");
        listener.listen(0).expect("listen");
        let address = listener.local_addr().expect("address");
        let mut sockets = vec![listener];
        loop {
            let client = Socket::new(Domain::IPV4, Type::STREAM, None).expect("socket");
            let connected = client.connect_timeout(&address, Duration::from_millis(200));
            sockets.push(client);
            match connected {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::TimedOut => break,
                Err(error) => panic!("filling the backlog: {error}"),
            }
        }
        Self {
            address: address.as_socket().expect("an IP address"),
            _sockets: sockets,
        }
    }
}

async fn probed(address: SocketAddr, timeout: Duration) -> (NetworkOutcome, String) {
    let report = Prober::new()
        .run(&NetworkProbe::Tcp(Target::from(address)), timeout)
        .await;
    (report.outcome, report.detail)
}

async fn check_listener(bind: &str, timeout: Duration) {
    let listener = std::net::TcpListener::bind(bind).expect("bind");
    let address = listener.local_addr().expect("address");
    assert_eq!(
        probed(address, timeout).await,
        (NetworkOutcome::Success, String::new())
    );
    // And the connection is closed again, without a word.
    let (mut stream, _) = listener.accept().expect("the probe's connection");
    stream.set_read_timeout(Some(AMPLE)).expect("a timeout");
    let read = std::io::Read::read(&mut stream, &mut [0; 1]).expect("a clean end");
    assert_eq!(read, 0);
}

#[tokio::test]
async fn a_listener_is_enough() {
    check_listener("127.0.0.1:0", AMPLE).await;
    check_listener("127.0.0.1:0", Duration::MAX).await;
}

#[tokio::test]
async fn ipv6() {
    if crate::server::has_ipv6() {
        check_listener("[::1]:0", AMPLE).await;
    }
}

#[tokio::test]
async fn failures_and_their_words() {
    let closed = closed_port();
    let expected = (
        NetworkOutcome::Failure(Failure::Refused),
        format!("dial tcp {closed}: connect: connection refused"),
    );
    assert_eq!(probed(closed, AMPLE).await, expected);

    let full = FullBacklog::new();
    let expected = (
        NetworkOutcome::Failure(Failure::Timeout(RequestPhase::Connect)),
        format!("dial tcp {}: i/o timeout", full.address),
    );
    assert_eq!(probed(full.address, SHORT).await, expected);

    let broadcast: SocketAddr = "255.255.255.255:9".parse().expect("address");
    let expected = (
        NetworkOutcome::Failure(Failure::Unreachable),
        format!("dial tcp {broadcast}: connect: network is unreachable"),
    );
    assert_eq!(probed(broadcast, AMPLE).await, expected);
}
