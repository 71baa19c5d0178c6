//! Probes against real sockets: what each kind of server, well-behaved or hostile, makes of a probe.

mod closing;
mod grpc;
mod hook;
mod hostile;
mod http;
mod look;
mod redirect;
mod server;
mod tcp;
mod tls;

use std::net::SocketAddr;
use std::time::Duration;

use pulselet_probe::{HttpRequest, Prober, Purpose, Report, Scheme, Target};

/// For probes that get their answer: long enough for any machine, so that reaching it is a bug.
const AMPLE: Duration = Duration::from_mins(1);

/// For probes that are meant to time out, after all phases that are not.
const SHORT: Duration = Duration::from_secs(1);

fn request(scheme: Scheme, address: SocketAddr, headers: &[(&str, &str)]) -> HttpRequest {
    let headers = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    HttpRequest::new(Purpose::Probe, scheme, Target::from(address), "/healthz", headers)
}

async fn http_probe(address: SocketAddr, timeout: Duration) -> Report {
    Prober::new()
        .http(&request(Scheme::Http, address, &[]), timeout)
        .await
}

async fn https_probe(address: SocketAddr, timeout: Duration) -> Report {
    Prober::new()
        .http(&request(Scheme::Https, address, &[]), timeout)
        .await
}
