//! How long things take: the bounds that a plan and the rules of the engine imply.
//!
//! Everything here is arithmetic over the engine's own plan types. The numbers are bounds for a container that
//! behaves in one way (it never comes up; it works and then deadlocks) on a node that is not late:
//! - a probe takes between nothing (refused at once) and its timeout, whichever is worse for the bound;
//! - a probe is judged by the moment it starts;
//! - handler errors, agent restarts and the overload guard are not part of them: each may delay a decision. A restart
//!   may also bring one tick closer to the next, by less than a period; `never_up.min` holds even then.
//!
//! The simulator holds the engine to these bounds, so a change of the rules must change both.

use pulselet_engine::line::GraceFrom;
use pulselet_engine::plan::{
    ContainerPlan, HookPlan, PodPlan, ProbeKind, ProbePlan, Role, Settings, SubSecondPolicy,
};
use pulselet_engine::termination::{Grace, GraceSources};
use pulselet_engine::time::{Span, Time};
use pulselet_vocabulary::Signal;

/// What is left to a container after its stop signal when a hook used up the grace period, and the grace period where
/// nothing says another.
pub const MINIMUM_GRACE: Span = Span::from_secs(2);

/// The fastest and the slowest that something can take, both possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub min: Span,
    pub max: Span,
}

/// What one probe of one container implies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeTiming {
    pub kind: ProbeKind,
    /// Between two ticks until the probe has succeeded.
    pub period: Span,
    /// Between two ticks after that, under the node's sub-second policy.
    pub period_after: Span,
    /// From the clock's start (see [`clock_start`]) until the decision, if the probe never succeeds. `min` is exact:
    /// it is threshold x period, and a container that is up before it lives.
    pub never_up: Bounds,
    /// From the container's start until the kill is decided at the earliest, if it never comes up: what it is given
    /// to start. None where this probe does not limit the start: readiness, and liveness behind a startup probe.
    pub startup_budget: Option<Span>,
    /// From the beginning of a deadlock until the kill (liveness) or unreadiness (readiness) is decided, once the
    /// probe has succeeded. `min` is for failures that take no less than the last good answer; see `overrun`.
    /// A startup probe is silent after its success: for it, these are from the container's start, if it never comes up.
    pub detect: Bounds,
    /// By how much `detect.min` can be undercut when the last good answer was so slow that it overran a tick and the
    /// failures are quick. Zero where the timeout does not reach beyond the next tick.
    pub overrun: Span,
    /// How the kill that this probe decides goes on; none for readiness.
    pub stop: Option<StopTiming>,
    /// From the same moment as `detect` until nothing of this life is left, at the latest.
    pub gone_by: Option<Span>,
}

/// How a container that a probe condemned is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopTiming {
    pub grace: Span,
    pub from: GraceFrom,
    /// From the decision until SIGKILL, if nothing makes the container leave before: hook, grace, and what the hook
    /// took from it and gets back. Zero at grace 0.
    pub at_most: Span,
}

/// The timing of a container's probe; none if it has no probe of that kind.
pub fn probe_timing(
    pod: &PodPlan,
    container: &ContainerPlan,
    kind: ProbeKind,
    settings: &Settings,
) -> Option<ProbeTiming> {
    let probe = container.probe(kind)?;
    let period_after = period_after(probe, settings);
    let never_up = never_up(probe);
    let detect = match kind {
        ProbeKind::Startup => Bounds {
            min: probe.initial_delay + never_up.min,
            max: probe.initial_delay + never_up.max,
        },
        ProbeKind::Liveness | ProbeKind::Readiness => deadlock(probe, period_after),
    };
    let overrun = match kind {
        ProbeKind::Startup => Span::ZERO,
        ProbeKind::Liveness | ProbeKind::Readiness => overrun(probe, period_after),
    };
    let limits_start = match kind {
        ProbeKind::Startup => true,
        ProbeKind::Liveness => container.startup.is_none(),
        ProbeKind::Readiness => false,
    };
    let stop = stop_after_probe(pod, container, kind, settings);
    Some(ProbeTiming {
        kind,
        period: probe.period,
        period_after,
        never_up,
        startup_budget: limits_start.then_some(probe.initial_delay + never_up.min),
        detect,
        overrun,
        stop,
        gone_by: stop.map(|stop| detect.max + stop.at_most),
    })
}

/// When a probe's clock starts: its gate is open and its initial delay is over. `gate` is the moment the container
/// became started, for a startup probe the container's start.
pub fn clock_start(probe: &ProbePlan, container_start: Time, gate: Time) -> Time {
    gate.max(container_start + probe.initial_delay)
}

/// The grace period of a kill that this kind of probe decides, and how long it lasts at most. None for readiness.
pub fn stop_after_probe(
    pod: &PodPlan,
    container: &ContainerPlan,
    kind: ProbeKind,
    settings: &Settings,
) -> Option<StopTiming> {
    let probe_grace = match kind {
        ProbeKind::Startup | ProbeKind::Liveness => container.probe(kind)?.grace,
        ProbeKind::Readiness => return None,
    };
    let sources = GraceSources {
        probe: probe_grace,
        node: settings.probe_grace,
        pod: pod.grace,
        ..GraceSources::default()
    };
    let Grace { span, from } = sources.choose();
    Some(StopTiming {
        grace: span,
        from,
        at_most: stop_at_most(span, container.pre_stop, container.stop_signal),
    })
}

/// From a deletion that names no number until SIGKILL, at the latest. A sidecar may have to wait for its turn, which
/// counts like a hook.
pub fn stop_on_deletion(pod: &PodPlan, container: &ContainerPlan) -> Span {
    let before_signal = match container.role {
        Role::Sidecar => Some(HookPlan::Run),
        Role::Init | Role::Main | Role::Ephemeral => container.pre_stop,
    };
    stop_at_most(
        pod.grace.unwrap_or(MINIMUM_GRACE),
        before_signal,
        container.stop_signal,
    )
}

/// From the decision to SIGKILL at the latest. A stop signal that is SIGKILL itself waits for nothing but the hook.
pub fn stop_at_most(grace: Span, pre_stop: Option<HookPlan>, stop_signal: Option<Signal>) -> Span {
    if grace.is_zero() {
        return Span::ZERO;
    }
    let hook = match pre_stop {
        None => Span::ZERO,
        Some(HookPlan::Sleep(span)) => span.min(grace),
        Some(HookPlan::Run) => grace,
    };
    let after_signal = match (stop_signal, pre_stop) {
        (Some(signal), _) if signal.is_kill() => Span::ZERO,
        (Some(_) | None, None) => grace,
        (Some(_) | None, Some(_)) => grace.saturating_sub(hook).max(MINIMUM_GRACE),
    };
    hook + after_signal
}

/// The period once the probe has succeeded. Under `alwaysWhenWaitingForSuccess` too, because a deadlock begins while
/// the published result is success.
fn period_after(probe: &ProbePlan, settings: &Settings) -> Span {
    match settings.sub_second_policy {
        SubSecondPolicy::OnlyFirstTime | SubSecondPolicy::AlwaysWhenWaitingForSuccess => probe.period_after,
        SubSecondPolicy::Always => probe.period,
    }
}

/// From the clock's start until enough ticks have failed. Looks do not matter: one that hangs ends when the first tick
/// is due.
fn never_up(probe: &ProbePlan) -> Bounds {
    let ticks = u64::from(probe.initial_failure_threshold.max(probe.failure_threshold));
    // Each grid point is used once at most, so the n-th tick never comes before its place on the grid.
    let min = probe.period * ticks;
    let last_tick = if probe.timeout < probe.period {
        min
    } else {
        // Probes that time out follow each other at once.
        probe.period + probe.timeout * (ticks - 1)
    };
    Bounds {
        min,
        max: last_tick + probe.timeout,
    }
}

/// From a deadlock until enough ticks have failed, for a probe that has succeeded.
fn deadlock(probe: &ProbePlan, period: Span) -> Bounds {
    let ticks = u64::from(probe.failure_threshold);
    Bounds {
        // It begins right before a tick and every probe is refused at once.
        min: period * (ticks - 1),
        // It begins right after a tick was asked and every probe times out; one that takes longer than the period
        // is followed by the next at once.
        max: period.max(probe.timeout) * ticks + probe.timeout,
    }
}

/// A good answer that overran the next tick is followed by one at once, and then the grid is kept: these two can
/// be closer to each other than a period, once. Slow answers that follow each other can end anywhere between two ticks.
fn overrun(probe: &ProbePlan, period: Span) -> Span {
    if probe.failure_threshold < 2 || probe.timeout <= period {
        Span::ZERO
    } else {
        period
    }
}
