//! Gates off and on again: on create, on read, on update, with the stored object using the field or not.

use pulselet_model::{Gate, GateSet, Pod, Profile, Warning, admit_create, admit_update, hide_disabled};
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
fn on_create_a_disabled_field_is_dropped_with_a_warning() {
    for gate in Gate::ALL {
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
    let bad = "livenessProbe: {tcpSocket: {port: 80}, terminationGracePeriodSeconds: -5}, lifecycle: {stopSignal: NOPE}";
    assert!(admit_create(pod(bad), Profile::Pulselet, GateSet::ALL).is_err());
    assert!(admit_create(pod(bad), Profile::Pulselet, GateSet::NONE).is_ok());
}
