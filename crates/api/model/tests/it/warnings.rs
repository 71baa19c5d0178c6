//! Warnings: those that are promised, and no others.

use pulselet_model::{GateSet, Profile};

use crate::{admit, manifest};

fn warnings(spec: &str, container: &str) -> Vec<String> {
    let admission = admit(&manifest(spec, container), Profile::Pulselet, GateSet::ALL).expect("is accepted");
    admission.warnings.iter().map(ToString::to_string).collect()
}

#[test]
fn signals_that_end_no_process_are_warned_of() {
    let warned = |signal: &str, profile| {
        let manifest = manifest(
            "os: {name: linux}",
            &format!("lifecycle: {{stopSignal: {signal}}}"),
        );
        let admission = admit(&manifest, profile, GateSet::ALL).expect("it is accepted");
        admission
            .warnings
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        warned("SIGWINCH", Profile::Pulselet),
        [
            "spec.containers[0].lifecycle.stopSignal: SIGWINCH ends no process that does not handle it; unless the program \
          does, every stop takes the whole grace period and ends with SIGKILL"
        ]
    );
    assert_eq!(
        warned("SIGSTOP", Profile::Pulselet),
        [
            "spec.containers[0].lifecycle.stopSignal: SIGSTOP ends no process and cannot be handled; every stop takes the \
          whole grace period and ends with SIGKILL"
        ]
    );
    for signal in ["SIGSTOP", "SIGCHLD", "SIGCONT", "SIGTSTP", "SIGURG"] {
        assert_eq!(warned(signal, Profile::Pulselet).len(), 1, "{signal}");
        assert_eq!(
            warned(signal, Profile::Kubernetes),
            [""; 0],
            "upstream has no such warning"
        );
    }
    for signal in ["SIGTERM", "SIGKILL", "SIGUSR1", "SIGRTMIN"] {
        assert_eq!(warned(signal, Profile::Pulselet), [""; 0], "{signal}");
    }
}

#[test]
fn a_probe_grace_above_that_of_the_pod() {
    let probe = "livenessProbe: {tcpSocket: {port: 80}, terminationGracePeriodSeconds: 60}";
    let found = warnings("", probe);
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with(
        "spec.containers[0].livenessProbe.terminationGracePeriodSeconds: 60 is longer than the pod's"
    ));
    assert_eq!(
        warnings("terminationGracePeriodSeconds: 60", probe),
        Vec::<String>::new()
    );
}

#[test]
fn two_ways_of_waiting_for_a_slow_start() {
    let liveness = "livenessProbe: {tcpSocket: {port: 80}, initializationFailureThreshold: 20}";
    assert_eq!(warnings("", liveness), Vec::<String>::new());
    let both = warnings(
        "",
        &format!("{liveness}, startupProbe: {{tcpSocket: {{port: 80}}}}"),
    );
    assert_eq!(both.len(), 1);
    assert!(both[0].contains("livenessProbe.initializationFailureThreshold"));
}

#[test]
fn an_initial_threshold_of_readiness_has_no_effect() {
    let probe = |threshold| {
        format!("readinessProbe: {{tcpSocket: {{port: 80}}, initializationFailureThreshold: {threshold}}}")
    };
    for threshold in [2, 20] {
        assert_eq!(
            warnings("", &probe(threshold)),
            [
                "spec.containers[0].readinessProbe.initializationFailureThreshold: has no effect; a container is not \
                 ready before its first success, whatever the number of failures"
            ]
        );
    }
    assert_eq!(warnings("", &probe(0)), [""; 0]);
}

#[test]
fn an_initial_threshold_below_the_other_is_raised() {
    let probe = |threshold| {
        format!(
            "livenessProbe: {{tcpSocket: {{port: 80}}, failureThreshold: 5, \
             initializationFailureThreshold: {threshold}}}"
        )
    };
    assert_eq!(
        warnings("", &probe(2)),
        [
            "spec.containers[0].livenessProbe.initializationFailureThreshold: 2 is raised to the failureThreshold (5)"
        ]
    );
    for threshold in [0, 5, 6] {
        assert_eq!(warnings("", &probe(threshold)), [""; 0], "{threshold}");
    }
}

#[test]
fn a_stop_signal_without_os() {
    let signal = "lifecycle: {stopSignal: SIGUSR1}";
    let found = warnings("", signal);
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("spec.os.name"));
    assert_eq!(warnings("os: {name: linux}", signal), Vec::<String>::new());
}

/// The situations of the proposals, each with the only warning it may draw.
#[test]
fn situations_of_the_proposals_draw_no_other_warnings() {
    let port = "httpGet: {path: /healthz, port: 8080}";
    for (spec, container) in [
        // A long grace period for the Pod, a short one for a hang.
        (
            "terminationGracePeriodSeconds: 3600",
            format!("livenessProbe: {{{port}, terminationGracePeriodSeconds: 60}}"),
        ),
        // The same as the proposal writes it: the port has a name, and a port of the host.
        (
            "terminationGracePeriodSeconds: 3600",
            "ports: [{name: liveness-port, containerPort: 8080, hostPort: 8080}], livenessProbe: {httpGet: {path: \
             /healthz, port: liveness-port}, failureThreshold: 1, periodSeconds: 60, \
             terminationGracePeriodSeconds: 60}"
                .to_owned(),
        ),
        // A start-up budget of five minutes.
        (
            "",
            format!(
                "startupProbe: {{{port}, failureThreshold: 30, periodSeconds: 10}}, livenessProbe: {{{port}}}"
            ),
        ),
        // Readiness twice a second.
        (
            "",
            format!("readinessProbe: {{{port}, periodSeconds: 1, periodMilliseconds: -500}}"),
        ),
        (
            "",
            format!("readinessProbe: {{{port}, periodSeconds: 1, periodMilliseconds: 500}}"),
        ),
        // One threshold for the start, another for later.
        (
            "",
            format!("livenessProbe: {{{port}, failureThreshold: 3, initializationFailureThreshold: 20}}"),
        ),
        // A stop signal of the manifest's choice.
        ("os: {name: linux}", "lifecycle: {stopSignal: SIGUSR1}".to_owned()),
    ] {
        assert_eq!(warnings(spec, &container), Vec::<String>::new(), "{container}");
    }
}
