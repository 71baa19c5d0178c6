//! Workloads after their creation: gates that go off and on, unchanged values, what may change, status.

use proptest::prelude::*;
use pulselet_model::{
    Gate, GateSet, Pod, Profile, Warning, WorkloadAdmission, WorkloadError, WorkloadKind,
    admit_workload_create, admit_workload_status, admit_workload_update, gates_in_use, hide_disabled,
    hide_workload, workload_gates_in_use,
};
use serde_json::{Value, json};

use crate::workloads::defaulted;

/// A container that uses the fields of every gate.
fn everything() -> Value {
    json!({
        "name": "app", "image": "app:1",
        "startupProbe": {"tcpSocket": {"port": 80}, "terminationGracePeriodSeconds": 5, "periodMilliseconds": 500},
        "livenessProbe": {
            "tcpSocket": {"port": 80}, "terminationGracePeriodSeconds": 7, "initialDelayMilliseconds": 100,
            "initializationFailureThreshold": 9,
        },
        "readinessProbe": {"tcpSocket": {"port": 80}, "periodMilliseconds": 250, "timeoutMilliseconds": -500},
        "lifecycle": {"stopSignal": "SIGUSR1"},
    })
}

/// An object of a kind, with this container in its template.
fn object(kind: WorkloadKind, container: &Value) -> Value {
    let ends = matches!(kind, WorkloadKind::Job | WorkloadKind::CronJob);
    let policy = if ends { "Never" } else { "Always" };
    let template = json!({
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [container], "restartPolicy": policy, "os": {"name": "linux"}},
    });
    let selector = json!({"matchLabels": {"a": "b"}});
    let mut object = match kind {
        WorkloadKind::PodTemplate => json!({"template": template}),
        WorkloadKind::CronJob => {
            json!({"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": template}}}})
        }
        WorkloadKind::Job => json!({"spec": {"template": template}}),
        WorkloadKind::ReplicationController => {
            json!({"spec": {"selector": {"a": "b"}, "template": template}})
        }
        WorkloadKind::Deployment
        | WorkloadKind::ReplicaSet
        | WorkloadKind::StatefulSet
        | WorkloadKind::DaemonSet => json!({"spec": {"selector": selector, "template": template}}),
    };
    object["metadata"] = json!({"name": "web"});
    defaulted(kind, object)
}

fn create(kind: WorkloadKind, object: Value, gates: GateSet) -> WorkloadAdmission {
    admit_workload_create(kind, object, Profile::Pulselet, gates).expect("it is accepted")
}

fn stored(kind: WorkloadKind) -> Value {
    create(kind, object(kind, &everything()), GateSet::ALL).object
}

fn update(kind: WorkloadKind, old: &Value, new: Value, gates: GateSet) -> WorkloadAdmission {
    admit_workload_update(kind, old, new, Profile::Pulselet, gates).expect("the update is accepted")
}

fn errors(result: Result<WorkloadAdmission, WorkloadError>) -> Vec<String> {
    match result {
        Ok(_) => Vec::new(),
        Err(WorkloadError::Invalid(errors)) => errors.iter().map(ToString::to_string).collect(),
        Err(error @ WorkloadError::Decode { .. }) => panic!("{error}"),
    }
}

fn container(kind: WorkloadKind, object: &Value) -> &Value {
    let pointer = format!("{}/spec/containers/0", kind.template_pointer());
    object.pointer(&pointer).expect("a container")
}

fn container_mut(kind: WorkloadKind, object: &mut Value) -> &mut Value {
    let pointer = format!("{}/spec/containers/0", kind.template_pointer());
    object.pointer_mut(&pointer).expect("a container")
}

fn off(gate: Gate) -> GateSet {
    GateSet::ALL.with(gate, false)
}

#[test]
fn templates_drop_what_pods_drop_with_the_whole_path() {
    for kind in WorkloadKind::ALL {
        for gate in Gate::ALL {
            if gate == Gate::ContainerStopSignals {
                continue;
            }
            let admission = create(kind, object(kind, &everything()), off(gate));
            let shown = hide_workload(kind, &stored(kind), Profile::Pulselet, off(gate));
            assert_eq!(
                container(kind, &admission.object),
                container(kind, &shown),
                "{gate}"
            );
            let prefix = format!("{}.spec.containers[0].", kind.template_path());
            let dropped: Vec<&Warning> = admission
                .warnings
                .iter()
                .filter(|warning| matches!(warning, Warning::Dropped { .. }))
                .collect();
            assert!(!dropped.is_empty(), "{gate}");
            for warning in dropped {
                assert!(warning.field().starts_with(&prefix), "{warning}");
            }
        }
    }
}

#[test]
fn a_new_stop_signal_is_rejected_while_its_gate_is_off() {
    let gates = off(Gate::ContainerStopSignals);
    for kind in WorkloadKind::ALL {
        let wanted = [format!(
            "{}.spec.containers[0].lifecycle.stopSignal: Forbidden: may not be set while the feature gate \
             ContainerStopSignals is off",
            kind.template_path()
        )];
        let new = object(kind, &everything());
        assert_eq!(
            errors(admit_workload_create(kind, new.clone(), Profile::Pulselet, gates)),
            wanted
        );
        // A v1.36 server drops it.
        let mut plain = new;
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            container_mut(kind, &mut plain)
                .as_object_mut()
                .expect("fields")
                .remove(probe);
        }
        let admission =
            admit_workload_create(kind, plain, Profile::Kubernetes, gates).expect("it is accepted");
        assert_eq!(container(kind, &admission.object).get("lifecycle"), None);
        if kind == WorkloadKind::Job {
            continue;
        }
        let old = stored(kind);
        let mut other = old.clone();
        container_mut(kind, &mut other)["lifecycle"]["stopSignal"] = json!("SIGINT");
        assert_eq!(
            errors(admit_workload_update(kind, &old, other, Profile::Pulselet, gates)),
            wanted
        );
    }
}

/// Labels, annotations, images and everything else can be written while gates are off.
#[test]
fn an_update_keeps_what_it_could_not_see() {
    for kind in WorkloadKind::ALL {
        let old = stored(kind);
        for gates in GateSet::combinations() {
            for sent in [hide_workload(kind, &old, Profile::Pulselet, gates), old.clone()] {
                let mut sent = sent;
                sent["metadata"]["labels"]["touched"] = json!("yes");
                let updated = update(kind, &old, sent, gates);
                assert_eq!(updated.warnings, [], "{gates}");
                assert_eq!(
                    updated.object.pointer(kind.template_pointer()),
                    old.pointer(kind.template_pointer()),
                    "{gates}"
                );
                assert_eq!(
                    updated.object["metadata"]["generation"], 1,
                    "no rollout under {gates}"
                );
                assert_eq!(
                    updated.object["metadata"].get("annotations"),
                    old["metadata"].get("annotations")
                );
            }
        }
    }
}

#[test]
fn containers_are_matched_by_name() {
    let kind = WorkloadKind::Deployment;
    let old = stored(kind);
    let gates = GateSet::NONE;
    let mut sent = hide_workload(kind, &old, Profile::Pulselet, gates);
    let containers = sent["spec"]["template"]["spec"]["containers"].as_array_mut();
    let containers = containers.expect("containers");
    containers.insert(0, json!({"name": "first", "image": "app:1"}));
    containers[1]["image"] = json!("app:2");
    let updated = update(kind, &old, sent, gates).object;
    let containers = &updated["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers[0].get("startupProbe"), None);
    let mut wanted = container(kind, &old).clone();
    wanted["image"] = json!("app:2");
    assert_eq!(containers[1], wanted);
    assert_eq!(updated["metadata"]["generation"], 2);
}

#[test]
fn reads_hide_in_templates_what_they_hide_in_pods() {
    let pod = |container: &Value| -> Pod {
        serde_json::from_value(json!({"spec": {"containers": [container]}})).expect("a pod")
    };
    for kind in WorkloadKind::ALL {
        let whole = stored(kind);
        assert_eq!(workload_gates_in_use(kind, &whole), GateSet::ALL);
        for gates in GateSet::combinations() {
            let shown = hide_workload(kind, &whole, Profile::Pulselet, gates);
            let wanted = hide_disabled(&pod(container(kind, &whole)), gates);
            assert_eq!(pod(container(kind, &shown)), wanted, "{gates}");
            assert_eq!(workload_gates_in_use(kind, &shown), gates_in_use(&wanted));
            // Hidden once is hidden, and what an update keeps is hidden again.
            assert_eq!(hide_workload(kind, &shown, Profile::Pulselet, gates), shown);
            let kept = update(kind, &whole, shown.clone(), gates).object;
            assert_eq!(hide_workload(kind, &kept, Profile::Pulselet, gates), shown);
            assert_eq!(hide_workload(kind, &kept, Profile::Pulselet, GateSet::ALL), whole);
        }
    }
}

#[test]
fn upstreams_profile_shows_upstreams_fields() {
    let kind = WorkloadKind::DaemonSet;
    let shown = hide_workload(kind, &stored(kind), Profile::Kubernetes, GateSet::ALL);
    let container = container(kind, &shown);
    assert_eq!(container.pointer("/readinessProbe/periodMilliseconds"), None);
    assert_eq!(
        container.pointer("/livenessProbe/initializationFailureThreshold"),
        None
    );
    assert_eq!(
        container.pointer("/lifecycle/stopSignal"),
        Some(&json!("SIGUSR1"))
    );
}

/// An object with values that a create would reject can still be written.
#[test]
fn an_update_never_fails_on_a_stored_value() {
    for kind in WorkloadKind::ALL {
        let mut old = stored(kind);
        let bad = container_mut(kind, &mut old);
        bad["livenessProbe"]["successThreshold"] = json!(7);
        bad["lifecycle"]["stopSignal"] = json!("NOPE");
        bad["imagePullPolicy"] = json!("Sometimes");
        if kind != WorkloadKind::PodTemplate {
            old["spec"]["replicas"] = json!(-1);
            old["spec"]["parallelism"] = json!(-1);
        }
        assert_ne!(
            errors(admit_workload_create(
                kind,
                old.clone(),
                Profile::Pulselet,
                GateSet::ALL
            )),
            Vec::<String>::new()
        );
        for gates in GateSet::combinations() {
            let mut sent = hide_workload(kind, &old, Profile::Pulselet, gates);
            sent["metadata"]["annotations"]["touched"] = json!("yes");
            let updated = update(kind, &old, sent, gates);
            assert_eq!(
                updated.object.pointer(kind.template_pointer()),
                old.pointer(kind.template_pointer()),
                "{gates}"
            );
        }
        // The template of a Job does not change, and a v1.36 server no longer checks that of a bad StatefulSet.
        if matches!(kind, WorkloadKind::Job | WorkloadKind::StatefulSet) {
            continue;
        }
        // Other bad values are rejected, even if their containers moved.
        let mut sent = old.clone();
        let list = format!("{}/spec/containers", kind.template_pointer());
        let containers = sent
            .pointer_mut(&list)
            .and_then(Value::as_array_mut)
            .expect("containers");
        containers.insert(
            0,
            json!({"name": "first", "image": "a", "imagePullPolicy": "Rarely"}),
        );
        let errors = errors(admit_workload_update(
            kind,
            &old,
            sent,
            Profile::Pulselet,
            GateSet::ALL,
        ));
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].contains("containers[0].imagePullPolicy: Unsupported value: \"Rarely\""));
    }
}

#[test]
fn a_status_write_does_not_look_at_the_template() {
    for kind in WorkloadKind::ALL {
        let mut old = stored(kind);
        container_mut(kind, &mut old)["lifecycle"]["stopSignal"] = json!("NOPE");
        let mut sent = json!({"metadata": old["metadata"], "spec": {"replicas": 99}, "template": {}});
        sent["status"] = json!({"observedGeneration": 1, "replicas": 1});
        sent["metadata"]["annotations"]["touched"] = json!("yes");
        let written = admit_workload_status(kind, &old, sent).expect("a status");
        assert_eq!(written["status"]["replicas"], 1);
        assert_eq!(written.get("spec"), old.get("spec"));
        assert_eq!(written.get("template"), old.get("template"));
        assert_eq!(written["metadata"]["annotations"]["touched"], "yes");
    }
    let kind = WorkloadKind::Deployment;
    let old = stored(kind);
    let bad = json!({"metadata": old["metadata"], "status": {"replicas": 1, "readyReplicas": 2, "availableReplicas": -1}});
    let Err(WorkloadError::Invalid(errors)) = admit_workload_status(kind, &old, bad) else {
        panic!("it is rejected");
    };
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        [
            "status.availableReplicas: Invalid value: -1: must be greater than or equal to 0",
            "status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas",
        ]
    );
}

fn changed(kind: WorkloadKind, pointer: &str, value: Value) -> Vec<String> {
    let old = stored(kind);
    let mut new = old.clone();
    let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
    new.pointer_mut(parent).expect("a parent")[field] = value;
    errors(admit_workload_update(
        kind,
        &old,
        new,
        Profile::Kubernetes,
        GateSet::ALL,
    ))
}

#[test]
fn some_fields_are_immutable() {
    let selector =
        json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "Exists"}]});
    let shown =
        "{\"matchLabels\":{\"a\":\"b\"},\"matchExpressions\":[{\"key\":\"a\",\"operator\":\"Exists\"}]}";
    for kind in [
        WorkloadKind::Deployment,
        WorkloadKind::ReplicaSet,
        WorkloadKind::DaemonSet,
    ] {
        let wanted = format!("spec.selector: Invalid value: {shown}: field is immutable");
        assert_eq!(changed(kind, "/spec/selector", selector.clone()), [wanted]);
    }
    let wanted = "spec: Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
                  'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                  'minReadySeconds' are forbidden";
    let stateful = WorkloadKind::StatefulSet;
    assert_eq!(changed(stateful, "/spec/selector", selector), [wanted]);
    assert_eq!(changed(stateful, "/spec/serviceName", json!("other")), [wanted]);
    for (pointer, value) in [
        ("/spec/replicas", json!(3)),
        ("/spec/ordinals", json!({"start": 1})),
        ("/spec/updateStrategy", json!({"type": "OnDelete"})),
    ] {
        assert_eq!(
            changed(stateful, pointer, value),
            Vec::<String>::new(),
            "{pointer}"
        );
    }
    let job = WorkloadKind::Job;
    assert_eq!(
        changed(job, "/spec/completions", json!(2)),
        ["spec.completions: Invalid value: 2: field is immutable"]
    );
    assert_eq!(changed(job, "/spec/parallelism", json!(2)), Vec::<String>::new());
    let errors = changed(job, "/spec/template/spec/containers/0/image", json!("app:2"));
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0].starts_with("spec.template: Invalid value: "),
        "{errors:?}"
    );
    assert!(errors[0].ends_with(": field is immutable"), "{errors:?}");
}

#[test]
fn a_suspended_job_can_get_other_resources_and_another_place() {
    let kind = WorkloadKind::Job;
    let mut old = stored(kind);
    old["spec"]["suspend"] = json!(true);
    let mut new = old.clone();
    let spec = &mut new["spec"]["template"]["spec"];
    spec["nodeSelector"] = json!({"zone": "a"});
    spec["containers"][0]["resources"] = json!({"limits": {"cpu": "1"}});
    assert_eq!(
        errors(admit_workload_update(
            kind,
            &old,
            new.clone(),
            Profile::Kubernetes,
            GateSet::ALL
        )),
        Vec::<String>::new()
    );
    old["status"] = json!({"active": 1});
    let errors = errors(admit_workload_update(
        kind,
        &old,
        new,
        Profile::Kubernetes,
        GateSet::ALL,
    ));
    assert!(
        errors[0].starts_with("spec.template: Invalid value: "),
        "{errors:?}"
    );
}

#[test]
fn a_daemon_set_counts_its_templates() {
    const COUNT: &str = "/metadata/annotations/deprecated.daemonset.template.generation";
    let kind = WorkloadKind::DaemonSet;
    let old = stored(kind);
    assert_eq!(old.pointer(COUNT), Some(&json!("1")));
    let mut new = old.clone();
    new["metadata"]["annotations"] = json!({"deprecated.daemonset.template.generation": "9"});
    let kept = update(kind, &old, new.clone(), GateSet::ALL).object;
    assert_eq!(kept.pointer(COUNT), Some(&json!("1")));
    container_mut(kind, &mut new)["image"] = json!("app:2");
    let changed = update(kind, &old, new, GateSet::ALL).object;
    assert_eq!(changed.pointer(COUNT), Some(&json!("2")));
    assert_eq!(changed["metadata"]["generation"], 2);
}

#[test]
fn max_unavailable_of_a_stateful_set_needs_its_gate() {
    let kind = WorkloadKind::StatefulSet;
    let mut new = object(kind, &everything());
    new["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] = json!(2);
    let admitted = create(kind, new, GateSet::ALL).object;
    let update = &admitted["spec"]["updateStrategy"]["rollingUpdate"];
    assert_eq!(update, &json!({"partition": 0}));
}

#[test]
fn warnings_have_the_whole_path_and_come_once() {
    for kind in WorkloadKind::ALL {
        let mut new = object(kind, &everything());
        let template = new.pointer_mut(kind.template_pointer()).expect("a template");
        template["spec"].as_object_mut().expect("fields").remove("os");
        template["metadata"]["annotations"] = json!({"pulselet.dev/probes": "nonsense"});
        let admission = create(kind, new, GateSet::ALL);
        let fields: Vec<&str> = admission.warnings.iter().map(Warning::field).collect();
        let at = |field: &str| format!("{}.{field}", kind.template_path());
        let wanted = [
            at("metadata.annotations[pulselet.dev/probes]"),
            at("spec.containers[0].livenessProbe.initializationFailureThreshold"),
            at("spec.containers[0].lifecycle.stopSignal"),
        ];
        assert_eq!(fields, wanted);
        let again = update(kind, &admission.object, admission.object.clone(), GateSet::ALL);
        assert_eq!(again.warnings, []);
    }
}

fn any_gates() -> impl Strategy<Value = GateSet> {
    proptest::collection::vec(any::<bool>(), Gate::ALL.len()).prop_map(|on| {
        let gates = Gate::ALL.into_iter().zip(on);
        gates.fold(GateSet::ALL, |gates, (gate, on)| gates.with(gate, on))
    })
}

fn any_probe() -> impl Strategy<Value = Value> {
    let offset = proptest::option::of(-1200..1200);
    let grace = proptest::option::of(-1_i64..40);
    (offset.clone(), offset, grace, -2..5, 0..3).prop_map(|(period, timeout, grace, threshold, success)| {
        json!({
            "tcpSocket": {"port": 80}, "periodMilliseconds": period, "timeoutMilliseconds": timeout,
            "terminationGracePeriodSeconds": grace, "initializationFailureThreshold": threshold,
            "successThreshold": success,
        })
    })
}

/// A container with good and bad values of the fields that gates govern.
fn any_container() -> impl Strategy<Value = Value> {
    let probe = || proptest::option::of(any_probe());
    let signal = proptest::option::of(proptest::sample::select(vec!["SIGTERM", "SIGCHLD", "NOPE"]));
    (probe(), probe(), probe(), signal).prop_map(|(startup, liveness, readiness, signal)| {
        let mut container = json!({"name": "app", "image": "app:1"});
        for (field, probe) in [
            ("startupProbe", startup),
            ("livenessProbe", liveness),
            ("readinessProbe", readiness),
        ] {
            if let Some(probe) = probe {
                container[field] = probe;
            }
        }
        if let Some(signal) = signal {
            container["lifecycle"] = json!({"stopSignal": signal});
        }
        container
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Twice admitted is once admitted, and a read and a write under any gates change nothing.
    #[test]
    fn admission_is_idempotent(
        container in any_container(),
        kind in proptest::sample::select(WorkloadKind::ALL.to_vec()),
        (first, then) in (any_gates(), any_gates()),
    ) {
        let created = admit_workload_create(kind, object(kind, &container), Profile::Pulselet, first);
        if let Ok(admission) = created {
            let again = create(kind, admission.object.clone(), first);
            prop_assert_eq!(&again.object, &admission.object);
            let shown = hide_workload(kind, &admission.object, Profile::Pulselet, then);
            let kept = update(kind, &admission.object, shown, then);
            prop_assert_eq!(&kept.object, &admission.object);
            prop_assert_eq!(kept.warnings, []);
        }
    }

    /// A stored object can be read and written back, even if a create would reject it.
    #[test]
    fn an_unchanged_template_is_always_accepted(
        container in any_container(),
        kind in proptest::sample::select(WorkloadKind::ALL.to_vec()),
        gates in any_gates(),
    ) {
        let mut old = stored(kind);
        let mut container = container;
        container["resources"] = json!({});
        *container_mut(kind, &mut old) = container;
        let shown = hide_workload(kind, &old, Profile::Pulselet, gates);
        let result = admit_workload_update(kind, &old, shown.clone(), Profile::Pulselet, gates);
        prop_assert_eq!(errors(result), Vec::<String>::new());
        let updated = update(kind, &old, shown, gates).object;
        // The stored template gets the defaults that it lacks; nothing else changes.
        let again = update(kind, &old, old.clone(), GateSet::ALL).object;
        prop_assert_eq!(updated, again);
    }
}
