//! The tcpSocket probe: a connection that can be made is a success, and is closed at once.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::Prober;
use crate::report::{Failure, Outcome, Phase, Report};
use crate::target::Target;

pub(crate) async fn probe(prober: &Prober, target: &Target, timeout: Duration) -> Report {
    let started = Instant::now();
    let deadline = crate::deadline(started, timeout);
    let mut phase = Phase::Connect;
    let dialled = timeout_at(deadline, prober.dialer.connect(target, deadline, &mut phase)).await;
    let latency = started.elapsed();
    let (outcome, detail) = match dialled {
        Ok(Ok(_connection)) => (Outcome::Success, String::new()),
        Ok(Err(error)) => (error.outcome(), error.to_string()),
        Err(_) => {
            let lookup = if phase == Phase::Resolve { ": lookup" } else { "" };
            let detail = format!("dial tcp{lookup} {target}: i/o timeout");
            (Outcome::Failure(Failure::Timeout(phase)), detail)
        }
    };
    Report {
        outcome,
        detail,
        latency,
    }
}
