//! Advice: which manifests get which sentence, and which get none.

use pulselet_engine::plan::Settings;
use pulselet_engine::time::Span;
use pulselet_model::{Gate, GateSet};
use pulselet_plan::explain;
use serde_json::{Value, json};

use crate::pod;

/// All advice about a pod of one container, a line each.
fn advice_under(gates: GateSet, grace: u64, container: &Value) -> String {
    let mut container = container.clone();
    container["name"] = "app".into();
    let pod = pod(&json!({"terminationGracePeriodSeconds": grace, "containers": [container]}));
    let explanation = explain(&pod, gates, &Settings::default()).expect("an explanation");
    let container = &explanation.containers[0];
    let mut lines: Vec<_> = container
        .advice
        .iter()
        .map(|advice| format!("container: {advice}"))
        .collect();
    for probe in &container.probes {
        lines.extend(
            probe
                .advice
                .iter()
                .map(|advice| format!("{}: {advice}", probe.timing.kind.as_str())),
        );
    }
    lines.join("\n")
}

fn advice(container: &Value) -> String {
    advice_under(GateSet::ALL, 30, container)
}

/// A probe of a port with these fields over the defaults.
fn probe(port: u16, fields: &Value) -> Value {
    let mut probe = json!({"httpGet": {"path": "/healthz", "port": port}});
    for (key, value) in fields.as_object().expect("an object") {
        probe[key] = value.clone();
    }
    probe
}

/// A liveness probe that gives no reason for advice, behind the startup probe that makes it so.
fn sound() -> Value {
    json!({
        "startupProbe": probe(80, &json!({"periodSeconds": 1, "periodMilliseconds": -500,
            "timeoutMilliseconds": -500, "failureThreshold": 600})),
        "livenessProbe": probe(80, &json!({})),
    })
}

#[test]
fn a_sound_container_gets_none() {
    assert_eq!(advice(&sound()), "");
    assert_eq!(advice(&json!({})), "");
    let mut with_readiness = sound();
    with_readiness["readinessProbe"] = probe(
        80,
        &json!({"periodSeconds": 1, "periodMilliseconds": -500, "timeoutMilliseconds": -500, "failureThreshold": 1}),
    );
    assert_eq!(advice(&with_readiness), "");
}

#[test]
fn a_fast_probe_is_slow_against_a_server_that_hangs() {
    let mut container = sound();
    container["readinessProbe"] = probe(
        81,
        &json!({"periodSeconds": 1, "periodMilliseconds": -800, "failureThreshold": 1}),
    );
    insta::assert_snapshot!(advice(&container), @"readiness: against a server that accepts and hangs it asks every 1 s, not every 0.2 s: an attempt that hangs holds up the next; timeoutSeconds: 1, timeoutMilliseconds: -800 keeps the period");
    container["readinessProbe"]["timeoutMilliseconds"] = (-800).into();
    assert_eq!(advice(&container), "", "the advice taken");
}

#[test]
fn a_signal_that_ends_nothing_is_named() {
    insta::assert_snapshot!(advice(&json!({"lifecycle": {"stopSignal": "SIGWINCH"}})), @"container: SIGWINCH ends no process that does not handle it: unless the program does, every stop takes 30 s and ends with SIGKILL");
    insta::assert_snapshot!(advice(&json!({"lifecycle": {"stopSignal": "SIGSTOP"}})), @"container: SIGSTOP ends no process and cannot be handled: every stop takes 30 s and ends with SIGKILL");
    for signal in ["SIGTERM", "SIGKILL", "SIGUSR1", "SIGRTMIN+3"] {
        assert_eq!(
            advice(&json!({"lifecycle": {"stopSignal": signal}})),
            "",
            "{signal}"
        );
    }
}

#[test]
fn liveness_alone_may_cut_the_start_short() {
    insta::assert_snapshot!(advice(&json!({"livenessProbe": probe(80, &json!({}))})), @"liveness: if its start can take longer than 30 s, liveness kills it; a startupProbe with periodSeconds: 10 and failureThreshold: 30 gives it 300 s");
    assert_eq!(
        advice(&json!({"livenessProbe": probe(80, &json!({"initializationFailureThreshold": 30}))})),
        ""
    );
    let gates = GateSet::ALL.with(Gate::StartupProbeEnabled, false);
    insta::assert_snapshot!(advice_under(gates, 30, &json!({"livenessProbe": probe(80, &json!({}))})), @"liveness: if its start can take longer than 30 s, liveness kills it; a longer initialDelaySeconds gives it more");
}

#[test]
fn readiness_may_expect_a_longer_start_than_liveness_allows() {
    let container = json!({
        "livenessProbe": probe(80, &json!({"periodSeconds": 20})),
        "readinessProbe": probe(81, &json!({"initialDelaySeconds": 60, "periodMilliseconds": 0})),
    });
    insta::assert_snapshot!(advice(&container), @"liveness: readiness first asks after 60 s, as if the start took that long, but liveness kills a container that is not up after 60 s");
}

#[test]
fn a_long_delay_is_a_startup_probe_in_disguise() {
    let container = json!({"livenessProbe": probe(80, &json!({"initialDelaySeconds": 120}))});
    insta::assert_snapshot!(advice(&container), @"liveness: for the first 120 s of every life a deadlock goes unnoticed; in place of the initial delay, a startupProbe with periodSeconds: 10 and failureThreshold: 15 gives the start 150 s, and liveness begins as soon as it is up");
}

#[test]
fn a_startup_probe_leaves_the_initial_threshold_nothing_to_do() {
    let mut container = sound();
    container["livenessProbe"]["initializationFailureThreshold"] = 30.into();
    insta::assert_snapshot!(advice(&container), @"liveness: initializationFailureThreshold: 30 does not lengthen the start, which the startup probe guards; it only lets a container that never answers this probe live for 300 s after that");
}

#[test]
fn liveness_should_be_slower_than_readiness() {
    let mut container = sound();
    container["readinessProbe"] = probe(80, &json!({"periodMilliseconds": 0}));
    insta::assert_snapshot!(advice(&container), @"liveness: it asks the same as the readiness probe and gives up no later (after 31 s at most), so a container is killed when it should only lose its traffic; failureThreshold: 6 would leave it 30 s to recover");
    container["livenessProbe"]["failureThreshold"] = 6.into();
    assert_eq!(advice(&container), "", "the advice taken");
    container["livenessProbe"]["failureThreshold"] = 3.into();
    container["livenessProbe"]["httpGet"]["path"] = "/livez".into();
    assert_eq!(advice(&container), "", "another question");
}

#[test]
fn one_failure_may_kill() {
    let mut container = sound();
    container["livenessProbe"]["failureThreshold"] = 1.into();
    insta::assert_snapshot!(advice(&container), @"liveness: a single answer that takes 1 s kills the container; failureThreshold: 3 would forgive two in a row");
    container["livenessProbe"]["timeoutSeconds"] = 10.into();
    assert_eq!(advice(&container), "", "ten seconds are no hiccup");
}

#[test]
fn a_timeout_may_reach_beyond_the_period() {
    let mut container = sound();
    container["livenessProbe"]["periodSeconds"] = 2.into();
    container["livenessProbe"]["timeoutSeconds"] = 5.into();
    insta::assert_snapshot!(advice(&container), @"liveness: a probe may take 5 s but the next is due after 2 s: those that hang hold up the others, and the decision can take 20 s; with timeoutSeconds: 2 it takes 8 s at most");
}

#[test]
fn a_long_grace_is_not_for_a_wedged_container() {
    insta::assert_snapshot!(advice_under(GateSet::ALL, 3600, &sound()), @r#"
    startup: a container that never comes up is gone after 3900.5 s at the latest; with terminationGracePeriodSeconds: 60 on the startup probe after 360.5 s
    liveness: a wedged container is gone after 3631 s at the latest; with terminationGracePeriodSeconds: 60 on the liveness probe after 91 s
    "#);
    let gates = GateSet::ALL.with(Gate::ProbeTerminationGracePeriod, false);
    assert_eq!(
        advice_under(gates, 3600, &sound()),
        "",
        "the field would be ignored"
    );
}

#[test]
fn a_probe_grace_above_the_pods_is_backwards() {
    let mut container = sound();
    container["livenessProbe"]["terminationGracePeriodSeconds"] = 60.into();
    insta::assert_snapshot!(advice(&container), @"liveness: the probe's grace period of 60 s is longer than the pod's 30 s: a wedged container is given more time to stop than a healthy one");
}

#[test]
fn a_hook_may_not_fit_into_the_grace() {
    let mut container = sound();
    container["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 20}}});
    assert_eq!(advice(&container), "", "ten seconds are left");
    container["livenessProbe"]["terminationGracePeriodSeconds"] = 10.into();
    insta::assert_snapshot!(advice(&container), @"liveness: preStop sleeps 20 s, but a kill by this probe allows 10 s in all: the hook is cut off and 2 s are left for the stop signal");
    container["livenessProbe"]["terminationGracePeriodSeconds"] = 0.into();
    assert_eq!(advice(&container), "", "no hook was asked for");
    container["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 30}}});
    insta::assert_snapshot!(advice(&container), @"container: preStop sleeps 30 s of the pod's grace period of 30 s: 2 s are left for the stop signal");
}

#[test]
fn sub_second_periods_are_offered_with_their_gain() {
    let container = |seconds: u32| {
        let fields = json!({"periodSeconds": seconds, "failureThreshold": 30});
        json!({"startupProbe": probe(80, &fields), "readinessProbe": probe(81, &fields)})
    };
    insta::assert_snapshot!(advice(&container(10)), @r#"
    startup: periodSeconds: 1, periodMilliseconds: -500, failureThreshold: 600 would notice the end of the start up to 9.5 s sooner and still give it 300 s
    readiness: periodSeconds: 1, periodMilliseconds: -500 would notice readiness up to 9.5 s sooner; with failureThreshold: 300 it gives up as late as now
    "#);
    insta::assert_snapshot!(advice(&container(1)), @r#"
    startup: periodSeconds: 1, periodMilliseconds: -500, failureThreshold: 60 would notice the end of the start up to 0.5 s sooner and still give it 30 s
    readiness: periodSeconds: 1, periodMilliseconds: -500 would notice readiness up to 0.5 s sooner
    "#);
    let gates = GateSet::ALL.with(Gate::SubSecondProbes, false);
    assert_eq!(advice_under(gates, 30, &container(10)), "");
}

#[test]
fn the_sub_second_advice_keeps_the_budget_it_promises() {
    let pod = pod(&json!({"containers": [{"name": "app", "startupProbe": sound()["startupProbe"]}]}));
    let explanation = explain(&pod, GateSet::ALL, &Settings::default()).expect("an explanation");
    let timing = explanation.containers[0].probes[0].timing;
    assert_eq!(timing.startup_budget, Some(Span::from_secs(300)));
}
