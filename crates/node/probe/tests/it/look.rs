//! Looks: probes that a program notices once at most.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use pulselet_probe::{
    Failure, GrpcCheck, NetworkOutcome, NetworkProbe, Prober, Report, RequestPhase, Scheme, Target,
};

use crate::server::{OK, Server, Step, answer};
use crate::tcp::{FullBacklog, closed_port};
use crate::{AMPLE, SHORT, request};

/// For a look that must give up: much less than its timeout.
const CONNECT: Duration = Duration::from_millis(25);

fn all_handlers(address: SocketAddr) -> [NetworkProbe; 4] {
    [
        NetworkProbe::Http(request(Scheme::Http, address, &[])),
        NetworkProbe::Http(request(Scheme::Https, address, &[])),
        NetworkProbe::Tcp(Target::from(address)),
        NetworkProbe::Grpc(GrpcCheck::new(Target::from(address), "")),
    ]
}

async fn http_look(address: SocketAddr, connect: Duration, timeout: Duration) -> Report {
    let probe = NetworkProbe::Http(request(Scheme::Http, address, &[]));
    Prober::new().look(&probe, connect, timeout).await
}

#[tokio::test]
async fn a_refused_look_was_seen_by_nobody() {
    for probe in all_handlers(closed_port()) {
        let report = Prober::new().look(&probe, AMPLE, AMPLE).await;
        assert_eq!(report.outcome, NetworkOutcome::Failure(Failure::Refused));
        assert!(!report.connected, "{probe:?}");
    }
}

#[tokio::test]
async fn a_look_that_is_not_connected_in_time_gives_up() {
    let full = FullBacklog::new();
    for probe in all_handlers(full.address) {
        let began = Instant::now();
        let report = Prober::new().look(&probe, CONNECT, AMPLE).await;
        let timeout = Failure::Timeout(RequestPhase::Connect);
        assert_eq!(
            report.outcome,
            NetworkOutcome::Failure(timeout),
            "{}",
            report.detail
        );
        assert!(report.detail.contains("i/o timeout"), "{}", report.detail);
        assert!(!report.connected && began.elapsed() < AMPLE, "{probe:?}");
    }
}

#[tokio::test]
async fn a_look_that_is_connected_has_its_whole_timeout_to_be_answered() {
    let server = Server::playing(answer(OK)).await;
    let report = http_look(server.address, CONNECT.max(SHORT), AMPLE).await;
    assert_eq!(report.outcome, NetworkOutcome::Success);
    assert!(report.connected);
    let silent = Server::playing(vec![Step::Request, Step::Hold]).await;
    let report = http_look(silent.address, SHORT, SHORT).await;
    let timeout = Failure::Timeout(RequestPhase::Headers);
    assert_eq!(report.outcome, NetworkOutcome::Failure(timeout));
    assert!(report.connected);
    assert_eq!(silent.requests().len(), 1);
}

#[tokio::test]
async fn a_failure_after_the_connection_was_seen() {
    let busy = "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n";
    let server = Server::playing(answer(busy)).await;
    let report = http_look(server.address, SHORT, AMPLE).await;
    assert_eq!(report.outcome, NetworkOutcome::Failure(Failure::Status(503)));
    assert!(report.connected);
    let plain = Server::playing(answer(busy)).await;
    let tls = NetworkProbe::Http(request(Scheme::Https, plain.address, &[]));
    assert!(Prober::new().look(&tls, SHORT, SHORT).await.connected);
}

/// Following it would be a second request that nobody counts.
#[tokio::test]
async fn a_look_follows_no_redirect() {
    let moved = "HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n";
    let server = Server::answering(|request| {
        let first = request.starts_with("GET /healthz ");
        if first { moved.to_owned() } else { OK.to_owned() }
    })
    .await;
    let report = http_look(server.address, SHORT, AMPLE).await;
    assert_eq!(report.outcome, NetworkOutcome::Failure(Failure::Redirect));
    assert!(
        report.detail.contains("does not follow the redirect"),
        "{}",
        report.detail
    );
    assert_eq!(server.requests().len(), 1);
    let probe = NetworkProbe::Http(request(Scheme::Http, server.address, &[]));
    assert_eq!(
        Prober::new().run(&probe, AMPLE).await.outcome,
        NetworkOutcome::Success
    );
}
