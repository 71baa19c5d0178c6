//! HTTPS: any certificate will do, and each way a handshake can go wrong has its outcome.

use pulselet_probe::{Failure, NetworkOutcome, RequestPhase};

use crate::server::{OK, Server, Step, answer, say};
use crate::{AMPLE, SHORT, https_probe};

#[tokio::test]
async fn any_certificate_will_do() {
    let server = Server::playing_tls(answer(OK)).await;
    for _ in 0..3 {
        let report = https_probe(server.address, AMPLE).await;
        assert_eq!(
            (report.outcome, report.detail.as_str()),
            (NetworkOutcome::Success, "ok")
        );
    }
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn handshakes_that_fail() {
    let alert = b"\x15\x03\x03\x00\x02\x02\x28";
    let cases = [
        (
            "an alert",
            vec![Step::SayBytes(alert), Step::Hold],
            Failure::Tls,
            "remote error: tls: handshake failure",
        ),
        (
            "garbage",
            vec![say("garbage, garbage, garbage"), Step::Hold],
            Failure::Tls,
            "tls: first record does not look like a TLS handshake",
        ),
        (
            "plain http",
            vec![
                say("HTTP/1.0 400 Bad Request\r\n\r\nClient sent garbage"),
                Step::Hold,
            ],
            Failure::Tls,
            "http: server gave HTTP response to HTTPS client",
        ),
        (
            "a reset",
            vec![Step::Reset],
            Failure::Reset(RequestPhase::Tls),
            "connection reset by peer",
        ),
    ];
    for (name, script, failure, words) in cases {
        let server = Server::playing(script).await;
        let report = https_probe(server.address, AMPLE).await;
        assert_eq!(
            report.outcome,
            NetworkOutcome::Failure(failure),
            "{name}: {}",
            report.detail
        );
        assert!(
            report
                .detail
                .starts_with(&format!("Get \"https://{}/healthz\": ", server.address)),
            "{name}"
        );
        assert!(report.detail.ends_with(words), "{name}: {}", report.detail);
    }
}

/// A server that closes with our greeting unread resets the connection, so the greeting is read first.
#[tokio::test]
async fn a_close_in_the_handshake() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a connection");
        stream.readable().await.expect("a greeting");
        while stream.try_read(&mut [0; 4096]).is_ok() {}
    });
    let report = https_probe(address, AMPLE).await;
    assert_eq!(
        report.outcome,
        NetworkOutcome::Failure(Failure::Closed(RequestPhase::Tls)),
        "{}",
        report.detail
    );
}

#[tokio::test]
async fn a_wedged_handshake_times_out() {
    let server = Server::playing(vec![Step::Hold]).await;
    let report = https_probe(server.address, SHORT).await;
    assert_eq!(
        report.outcome,
        NetworkOutcome::Failure(Failure::Timeout(RequestPhase::Tls))
    );
    let expected = format!(
        "Get \"https://{}/healthz\": net/http: TLS handshake timeout",
        server.address
    );
    assert_eq!(report.detail, expected);
}

#[tokio::test]
async fn broken_after_the_handshake() {
    let half = say("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
    let cases = [
        (
            "a close",
            vec![Step::Request, half.clone()],
            Failure::Closed(RequestPhase::Body),
        ),
        (
            "a silent close",
            vec![Step::Request, half, Step::Abandon],
            Failure::Closed(RequestPhase::Body),
        ),
        (
            "no answer",
            vec![Step::Request],
            Failure::Closed(RequestPhase::Headers),
        ),
        (
            "a reset",
            vec![Step::Request, Step::Reset],
            Failure::Reset(RequestPhase::Headers),
        ),
    ];
    for (name, script, failure) in cases {
        let server = Server::playing_tls(script).await;
        let report = https_probe(server.address, AMPLE).await;
        assert_eq!(
            report.outcome,
            NetworkOutcome::Failure(failure),
            "{name}: {}",
            report.detail
        );
    }
}

#[tokio::test]
async fn a_body_may_end_with_a_silent_close() {
    let script = vec![Step::Request, say("HTTP/1.1 200 OK\r\n\r\nall"), Step::Abandon];
    let server = Server::playing_tls(script).await;
    let report = https_probe(server.address, AMPLE).await;
    assert_eq!(
        (report.outcome, report.detail.as_str()),
        (NetworkOutcome::Success, "all")
    );
}
