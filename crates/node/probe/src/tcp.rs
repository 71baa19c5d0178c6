//! The tcpSocket probe: a connection that can be made is a success, and is closed at once.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::Prober;
use crate::report::{Failure, NetworkOutcome, Report, RequestPhase};
use crate::target::Target;

pub(crate) async fn probe(prober: &Prober, target: &Target, timeout: Duration) -> Report {
    let started = Instant::now();
    let deadline = crate::deadline(started, timeout);
    let mut phase = RequestPhase::Connect;
    let dialled = timeout_at(deadline, prober.dialer.connect(target, deadline, &mut phase)).await;
    let latency = started.elapsed();
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
        outcome,
        detail,
        latency,
    }
}
