//! Where a manifest works against itself, and what a field it does not use would change.
//!
//! Every piece of advice carries the numbers that make it checkable. They come from [`crate::timing`], from the
//! manifest as it is and as it would be with the advice taken. Silence is the normal case: what is merely unusual is
//! not mentioned. A field whose gate is off is never recommended.

mod wording;

use std::sync::Arc;

use pulselet_engine::plan::{ContainerPlan, HookPlan, PodPlan, ProbeKind, ProbePlan, Settings};
use pulselet_engine::time::Span;
use pulselet_model::{Container, Gate, GateSet, Probe};
use pulselet_vocabulary::Signal;

use crate::convert::manifest_probe;
use crate::timing::{MINIMUM_GRACE, ProbeTiming, probe_timing};
pub use wording::Seconds;

/// Without a startup probe, a start is given no more than this by default, and many programs need more at times.
const SHORT_BUDGET: Span = Span::from_secs(30);
/// A delay this long is there for the start-up, which a startup probe serves better.
const LONG_DELAY: Span = Span::from_secs(30);
/// The start-up budget that advice aims at.
const GENEROUS_BUDGET: Span = Span::from_secs(300);
/// A grace period this long is for work in progress; a wedged container has none.
const LONG_GRACE: Span = Span::from_secs(120);
/// The probe-level grace period that advice offers instead.
const SHORT_GRACE_SECONDS: u64 = 60;
/// The period before the first success that advice offers: allowed for every handler.
const FAST_PERIOD: Span = Span::from_millis(500);
/// An answer may take this long now and then without anything being wrong.
const HICCUP: Span = Span::from_secs(1);

/// One thing worth knowing about a probe or a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Liveness alone decides over the start-up, and soon.
    ShortStart { budget: Seconds, remedy: StartRemedy },
    /// Readiness waits for longer than liveness lets the container live.
    ReadinessExpectsMore { delay: Seconds, budget: Seconds },
    /// An initial delay stands in for a startup probe.
    DelayForStart { delay: Seconds, instead: StartupProbe },
    /// The initial threshold has nothing to do with the start-up when a startup probe guards it.
    ThresholdBehindStartup { threshold: u32, never_up: Seconds },
    /// Liveness kills at the moment readiness could have relieved the container.
    SameAsReadiness {
        detect: Seconds,
        failure_threshold: u64,
        relief: Seconds,
    },
    /// One slow answer is enough for a kill.
    OneFailureKills { timeout: Seconds },
    /// Probes that hang hold up those behind them.
    TimeoutBeyondPeriod {
        timeout: Seconds,
        period: Seconds,
        decision: Seconds,
        shorter: u64,
        decision_then: Seconds,
    },
    /// A server that accepts and hangs makes a fast probe a slow one.
    HangsSlowDown {
        period: Seconds,
        timeout: Seconds,
        /// The milliseconds that give a timeout of the period, beside `timeoutSeconds: 1`.
        offset: i64,
    },
    /// Something that does not work is given the time that work in progress needs.
    LongGrace {
        kind: ProbeKind,
        gone_by: Seconds,
        gone_by_then: Seconds,
    },
    /// A wedged container is given more time than a healthy one.
    GraceAbovePod { probe: Seconds, pod: Seconds },
    /// The hook does not fit into the grace period of this probe's kill.
    HookCutOff { sleep: Seconds, grace: Seconds },
    /// The stop signal ends no process that does not handle it.
    SignalEndsNothing { signal: Signal, grace: Seconds },
    /// The hook leaves the container next to nothing of the pod's grace period.
    HookUsesGrace { sleep: Seconds, grace: Seconds },
    /// A sub-second period would notice the end of the start sooner, with this threshold for the same budget.
    StartNoticedSooner {
        sooner: Seconds,
        failure_threshold: u64,
        budget: Seconds,
    },
    /// A sub-second period would notice readiness sooner, with this threshold to give up as late as now.
    ReadinessNoticedSooner {
        sooner: Seconds,
        failure_threshold: Option<u64>,
    },
}

impl Advice {
    /// Whether nothing is wrong and this only says what a field that is not used would change.
    pub fn is_offer(&self) -> bool {
        match self {
            Self::StartNoticedSooner { .. }
            | Self::ReadinessNoticedSooner { .. }
            | Self::HangsSlowDown { .. } => true,
            Self::ShortStart { .. }
            | Self::ReadinessExpectsMore { .. }
            | Self::DelayForStart { .. }
            | Self::ThresholdBehindStartup { .. }
            | Self::SameAsReadiness { .. }
            | Self::OneFailureKills { .. }
            | Self::TimeoutBeyondPeriod { .. }
            | Self::LongGrace { .. }
            | Self::GraceAbovePod { .. }
            | Self::HookCutOff { .. }
            | Self::SignalEndsNothing { .. }
            | Self::HookUsesGrace { .. } => false,
        }
    }
}

/// What would give a start-up more time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartRemedy {
    StartupProbe(StartupProbe),
    /// The gate of startup probes is off.
    InitialDelay,
}

/// A startup probe that could be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartupProbe {
    pub period_seconds: u64,
    pub failure_threshold: u64,
}

impl StartupProbe {
    /// One that gives at least this budget.
    fn for_budget(budget: Span, period: Span) -> Self {
        let period_seconds = whole_seconds(period).max(1);
        Self {
            period_seconds,
            failure_threshold: periods_in(budget, Span::from_secs(period_seconds)),
        }
    }
}

/// A container in its pod, as planned and as written.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub pod: &'a PodPlan,
    pub container: &'a ContainerPlan,
    pub manifest: &'a Container,
    pub gates: GateSet,
    pub settings: &'a Settings,
}

/// Advice about one probe, what matters most first.
pub fn about_probe(subject: &Subject<'_>, kind: ProbeKind) -> Vec<Advice> {
    let Some(probe) = subject.probe(kind) else {
        return Vec::new();
    };
    let of_kind = match kind {
        ProbeKind::Liveness => vec![
            start_up(&probe),
            threshold_behind_startup(&probe),
            same_as_readiness(&probe),
            one_failure_kills(&probe),
        ],
        ProbeKind::Startup | ProbeKind::Readiness => vec![],
    };
    let of_any = [
        timeout_beyond_period(&probe),
        grace_above_pod(&probe),
        hook_cut_off(&probe),
        long_grace(&probe),
        hangs_slow_down(&probe),
        notice_sooner(&probe),
    ];
    of_kind.into_iter().chain(of_any).flatten().collect()
}

/// Advice about a container as a whole, probed or not.
pub fn about_container(subject: &Subject<'_>) -> Vec<Advice> {
    let about = [signal_ends_nothing(subject), hook_uses_grace(subject)];
    about.into_iter().flatten().collect()
}

fn signal_ends_nothing(subject: &Subject<'_>) -> Option<Advice> {
    let signal = subject.container.stop_signal?;
    (!signal.default_action().ends_process()).then(|| Advice::SignalEndsNothing {
        signal,
        grace: Seconds(subject.pod.grace.unwrap_or(MINIMUM_GRACE)),
    })
}

fn hook_uses_grace(subject: &Subject<'_>) -> Option<Advice> {
    let (sleep, grace) = (subject.pre_stop_sleep()?, subject.pod.grace?);
    if grace.is_zero() || sleep.is_zero() || grace.saturating_sub(sleep) >= MINIMUM_GRACE {
        return None;
    }
    Some(Advice::HookUsesGrace {
        sleep: Seconds(sleep),
        grace: Seconds(grace),
    })
}

/// A probe under consideration.
struct Considered<'a> {
    subject: &'a Subject<'a>,
    plan: &'a Arc<ProbePlan>,
    manifest: &'a Probe,
    timing: ProbeTiming,
}

impl<'a> Subject<'a> {
    fn probe(&'a self, kind: ProbeKind) -> Option<Considered<'a>> {
        Some(Considered {
            subject: self,
            plan: self.container.probe(kind)?,
            manifest: manifest_probe(self.manifest, kind)?,
            timing: probe_timing(self.pod, self.container, kind, self.settings)?,
        })
    }

    fn pre_stop_sleep(&self) -> Option<Span> {
        match self.container.pre_stop? {
            HookPlan::Sleep(span) => Some(span),
            HookPlan::Run => None,
        }
    }
}

impl Considered<'_> {
    fn kind(&self) -> ProbeKind {
        self.timing.kind
    }

    fn gate(&self, gate: Gate) -> bool {
        self.subject.gates.enabled(gate)
    }

    /// The timing if the probe were changed.
    fn timing_with(&self, change: impl FnOnce(&mut ProbePlan)) -> Option<ProbeTiming> {
        let mut probe = ProbePlan::clone(self.plan);
        change(&mut probe);
        let mut container = self.subject.container.clone();
        let changed = Some(Arc::new(probe));
        match self.kind() {
            ProbeKind::Startup => container.startup = changed,
            ProbeKind::Liveness => container.liveness = changed,
            ProbeKind::Readiness => container.readiness = changed,
        }
        probe_timing(self.subject.pod, &container, self.kind(), self.subject.settings)
    }
}

/// How many periods cover a span.
fn periods_in(span: Span, period: Span) -> u64 {
    span.as_micros().div_ceil(period.as_micros().max(1)).max(1)
}

fn whole_seconds(span: Span) -> u64 {
    span.as_micros() / Span::from_secs(1).as_micros()
}

fn start_up(liveness: &Considered<'_>) -> Option<Advice> {
    let budget = liveness.timing.startup_budget?;
    let readiness = liveness.subject.container.readiness.as_ref();
    if let Some(delay) = readiness
        .map(|probe| probe.initial_delay)
        .filter(|delay| *delay >= budget)
    {
        return Some(Advice::ReadinessExpectsMore {
            delay: Seconds(delay),
            budget: Seconds(budget),
        });
    }
    let (delay, period) = (liveness.plan.initial_delay, liveness.plan.period);
    let has_startup = liveness.gate(Gate::StartupProbeEnabled);
    if delay >= LONG_DELAY && has_startup {
        let instead = StartupProbe::for_budget(budget, period);
        return Some(Advice::DelayForStart {
            delay: Seconds(delay),
            instead,
        });
    }
    let remedy = if has_startup {
        StartRemedy::StartupProbe(StartupProbe::for_budget(GENEROUS_BUDGET, period))
    } else {
        StartRemedy::InitialDelay
    };
    (budget <= SHORT_BUDGET).then_some(Advice::ShortStart {
        budget: Seconds(budget),
        remedy,
    })
}

fn threshold_behind_startup(liveness: &Considered<'_>) -> Option<Advice> {
    let threshold = liveness.plan.initial_failure_threshold;
    let idle = liveness.subject.container.startup.is_some() && threshold > liveness.plan.failure_threshold;
    let never_up = Seconds(liveness.timing.never_up.min);
    idle.then_some(Advice::ThresholdBehindStartup { threshold, never_up })
}

fn same_as_readiness(liveness: &Considered<'_>) -> Option<Advice> {
    let readiness = liveness.subject.probe(ProbeKind::Readiness)?;
    let detect = liveness.timing.detect.max;
    if !same_handler(liveness.manifest, readiness.manifest) || detect > readiness.timing.detect.max {
        return None;
    }
    let readiness_run = readiness.timing.period_after * u64::from(readiness.plan.failure_threshold);
    let failure_threshold = 2 * periods_in(readiness_run, liveness.timing.period_after);
    let later = liveness.timing_with(|probe| {
        probe.failure_threshold = u32::try_from(failure_threshold).unwrap_or(u32::MAX);
    })?;
    let relief = Seconds(later.detect.max.saturating_sub(readiness.timing.detect.max));
    Some(Advice::SameAsReadiness {
        detect: Seconds(detect),
        failure_threshold,
        relief,
    })
}

fn same_handler(one: &Probe, other: &Probe) -> bool {
    one.exec == other.exec
        && one.http_get == other.http_get
        && one.tcp_socket == other.tcp_socket
        && one.grpc == other.grpc
}

fn one_failure_kills(liveness: &Considered<'_>) -> Option<Advice> {
    let timeout = liveness.plan.timeout;
    let hasty = liveness.plan.failure_threshold == 1 && timeout <= HICCUP;
    hasty.then_some(Advice::OneFailureKills {
        timeout: Seconds(timeout),
    })
}

fn timeout_beyond_period(probe: &Considered<'_>) -> Option<Advice> {
    let (timeout, period) = (probe.plan.timeout, probe.plan.period_after);
    let shorter = whole_seconds(period);
    if timeout <= period || shorter == 0 {
        return None;
    }
    let then = probe.timing_with(|probe| probe.timeout = Span::from_secs(shorter))?;
    Some(Advice::TimeoutBeyondPeriod {
        timeout: Seconds(timeout),
        period: Seconds(period),
        decision: Seconds(probe.timing.detect.max),
        shorter,
        decision_then: Seconds(then.detect.max),
    })
}

/// A period below one second is kept only against answers that come in time or not at all.
fn hangs_slow_down(probe: &Considered<'_>) -> Option<Advice> {
    let (timeout, period) = (probe.plan.timeout, probe.plan.period);
    let is_fast = period < Span::from_secs(1) && timeout > period;
    // A manifest that sets the field has made its choice.
    let is_chosen = probe.manifest.timeout_milliseconds.is_some();
    if !is_fast || is_chosen || !probe.gate(Gate::SubSecondProbes) {
        return None;
    }
    let millis = i64::try_from(period.as_micros() / 1000).ok()?;
    Some(Advice::HangsSlowDown {
        period: Seconds(period),
        timeout: Seconds(timeout),
        offset: millis - 1000,
    })
}

fn grace_above_pod(probe: &Considered<'_>) -> Option<Advice> {
    let (own, pod) = (probe.plan.grace?, probe.subject.pod.grace?);
    (own > pod).then_some(Advice::GraceAbovePod {
        probe: Seconds(own),
        pod: Seconds(pod),
    })
}

/// Only for the probe's own grace period: the pod's concerns every stop, see [`about_container`].
fn hook_cut_off(probe: &Considered<'_>) -> Option<Advice> {
    let (grace, sleep) = (probe.plan.grace?, probe.subject.pre_stop_sleep()?);
    // Grace 0 asks for no hook and gets none.
    let cut_off = !grace.is_zero() && sleep > grace;
    cut_off.then_some(Advice::HookCutOff {
        sleep: Seconds(sleep),
        grace: Seconds(grace),
    })
}

fn long_grace(probe: &Considered<'_>) -> Option<Advice> {
    let stop = probe.timing.stop?;
    let offered = probe.gate(Gate::ProbeTerminationGracePeriod) && probe.plan.grace.is_none();
    if !offered || stop.grace < LONG_GRACE {
        return None;
    }
    let then = probe.timing_with(|probe| probe.grace = Some(Span::from_secs(SHORT_GRACE_SECONDS)))?;
    let (gone_by, gone_by_then) = (Seconds(probe.timing.gone_by?), Seconds(then.gone_by?));
    // SIGKILL as the stop signal waits for no grace period.
    (gone_by != gone_by_then).then_some(Advice::LongGrace {
        kind: probe.kind(),
        gone_by,
        gone_by_then,
    })
}

fn notice_sooner(probe: &Considered<'_>) -> Option<Advice> {
    // A manifest that sets the field has made its choice.
    let offered = probe.gate(Gate::SubSecondProbes) && probe.manifest.period_milliseconds.is_none();
    let sooner = Seconds(probe.plan.period.saturating_sub(FAST_PERIOD));
    if !offered || sooner.0.is_zero() {
        return None;
    }
    match probe.kind() {
        ProbeKind::Liveness => None,
        ProbeKind::Startup => {
            let budget = probe.timing.never_up.min;
            let failure_threshold = periods_in(budget, FAST_PERIOD);
            Some(Advice::StartNoticedSooner {
                sooner,
                failure_threshold,
                budget: Seconds(budget),
            })
        }
        ProbeKind::Readiness => {
            let threshold = u64::from(probe.plan.failure_threshold);
            let same = periods_in(probe.timing.period_after * threshold, Span::from_secs(1));
            let failure_threshold = (same != threshold).then_some(same);
            Some(Advice::ReadinessNoticedSooner {
                sooner,
                failure_threshold,
            })
        }
    }
}
