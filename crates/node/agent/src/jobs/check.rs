//! One run of a probe. What it asks was decided when the pod was converted; only the pod's address is filled in here.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pulselet_engine::io::{PROBE_TRIES, ProbeOutcome, ProbeReport};
use pulselet_engine::plan::ProbeKind;
use pulselet_engine::{LifeKey, PodKey, Span, Time};
use pulselet_plan::{HostPort, HttpScheme, HttpTarget, ProbeTarget};
use pulselet_probe::{Failure, GrpcCheck, HttpRequest, NetworkProbe, Purpose, Scheme, Target};
use pulselet_runtime::{ContainerId, Error, ExecOutcome, ExecRequest, PROBE_OUTPUT_LIMIT};

use super::{JobContext, JobResult};

/// A probe with its target's address filled in.
enum Check<'a> {
    Network(NetworkProbe),
    Exec(&'a [String]),
    Impossible(&'a str),
}

impl<'a> Check<'a> {
    /// `address` is the pod's; `None` if it has the host's network.
    fn new(target: &'a ProbeTarget, address: Option<IpAddr>) -> Self {
        match target {
            ProbeTarget::Exec(command) => Self::Exec(command),
            ProbeTarget::Http(http) => {
                let request = http_request(http, address, Purpose::Probe);
                Self::Network(NetworkProbe::Http(request))
            }
            ProbeTarget::Tcp(at) => Self::Network(NetworkProbe::Tcp(endpoint(at, address))),
            ProbeTarget::Grpc { port, service } => {
                let target = at_pod(*port, address);
                Self::Network(NetworkProbe::Grpc(GrpcCheck::new(target, &**service)))
            }
            ProbeTarget::Impossible { why, .. } => Self::Impossible(why),
        }
    }
}

fn endpoint(at: &HostPort, address: Option<IpAddr>) -> Target {
    match &at.host {
        Some(host) => Target::new(host, at.port),
        None => at_pod(at.port, address),
    }
}

/// A port of the pod itself. Without an address of its own it has the host's network.
fn at_pod(port: u16, address: Option<IpAddr>) -> Target {
    let address = address.unwrap_or(Ipv4Addr::LOCALHOST.into());
    SocketAddr::new(address, port).into()
}

/// The request of an httpGet handler, for probes and hooks.
pub(super) fn http_request(http: &HttpTarget, address: Option<IpAddr>, purpose: Purpose) -> HttpRequest {
    let scheme = match http.scheme {
        HttpScheme::Http => Scheme::Http,
        HttpScheme::Https => Scheme::Https,
    };
    let headers = http.headers.iter();
    let headers = headers.map(|(name, value)| (name.to_string(), value.to_string()));
    let target = endpoint(&http.at, address);
    HttpRequest::new(purpose, scheme, target, &http.path, headers.collect())
}

/// One run of a probe.
#[derive(Debug)]
pub(crate) struct ProbeJob {
    pub(crate) pod: PodKey,
    pub(crate) life: LifeKey,
    pub(crate) kind: ProbeKind,
    pub(crate) id: ContainerId,
    pub(crate) target: Arc<ProbeTarget>,
    /// The pod's; `None` if it has the host's network.
    pub(crate) address: Option<IpAddr>,
    pub(crate) timeout: Duration,
    /// For a look: how long it may take until it is connected.
    pub(crate) look: Option<Duration>,
    /// When the engine wanted it to begin.
    pub(crate) due: Time,
}

impl JobContext {
    pub(crate) async fn probe(&self, job: ProbeJob) {
        let check = Check::new(&job.target, job.address);
        let limit = match check {
            Check::Network(_) | Check::Impossible(_) => &self.limits.network_probes,
            Check::Exec(_) => &self.limits.exec_probes,
        };
        let _permit = limit.acquire().await;
        let began = self.clock.now();
        let late: Duration = began.since(job.due).into();
        let report = match job.look {
            Some(connect) => self.look(&job, &check, connect, late).await,
            None => self.try_check(&job, &check).await,
        };
        let result = JobResult::ProbeDone {
            life: job.life,
            kind: job.kind,
            look: job.look.is_some(),
            report,
            began,
            late,
        };
        self.answer(job.pod, result).await;
    }

    /// A counted probe. What could not be asked is tried again.
    async fn try_check(&self, job: &ProbeJob, check: &Check<'_>) -> ProbeReport {
        let mut report = self.run_check(job, check).await;
        for _ in 1..PROBE_TRIES {
            if report.outcome != ProbeOutcome::Error {
                break;
            }
            report = self.run_check(job, check).await;
        }
        report
    }

    async fn run_check(&self, job: &ProbeJob, check: &Check<'_>) -> ProbeReport {
        match check {
            Check::Network(probe) => network_report(self.prober.run(probe, job.timeout).await),
            Check::Exec(command) => self.exec(&job.id, command, job.timeout).await,
            Check::Impossible(why) => impossible(why),
        }
    }

    /// A look ends when the next probe is due, so what it waited for its own turn is taken from its time.
    async fn look(
        &self,
        job: &ProbeJob,
        check: &Check<'_>,
        connect: Duration,
        late: Duration,
    ) -> ProbeReport {
        let timeout = job.timeout.saturating_sub(late);
        match check {
            Check::Network(probe) => {
                let connect = connect.saturating_sub(late);
                network_report(self.prober.look(probe, connect, timeout).await)
            }
            Check::Exec(command) => self.exec(&job.id, command, timeout).await,
            Check::Impossible(why) => impossible(why),
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
            reached: true,
            starved: false,
        }
    }
}

fn impossible(why: &str) -> ProbeReport {
    ProbeReport {
        outcome: ProbeOutcome::Error,
        detail: why.to_owned(),
        exit_code: None,
        latency: Span::ZERO,
        reached: false,
        timed_out: false,
        starved: false,
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
    use pulselet_probe::NetworkOutcome as Seen;
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
        reached: report.connected,
        timed_out,
        starved: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(target: &ProbeTarget, address: Option<IpAddr>) -> String {
        match Check::new(target, address) {
            Check::Network(NetworkProbe::Tcp(target)) => target.to_string(),
            Check::Network(other) => format!("{other:?}"),
            Check::Exec(command) => command.join(" "),
            Check::Impossible(why) => why.to_owned(),
        }
    }

    #[test]
    fn a_target_without_a_host_is_at_the_pods_address() {
        let tcp = |host: Option<&str>| {
            let host = host.map(Into::into);
            ProbeTarget::Tcp(HostPort { host, port: 81 })
        };
        let address = Some([10, 0, 0, 1].into());
        assert_eq!(shown(&tcp(None), address), "10.0.0.1:81");
        assert_eq!(
            shown(&tcp(None), Some("fd00::3".parse().unwrap())),
            "[fd00::3]:81"
        );
        assert_eq!(shown(&tcp(Some("::1")), address), "[::1]:81");
        assert_eq!(shown(&tcp(None), None), "127.0.0.1:81");
        let service = "db".into();
        let grpc = shown(&ProbeTarget::Grpc { port: 82, service }, address);
        assert!(
            grpc.contains("10.0.0.1") && grpc.contains("82") && grpc.contains("db"),
            "{grpc}"
        );
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
