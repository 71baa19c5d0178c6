//! Redirects: followed within the host, ten at most; one that leaves the host is a warning.

use pulselet_probe::{Failure, NetworkOutcome, Prober, Scheme};

use crate::server::{OK, Server, answer};
use crate::{AMPLE, http_probe, request};

fn redirect(location: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 5\r\n\r\nmoved")
}

/// Redirects `count` times, then says yes.
async fn chain(count: usize) -> Server {
    Server::answering(move |request| {
        let step = request
            .split(' ')
            .nth(1)
            .and_then(|path| path.strip_prefix("/step-"));
        let step: usize = step.map_or(0, |number| number.parse().expect("a number"));
        if step < count {
            redirect(&format!("/step-{}", step + 1))
        } else {
            OK.to_owned()
        }
    })
    .await
}

#[tokio::test]
async fn ten_redirects_are_followed() {
    let server = chain(10).await;
    let report = http_probe(server.address, AMPLE).await;
    assert_eq!(report.outcome, NetworkOutcome::Success, "{}", report.detail);
    assert_eq!(server.requests().len(), 11);
}

#[tokio::test]
async fn eleven_are_not() {
    for server in [
        chain(11).await,
        Server::playing(answer(redirect("/healthz"))).await,
    ] {
        let report = http_probe(server.address, AMPLE).await;
        assert_eq!(report.outcome, NetworkOutcome::Failure(Failure::Redirect));
        assert!(
            report.detail.ends_with("stopped after 10 redirects"),
            "{}",
            report.detail
        );
        assert_eq!(server.requests().len(), 11);
    }
}

#[tokio::test]
async fn another_host_is_a_warning() {
    for location in ["http://other.example/", "//127.0.0.9/", "https://localhost/"] {
        let server = Server::playing(answer(redirect(location))).await;
        let report = http_probe(server.address, AMPLE).await;
        assert_eq!(report.outcome, NetworkOutcome::Warning, "{location}");
        assert_eq!(report.detail, "Probe terminated redirects, Response body: moved");
        assert_eq!(server.requests().len(), 1);
    }
}

#[tokio::test]
async fn another_port_and_scheme_of_the_host_are_followed() {
    let behind = Server::playing_tls(answer(OK)).await;
    let server = Server::playing(answer(redirect(&format!("https://{}/in", behind.address)))).await;
    let asked = request(
        Scheme::Http,
        server.address,
        &[("Host", "web.example"), ("X-Token", "t")],
    );
    let report = Prober::new().http(&asked, AMPLE).await;
    assert_eq!(report.outcome, NetworkOutcome::Success, "{}", report.detail);
    let second = behind.requests().remove(0);
    assert!(
        second.starts_with("GET /in HTTP/1.1\r\n") && second.contains("X-Token: t\r\n"),
        "{second}"
    );
    assert!(
        second.contains(&format!("Host: {}\r\n", behind.address)),
        "{second}"
    );
}

#[tokio::test]
async fn the_host_header_is_kept_on_the_same_server() {
    let server = chain(1).await;
    let asked = request(Scheme::Http, server.address, &[("Host", "web.example")]);
    assert_eq!(
        Prober::new().http(&asked, AMPLE).await.outcome,
        NetworkOutcome::Success
    );
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    assert!(requests[1].contains("Host: web.example\r\n"), "{}", requests[1]);
}

#[tokio::test]
async fn a_location_that_leads_nowhere_is_a_failure() {
    for location in ["ftp://127.0.0.1/", "http://", "http://127.0.0.1:99999/"] {
        let server = Server::playing(answer(redirect(location))).await;
        let report = http_probe(server.address, AMPLE).await;
        assert_eq!(
            report.outcome,
            NetworkOutcome::Failure(Failure::Redirect),
            "{location}: {}",
            report.detail
        );
    }
}

#[tokio::test]
async fn the_status_at_the_end_decides() {
    let server = Server::answering(|request| {
        if request.starts_with("GET /gone") {
            "HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n".to_owned()
        } else {
            redirect("gone")
        }
    })
    .await;
    let report = http_probe(server.address, AMPLE).await;
    assert_eq!(report.outcome, NetworkOutcome::Failure(Failure::Status(410)));
}
