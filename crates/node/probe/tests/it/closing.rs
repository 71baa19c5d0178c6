//! How connections end: by the server where it can be, and never later than the timeout.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use pulselet_probe::{NetworkOutcome, NetworkProbe, Prober, Scheme, Target};
use tokio::sync::Semaphore;

use crate::server::{OK, Server, Step, acceptor, say};
use crate::{AMPLE, SHORT, request};

const TIME_WAIT: &str = "06";

/// A loopback address that this process has for itself. A port number alone does not tell a probe's socket from one that
/// another test left in `TIME_WAIT` when it had a server on that port.
fn own_address() -> String {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    format!("127.{}.{middle}.{low}:0", 128 | high)
}

/// The states of all sockets of this machine that are connected to `server`: the probes' ends.
fn probe_ends(server: SocketAddr) -> Vec<String> {
    let IpAddr::V4(ip) = server.ip() else {
        panic!("the table is that of IPv4")
    };
    let remote = format!("{:08X}:{:04X}", u32::from_le_bytes(ip.octets()), server.port());
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the table of sockets");
    let fields = table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields
        .filter(|fields| fields[2] == remote)
        .map(|fields| fields[3].to_owned())
        .collect()
}

async fn until_all_closed(server: SocketAddr) {
    while probe_ends(server).iter().any(|state| state != TIME_WAIT) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// The server closes only after the report is there, so that a prober that does not wait for it closes first.
#[tokio::test]
async fn no_local_port_is_left_in_time_wait() {
    for (scheme, tls) in [(Scheme::Http, None), (Scheme::Https, Some(acceptor()))] {
        let leave = Arc::new(Semaphore::new(0));
        let script = vec![Step::Request, say(OK), Step::Await(Arc::clone(&leave))];
        let server = Server::start(&own_address(), tls, move |_| script.clone()).await;
        let (prober, request) = (Prober::new(), request(scheme, server.address, &[]));
        for _ in 0..20 {
            assert_eq!(
                prober.http(&request, AMPLE).await.outcome,
                NetworkOutcome::Success
            );
            leave.add_permits(1);
        }
        until_all_closed(server.address).await;
        assert_eq!(probe_ends(server.address), Vec::<String>::new(), "{scheme:?}");
    }
}

/// The other way round, so that the test above is known to look in the right place.
#[tokio::test]
async fn a_tcp_probe_closes_first_and_is_seen_in_time_wait() {
    let server = Server::start(&own_address(), None, |_| vec![Step::Hold]).await;
    let report = Prober::new().tcp(&Target::from(server.address), AMPLE).await;
    assert_eq!(report.outcome, NetworkOutcome::Success);
    server.ended(1).await;
    until_all_closed(server.address).await;
    assert_eq!(probe_ends(server.address), [TIME_WAIT]);
}

#[tokio::test]
async fn a_connection_kept_open_is_closed_at_the_timeout() {
    let script = vec![
        Step::Request,
        say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        Step::Hold,
    ];
    let server = Server::playing(script).await;
    let report = Prober::new()
        .http(&request(Scheme::Http, server.address, &[]), SHORT)
        .await;
    assert_eq!(report.outcome, NetworkOutcome::Success);
    // `Hold` ends when we close.
    tokio::time::timeout(AMPLE, server.ended(1))
        .await
        .expect("the connection is closed");
}

#[tokio::test]
async fn an_endless_body_is_cut_off() {
    let script = vec![Step::Request, say("HTTP/1.1 200 OK\r\n\r\n"), Step::Forever("x")];
    let server = Server::playing(script).await;
    let report = Prober::new()
        .http(&request(Scheme::Http, server.address, &[]), AMPLE * 10)
        .await;
    assert_eq!(report.outcome, NetworkOutcome::Success);
    tokio::time::timeout(AMPLE, server.ended(1))
        .await
        .expect("the connection is closed");
}

#[tokio::test]
async fn dropping_a_probe_closes_its_connection() {
    let server = Server::playing(vec![Step::Request, Step::Hold]).await;
    let (prober, request) = (Prober::new(), request(Scheme::Http, server.address, &[]));
    tokio::select! {
        report = prober.http(&request, AMPLE) => panic!("no answer was given: {report:?}"),
        () = async {
            while server.requests().is_empty() {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        } => {}
    }
    tokio::time::timeout(AMPLE, server.ended(1))
        .await
        .expect("the connection is closed");
}

/// Thousands of probes can be in flight at once.
#[tokio::test]
async fn a_probe_in_flight_is_small() {
    const LIMIT_BYTES: usize = 2048;
    let (prober, address) = (Prober::new(), "127.0.0.1:1".parse().expect("an address"));
    let probe = NetworkProbe::Http(request(Scheme::Http, address, &[]));
    let size = size_of_val(&prober.run(&probe, AMPLE));
    assert!(size <= LIMIT_BYTES, "{size} bytes");
}
