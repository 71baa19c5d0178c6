//! What may change in a stored Pod.

use pulselet_model::{GateSet, Pod, Profile, admit_create, admit_update};

use crate::{decode, manifest};

fn stored(spec: &str, container: &str) -> Pod {
    let pod = decode(&manifest(spec, container), Profile::Pulselet).expect("decodes");
    let mut pod = admit_create(pod, Profile::Pulselet, GateSet::ALL)
        .expect("is accepted")
        .pod;
    pod.metadata.uid = Some("u1".to_owned());
    "Running".clone_into(&mut pod.status.phase);
    pod
}

/// Changes a stored Pod and returns the errors as `field: message`.
fn update(old: &Pod, change: impl FnOnce(&mut Pod)) -> Vec<String> {
    let mut new = old.clone();
    change(&mut new);
    match admit_update(old, new, Profile::Kubernetes, GateSet::ALL) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn images_labels_and_shorter_deadlines_may_change() {
    let pod = stored("activeDeadlineSeconds: 100", "");
    let errors = update(&pod, |pod| {
        "app:2".clone_into(&mut pod.spec.containers[0].image);
        pod.spec.active_deadline_seconds = Some(50);
        pod.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    });
    assert_eq!(errors, Vec::<String>::new());
}

#[test]
fn a_probes_grace_cannot_be_taken_from_a_pod() {
    let liveness = "livenessProbe: {tcpSocket: {port: 80}, terminationGracePeriodSeconds: 5}";
    let pod = stored("", liveness);
    for other in [None, Some(6)] {
        let errors = update(&pod, |pod| {
            let probe = pod.spec.containers[0].liveness_probe.as_mut();
            probe.expect("it has one").termination_grace_period_seconds = other;
        });
        let named = "spec.containers[0].livenessProbe.terminationGracePeriodSeconds";
        assert!(errors.len() == 1 && errors[0].contains(named), "{errors:?}");
    }
}

#[test]
fn anything_else_of_the_spec_is_immutable_and_named() {
    let pod = stored("", "");
    let errors = update(&pod, |pod| {
        pod.spec.containers[0].command = vec!["sh".to_owned()];
        "Never".clone_into(&mut pod.spec.restart_policy);
    });
    assert_eq!(errors.len(), 1);
    assert!(errors[0].starts_with(
        "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    ));
    assert!(
        errors[0].ends_with("changed: spec.containers[0].command, spec.restartPolicy"),
        "{}",
        errors[0]
    );
}

#[test]
fn containers_cannot_come_or_go() {
    let pod = stored("", "");
    let errors = update(&pod, |pod| {
        let mut second = pod.spec.containers[0].clone();
        "second".clone_into(&mut second.name);
        pod.spec.containers.push(second);
    });
    assert_eq!(
        errors,
        ["spec.containers: Forbidden: pod updates may not add or remove containers"]
    );
}

#[test]
fn deadlines_go_down_only() {
    let pod = stored("activeDeadlineSeconds: 100", "");
    assert_eq!(
        update(&pod, |pod| pod.spec.active_deadline_seconds = Some(101)),
        ["spec.activeDeadlineSeconds: Invalid value: 101: must be less than or equal to previous value"]
    );
    assert_eq!(
        update(&pod, |pod| pod.spec.active_deadline_seconds = None),
        [
            "spec.activeDeadlineSeconds: Invalid value: null: must not update from a positive integer to nil value"
        ]
    );
}

#[test]
fn tolerations_are_only_added() {
    let pod = stored("tolerations: [{key: a, operator: Exists}]", "");
    let added = update(&pod, |pod| {
        let mut more = pod.spec.tolerations[0].clone();
        more.key = Some("b".to_owned());
        pod.spec.tolerations.push(more);
    });
    assert_eq!(added, Vec::<String>::new());
    assert_eq!(
        update(&pod, |pod| pod.spec.tolerations.clear()),
        ["spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"]
    );
}

#[test]
fn identity_is_immutable() {
    let pod = stored("", "");
    let errors = update(&pod, |pod| {
        pod.metadata.name = Some("other".to_owned());
        pod.metadata.uid = Some("u2".to_owned());
    });
    assert_eq!(
        errors,
        [
            "metadata.name: Invalid value: \"other\": field is immutable",
            "metadata.uid: Invalid value: \"u2\": field is immutable",
        ]
    );
}

#[test]
fn status_and_uid_stay_with_the_server() {
    let old = stored("", "");
    let mut new = old.clone();
    new.metadata.uid = None;
    "Failed".clone_into(&mut new.status.phase);
    let updated = admit_update(&old, new, Profile::Pulselet, GateSet::ALL)
        .expect("nothing changes")
        .pod;
    assert_eq!(updated, old);
}

#[test]
fn the_generation_counts_changes_of_the_spec() {
    let old = stored("", "");
    let mut new = old.clone();
    "app:2".clone_into(&mut new.spec.containers[0].image);
    let updated = admit_update(&old, new, Profile::Pulselet, GateSet::ALL)
        .expect("images may change")
        .pod;
    assert_eq!(updated.metadata.generation, Some(2));
}

/// Stored under the default profile, updated under upstream's: what was fine then is not held against a label.
#[test]
fn an_unchanged_value_never_fails_an_update() {
    let pod = stored(
        "",
        "livenessProbe: {tcpSocket: {port: 80}, terminationGracePeriodSeconds: 0}, lifecycle: {stopSignal: SIGUSR1}",
    );
    let errors = update(&pod, |pod| {
        pod.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    });
    assert_eq!(errors, Vec::<String>::new());
    let errors = update(&pod, |pod| {
        pod.metadata.labels = Some([("a b".to_owned(), "b".to_owned())].into());
    });
    assert_eq!(errors.len(), 1);
    assert!(errors[0].starts_with("metadata.labels: Invalid value: \"a b\""));
}
