//! How advice reads: one sentence each, in the manifest's own field names, with its numbers.

use std::fmt;

use pulselet_engine::plan::ProbeKind;
use pulselet_engine::time::Span;

use super::{Advice, SHORT_GRACE_SECONDS, StartRemedy, StartupProbe};
use crate::timing::MINIMUM_GRACE;

/// A span that reads as seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seconds(pub Span);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.0.as_secs_f64())
    }
}

impl StartupProbe {
    fn budget(self) -> Seconds {
        Seconds(Span::from_secs(self.period_seconds) * self.failure_threshold)
    }
}

impl fmt::Display for StartupProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            period_seconds,
            failure_threshold,
        } = self;
        write!(
            f,
            "a startupProbe with periodSeconds: {period_seconds} and failureThreshold: {failure_threshold}"
        )
    }
}

impl fmt::Display for StartRemedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StartupProbe(probe) => write!(f, "{probe} gives it {}", probe.budget()),
            Self::InitialDelay => f.write_str("a longer initialDelaySeconds gives it more"),
        }
    }
}

fn long_grace(
    f: &mut fmt::Formatter<'_>,
    kind: ProbeKind,
    gone_by: Seconds,
    gone_by_then: Seconds,
) -> fmt::Result {
    let (subject, probe) = match kind {
        ProbeKind::Startup => ("a container that never comes up", "startup"),
        ProbeKind::Liveness | ProbeKind::Readiness => ("a wedged container", "liveness"),
    };
    write!(
        f,
        "{subject} is gone after {gone_by} at the latest; with terminationGracePeriodSeconds: {SHORT_GRACE_SECONDS} on \
         the {probe} probe after {gone_by_then}"
    )
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let minimum = Seconds(MINIMUM_GRACE);
        match self {
            Self::ShortStart { budget, remedy } => write!(
                f,
                "if its start can take longer than {budget}, liveness kills it; {remedy}"
            ),
            Self::ReadinessExpectsMore { delay, budget } => write!(
                f,
                "readiness first asks after {delay}, as if the start took that long, but liveness kills a container \
                 that is not up after {budget}"
            ),
            Self::DelayForStart { delay, instead } => write!(
                f,
                "for the first {delay} of every life a deadlock goes unnoticed; in place of the initial delay, \
                 {instead} gives the start {}, and liveness begins as soon as it is up",
                instead.budget()
            ),
            Self::ThresholdBehindStartup { threshold, never_up } => write!(
                f,
                "initializationFailureThreshold: {threshold} does not lengthen the start, which the startup probe \
                 guards; it only lets a container that never answers this probe live for {never_up} after that"
            ),
            Self::SameAsReadiness {
                detect,
                failure_threshold,
                relief,
            } => write!(
                f,
                "it asks the same as the readiness probe and gives up no later (after {detect} at most), so a \
                 container is killed when it should only lose its traffic; failureThreshold: {failure_threshold} \
                 would leave it {relief} to recover"
            ),
            Self::OneFailureKills { timeout } => write!(
                f,
                "a single answer that takes {timeout} kills the container; failureThreshold: 3 would forgive two in \
                 a row"
            ),
            Self::TimeoutBeyondPeriod {
                timeout,
                period,
                decision,
                shorter,
                decision_then,
            } => write!(
                f,
                "a probe may take {timeout} but the next is due after {period}: those that hang hold up the others, \
                 and the decision can take {decision}; with timeoutSeconds: {shorter} it takes {decision_then} at most"
            ),
            Self::HangsSlowDown {
                period,
                timeout,
                offset,
            } => hangs_slow_down(f, *period, *timeout, *offset),
            Self::LongGrace {
                kind,
                gone_by,
                gone_by_then,
            } => long_grace(f, *kind, *gone_by, *gone_by_then),
            Self::GraceAbovePod { probe, pod } => write!(
                f,
                "the probe's grace period of {probe} is longer than the pod's {pod}: a wedged container is given \
                 more time to stop than a healthy one"
            ),
            Self::HookCutOff { sleep, grace } => write!(
                f,
                "preStop sleeps {sleep}, but a kill by this probe allows {grace} in all: the hook is cut off and \
                 {minimum} are left for the stop signal"
            ),
            Self::SignalEndsNothing { signal, grace } if !signal.can_be_caught() => write!(
                f,
                "{signal} ends no process and cannot be handled: every stop takes {grace} and ends with SIGKILL"
            ),
            Self::SignalEndsNothing { signal, grace } => write!(
                f,
                "{signal} ends no process that does not handle it: unless the program does, every stop takes {grace} \
                 and ends with SIGKILL"
            ),
            Self::HookUsesGrace { sleep, grace } => write!(
                f,
                "preStop sleeps {sleep} of the pod's grace period of {grace}: {minimum} are left for the stop signal"
            ),
            Self::StartNoticedSooner {
                sooner,
                failure_threshold,
                budget,
            } => write!(
                f,
                "periodSeconds: 1, periodMilliseconds: -500, failureThreshold: {failure_threshold} would notice the \
                 end of the start up to {sooner} sooner and still give it {budget}"
            ),
            Self::ReadinessNoticedSooner {
                sooner,
                failure_threshold,
            } => readiness_noticed_sooner(f, *sooner, *failure_threshold),
        }
    }
}

fn hangs_slow_down(
    f: &mut fmt::Formatter<'_>,
    period: Seconds,
    timeout: Seconds,
    offset: i64,
) -> fmt::Result {
    write!(
        f,
        "against a server that accepts and hangs it asks every {timeout}, not every {period}: an attempt that hangs holds up \
         the next; timeoutSeconds: 1, timeoutMilliseconds: {offset} keeps the period"
    )
}

fn readiness_noticed_sooner(
    f: &mut fmt::Formatter<'_>,
    sooner: Seconds,
    failure_threshold: Option<u64>,
) -> fmt::Result {
    write!(
        f,
        "periodSeconds: 1, periodMilliseconds: -500 would notice readiness up to {sooner} sooner"
    )?;
    match failure_threshold {
        Some(same) => write!(f, "; with failureThreshold: {same} it gives up as late as now"),
        None => Ok(()),
    }
}
