//! What random worlds once found, kept as small as it was shrunk. The oracles are the judges.

use pulselet_engine::time::{Span, Time};
use pulselet_sim::faults::{Crash, CrashMoment, FaultPlan, Stall};
use pulselet_sim::scenario::Ending;

use crate::stage::Stage;

fn at(millis: u64) -> Time {
    Time::ZERO + Span::from_millis(millis)
}

fn faults() -> FaultPlan {
    FaultPlan {
        until: at(150_000),
        ..FaultPlan::default()
    }
}

/// A report that came before the agent had resumed set off a probe, and resuming asked for it once more.
#[test]
fn a_probe_is_not_asked_twice_after_a_crash() {
    let crash = Crash {
        at: at(42_854),
        down: Span::ZERO,
        moment: CrashMoment::BetweenSteps,
        loses_database: false,
    };
    let spec = "
containers:
- {name: web, image: x, readinessProbe: {tcpSocket: {port: 80}, periodSeconds: 10, successThreshold: 2}}";
    Stage::new(spec, "{}")
        .with_faults(FaultPlan {
            crashes: vec![crash],
            ..faults()
        })
        .lines("5m");
}

/// The signal of a first kill was still being reported when a delete shortened the grace period.
#[test]
fn a_grace_period_shortened_while_a_signal_is_on_its_way_is_kept() {
    let spec = "
containers:
- {name: app, image: x, livenessProbe: {tcpSocket: {port: 80}, periodSeconds: 10, failureThreshold: 1}}";
    let scenario =
        "{containers: {app: {lives: [{failsAt: 15s, handles: []}]}}, deleteAt: 21s, gracePeriodSeconds: 2}";
    for seed in 0..200 {
        let faults = FaultPlan {
            seed,
            report_delay: Span::from_secs(3),
            ..faults()
        };
        Stage::new(spec, scenario).with_faults(faults).lines("5m");
    }
}

/// SIGKILL was the stop signal, and the agent saw the exit only after the grace period.
#[test]
fn sigkill_as_the_stop_signal_is_never_exceeded() {
    let spec = "
os: {name: linux}
containers: [{name: app, image: x, lifecycle: {stopSignal: SIGKILL}}]";
    let scenario = "{deleteAt: 49s, gracePeriodSeconds: 1}";
    for seed in 0..200 {
        let stall = Stall {
            at: at(49_500),
            lasts: Span::from_secs(6),
        };
        let faults = FaultPlan {
            seed,
            report_delay: Span::from_secs(1),
            stalls: vec![stall],
            ..faults()
        };
        Stage::new(spec, scenario).with_faults(faults).lines("5m");
    }
}

/// The stop signal's report was on its way when a second delete asked for SIGKILL, whose report overtook it.
#[test]
fn a_sigkill_that_was_told_exceeds_nothing() {
    let spec = "containers: [{name: app, image: x}]";
    let ending = |millis, grace| Ending {
        at: at(millis),
        grace,
    };
    for seed in 0..200 {
        let faults = FaultPlan {
            seed,
            report_delay: Span::from_secs(2),
            ..faults()
        };
        let stage = Stage::new(spec, "containers: {app: {lives: [{handles: []}]}}").with(|scenario| {
            scenario.deletes = vec![ending(11_000, None), ending(12_000, Some(Span::ZERO))];
        });
        stage.with_faults(faults).lines("5m");
    }
}

/// A spare copy knew of failures from before the container was well again, and the agent that went on from it counted on.
#[test]
fn failures_from_before_a_lost_database_condemn_nobody() {
    let crash = Crash {
        at: at(132_254),
        down: Span::ZERO,
        moment: CrashMoment::AtRest,
        loses_database: true,
    };
    let spec = "
containers:
- name: app
  image: x
  livenessProbe: {httpGet: {port: 80}, timeoutSeconds: 3, periodSeconds: 10, failureThreshold: 4}
  readinessProbe: {tcpSocket: {port: 80}, periodSeconds: 1, failureThreshold: 1}";
    // Readiness stays, so that nothing is seen of the liveness probe's recovery.
    let scenario = "
containers:
  app:
    lives:
    - {startsAfter: 40s, listensAfter: 20s, failsAt: 124s, probes: {readiness: {failsAt: 3s, recoversAt: 7s}}}
    - {}";
    Stage::new(spec, scenario)
        .with_faults(FaultPlan {
            crashes: vec![crash],
            ..faults()
        })
        .lines("200s");
}
