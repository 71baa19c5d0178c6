//! What the proposals say that the API refuses and accepts, in one place.

use pulselet_model::{GateSet, Profile};

use crate::{admit, decode, errors, manifest};

fn refused(spec: &str, container: &str) -> Vec<String> {
    errors(&manifest(spec, container), Profile::Pulselet)
}

#[test]
fn the_grace_of_a_probe_is_for_liveness_and_startup_and_not_negative() {
    let probe = |kind: &str, grace: i64| {
        refused(
            "",
            &format!("{kind}: {{tcpSocket: {{port: 1}}, terminationGracePeriodSeconds: {grace}}}"),
        )
    };
    for kind in ["livenessProbe", "startupProbe"] {
        assert_eq!(probe(kind, 60), [""; 0]);
        assert_eq!(probe(kind, 0), [""; 0], "stop at once");
        let errors = probe(kind, -1);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(
            errors[0].starts_with(&format!(
                "spec.containers[0].{kind}.terminationGracePeriodSeconds: Invalid value: -1"
            )),
            "{errors:?}"
        );
    }
    let errors = probe("readinessProbe", 60);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(
        errors[0].contains("readinessProbe.terminationGracePeriodSeconds")
            && errors[0].contains("must not be set"),
        "{errors:?}"
    );
}

#[test]
fn seconds_of_probes_are_not_negative() {
    for field in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds"] {
        for kind in ["livenessProbe", "readinessProbe", "startupProbe"] {
            let errors = refused("", &format!("{kind}: {{tcpSocket: {{port: 1}}, {field}: -1}}"));
            let expected = format!(
                "spec.containers[0].{kind}.{field}: Invalid value: -1: must be greater than or equal to 0"
            );
            assert_eq!(errors, [expected]);
        }
    }
}

#[test]
fn stop_signals_are_names_of_the_pods_system() {
    let signal = |os: &str, signal: &str| {
        refused(
            &format!("os: {{name: {os}}}"),
            &format!("lifecycle: {{stopSignal: {signal}}}"),
        )
    };
    for name in ["SIGTERM", "SIGKILL", "SIGUSR1", "SIGRTMIN+3"] {
        assert_eq!(signal("linux", name), [""; 0], "{name}");
    }
    for name in ["SIGFOO", "TERM", "sigterm", "\"\"", "\"15\""] {
        let errors = signal("linux", name);
        assert!(
            errors
                .iter()
                .any(|error| error.contains("lifecycle.stopSignal: Unsupported value")
                    && error.contains("\"SIGTERM\"")),
            "{name}: {errors:?}"
        );
    }
    for name in ["SIGTERM", "SIGKILL"] {
        assert_eq!(signal("windows", name), [""; 0], "{name}");
    }
    assert!(!signal("windows", "SIGUSR1").is_empty());
    let number = manifest("", "lifecycle: {stopSignal: 15}");
    let error = decode(&number, Profile::Pulselet).expect_err("it is not a string");
    assert!(error.to_string().contains("stopSignal"), "{error}");
    let without_os = manifest("", "lifecycle: {stopSignal: SIGUSR1}");
    assert!(admit(&without_os, Profile::Pulselet, GateSet::ALL).is_ok());
}
