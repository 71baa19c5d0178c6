//! Servers that mean harm, or are broken. Each costs at most the timeout and little memory, and has a typed outcome.

use std::time::Duration;

use pulselet_probe::{Failure, NetworkOutcome, Report, RequestPhase};

use crate::server::{Server, Step, say};
use crate::{AMPLE, SHORT, http_probe};

async fn probed(script: Vec<Step>, timeout: Duration) -> Report {
    let server = Server::playing(script).await;
    http_probe(server.address, timeout).await
}

fn head(rest: &str) -> Step {
    say(format!("HTTP/1.1 200 OK\r\n{rest}"))
}

/// The failure must be seen before any timeout, and reported in few words.
async fn fails(name: &str, script: Vec<Step>, failure: Failure) {
    let report = probed(script, AMPLE).await;
    assert_eq!(
        report.outcome,
        NetworkOutcome::Failure(failure),
        "{name}: {}",
        report.detail
    );
    assert!(report.detail.len() < 400, "{name}: {}", report.detail);
}

#[tokio::test]
async fn broken_connections() {
    let long = head("Content-Length: 100\r\n\r\nshort");
    let cases = [
        (
            "closed at once",
            vec![Step::Request],
            Failure::Closed(RequestPhase::Headers),
        ),
        (
            "closed in the head",
            vec![Step::Request, head("A: b\r\n")],
            Failure::Closed(RequestPhase::Headers),
        ),
        (
            "closed in the body",
            vec![Step::Request, long.clone()],
            Failure::Closed(RequestPhase::Body),
        ),
        (
            "reset at once",
            vec![Step::Request, Step::Reset],
            Failure::Reset(RequestPhase::Headers),
        ),
        (
            "reset in the head",
            vec![Step::Request, head("A:"), Step::Reset],
            Failure::Reset(RequestPhase::Headers),
        ),
        (
            "reset in the body",
            vec![Step::Request, long, Step::Reset],
            Failure::Reset(RequestPhase::Body),
        ),
    ];
    for (name, script, failure) in cases {
        fails(name, script, failure).await;
    }
}

#[tokio::test]
async fn malformed_answers() {
    let cases = [
        ("garbage", Step::SayBytes(b"\x00\xff\x17\r\n")),
        ("HTTP/0.9", say("<html>hello</html>")),
        ("HTTP/2", Step::SayBytes(b"\0\0\0\x04\0\0\0\0\0")),
        ("another protocol", say("220 mail.example ESMTP\r\n")),
        ("a bad status", say("HTTP/1.1 abc OK\r\n\r\n")),
        ("a bad header", head("no colon\r\n\r\n")),
        ("a bad length", head("Content-Length: -1\r\n\r\n")),
        (
            "two lengths",
            head("Content-Length: 1\r\nContent-Length: 2\r\n\r\n"),
        ),
        ("a bad chunk", head("Transfer-Encoding: chunked\r\n\r\nzz\r\n")),
        (
            "huge cookies",
            head(&format!("Set-Cookie: {}\r\n", "c".repeat(8000)).repeat(20)),
        ),
    ];
    for (name, step) in cases {
        fails(name, vec![Step::Request, step, Step::Hold], Failure::Protocol).await;
    }
}

#[tokio::test]
async fn endless_answers() {
    let cases = [
        ("headers", head(""), "A: b\r\n"),
        ("a header", head("A: "), "bbbbbbbb"),
        ("a status", say("HTTP/1.1 200 "), "OKOKOKOK"),
        (
            "hints",
            say("HTTP/1.1 103 Early\r\n\r\n"),
            "HTTP/1.1 103 Early\r\n\r\n",
        ),
        (
            "a chunk extension",
            head("Transfer-Encoding: chunked\r\n\r\n1;"),
            "xxxxxxxx",
        ),
        (
            "trailers",
            head("Transfer-Encoding: chunked\r\n\r\n0\r\n"),
            "A: b\r\n",
        ),
    ];
    for (name, start, rest) in cases {
        fails(
            name,
            vec![Step::Request, start, Step::Forever(rest)],
            Failure::Protocol,
        )
        .await;
    }
}

/// Without waiting for the request the server resets; whether we can still send it is a race that must not show.
#[tokio::test]
async fn a_reset_before_the_request() {
    let report = probed(vec![Step::Reset], AMPLE).await;
    assert_eq!(
        report.outcome,
        NetworkOutcome::Failure(Failure::Reset(RequestPhase::Headers)),
        "{}",
        report.detail
    );
    assert!(report.detail.contains("connection reset by peer") || report.detail.contains("broken pipe"));
}

#[tokio::test]
async fn the_words_of_a_broken_connection() {
    let server = Server::playing(vec![Step::Request, Step::Reset]).await;
    let detail = http_probe(server.address, AMPLE).await.detail;
    assert!(
        detail.starts_with(&format!(
            "Get \"http://{}/healthz\": read tcp 127.0.0.1:",
            server.address
        )),
        "{detail}"
    );
    assert!(
        detail.ends_with(&format!("->{}: read: connection reset by peer", server.address)),
        "{detail}"
    );

    let server = Server::playing(vec![Step::Request]).await;
    let detail = http_probe(server.address, AMPLE).await.detail;
    assert_eq!(detail, format!("Get \"http://{}/healthz\": EOF", server.address));
}

/// Strange, but an answer: these succeed, and long before the timeout.
#[tokio::test]
async fn odd_answers_that_count() {
    let cookie = format!("Set-Cookie: {}\r\n", "c".repeat(8000));
    let cases = [
        (
            "endless body",
            vec![Step::Request, head("\r\n"), Step::Forever("body body ")],
            10 * 1024,
        ),
        (
            "endless chunks",
            vec![
                Step::Request,
                head("Transfer-Encoding: chunked\r\n\r\n"),
                Step::Forever("2\r\nok\r\n"),
            ],
            10 * 1024,
        ),
        (
            "more than its length",
            vec![
                Step::Request,
                head("Content-Length: 2\r\n\r\n"),
                Step::Forever("ok"),
            ],
            2,
        ),
        (
            "large cookies",
            vec![
                Step::Request,
                head(&format!("{}Content-Length: 0\r\n\r\n", cookie.repeat(7))),
            ],
            0,
        ),
        (
            "an early answer",
            vec![head("Content-Length: 1\r\n\r\n!"), Step::Hold],
            1,
        ),
        (
            "kept open",
            vec![Step::Request, head("Content-Length: 1\r\n\r\n!"), Step::Hold],
            1,
        ),
    ];
    for (name, script, kept) in cases {
        let report = probed(script, AMPLE).await;
        assert_eq!(
            report.outcome,
            NetworkOutcome::Success,
            "{name}: {}",
            report.detail
        );
        assert_eq!(report.detail.len(), kept, "{name}");
        assert!(report.latency < AMPLE / 2, "{name}");
    }
}

#[tokio::test]
async fn slow_drips_end_with_the_timeout() {
    let cases = [
        (
            "in the head",
            vec![Step::Request, head(""), Step::Drip("Abc: def\r\n")],
            RequestPhase::Headers,
        ),
        (
            "in the body",
            vec![Step::Request, head("\r\n"), Step::Drip("slow")],
            RequestPhase::Body,
        ),
        (
            "in a chunk",
            vec![
                Step::Request,
                head("Transfer-Encoding: chunked\r\n\r\n"),
                Step::Drip("1\r\nx\r\n"),
            ],
            RequestPhase::Body,
        ),
    ];
    for (name, script, phase) in cases {
        let report = probed(script, SHORT).await;
        assert_eq!(
            report.outcome,
            NetworkOutcome::Failure(Failure::Timeout(phase)),
            "{name}: {}",
            report.detail
        );
    }
}
