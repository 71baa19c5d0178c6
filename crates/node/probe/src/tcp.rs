//! The tcpSocket probe: a connection that can be made is a success, and is closed at once.

use tokio::time::timeout_at;

use crate::report::{Failure, NetworkOutcome, Report, RequestPhase};
use crate::target::Target;
use crate::{Prober, TimeLimits};

pub(crate) async fn probe(prober: &Prober, target: &Target, limits: TimeLimits) -> Report {
    let mut phase = RequestPhase::Connect;
    let dialled = timeout_at(
        limits.deadline,
        prober.dialer.connect(target, &limits, &mut phase),
    )
    .await;
    let latency = limits.started.elapsed();
    let (outcome, detail) = match dialled {
        Ok(Ok(_connection)) => (NetworkOutcome::Success, String::new()),
        Ok(Err(error)) => (error.outcome(), error.to_string()),
        Err(_) => {
            let lookup = if phase == RequestPhase::Resolve {
                ": lookup"
            } else {
                ""
            };
            let detail = format!("dial tcp{lookup} {target}: i/o timeout");
            (NetworkOutcome::Failure(Failure::Timeout(phase)), detail)
        }
    };
    Report {
        connected: outcome == NetworkOutcome::Success,
        outcome,
        detail,
        latency,
    }
}
