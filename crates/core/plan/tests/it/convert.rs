use std::sync::Arc;

use proptest::prelude::*;
use pulselet_engine::plan::{
    ContainerPlan, ExitCodeMatch, Handler, HookPlan, PodPlan, ProbeKind, ProbePlan, RestartAction,
    RestartPolicy, Role, Settings,
};
use pulselet_engine::time::Span;
use pulselet_model::{Gate, GateSet};
use pulselet_plan::PlanError;
use serde_json::{Value, json};

use crate::{plan, pod};

fn one_container(container: &Value) -> Value {
    let mut full = json!({"name": "app", "image": "app:1"});
    for (key, value) in container.as_object().expect("an object") {
        full[key] = value.clone();
    }
    json!({"containers": [full]})
}

fn probe_of(kind: ProbeKind, probe: &Value, gates: GateSet) -> ProbePlan {
    let field = format!("{}Probe", kind.as_str());
    let plan = plan(&one_container(&json!({ field: probe })), gates);
    ProbePlan::clone(plan.containers[0].probe(kind).expect("a probe"))
}

#[test]
fn an_empty_probe_gets_the_defaults() {
    let probe = probe_of(
        ProbeKind::Liveness,
        &json!({"httpGet": {"port": 80}}),
        GateSet::ALL,
    );
    assert_eq!(
        probe,
        ProbePlan {
            handler: Handler::Http,
            initial_delay: Span::ZERO,
            period: Span::from_secs(10),
            period_after: Span::from_secs(10),
            timeout: Span::from_secs(1),
            success_threshold: 1,
            failure_threshold: 3,
            initial_failure_threshold: 3,
            grace: None,
        }
    );
    let zeros = json!({"httpGet": {"port": 80}, "initialDelaySeconds": 0, "periodSeconds": 0, "timeoutSeconds": 0,
        "successThreshold": 0, "failureThreshold": 0});
    assert_eq!(
        probe_of(ProbeKind::Liveness, &zeros, GateSet::ALL),
        probe,
        "zero counts as unset"
    );
}

#[test]
fn milliseconds_are_an_offset_and_only_fast_periods_fall_back() {
    let periods = |seconds: i32, offset: i32| {
        let probe =
            json!({"tcpSocket": {"port": 80}, "periodSeconds": seconds, "periodMilliseconds": offset});
        let probe = probe_of(ProbeKind::Readiness, &probe, GateSet::ALL);
        (
            probe.period.as_micros() / 1000,
            probe.period_after.as_micros() / 1000,
        )
    };
    assert_eq!(periods(1, -500), (500, 1000));
    assert_eq!(periods(1, 500), (1500, 1500));
    assert_eq!(periods(0, 500), (10_500, 10_500));
    assert_eq!(periods(2, -500), (1500, 1500));
    assert_eq!(periods(1, -999), (200, 1000), "the floor of network probes");
}

#[test]
fn a_timeout_has_an_offset_too() {
    let timeout = |kind, seconds: i32, offset: i32, gates| {
        let probe =
            json!({"tcpSocket": {"port": 80}, "timeoutSeconds": seconds, "timeoutMilliseconds": offset});
        probe_of(kind, &probe, gates).timeout.as_micros() / 1000
    };
    let off = GateSet::ALL.with(Gate::SubSecondProbes, false);
    for (seconds, offset, expected) in [(1, -800, 200), (0, -900, 100), (2, 250, 2250), (1, -999, 100)] {
        assert_eq!(
            timeout(ProbeKind::Readiness, seconds, offset, GateSet::ALL),
            expected
        );
        assert_eq!(
            timeout(ProbeKind::Startup, seconds, offset, GateSet::ALL),
            expected
        );
    }
    assert_eq!(timeout(ProbeKind::Readiness, 1, -800, off), 1000);
    assert_eq!(timeout(ProbeKind::Liveness, 1, -800, GateSet::ALL), 1000);
}

#[test]
fn the_initial_threshold_is_never_below_the_other() {
    let threshold = |initial: i32| {
        let probe = json!({"exec": {"command": ["true"]}, "failureThreshold": 5, "initializationFailureThreshold": initial});
        probe_of(ProbeKind::Liveness, &probe, GateSet::ALL).initial_failure_threshold
    };
    assert_eq!([threshold(0), threshold(2), threshold(20)], [5, 5, 20]);
}

fn edit(probe: &mut Option<Arc<ProbePlan>>, change: fn(&mut ProbePlan)) {
    change(Arc::make_mut(probe.as_mut().expect("a probe")));
}

#[test]
fn each_gate_that_is_off_hides_its_fields_and_nothing_else() {
    let probe = json!({
        "grpc": {"port": 80}, "periodSeconds": 1, "periodMilliseconds": -500,
        "initialDelaySeconds": 3, "initialDelayMilliseconds": 250, "terminationGracePeriodSeconds": 7,
    });
    let mut liveness = probe.clone();
    liveness["initializationFailureThreshold"] = 30.into();
    let spec = one_container(&json!({
        "startupProbe": probe, "livenessProbe": liveness, "lifecycle": {"stopSignal": "SIGUSR1"},
    }));
    let with = |gate| plan(&spec, GateSet::ALL.with(gate, false));
    let all = plan(&spec, GateSet::ALL);
    let expect = |gate, change: fn(&mut ContainerPlan)| {
        let mut expected: PodPlan = all.clone();
        change(Arc::make_mut(&mut expected.containers[0]));
        assert_eq!(with(gate), expected, "{gate}");
    };
    expect(Gate::StartupProbeEnabled, |container| container.startup = None);
    expect(Gate::ContainerStopSignals, |container| {
        container.stop_signal = None;
    });
    expect(Gate::ProbeTerminationGracePeriod, |container| {
        edit(&mut container.startup, |probe| probe.grace = None);
        edit(&mut container.liveness, |probe| probe.grace = None);
    });
    expect(Gate::ProbeInitializationFailureThreshold, |container| {
        edit(&mut container.liveness, |probe| {
            probe.initial_failure_threshold = 3;
        });
    });
    expect(Gate::SubSecondProbes, |container| {
        edit(&mut container.startup, |probe| {
            probe.period = Span::from_secs(1);
            probe.initial_delay = Span::from_secs(3);
        });
        edit(&mut container.liveness, |probe| {
            probe.initial_delay = Span::from_secs(3);
        });
    });
}

#[test]
fn init_containers_come_first_and_only_sidecars_among_them_are_probed() {
    let probe = json!({"tcpSocket": {"port": 80}});
    let plan = plan(
        &json!({
            "restartPolicy": "Never",
            "initContainers": [
                {"name": "setup", "livenessProbe": probe},
                {"name": "proxy", "restartPolicy": "Always", "livenessProbe": probe},
            ],
            "containers": [{"name": "app"}, {"name": "retry", "restartPolicy": "OnFailure"}],
        }),
        GateSet::ALL,
    );
    let seen: Vec<_> = plan
        .containers
        .iter()
        .map(|container| {
            (
                &*container.name,
                container.role,
                container.restart,
                container.liveness.is_some(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("setup", Role::Init, RestartPolicy::Never, false),
            ("proxy", Role::Sidecar, RestartPolicy::Always, true),
            ("app", Role::Main, RestartPolicy::Never, false),
            ("retry", Role::Main, RestartPolicy::OnFailure, false),
        ]
    );
}

#[test]
fn hooks_rules_and_limits_are_carried_over() {
    let mut spec = one_container(&json!({
        "restartPolicy": "Never",
        "restartPolicyRules": [
            {"action": "Restart", "exitCodes": {"operator": "In", "values": [5]}},
            {"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0, 3]}},
        ],
        "lifecycle": {"postStart": {"exec": {"command": ["true"]}}, "preStop": {"sleep": {"seconds": 5}}},
    }));
    spec["terminationGracePeriodSeconds"] = 45.into();
    spec["activeDeadlineSeconds"] = 600.into();
    let plan = plan(&spec, GateSet::ALL);
    assert_eq!(
        (plan.grace, plan.active_deadline),
        (Some(Span::from_secs(45)), Some(Span::from_secs(600)))
    );
    let container = &plan.containers[0];
    assert_eq!(container.post_start, Some(HookPlan::Run));
    assert_eq!(container.pre_stop, Some(HookPlan::Sleep(Span::from_secs(5))));
    assert_eq!(container.restart_rules[1].matches, ExitCodeMatch::NotIn);
    assert_eq!(
        [0, 1, 3, 5].map(|code| container.action_after(code)),
        [
            None,
            Some(RestartAction::RestartAllContainers),
            None,
            Some(RestartAction::Restart)
        ],
        "the first rule that matches decides"
    );
}

#[test]
fn what_has_no_sensible_reading_is_an_error() {
    let error = |spec: Value| pulselet_plan::convert(&pod(&spec), GateSet::ALL).expect_err("an error");
    assert_eq!(error(json!({"containers": []})), PlanError::FindContainers);
    assert_eq!(
        error(one_container(&json!({"readinessProbe": {}}))),
        PlanError::FindHandler {
            container: "app".into(),
            kind: ProbeKind::Readiness
        }
    );
    assert_eq!(
        error(json!({"restartPolicy": "Maybe", "containers": [{"name": "app"}]})),
        PlanError::ReadRestartPolicy {
            owner: "the pod".into(),
            policy: "Maybe".into()
        }
    );
    assert!(matches!(
        error(one_container(
            &json!({"restartPolicyRules": [{"action": "Explode"}]})
        )),
        PlanError::ReadRestartAction { .. }
    ));
}

fn any_probe() -> impl Strategy<Value = Value> {
    let numbers = (
        any::<i32>(),
        any::<Option<i32>>(),
        any::<i32>(),
        any::<Option<i32>>(),
        any::<i32>(),
    );
    let more = (
        any::<i32>(),
        any::<i32>(),
        any::<Option<i64>>(),
        any::<i32>(),
        any::<bool>(),
    );
    (numbers, more).prop_map(
        |((delay, delay_ms, period, period_ms, timeout), (success, failure, grace, initial, exec))| {
            let handler = if exec {
                json!({"command": ["true"]})
            } else {
                json!({"port": 80})
            };
            json!({
                if exec { "exec" } else { "tcpSocket" }: handler,
                "initialDelaySeconds": delay, "initialDelayMilliseconds": delay_ms,
                "periodSeconds": period, "periodMilliseconds": period_ms, "timeoutSeconds": timeout,
                "successThreshold": success, "failureThreshold": failure,
                "terminationGracePeriodSeconds": grace, "initializationFailureThreshold": initial,
            })
        },
    )
}

proptest! {
    /// Whatever is stored, the plan's promises hold: nothing divides by zero and no count starts at zero.
    #[test]
    fn odd_values_become_sane_ones(startup in any_probe(), liveness in any_probe(), readiness in any_probe(),
                                   pod_grace in any::<Option<i64>>(), deadline in any::<Option<i64>>()) {
        let mut spec = one_container(&json!({
            "startupProbe": startup, "livenessProbe": liveness, "readinessProbe": readiness,
        }));
        spec["terminationGracePeriodSeconds"] = json!(pod_grace);
        spec["activeDeadlineSeconds"] = json!(deadline);
        for gates in GateSet::combinations() {
            let plan = plan(&spec, gates);
            let container = &plan.containers[0];
            for probe in ProbeKind::ALL.into_iter().filter_map(|kind| container.probe(kind)) {
                let floor = if probe.handler == Handler::Exec { 500 } else { 200 };
                prop_assert!(probe.period >= Span::from_millis(floor));
                prop_assert!(probe.period_after >= Span::from_secs(1) && probe.period_after >= probe.period);
                prop_assert!(probe.timeout >= Span::from_secs(1));
                prop_assert!(probe.success_threshold >= 1 && probe.failure_threshold >= 1);
                prop_assert!(probe.initial_failure_threshold >= probe.failure_threshold);
            }
            prop_assert_eq!(container.startup.is_some(), gates.enabled(Gate::StartupProbeEnabled));
            let settings = Settings::default();
            for kind in ProbeKind::ALL {
                if let Some(timing) = pulselet_plan::timing::probe_timing(&plan, container, kind, &settings) {
                    prop_assert!(timing.detect.min <= timing.detect.max && timing.never_up.min <= timing.never_up.max);
                }
            }
        }
    }
}
