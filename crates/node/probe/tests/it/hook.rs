//! The httpGet of lifecycle hooks: any answer is a success.

use std::net::SocketAddr;

use pulselet_probe::{Failure, HttpRequest, NetworkOutcome, Prober, Purpose, Report, Scheme, Target};

use crate::AMPLE;
use crate::server::{OK, Server, Step, answer, say};

async fn hook(scheme: Scheme, address: SocketAddr) -> Report {
    let headers = vec![("Authorization".to_owned(), "Bearer t".to_owned())];
    let target = Target::from(address);
    let request = HttpRequest::new(Purpose::LifecycleHook, scheme, target, "/stop", headers);
    Prober::new().hook(&request, AMPLE).await
}

#[tokio::test]
async fn any_answer_is_a_success() {
    let texts = [
        OK,
        "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 302 Go\r\nLocation: http://x/\r\n\r\n",
    ];
    for text in texts {
        let server = Server::playing(answer(text)).await;
        let report = hook(Scheme::Http, server.address).await;
        assert_eq!(
            (report.outcome, report.detail.as_str()),
            (NetworkOutcome::Success, ""),
            "{text:?}"
        );
        assert!(server.requests()[0].contains("User-Agent: kube-lifecycle/1.36\r\n"));
    }
    let cut = vec![
        Step::Request,
        say("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"),
    ];
    let server = Server::playing(cut).await;
    assert_eq!(
        hook(Scheme::Http, server.address).await.outcome,
        NetworkOutcome::Success
    );
}

#[tokio::test]
async fn no_answer_is_a_failure() {
    let refused = hook(Scheme::Http, crate::tcp::closed_port()).await;
    assert_eq!(refused.outcome, NetworkOutcome::Failure(Failure::Refused));
    let garbage = Server::playing(vec![Step::Request, say("garbage")]).await;
    assert_eq!(
        hook(Scheme::Http, garbage.address).await.outcome,
        NetworkOutcome::Failure(Failure::Protocol)
    );
}

/// As a hook of long ago may say HTTPS without meaning it.
#[tokio::test]
async fn https_falls_back_to_http_without_credentials() {
    let server = Server::start("127.0.0.1:0", None, |nth| {
        if nth == 0 {
            vec![say("HTTP/1.0 400 Bad Request\r\n\r\n"), Step::Hold]
        } else {
            answer(OK)
        }
    })
    .await;
    let report = hook(Scheme::Https, server.address).await;
    let expected = format!(
        "request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded",
        server.address
    );
    assert_eq!(
        (report.outcome, report.detail),
        (NetworkOutcome::Warning, expected)
    );
    let request = server.requests().remove(0);
    assert!(
        request.starts_with("GET /stop ") && !request.contains("Authorization"),
        "{request}"
    );
}
