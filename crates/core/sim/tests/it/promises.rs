//! What `explain` promises is what happens.

use std::fmt::Write as _;

use proptest::prelude::*;
use pulselet_engine::line::{KillReason, LineBody};
use pulselet_engine::plan::ProbeKind;
use pulselet_plan::timing::{ProbeTiming, probe_timing};

use crate::stage::{Stage, first};

/// A random probe and how long its answers take.
#[derive(Clone, Debug)]
struct Manifest {
    kind: ProbeKind,
    exec: bool,
    period: u32,
    offset: i32,
    timeout: u32,
    delay: u32,
    failures: u32,
    initial_failures: u32,
    grace: Option<u32>,
    pre_stop: Option<u32>,
    latency: u32,
}

fn manifests(kind: ProbeKind) -> impl Strategy<Value = Manifest> {
    let offsets = if kind == ProbeKind::Liveness {
        vec![0]
    } else {
        vec![0, -500, 250]
    };
    let initial = if kind == ProbeKind::Startup {
        0..1_u32
    } else {
        0..8
    };
    let shape = (
        any::<bool>(),
        1..12_u32,
        prop::sample::select(offsets),
        1..15_u32,
        0..8_u32,
    );
    let limits = (
        1..5_u32,
        initial,
        prop::option::of(0..20_u32),
        prop::option::of(1..25_u32),
        0..15_000_u32,
    );
    (shape, limits).prop_map(move |((exec, period, offset, timeout, delay), limits)| {
        let (failures, initial_failures, grace, pre_stop, latency) = limits;
        let grace = if kind == ProbeKind::Readiness { None } else { grace };
        Manifest {
            kind,
            exec,
            period,
            offset,
            timeout,
            delay,
            failures,
            initial_failures,
            grace,
            pre_stop,
            latency,
        }
    })
}

impl Manifest {
    /// The stage on which the container deadlocks at `deadlock`, in milliseconds, and ignores its stop signal.
    fn stage(&self, deadlock: u32) -> Stage {
        let handler = if self.exec {
            "exec: {command: [x]}"
        } else {
            "tcpSocket: {port: 80}"
        };
        let mut fields = format!(
            "{handler}, periodSeconds: {}, timeoutSeconds: {}, initialDelaySeconds: {}, failureThreshold: {}",
            self.period, self.timeout, self.delay, self.failures
        );
        let mut add = |key: &str, value: i64| write!(fields, ", {key}: {value}").expect("a String takes it");
        if self.offset != 0 {
            add("periodMilliseconds", self.offset.into());
        }
        if self.initial_failures != 0 {
            add("initializationFailureThreshold", self.initial_failures.into());
        }
        if let Some(grace) = self.grace {
            add("terminationGracePeriodSeconds", grace.into());
        }
        let hook = self.pre_stop.map_or_else(String::new, |seconds| {
            format!("\n  lifecycle: {{preStop: {{sleep: {{seconds: {seconds}}}}}}}")
        });
        let kind = self.kind.as_str();
        let spec = format!("containers:\n- name: app\n  image: x\n  {kind}Probe: {{{fields}}}{hook}");
        let latency = self.latency;
        let scenario = format!(
            "containers: {{app: {{lives: [{{failsAt: {deadlock}ms, handles: [], probeLatency: {latency}ms}}, {{}}]}}}}"
        );
        Stage::new(&spec, &scenario)
    }

    fn timing(&self, stage: &Stage) -> ProbeTiming {
        let container = &stage.blueprint.plan.containers[0];
        probe_timing(&stage.blueprint.plan, container, self.kind, &stage.settings).expect("it has the probe")
    }
}

fn is_probe_kill(body: &LineBody) -> bool {
    matches!(
        body,
        LineBody::Killing {
            reason: KillReason::LivenessProbe | KillReason::StartupProbe,
            ..
        }
    )
}

fn within(low: f64, value: f64, high: f64) -> Result<(), TestCaseError> {
    prop_assert!(
        low <= value + 1e-6 && value <= high + 1e-6,
        "{value} is not between {low} and {high}"
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn never_up_is_killed_and_gone_in_time(
        manifest in prop_oneof![manifests(ProbeKind::Startup), manifests(ProbeKind::Liveness)],
    ) {
        let stage = manifest.stage(0);
        let timing = manifest.timing(&stage);
        let lines = stage.lines("20m");
        let killed = first(&lines, is_probe_kill).expect("it is killed");
        let delay = f64::from(manifest.delay);
        let budget = timing.startup_budget.expect("it limits the start").as_secs_f64();
        within(budget, killed, delay + timing.never_up.max.as_secs_f64())?;
        let gone = first(&lines, |body| matches!(body, LineBody::Exited { .. })).expect("it is gone");
        let stop = timing.stop.expect("it is stopped").at_most.as_secs_f64();
        within(killed, gone, killed + stop)?;
    }

    #[test]
    fn a_deadlock_is_noticed_in_time(
        manifest in prop_oneof![manifests(ProbeKind::Liveness), manifests(ProbeKind::Readiness)],
        after in 0..40_000_u32,
    ) {
        // Answers must come in time, or nothing ever works.
        let manifest = Manifest { latency: manifest.latency % (manifest.timeout * 1000), ..manifest };
        // The first good answer is asked for one period after the delay at the latest.
        let up = (manifest.delay + manifest.period + 1) * 1000;
        let stage = manifest.stage(up + after);
        let timing = manifest.timing(&stage);
        let lines = stage.lines("20m");
        let noticed = match manifest.kind {
            ProbeKind::Readiness => first(&lines, |body| *body == LineBody::Unready),
            ProbeKind::Startup | ProbeKind::Liveness => first(&lines, is_probe_kill),
        };
        let noticed = noticed.expect("it is noticed");
        let deadlock = f64::from(up + after) / 1000.0;
        let earliest = timing.detect.min.saturating_sub(timing.overrun).as_secs_f64();
        within(earliest, noticed - deadlock, timing.detect.max.as_secs_f64())?;
        if let (Some(gone_by), Some(gone)) =
            (timing.gone_by, first(&lines, |body| matches!(body, LineBody::Exited { .. })))
        {
            within(0.0, gone - deadlock, gone_by.as_secs_f64())?;
        }
    }
}
