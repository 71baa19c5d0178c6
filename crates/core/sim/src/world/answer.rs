//! What probes find out about a container.

use pulselet_engine::io::{ProbeOutcome, ProbeReport};
use pulselet_engine::plan::{Handler, ProbeKind};
use pulselet_engine::time::{Span, Time};
use pulselet_plan::duration::format_duration;

use super::Process;
use crate::scenario::Ailment;

/// What a probe asks of a container.
#[derive(Clone, Copy)]
pub(super) struct Question {
    pub(super) kind: ProbeKind,
    pub(super) handler: Handler,
    pub(super) timeout: Span,
    /// For a look: how long it may take until it is connected.
    pub(super) look: Option<Span>,
}

impl Question {
    /// Nobody is there. A look is over when the next one is due; a command runs and fails.
    pub(super) fn unanswered(self, latency: Span) -> ProbeReport {
        let latency = match (self.handler, self.look) {
            (Handler::Http | Handler::Tcp | Handler::Grpc, Some(connect)) => latency.min(connect),
            (Handler::Exec, _) | (_, None) => latency,
        };
        ProbeReport {
            reached: self.handler == Handler::Exec,
            ..report(
                ProbeOutcome::Failure,
                refusal(self.handler, Ailment::NotUpYet),
                latency,
            )
        }
    }

    fn timed_out(self, ailment: Option<Ailment>) -> ProbeReport {
        if self.look.is_some() && ailment == Some(Ailment::NotUpYet) {
            return self.unanswered(self.timeout);
        }
        let detail = format!("timeout: no answer within {}", format_duration(self.timeout));
        ProbeReport {
            timed_out: true,
            ..report(ProbeOutcome::Failure, &detail, self.timeout)
        }
    }
}

/// A probe is judged by the moment it starts; an answer that takes as long as the timeout comes too late.
pub(super) fn answer_probe(process: &Process, now: Time, question: Question) -> ProbeReport {
    let Some(age) = process.age(now) else {
        return question.unanswered(Span::ZERO);
    };
    let health = process.health(question.kind);
    let ailment = health.ailment(age);
    if health.latency >= question.timeout {
        return question.timed_out(ailment);
    }
    match (ailment, question.handler) {
        // A connection is all that is asked for.
        (None, _) | (Some(Ailment::NotServing), Handler::Tcp) => {
            report(ProbeOutcome::Success, "ok", health.latency)
        }
        (Some(Ailment::NotUpYet), _) => question.unanswered(health.latency),
        (Some(ailment @ (Ailment::NotServing | Ailment::Deadlocked)), handler) => ProbeReport {
            reached: handler != Handler::Tcp,
            ..report(ProbeOutcome::Failure, refusal(handler, ailment), health.latency)
        },
    }
}

pub(super) fn report(outcome: ProbeOutcome, detail: &str, latency: Span) -> ProbeReport {
    ProbeReport {
        outcome,
        detail: detail.to_owned(),
        exit_code: None,
        latency,
        reached: true,
        timed_out: false,
        starved: false,
    }
}

fn refusal(handler: Handler, ailment: Ailment) -> &'static str {
    match (handler, ailment) {
        (Handler::Exec, _) => "exit code 1",
        (Handler::Http, Ailment::NotServing | Ailment::Deadlocked) => {
            "HTTP probe failed with statuscode: 503"
        }
        (Handler::Grpc, Ailment::NotServing | Ailment::Deadlocked) => {
            "service unhealthy (responded with \"NOT_SERVING\")"
        }
        (Handler::Http | Handler::Grpc, Ailment::NotUpYet) | (Handler::Tcp, _) => "connection refused",
    }
}
