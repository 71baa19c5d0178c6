//! Gates off and on again: on create, on read, on update, with the stored object using the field or not.

use std::collections::BTreeSet;

use pulselet_model::{
    Admission, FieldError, Gate, GateSet, Pod, Profile, Warning, admit_create, admit_local, admit_update,
    gates_in_use, hide_disabled, keep_accepted,
};
use serde_json::Value;

use crate::{decode, manifest};

/// A container that uses the fields of every gate.
const EVERYTHING: &str = "startupProbe: {tcpSocket: {port: 80}, terminationGracePeriodSeconds: 5, periodSeconds: 1, \
                          periodMilliseconds: -500}, \
                          livenessProbe: {tcpSocket: {port: 80}, terminationGracePeriodSeconds: 7, \
                          initialDelayMilliseconds: 100, initializationFailureThreshold: 9}, \
                          readinessProbe: {tcpSocket: {port: 80}, periodMilliseconds: 250, \
                          timeoutMilliseconds: -500, \
                          initializationFailureThreshold: 4}, \
                          lifecycle: {stopSignal: SIGUSR1}";

fn pod(container: &str) -> Pod {
    decode(&manifest("os: {name: linux}", container), Profile::Pulselet).expect("decodes")
}

fn create(container: &str, gates: GateSet) -> (Pod, Vec<Warning>) {
    let admission = admit_create(pod(container), Profile::Pulselet, gates).expect("is accepted");
    (admission.pod, admission.warnings)
}

fn off(gate: Gate) -> GateSet {
    GateSet::ALL.with(gate, false)
}

/// The fields a gate governs, as JSON pointers below the container.
fn fields(gate: Gate) -> &'static [&'static str] {
    match gate {
        Gate::StartupProbeEnabled => &["/startupProbe"],
        Gate::ProbeTerminationGracePeriod => &[
            "/startupProbe/terminationGracePeriodSeconds",
            "/livenessProbe/terminationGracePeriodSeconds",
        ],
        Gate::SubSecondProbes => &[
            "/startupProbe/periodMilliseconds",
            "/livenessProbe/initialDelayMilliseconds",
            "/readinessProbe/periodMilliseconds",
            "/readinessProbe/timeoutMilliseconds",
        ],
        Gate::ContainerStopSignals => &["/lifecycle/stopSignal"],
        Gate::ProbeInitializationFailureThreshold => &[
            "/livenessProbe/initializationFailureThreshold",
            "/readinessProbe/initializationFailureThreshold",
        ],
    }
}

fn has(pod: &Pod, field: &str) -> bool {
    let container: Value = serde_json::to_value(&pod.spec.containers[0]).expect("serializes");
    container.pointer(field).is_some()
}

#[test]
fn the_gates_that_a_pod_uses_are_known() {
    let used = |container: &str| {
        let manifest = manifest("", container);
        gates_in_use(&decode(&manifest, Profile::Pulselet).expect("it decodes"))
    };
    assert_eq!(used(""), GateSet::NONE);
    assert_eq!(used("livenessProbe: {tcpSocket: {port: 1}}"), GateSet::NONE);
    let startup =
        "startupProbe: {tcpSocket: {port: 1}, terminationGracePeriodSeconds: 1, periodMilliseconds: 1}";
    let expected = GateSet::ALL
        .with(Gate::ContainerStopSignals, false)
        .with(Gate::ProbeInitializationFailureThreshold, false);
    assert_eq!(
        used(startup),
        expected,
        "a field of a field counts for both gates"
    );
    let signal = GateSet::NONE.with(Gate::ContainerStopSignals, true);
    assert_eq!(used("lifecycle: {stopSignal: SIGINT}"), signal);
}

#[test]
fn on_create_a_disabled_field_is_dropped_with_a_warning() {
    for gate in Gate::ALL {
        if gate == Gate::ContainerStopSignals {
            continue;
        }
        let (pod, warnings) = create(EVERYTHING, off(gate));
        for field in fields(gate) {
            assert!(!has(&pod, field), "{gate}: {field} is still there");
        }
        let dropped: Vec<&Warning> = warnings
            .iter()
            .filter(|warning| matches!(warning, Warning::Dropped { .. }))
            .collect();
        assert_eq!(dropped.len(), fields(gate).len(), "{gate}");
        for warning in dropped {
            assert!(warning.to_string().contains(gate.name()), "{warning}");
        }
        for other in Gate::ALL.into_iter().filter(|other| *other != gate) {
            for field in fields(other)
                .iter()
                .filter(|field| !field.starts_with(fields(gate)[0]))
            {
                assert!(has(&pod, field), "{gate} took {field} with it");
            }
        }
    }
}

#[test]
fn a_stop_signal_is_refused_while_its_gate_is_off() {
    let gates = off(Gate::ContainerStopSignals);
    let signal = "lifecycle: {stopSignal: SIGUSR1}";
    let errors = |result: Result<Admission, Vec<FieldError>>| -> Vec<String> {
        let errors = result.expect_err("refused").into_iter();
        errors.map(|error| error.to_string()).collect()
    };
    let refused = [
        "spec.containers[0].lifecycle.stopSignal: Forbidden: may not be set while the feature gate \
         ContainerStopSignals is off",
    ];
    assert_eq!(
        errors(admit_create(pod(signal), Profile::Pulselet, gates)),
        refused
    );
    let bad = "lifecycle: {stopSignal: NOPE}";
    assert_eq!(errors(admit_create(pod(bad), Profile::Pulselet, gates)), refused);
    // A mirror shows what a node runs anyway, and upstream drops it.
    let mut mirror = pod(signal);
    mirror.metadata.annotations = Some([("kubernetes.io/config.mirror".to_owned(), "u".to_owned())].into());
    mirror.spec.node_name = "here".to_owned();
    for (pod, profile) in [(mirror, Profile::Pulselet), (pod(signal), Profile::Kubernetes)] {
        let admission = admit_create(pod, profile, gates).expect("is accepted");
        assert!(!has(&admission.pod, "/lifecycle/stopSignal"));
        let dropped = |warning: &Warning| matches!(warning, Warning::Dropped { .. });
        assert!(admission.warnings.iter().any(dropped));
    }
    // An update that leaves the stored value alone, seen or not, is none of the gate's business.
    let (stored, _) = create(signal, GateSet::ALL);
    for update in [stored.clone(), hide_disabled(&stored, gates)] {
        let updated = admit_update(&stored, update, Profile::Pulselet, gates).expect("nothing changes");
        assert_eq!(
            (updated.pod.spec, updated.warnings),
            (stored.spec.clone(), Vec::new())
        );
    }
    let mut other = stored.clone();
    other.spec.containers[0]
        .lifecycle
        .as_mut()
        .expect("it has one")
        .stop_signal = Some("SIGINT".to_owned());
    assert_eq!(
        errors(admit_update(&stored, other, Profile::Pulselet, gates)),
        refused
    );
    let (plain, _) = create("", GateSet::ALL);
    assert_eq!(
        errors(admit_update(&plain, stored, Profile::Pulselet, gates)),
        refused
    );
}

/// Each field by itself: of those that are sent while their gates are off, the stored values draw no warning.
#[test]
fn a_hidden_value_sent_as_it_is_stored_draws_no_warning() {
    let (stored, _) = create(EVERYTHING, GateSet::ALL);
    let warned = |container: &str| -> Vec<String> {
        let admission = admit_update(&stored, pod(container), Profile::Pulselet, GateSet::NONE);
        let admission = admission.expect("the update is accepted");
        assert_eq!(admission.pod.spec, stored.spec, "the store keeps its values");
        let fields = admission
            .warnings
            .iter()
            .map(|warning| warning.field().to_owned());
        fields.collect()
    };
    let probes =
        "livenessProbe: {tcpSocket: {port: 80}LIVENESS}, readinessProbe: {tcpSocket: {port: 80}READINESS}";
    let sent = |signal: &str, liveness: &str, readiness: &str| {
        let probes = probes
            .replace("LIVENESS", liveness)
            .replace("READINESS", readiness);
        warned(&format!("{signal}{probes}"))
    };
    assert_eq!(sent("lifecycle: {stopSignal: SIGUSR1}, ", "", ""), [""; 0]);
    assert_eq!(
        sent(
            "",
            ", terminationGracePeriodSeconds: 7",
            ", periodMilliseconds: 250"
        ),
        [""; 0]
    );
    // Defaults that were left out make no other startup probe.
    let startup = "startupProbe: {tcpSocket: {port: 80}, terminationGracePeriodSeconds: 5, periodSeconds: 1, \
                   periodMilliseconds: -500}, ";
    assert_eq!(sent(startup, "", ""), [""; 0]);
    assert_eq!(
        sent(
            "",
            ", terminationGracePeriodSeconds: 7",
            ", periodMilliseconds: 300"
        ),
        ["spec.containers[0].readinessProbe.periodMilliseconds"]
    );
}

#[test]
fn a_pod_without_an_api_is_kept_as_it_is() {
    let (whole, _) = create(EVERYTHING, GateSet::ALL);
    for gates in GateSet::combinations() {
        let local = admit_local(pod(EVERYTHING), Profile::Pulselet, gates).expect("is accepted");
        assert_eq!(local.pod, whole, "{gates}");
        let closed = Gate::ALL.into_iter().filter(|gate| !gates.enabled(*gate));
        let ignored = local.warnings.iter().filter_map(|warning| match warning {
            Warning::Ignored { gate, .. } => Some(*gate),
            _ => None,
        });
        let ignored: BTreeSet<Gate> = ignored.collect();
        assert_eq!(ignored, closed.collect(), "{gates}");
    }
}

/// A node that no longer sees what it accepted goes on with it, but for the grace periods of probes.
#[test]
fn a_node_keeps_what_an_api_hides() {
    let (stored, _) = create(EVERYTHING, GateSet::ALL);
    for gates in GateSet::combinations() {
        let mut seen = hide_disabled(&stored, gates);
        keep_accepted(&mut seen, &stored);
        let kept = GateSet::ALL.with(
            Gate::ProbeTerminationGracePeriod,
            gates.enabled(Gate::ProbeTerminationGracePeriod),
        );
        assert_eq!(seen, hide_disabled(&stored, kept), "{gates}");
        // On again, all of it is back.
        let mut again = stored.clone();
        keep_accepted(&mut again, &seen);
        assert_eq!(again, stored, "{gates}");
    }
}

#[test]
fn with_all_gates_on_nothing_is_dropped() {
    let (pod, warnings) = create(EVERYTHING, GateSet::ALL);
    for field in Gate::ALL.iter().flat_map(|gate| fields(*gate)) {
        assert!(has(&pod, field), "{field}");
    }
    assert!(
        !warnings
            .iter()
            .any(|warning| matches!(warning, Warning::Dropped { .. }))
    );
}

#[test]
fn reads_hide_a_disabled_field_and_show_it_again() {
    let (stored, _) = create(EVERYTHING, GateSet::ALL);
    for gate in Gate::ALL {
        let shown = hide_disabled(&stored, off(gate));
        for field in fields(gate) {
            assert!(!has(&shown, field), "{gate}: {field}");
        }
        assert_eq!(hide_disabled(&stored, GateSet::ALL), stored);
    }
}

#[test]
fn an_update_does_not_lose_what_it_could_not_see() {
    let (stored, _) = create(EVERYTHING, GateSet::ALL);
    for gates in GateSet::combinations() {
        let mut update = hide_disabled(&stored, gates);
        update.metadata.labels = Some([("touched".to_owned(), "yes".to_owned())].into());
        let updated = admit_update(&stored, update, Profile::Pulselet, gates).expect("a label may change");
        assert_eq!(updated.pod.spec, stored.spec, "{gates}");
        assert!(updated.pod.metadata.labels.is_some());
        assert_eq!(updated.warnings, [], "{gates}");
    }
}

#[test]
fn an_update_cannot_bring_in_a_disabled_field() {
    let (stored, _) = create("livenessProbe: {tcpSocket: {port: 80}}", GateSet::ALL);
    let mut update = stored.clone();
    let probe = update.spec.containers[0].liveness_probe.as_mut().unwrap();
    probe.termination_grace_period_seconds = Some(5);
    let gates = off(Gate::ProbeTerminationGracePeriod);
    let updated = admit_update(&stored, update, Profile::Pulselet, gates).expect("the field is dropped");
    assert_eq!(updated.pod.spec, stored.spec);
    assert_eq!(updated.warnings.len(), 1);
}

#[test]
fn objects_without_the_fields_do_not_change() {
    let plain = "livenessProbe: {tcpSocket: {port: 80}}, readinessProbe: {tcpSocket: {port: 80}}, lifecycle: {preStop: \
                 {exec: {command: [a]}}}";
    let (reference, _) = create(plain, GateSet::ALL);
    for gates in GateSet::combinations() {
        let (pod, warnings) = create(plain, gates);
        assert_eq!((pod, warnings), (reference.clone(), Vec::new()), "{gates}");
        assert_eq!(hide_disabled(&reference, gates), reference, "{gates}");
    }
}

#[test]
fn a_dropped_field_is_not_validated() {
    let bad = "livenessProbe: {tcpSocket: {port: 80}, terminationGracePeriodSeconds: -5}";
    assert!(admit_create(pod(bad), Profile::Pulselet, GateSet::ALL).is_err());
    assert!(admit_create(pod(bad), Profile::Pulselet, GateSet::NONE).is_ok());
}
