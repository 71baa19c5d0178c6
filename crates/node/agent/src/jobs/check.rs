//! Probes: prepared once per life and kind, run many times.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pulselet_engine::io::{PROBE_TRIES, ProbeOutcome, ProbeReport};
use pulselet_engine::plan::ProbeKind;
use pulselet_engine::{LifeKey, PodKey, Span, Time};
use pulselet_model::{Container, HttpGetAction, IntOrString, Probe};
use pulselet_probe::{Failure, GrpcCheck, HttpRequest, NetworkProbe, Purpose, Scheme, Target};
use pulselet_runtime::{ContainerId, Error, ExecOutcome, ExecRequest, PROBE_OUTPUT_LIMIT};

use super::{News, Tools};

/// A probe's handler with its target resolved.
#[derive(Debug)]
pub(crate) enum Check {
    Network(NetworkProbe),
    Exec(Vec<String>),
    /// The manifest asks for something that cannot be asked, such as a port name that the container does not have.
    Impossible(String),
}

impl Check {
    pub(crate) fn new(container: &Container, probe: &Probe, address: Option<IpAddr>) -> Self {
        // Without an address of its own the pod has the host's network.
        let address = address.unwrap_or(Ipv4Addr::LOCALHOST.into()).to_string();
        if let Some(exec) = &probe.exec {
            return Self::Exec(exec.command.clone());
        }
        let network = if let Some(http) = &probe.http_get {
            http_request(container, http, &address, Purpose::Probe).map(NetworkProbe::Http)
        } else if let Some(tcp) = &probe.tcp_socket {
            let host = some(&tcp.host).unwrap_or(&address);
            port(container, &tcp.port).map(|port| NetworkProbe::Tcp(Target::new(host, port)))
        } else if let Some(grpc) = &probe.grpc {
            let service = grpc.service.clone().unwrap_or_default();
            let port = u16::try_from(grpc.port).map_err(|_| format!("invalid port number: {}", grpc.port));
            port.map(|port| NetworkProbe::Grpc(GrpcCheck::new(Target::new(&address, port), service)))
        } else {
            Err("missing probe handler".to_owned())
        };
        network.map_or_else(Self::Impossible, Self::Network)
    }
}

fn some(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// The request of an httpGet handler, for probes and hooks.
pub(super) fn http_request(
    container: &Container,
    action: &HttpGetAction,
    address: &str,
    purpose: Purpose,
) -> Result<HttpRequest, String> {
    let scheme = if action.scheme.eq_ignore_ascii_case("https") {
        Scheme::Https
    } else {
        Scheme::Http
    };
    let port = port(container, &action.port)?;
    let target = Target::new(some(&action.host).unwrap_or(address), port);
    let headers = action.http_headers.iter();
    let headers = headers.map(|header| (header.name.clone(), header.value.clone()));
    Ok(HttpRequest::new(
        purpose,
        scheme,
        target,
        &action.path,
        headers.collect(),
    ))
}

/// A port by number, or by its name among the container's own.
fn port(container: &Container, port: &IntOrString) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let named = container.ports.iter().find(|port| port.name == *name);
            match (named, name.parse()) {
                (Some(port), _) => port.container_port,
                (None, Ok(number)) => number,
                (None, Err(_)) => {
                    return Err(format!(
                        "couldn't find port: {name} in container {}",
                        container.name
                    ));
                }
            }
        }
    };
    u16::try_from(number)
        .ok()
        .filter(|number| *number != 0)
        .ok_or_else(|| format!("invalid port number: {number}"))
}

/// One run of a probe.
#[derive(Debug)]
pub(crate) struct ProbeJob {
    pub(crate) pod: PodKey,
    pub(crate) life: LifeKey,
    pub(crate) kind: ProbeKind,
    pub(crate) id: ContainerId,
    pub(crate) check: Arc<Check>,
    pub(crate) timeout: Duration,
    /// When the engine wanted it to begin.
    pub(crate) due: Time,
}

impl Tools {
    pub(crate) async fn probe(&self, job: ProbeJob) {
        let limit = match &*job.check {
            Check::Network(_) | Check::Impossible(_) => &self.limits.network_probes,
            Check::Exec(_) => &self.limits.exec_probes,
        };
        let _permit = limit.acquire().await;
        let began = self.clock.now();
        let late = began.since(job.due).into();
        let mut report = self.run_check(&job).await;
        for _ in 1..PROBE_TRIES {
            if report.outcome != ProbeOutcome::Error {
                break;
            }
            report = self.run_check(&job).await;
        }
        let news = News::ProbeDone {
            life: job.life,
            kind: job.kind,
            report,
            began,
            late,
        };
        self.answer(job.pod, news).await;
    }

    async fn run_check(&self, job: &ProbeJob) -> ProbeReport {
        match &*job.check {
            Check::Network(probe) => network_report(self.prober.run(probe, job.timeout).await),
            Check::Exec(command) => self.exec(&job.id, command, job.timeout).await,
            Check::Impossible(why) => ProbeReport {
                outcome: ProbeOutcome::Error,
                detail: why.clone(),
                exit_code: None,
                latency: Span::ZERO,
                timed_out: false,
                starved: false,
            },
        }
    }

    async fn exec(&self, id: &ContainerId, command: &[String], timeout: Duration) -> ProbeReport {
        let request = ExecRequest {
            command: command.to_vec(),
            timeout: Some(timeout),
            output_limit: PROBE_OUTPUT_LIMIT,
        };
        let began = Instant::now();
        let result = self.runtime.exec_sync(id, &request).await;
        let latency = began.elapsed().into();
        let (outcome, detail, exit_code) = match result {
            Ok(output) => {
                let text = || String::from_utf8_lossy(&output.output).into_owned();
                match output.outcome {
                    ExecOutcome::Exited(0) => (ProbeOutcome::Success, text(), None),
                    ExecOutcome::Exited(code) => (ProbeOutcome::Failure, text(), Some(code)),
                    ExecOutcome::TimedOut => (ProbeOutcome::Failure, timeout_text(command, timeout), None),
                }
            }
            Err(error) => (ProbeOutcome::Error, exec_error(&error), None),
        };
        ProbeReport {
            // A command that fails has either ended or run out of time.
            timed_out: outcome == ProbeOutcome::Failure && exit_code.is_none(),
            outcome,
            detail,
            exit_code,
            latency,
            starved: false,
        }
    }
}

fn timeout_text(command: &[String], timeout: Duration) -> String {
    let command = command.join(" ");
    format!("command timed out: {command:?} timed out after {timeout:?}")
}

fn exec_error(error: &Error) -> String {
    format!("failed to exec in container: {error}")
}

fn network_report(report: pulselet_probe::Report) -> ProbeReport {
    use pulselet_probe::Outcome as Seen;
    let (outcome, timed_out) = match report.outcome {
        Seen::Success => (ProbeOutcome::Success, false),
        Seen::Warning => (ProbeOutcome::Warning, false),
        Seen::Failure(Failure::Timeout(_)) => (ProbeOutcome::Failure, true),
        Seen::Failure(_) => (ProbeOutcome::Failure, false),
        Seen::Error(_) => (ProbeOutcome::Error, false),
    };
    ProbeReport {
        outcome,
        detail: report.detail,
        exit_code: None,
        latency: report.latency.into(),
        timed_out,
        starved: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(probe: &serde_json::Value) -> String {
        let container: Container = serde_json::from_value(json!({
            "name": "app", "ports": [{"name": "web", "containerPort": 8080}],
        }))
        .unwrap();
        let probe = serde_json::from_value(probe.clone()).unwrap();
        match Check::new(&container, &probe, Some([10, 0, 0, 1].into())) {
            Check::Network(NetworkProbe::Tcp(target)) => target.to_string(),
            Check::Network(other) => format!("{other:?}"),
            Check::Exec(command) => command.join(" "),
            Check::Impossible(why) => why,
        }
    }

    #[test]
    fn named_ports_are_the_containers_own() {
        assert_eq!(check(&json!({"tcpSocket": {"port": "web"}})), "10.0.0.1:8080");
        assert_eq!(
            check(&json!({"tcpSocket": {"port": 81, "host": "::1"}})),
            "[::1]:81"
        );
        assert_eq!(
            check(&json!({"tcpSocket": {"port": "db"}})),
            "couldn't find port: db in container app"
        );
        assert_eq!(
            check(&json!({"tcpSocket": {"port": 0}})),
            "invalid port number: 0"
        );
        assert!(check(&json!({"httpGet": {"port": "web", "path": "/h"}})).contains("8080"));
        assert!(check(&json!({"grpc": {"port": 70000}})).contains("invalid port"));
        assert_eq!(check(&json!({})), "missing probe handler");
    }

    #[test]
    fn a_timeout_reads_as_upstream_has_it() {
        let command = ["/bin/sh", "-c", "sleep 20"].map(str::to_owned);
        let text = timeout_text(&command, Duration::from_secs(1));
        assert_eq!(
            text,
            "command timed out: \"/bin/sh -c sleep 20\" timed out after 1s"
        );
    }
}
