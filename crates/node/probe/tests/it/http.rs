//! What a well-behaved HTTP server sees of a probe, and what its answers mean.

use std::process::Command;

use pulselet_probe::{Failure, NetworkOutcome, Prober, Purpose, RequestPhase, Scheme, Target};

use crate::server::{OK, Server, Step, answer, has_ipv6, say};
use crate::{AMPLE, HttpRequest, SHORT, http_probe, request};

/// The outcome and the detail of a probe that gets this answer.
async fn judged(text: &str) -> (NetworkOutcome, String) {
    let server = Server::playing(answer(text)).await;
    let report = http_probe(server.address, AMPLE).await;
    (report.outcome, report.detail)
}

#[tokio::test]
async fn answers_and_what_they_mean() {
    let redirects = "Probe terminated redirects, Response body: ";
    let cases = [
        (OK, NetworkOutcome::Success, "ok"),
        ("HTTP/1.1 204 No Content\r\n\r\n", NetworkOutcome::Success, ""),
        (
            "HTTP/1.0 200\n\nuntil close",
            NetworkOutcome::Success,
            "until close",
        ),
        (
            "HTTP/1.1 299 Odd\r\nContent-Length: 0\r\n\r\n",
            NetworkOutcome::Success,
            "",
        ),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n\r\nx",
            NetworkOutcome::Success,
            "x",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwell\r\n1\r\n!\r\n0\r\n\r\n",
            NetworkOutcome::Success,
            "well!",
        ),
        (
            "HTTP/1.1 304 Not Modified\r\n\r\n",
            NetworkOutcome::Warning,
            redirects,
        ),
        (
            "HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n",
            NetworkOutcome::Warning,
            redirects,
        ),
    ];
    for (text, outcome, detail) in cases {
        assert_eq!(judged(text).await, (outcome, detail.to_owned()), "{text:?}");
    }
    for status in [101, 400, 404, 500, 503, 599, 999] {
        let text = format!("HTTP/1.1 {status} X\r\nContent-Length: 6\r\n\r\nsecret");
        let expected = format!("HTTP probe failed with statuscode: {status}");
        assert_eq!(
            judged(&text).await,
            (NetworkOutcome::Failure(Failure::Status(status)), expected)
        );
    }
}

#[tokio::test]
async fn the_request_as_the_server_sees_it() {
    let server = Server::playing(answer(OK)).await;
    let prober = Prober::new();
    let headers = [
        ("Host", "web.example"),
        ("User-Agent", "mine"),
        ("Accept", ""),
        ("X-Token", "t"),
    ];
    for headers in [&[][..], &headers[..]] {
        let report = prober
            .http(&request(Scheme::Http, server.address, headers), AMPLE)
            .await;
        assert_eq!(report.outcome, NetworkOutcome::Success, "{report:?}");
    }
    let address = server.address;
    let expected = [
        format!(
            "GET /healthz HTTP/1.1\r\nHost: {address}\r\nUser-Agent: kube-probe/1.36\r\nAccept: */*\r\n\
             Connection: close\r\n\r\n"
        ),
        "GET /healthz HTTP/1.1\r\nHost: web.example\r\nUser-Agent: mine\r\nX-Token: t\r\nConnection: close\r\n\r\n"
            .to_owned(),
    ];
    assert_eq!(server.requests(), expected);
}

#[tokio::test]
async fn a_header_that_cannot_be_sent_is_a_failure() {
    let server = Server::playing(answer(OK)).await;
    let bad = request(Scheme::Http, server.address, &[("X-Bad", "a\r\nb")]);
    let report = Prober::new().http(&bad, AMPLE).await;
    assert_eq!(report.outcome, NetworkOutcome::Failure(Failure::Request));
    let expected = format!(
        "Get \"http://{}/healthz\": net/http: invalid header field value for \"X-Bad\"",
        server.address
    );
    assert_eq!(report.detail, expected);
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn nobody_listens() {
    let address = crate::tcp::closed_port();
    let report = http_probe(address, AMPLE).await;
    assert_eq!(report.outcome, NetworkOutcome::Failure(Failure::Refused));
    let expected =
        format!("Get \"http://{address}/healthz\": dial tcp {address}: connect: connection refused");
    assert_eq!(report.detail, expected);
}

#[tokio::test]
async fn a_wedged_server_times_out_in_its_phase() {
    let silent = Server::playing(vec![Step::Request, Step::Hold]).await;
    let report = http_probe(silent.address, SHORT).await;
    assert_eq!(
        report.outcome,
        NetworkOutcome::Failure(Failure::Timeout(RequestPhase::Headers))
    );
    let expected = format!(
        "Get \"http://{}/healthz\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
        silent.address
    );
    assert_eq!(report.detail, expected);
    assert!(report.latency >= SHORT);

    let head = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf";
    let stuck = Server::playing(vec![Step::Request, say(head), Step::Hold]).await;
    let report = http_probe(stuck.address, SHORT).await;
    assert_eq!(
        report.outcome,
        NetworkOutcome::Failure(Failure::Timeout(RequestPhase::Body))
    );
    let expected = "context deadline exceeded (Client.Timeout or context cancellation while reading body)";
    assert_eq!(report.detail, expected);

    let full = crate::tcp::FullBacklog::new();
    let report = http_probe(full.address, SHORT).await;
    assert_eq!(
        report.outcome,
        NetworkOutcome::Failure(Failure::Timeout(RequestPhase::Connect))
    );
    let expected = format!(
        "Get \"http://{0}/healthz\": dial tcp {0}: i/o timeout (Client.Timeout exceeded while awaiting headers)",
        full.address
    );
    assert_eq!(report.detail, expected);
}

#[tokio::test]
async fn a_flapping_server_is_seen_as_it_is() {
    let server = Server::start("127.0.0.1:0", None, |nth| {
        if nth % 2 == 0 {
            answer(OK)
        } else {
            answer("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")
        }
    })
    .await;
    for nth in 0..6 {
        let report = http_probe(server.address, AMPLE).await;
        let expected = if nth % 2 == 0 {
            NetworkOutcome::Success
        } else {
            NetworkOutcome::Failure(Failure::Status(503))
        };
        assert_eq!(report.outcome, expected, "probe {nth}");
    }
}

#[tokio::test]
async fn ipv6() {
    if !has_ipv6() {
        return;
    }
    let server = Server::start("[::1]:0", None, |_| answer(OK)).await;
    let report = http_probe(server.address, AMPLE).await;
    assert_eq!(report.outcome, NetworkOutcome::Success, "{report:?}");
    assert!(server.requests()[0].contains(&format!("Host: [::1]:{}\r\n", server.address.port())));
}

#[tokio::test]
async fn a_name_is_looked_up() {
    let server = Server::playing(answer(OK)).await;
    let target = Target::new("localhost", server.address.port());
    let named = HttpRequest::new(Purpose::Probe, Scheme::Http, target, "/", Vec::new());
    let report = Prober::new().http(&named, AMPLE).await;
    assert_eq!(report.outcome, NetworkOutcome::Success, "{report:?}");
    assert!(server.requests()[0].contains(&format!("Host: localhost:{}\r\n", server.address.port())));
}

#[tokio::test]
async fn a_name_that_does_not_exist() {
    // A label of 64 letters is not a name, so no resolver is asked.
    let target = Target::new(&"x".repeat(64), 80);
    let report = Prober::new().tcp(&target, AMPLE).await;
    assert_eq!(
        report.outcome,
        NetworkOutcome::Failure(Failure::Resolve),
        "{report:?}"
    );
    assert!(
        report.detail.starts_with("dial tcp: lookup xxx"),
        "{}",
        report.detail
    );
}

/// Runs by itself too; the next test runs it again with proxies in its environment.
#[tokio::test]
async fn no_proxy_is_used() {
    let server = Server::playing(answer(OK)).await;
    let report = http_probe(server.address, AMPLE).await;
    assert_eq!(report.outcome, NetworkOutcome::Success, "{report:?}");
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn proxy_variables_are_not_looked_at() {
    let mut again = Command::new(std::env::current_exe().expect("this program"));
    again.args(["--exact", "http::no_proxy_is_used"]);
    for name in [
        "HTTP_PROXY",
        "http_proxy",
        "HTTPS_PROXY",
        "https_proxy",
        "ALL_PROXY",
        "all_proxy",
    ] {
        again.env(name, "http://127.0.0.1:1");
    }
    let output = again.output().expect("the test runs again");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
