//! The bounds, against the engine's own schedule and worker.

use std::sync::Arc;

use proptest::prelude::*;
use pulselet_engine::io::ProbeOutcome;
use pulselet_engine::line::GraceFrom;
use pulselet_engine::plan::{Handler, HookPlan, ProbeKind, ProbePlan, Settings, SubSecondPolicy};
use pulselet_engine::schedule::{Contact, LookPolicy, Schedule, Turn};
use pulselet_engine::time::{Span, Time};
use pulselet_engine::worker::{LifeState, LifeView, Published, View, Worker};
use pulselet_model::GateSet;
use pulselet_plan::timing::{Bounds, ProbeTiming, probe_timing, stop_at_most};
use serde_json::{Value, json};

use crate::plan;

const SECOND: Span = Span::from_secs(1);

fn timing_of(spec: &Value, kind: ProbeKind, settings: &Settings) -> ProbeTiming {
    let plan = plan(spec, GateSet::ALL);
    probe_timing(&plan, &plan.containers[0], kind, settings).expect("a probe")
}

fn timing(container: &Value, kind: ProbeKind) -> ProbeTiming {
    let mut full = container.clone();
    full["name"] = "app".into();
    let spec = json!({"terminationGracePeriodSeconds": 30, "containers": [full]});
    timing_of(&spec, kind, &Settings::default())
}

fn seconds(bounds: Bounds) -> (f64, f64) {
    (bounds.min.as_secs_f64(), bounds.max.as_secs_f64())
}

#[test]
fn liveness_alone_limits_the_start() {
    let container = json!({"livenessProbe": {"tcpSocket": {"port": 80}, "initialDelaySeconds": 5,
        "initializationFailureThreshold": 20}});
    let timing = timing(&container, ProbeKind::Liveness);
    assert_eq!(timing.startup_budget, Some(Span::from_secs(205)));
    assert_eq!(seconds(timing.never_up), (200.0, 201.0));
    assert_eq!(seconds(timing.detect), (20.0, 31.0));
    assert_eq!(timing.gone_by, Some(Span::from_secs(61)));
}

#[test]
fn behind_a_startup_probe_liveness_does_not() {
    let container = json!({
        "startupProbe": {"tcpSocket": {"port": 80}, "failureThreshold": 30, "terminationGracePeriodSeconds": 0},
        "livenessProbe": {"tcpSocket": {"port": 80}},
    });
    let startup = timing(&container, ProbeKind::Startup);
    assert_eq!(startup.startup_budget, Some(Span::from_secs(300)));
    assert_eq!(seconds(startup.detect), (300.0, 301.0));
    assert_eq!(
        startup.gone_by,
        Some(Span::from_secs(301)),
        "grace 0 kills at once"
    );
    assert_eq!(timing(&container, ProbeKind::Liveness).startup_budget, None);
}

#[test]
fn readiness_kills_nothing_and_is_fast_until_it_succeeds() {
    let container = json!({"readinessProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 1,
        "periodMilliseconds": -500, "failureThreshold": 1}});
    let timing = timing(&container, ProbeKind::Readiness);
    assert_eq!(
        (timing.period, timing.period_after),
        (Span::from_millis(500), SECOND)
    );
    assert_eq!(seconds(timing.detect), (0.0, 2.0));
    assert_eq!(
        (timing.startup_budget, timing.stop, timing.gone_by),
        (None, None, None)
    );
}

#[test]
fn the_sub_second_policy_decides_the_period_of_detection() {
    let spec = json!({"containers": [{"name": "app", "readinessProbe": {"tcpSocket": {"port": 80},
        "periodSeconds": 1, "periodMilliseconds": -500}}]});
    let detect_min = |sub_second_policy| {
        let settings = Settings {
            sub_second_policy,
            ..Settings::default()
        };
        timing_of(&spec, ProbeKind::Readiness, &settings).detect.min
    };
    assert_eq!(detect_min(SubSecondPolicy::OnlyFirstTime), SECOND * 2);
    assert_eq!(
        detect_min(SubSecondPolicy::AlwaysWhenWaitingForSuccess),
        SECOND * 2
    );
    assert_eq!(detect_min(SubSecondPolicy::Always), SECOND);
}

#[test]
fn probes_that_time_out_beyond_the_period_follow_each_other() {
    let container =
        json!({"livenessProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 2, "timeoutSeconds": 5}});
    let timing = timing(&container, ProbeKind::Liveness);
    assert_eq!(seconds(timing.detect), (4.0, 20.0));
    assert_eq!(seconds(timing.never_up), (6.0, 17.0));
}

#[test]
fn a_hook_counts_within_the_grace_and_leaves_two_seconds() {
    let grace = Span::from_secs(30);
    let sleep = |seconds| Some(HookPlan::Sleep(Span::from_secs(seconds)));
    assert_eq!(stop_at_most(grace, None, None), grace);
    assert_eq!(stop_at_most(grace, sleep(10), None), grace);
    assert_eq!(stop_at_most(grace, sleep(29), None), Span::from_secs(31));
    assert_eq!(
        stop_at_most(grace, sleep(90), None),
        Span::from_secs(32),
        "it is cut off"
    );
    assert_eq!(
        stop_at_most(grace, Some(HookPlan::Run), None),
        Span::from_secs(32)
    );
    assert_eq!(stop_at_most(Span::ZERO, Some(HookPlan::Run), None), Span::ZERO);
    assert_eq!(
        stop_at_most(SECOND, None, None),
        SECOND,
        "the two seconds are for hooks only"
    );
}

#[test]
fn the_grace_of_a_probe_depends_on_nothing_else_of_it() {
    let stop = |fields: Value| {
        let mut probe = json!({"tcpSocket": {"port": 80}, "terminationGracePeriodSeconds": 60});
        probe
            .as_object_mut()
            .expect("an object")
            .extend(fields.as_object().expect("fields").clone());
        let timing = timing(&json!({"livenessProbe": probe}), ProbeKind::Liveness);
        timing.stop.expect("it kills")
    };
    let alone = stop(json!({}));
    assert_eq!((alone.grace, alone.from), (Span::from_secs(60), GraceFrom::Probe));
    for fields in [
        json!({"initialDelaySeconds": 600}),
        json!({"periodSeconds": 1, "timeoutSeconds": 1}),
        json!({"periodSeconds": 600, "timeoutSeconds": 300}),
        json!({"failureThreshold": 50, "initializationFailureThreshold": 90}),
    ] {
        assert_eq!(stop(fields.clone()), alone, "{fields}");
    }
}

#[test]
fn the_grace_comes_from_the_probe_then_the_pod() {
    let spec = |pod: Value, probe: Value| {
        json!({"terminationGracePeriodSeconds": pod, "containers": [{"name": "app",
            "livenessProbe": {"tcpSocket": {"port": 80}, "terminationGracePeriodSeconds": probe}}]})
    };
    let stop = |pod, probe| {
        let stop = timing_of(&spec(pod, probe), ProbeKind::Liveness, &Settings::default())
            .stop
            .expect("it kills");
        (stop.grace.as_secs_f64(), stop.from)
    };
    assert_eq!(stop(json!(3600), json!(60)), (60.0, GraceFrom::Probe));
    assert_eq!(stop(json!(3), json!(8)), (8.0, GraceFrom::Probe));
    assert_eq!(stop(json!(3600), json!(null)), (3600.0, GraceFrom::Pod));
    assert_eq!(stop(json!(null), json!(null)), (2.0, GraceFrom::Minimum));
}

/// One probe on a virtual clock that starts at zero: the engine's schedule and worker, with answers from a script.
struct Bench<'a> {
    kind: ProbeKind,
    probe: &'a ProbePlan,
    settings: Settings,
    latencies: std::iter::Cycle<std::slice::Iter<'a, u64>>,
}

/// A bench that ran this many probes without a verdict is stuck.
const MAX_PROBES: usize = 10_000;

impl Bench<'_> {
    /// A good answer comes within the timeout, a bad one by it.
    fn latency(&mut self, good: bool) -> Span {
        let permille = *self.latencies.next().expect("a cycle");
        let timeout = self.probe.timeout.as_micros();
        Span::from_micros(if good {
            (timeout - 1) * permille / 1000
        } else {
            timeout * permille / 1000
        })
    }

    /// Runs until a failure is published; returns when the first success was and when the failure is. `works` says
    /// whether a probe succeeds, given its start and the first success so far.
    fn failure_at(&mut self, works: impl Fn(Time, Option<Time>) -> bool) -> (Option<Time>, Time) {
        let policy = match self.kind {
            ProbeKind::Liveness => LookPolicy::None,
            ProbeKind::Startup | ProbeKind::Readiness if self.settings.looks => {
                LookPolicy::All(self.probe.handler)
            }
            ProbeKind::Startup | ProbeKind::Readiness => LookPolicy::FirstOnly,
        };
        let mut schedule = Schedule::new(Time::ZERO, self.probe.period, policy);
        let mut worker = Worker::new(self.kind, Arc::new(self.probe.clone()));
        let started = self.kind != ProbeKind::Startup;
        let life = LifeView {
            attempt: 0,
            state: LifeState::Running,
            age: Span::from_secs(1 << 40),
            started,
        };
        worker.tick(&View {
            pod_finished: false,
            pod_ending: false,
            life: Some(life),
        });
        let mut now = Time::ZERO;
        let mut first_success = None;
        for _ in 0..MAX_PROBES {
            now = now.max(schedule.due().expect("nothing is under way").at);
            let due = schedule.begin(now).expect("it is due");
            let works = works(now, first_success);
            let latency = self.latency(works);
            // A look is over when the first tick is due.
            let limit = match due.turn {
                Turn::Look => schedule.look_limits(now).answer,
                Turn::Tick => Span::from_micros(u64::MAX),
            };
            let good = works && latency < limit;
            now = now + latency.min(limit);
            let contact = match (good, works) {
                (true, _) => Contact::Success,
                (false, true) => Contact::Failure,
                (false, false) => Contact::None,
            };
            schedule.complete(now, contact);
            if !good && due.turn == Turn::Look {
                continue;
            }
            let outcome = if good {
                ProbeOutcome::Success
            } else {
                ProbeOutcome::Failure
            };
            match worker.record(outcome).published {
                Some(Published::Failure) => return (first_success, now),
                Some(Published::Success) if first_success.is_none() => {
                    first_success = Some(now);
                    let always = self.settings.sub_second_policy == SubSecondPolicy::Always;
                    if !always && self.probe.period_after != self.probe.period {
                        schedule.set_period(due.at, now, self.probe.period_after);
                    }
                }
                Some(Published::Success | Published::Unknown) | None => {}
            }
        }
        panic!("no verdict after {MAX_PROBES} probes");
    }
}

prop_compose! {
    fn any_plan()(
        handler in prop_oneof![Just(Handler::Exec), Just(Handler::Http)],
        seconds in 1_u64..8,
        fast in proptest::option::of(500_u64..1000),
        timeout in 1_u64..12,
        failure_threshold in 1_u32..6,
        initial in 0_u32..12,
    ) -> ProbePlan {
        let whole = Span::from_secs(seconds);
        let (period, period_after) = fast.map_or((whole, whole), |fast| (Span::from_millis(fast), SECOND));
        ProbePlan {
            handler, initial_delay: Span::ZERO, period, period_after, timeout: Span::from_secs(timeout),
            success_threshold: 1, failure_threshold,
            initial_failure_threshold: initial.max(failure_threshold), grace: None,
        }
    }
}

fn any_settings() -> impl Strategy<Value = Settings> {
    let policy = prop_oneof![
        Just(SubSecondPolicy::OnlyFirstTime),
        Just(SubSecondPolicy::Always)
    ];
    (any::<bool>(), policy).prop_map(|(looks, sub_second_policy)| Settings {
        looks,
        sub_second_policy,
        ..Settings::default()
    })
}

/// Permille of the timeout; the extremes are where the bounds are reached.
fn latencies() -> impl Strategy<Value = Vec<u64>> {
    let latency = prop_oneof![Just(0), Just(1000), 0_u64..=1000];
    prop_oneof![
        Just(vec![0]),
        Just(vec![1000]),
        proptest::collection::vec(latency, 1..12)
    ]
}

fn bounds_of(probe: &ProbePlan, kind: ProbeKind, settings: &Settings) -> ProbeTiming {
    let spec = json!({"containers": [{"name": "app", "startupProbe": {"tcpSocket": {"port": 80}},
        "livenessProbe": {"tcpSocket": {"port": 80}}, "readinessProbe": {"tcpSocket": {"port": 80}}}]});
    let pod = plan(&spec, GateSet::ALL);
    let mut container = (*pod.containers[0]).clone();
    let probe = Some(Arc::new(probe.clone()));
    match kind {
        ProbeKind::Startup => container.startup = probe,
        ProbeKind::Liveness => container.liveness = probe,
        ProbeKind::Readiness => container.readiness = probe,
    }
    probe_timing(&pod, &container, kind, settings).expect("a probe")
}

proptest! {
    #[test]
    fn a_container_that_never_comes_up_is_condemned_within_the_bounds(
        probe in any_plan(), settings in any_settings(), latencies in latencies(),
        kind in prop_oneof![Just(ProbeKind::Startup), Just(ProbeKind::Liveness), Just(ProbeKind::Readiness)],
    ) {
        let bounds = bounds_of(&probe, kind, &settings).never_up;
        let mut bench = Bench { kind, probe: &probe, settings, latencies: latencies.iter().cycle() };
        let took = bench.failure_at(|_, _| false).1.since(Time::ZERO);
        prop_assert!(bounds.min <= took && took <= bounds.max, "{took} is outside {bounds:?}");
        if latencies == [0] {
            prop_assert_eq!(took, bounds.min, "refused at once, the budget is exact");
        }
    }

    #[test]
    fn a_deadlock_is_detected_within_the_bounds(
        probe in any_plan(), settings in any_settings(), latencies in latencies(),
        kind in prop_oneof![Just(ProbeKind::Liveness), Just(ProbeKind::Readiness)],
        up_at in 0_u64..3000, after in 0_u64..30_000,
    ) {
        let timing = bounds_of(&probe, kind, &settings);
        // Up late, but early enough to live: this is about what happens after the first success.
        let up_at = Time::ZERO + Span::from_millis(up_at).min(timing.never_up.min);
        let mut bench = Bench { kind, probe: &probe, settings, latencies: latencies.iter().cycle() };
        let dead_after = Span::from_millis(after);
        let (first_success, condemned) = bench.failure_at(|start, first_success| {
            start >= up_at && first_success.is_none_or(|success| start < success + dead_after)
        });
        let dead_at = first_success.expect("it came up") + dead_after;
        let took = condemned.since(dead_at);
        let earliest = timing.detect.min.saturating_sub(timing.overrun);
        prop_assert!(earliest <= took && took <= timing.detect.max, "{took} is outside {timing:?}");
        let steady = latencies.iter().all(|latency| *latency == latencies[0]);
        prop_assert!(!steady || timing.detect.min <= took, "{took} undercuts {timing:?}");
    }
}
