//! How connections end: by the server where it can be, and never later than the timeout.

use std::net::SocketAddr;

use pulselet_probe::{NetworkProbe, Outcome, Prober, Scheme};

use crate::server::{OK, Server, Step, answer, say};
use crate::{AMPLE, SHORT, request};

const TIME_WAIT: &str = "06";

/// The states of all sockets of this machine whose remote port is that of `server`: the probes' ends.
fn probe_ends(server: SocketAddr) -> Vec<String> {
    let port = format!(":{:04X}", server.port());
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the table of sockets");
    let fields = table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields
        .filter(|fields| fields[2].ends_with(&port))
        .map(|fields| fields[3].to_owned())
        .collect()
}

async fn until_all_closed(server: SocketAddr) {
    while probe_ends(server).iter().any(|state| state != TIME_WAIT) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn no_local_port_is_left_in_time_wait() {
    let prober = Prober::new();
    let plain = Server::playing(answer(OK)).await;
    let tls = Server::playing_tls(answer(OK)).await;
    for (scheme, server) in [(Scheme::Http, &plain), (Scheme::Https, &tls)] {
        let request = request(scheme, server.address, &[]);
        for _ in 0..50 {
            assert_eq!(prober.http(&request, AMPLE).await.outcome, Outcome::Success);
        }
        until_all_closed(server.address).await;
        assert_eq!(probe_ends(server.address), Vec::<String>::new(), "{scheme:?}");
    }
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
    assert_eq!(report.outcome, Outcome::Success);
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
    assert_eq!(report.outcome, Outcome::Success);
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
