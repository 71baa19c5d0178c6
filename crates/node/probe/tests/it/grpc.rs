//! The grpc probe, against a real health service and against servers that are none.

use std::net::SocketAddr;
use std::time::Duration;

use ::http::{HeaderMap, HeaderValue, Response};
use bytes::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use pulselet_probe::{Failure, GrpcCheck, NetworkOutcome, NetworkProbe, Prober, RequestPhase, Target};
use tokio::net::TcpListener;
use tonic_health::ServingStatus;

use crate::server::{Server, Step, say};
use crate::{AMPLE, SHORT};

async fn probed(address: SocketAddr, service: &str, timeout: Duration) -> (NetworkOutcome, String) {
    let probe = NetworkProbe::Grpc(GrpcCheck::new(Target::from(address), service));
    let report = Prober::new().run(&probe, timeout).await;
    (report.outcome, report.detail)
}

async fn health_service() -> SocketAddr {
    let (reporter, service) = tonic_health::server::health_reporter();
    reporter
        .set_service_status("sick", ServingStatus::NotServing)
        .await;
    reporter.set_service_status("odd", ServingStatus::Unknown).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(service.clone());
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

#[tokio::test]
async fn a_health_service() {
    let address = health_service().await;
    let cases = [
        ("", NetworkOutcome::Success, "service healthy"),
        (
            "sick",
            NetworkOutcome::Failure(Failure::NotServing),
            "service unhealthy (responded with \"NOT_SERVING\")",
        ),
        (
            "odd",
            NetworkOutcome::Failure(Failure::NotServing),
            "service unhealthy (responded with \"UNKNOWN\")",
        ),
        (
            "absent",
            NetworkOutcome::Failure(Failure::Rpc("NotFound")),
            "error: health rpc probe failed: rpc error: code = NotFound desc = service not registered",
        ),
    ];
    for (service, outcome, detail) in cases {
        assert_eq!(
            probed(address, service, AMPLE).await,
            (outcome, detail.to_owned()),
            "{service:?}"
        );
    }
}

/// What an HTTP/2 server answers to every request.
#[derive(Clone, Default)]
struct Answer {
    status: u16,
    headers: &'static [(&'static str, &'static str)],
    data: &'static [u8],
    trailers: &'static [(&'static str, &'static str)],
}

impl Answer {
    async fn serve(self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut connection) = h2::server::handshake(stream).await else {
                    continue;
                };
                while let Some(Ok((_, respond))) = connection.accept().await {
                    self.send(respond);
                }
            }
        });
        address
    }

    /// Errors mean that the probe has seen enough.
    fn send(&self, mut respond: h2::server::SendResponse<Bytes>) {
        let mut response = Response::builder()
            .status(self.status)
            .body(())
            .expect("a response");
        for (name, value) in self.headers {
            response
                .headers_mut()
                .insert(*name, HeaderValue::from_static(value));
        }
        let bare = self.data.is_empty() && self.trailers.is_empty();
        let Ok(mut stream) = respond.send_response(response, bare) else {
            return;
        };
        if bare
            || stream
                .send_data(Bytes::from_static(self.data), self.trailers.is_empty())
                .is_err()
        {
            return;
        }
        let mut trailers = HeaderMap::new();
        for (name, value) in self.trailers {
            trailers.insert(*name, HeaderValue::from_static(value));
        }
        if !trailers.is_empty() {
            let _ = stream.send_trailers(trailers);
        }
    }
}

/// An answer that is well except for its data.
fn message(data: &'static [u8]) -> Answer {
    Answer {
        status: 200,
        data,
        trailers: &[("grpc-status", "0")],
        ..Answer::default()
    }
}

const SERVING: &[u8] = b"\0\0\0\0\x02\x08\x01";

async fn check(name: &str, answer: Answer, outcome: NetworkOutcome) -> String {
    let address = answer.serve().await;
    let (seen, detail) = probed(address, "", AMPLE).await;
    assert_eq!(seen, outcome, "{name}: {detail}");
    detail
}

#[tokio::test]
async fn messages() {
    static HUGE: [u8; 100_000] = [0; 100_000];
    let protocol = NetworkOutcome::Failure(Failure::Protocol);
    let cases = [
        ("serving", SERVING, NetworkOutcome::Success),
        (
            "a state of the future",
            b"\0\0\0\0\x02\x08\x09",
            NetworkOutcome::Failure(Failure::NotServing),
        ),
        ("no message", b"", protocol),
        ("half a message", b"\0\0\0\0\x09\x08", protocol),
        ("compressed", b"\x01\0\0\0\x02\x08\x01", protocol),
        ("not a message", b"\0\0\0\0\x02\xff\xff", protocol),
        ("a huge message", &HUGE, protocol),
    ];
    for (name, data, outcome) in cases {
        check(name, message(data), outcome).await;
    }
}

#[tokio::test]
async fn errors_of_other_servers() {
    let rpc = |code| NetworkOutcome::Failure(Failure::Rpc(code));
    let failed = Answer {
        trailers: &[("grpc-status", "13")],
        ..message(b"")
    };
    check("an error", failed, rpc("Internal")).await;
    let page = Answer {
        status: 404,
        data: b"gone",
        ..Answer::default()
    };
    check("not gRPC", page, rpc("Unimplemented")).await;
    let unfinished = Answer {
        status: 200,
        data: SERVING,
        ..Answer::default()
    };
    check("no status", unfinished, rpc("Unknown")).await;

    let headers = &[("grpc-status", "12"), ("grpc-message", "no%20such")];
    let no_health = Answer {
        status: 200,
        headers,
        ..Answer::default()
    };
    let detail = check("no health service", no_health, rpc("Unimplemented")).await;
    let expected =
        "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): no such";
    assert_eq!(detail, expected);
}

#[tokio::test]
async fn servers_that_speak_no_http2() {
    let closed = crate::tcp::closed_port();
    let (outcome, detail) = probed(closed, "", AMPLE).await;
    assert_eq!(outcome, NetworkOutcome::Failure(Failure::Refused));
    let expected = format!(
        "error: failed to connect service at \"{closed}\": dial tcp {closed}: connect: connection refused"
    );
    assert_eq!(detail, expected);

    let cases = [
        (
            "http/1",
            vec![Step::Request, say("HTTP/1.1 400 Bad Request\r\n\r\n"), Step::Hold],
            Failure::Protocol,
        ),
        (
            "a reset",
            vec![Step::Request, Step::Reset],
            Failure::Reset(RequestPhase::Headers),
        ),
    ];
    for (name, script, failure) in cases {
        let server = Server::playing(script).await;
        let (outcome, detail) = probed(server.address, "", AMPLE).await;
        assert_eq!(outcome, NetworkOutcome::Failure(failure), "{name}: {detail}");
    }
}

#[tokio::test]
async fn wedged_servers_time_out() {
    let silent = Server::playing(vec![Step::Hold]).await;
    let expected = "timeout: health rpc did not complete within 1s".to_owned();
    assert_eq!(
        probed(silent.address, "", SHORT).await,
        (
            NetworkOutcome::Failure(Failure::Timeout(RequestPhase::Headers)),
            expected
        )
    );
    let full = crate::tcp::FullBacklog::new();
    let expected = format!(
        "timeout: failed to connect service \"{}\" within 1s: context deadline exceeded",
        full.address
    );
    assert_eq!(
        probed(full.address, "", SHORT).await,
        (
            NetworkOutcome::Failure(Failure::Timeout(RequestPhase::Connect)),
            expected
        )
    );
}
