//! What a resize may change: CPU and memory of containers that run, and not the class of the Pod.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::metadata;
use super::update::not_known;
use crate::field::{Errors, FieldError, Path};
use crate::pod::{Container, Pod};
use crate::qos;
use crate::resize::keep;
use pulselet_schema::Profile;

const MUTABLE: &str = "only cpu and memory resources are mutable";

/// All that is wrong with a resize. The Pods differ in nothing but what a resize may name.
pub(crate) fn validate_resize(new: &Pod, old: &Pod, profile: Profile) -> Vec<FieldError> {
    let mut errors = Errors::default();
    if let Some(why) = never_resized(old) {
        errors.forbidden(Path::new(""), why);
        return errors.into_vec();
    }
    let mut kept = not_known(Errors::default(), new, old, profile);
    let spec = Path::new("spec");
    let class = qos::class(&old.spec);
    if class != qos::class(&new.spec) {
        errors.invalid(
            spec,
            class,
            "Pod QOS Class may not change as a result of resizing",
        );
    }
    if !is_supported(old) {
        errors.forbidden(spec, "Pod running on node without support for resize");
    }
    let before = errors.len();
    check_order(
        &mut errors,
        "containers",
        &new.spec.containers,
        &old.spec.containers,
    );
    check_order(
        &mut errors,
        "initContainers",
        &new.spec.init_containers,
        &old.spec.init_containers,
    );
    if errors.len() == before {
        check_containers(
            &mut errors,
            "containers",
            &new.spec.containers,
            &old.spec.containers,
        );
        check_containers(
            &mut errors,
            "initContainers",
            &new.spec.init_containers,
            &old.spec.init_containers,
        );
    }
    kept.extend(errors.into_vec());
    kept
}

/// Why a Pod is never resized; `None` if it may be.
fn never_resized(pod: &Pod) -> Option<&'static str> {
    let annotations = pod.metadata.annotations.as_ref();
    if annotations.is_some_and(|all| all.contains_key(metadata::MIRROR_POD)) {
        return Some("static pods cannot be resized");
    }
    if pod.spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        return Some("windows pods cannot be resized");
    }
    let of_pod = pod.spec.resources.as_ref();
    let is_set =
        |list: &Option<BTreeMap<String, Quantity>>| list.as_ref().is_some_and(|list| !list.is_empty());
    let by_pod = of_pod.is_some_and(|it| is_set(&it.requests) || is_set(&it.limits));
    by_pod.then_some("resize of pods with pod-level resources is not supported")
}

/// A node that resizes says what its running containers have.
fn is_supported(pod: &Pod) -> bool {
    let mut statuses = pod.status.container_statuses.iter();
    let running = statuses.find(|status| status.state.running.is_some());
    running.is_none_or(|status| status.resources.is_some())
}

fn check_order(errors: &mut Errors, field: &'static str, new: &[Container], old: &[Container]) {
    let spec = Path::new("spec");
    let path = spec.child(field);
    if new.len() != old.len() {
        errors.forbidden(path, format!("{field} may not be added or removed on resize"));
        return;
    }
    for (index, (new, old)) in new.iter().zip(old).enumerate() {
        if new.name != old.name {
            let path = path.index(index);
            errors.forbidden(
                path.child("name"),
                format!("{field} may not be renamed or reordered on resize"),
            );
        }
    }
}

fn check_containers(errors: &mut Errors, field: &'static str, new: &[Container], old: &[Container]) {
    let spec = Path::new("spec");
    let path = spec.child(field);
    for (index, (new, old)) in new.iter().zip(old).enumerate() {
        let is_init = field == "initContainers";
        if is_init && !old.is_sidecar() {
            if new != old {
                errors.forbidden(spec, "resources for non-sidecar init containers are immutable");
            }
            continue;
        }
        let path = path.index(index);
        let resources = path.child("resources");
        for (side, new, old) in [
            ("requests", &new.resources.requests, &old.resources.requests),
            ("limits", &new.resources.limits, &old.resources.limits),
        ] {
            if is_removed(new.as_ref(), old.as_ref()) {
                errors.forbidden(
                    resources.child(side),
                    format!("resource {side} cannot be removed"),
                );
            }
        }
        let mut munged = new.clone();
        keep(&mut munged.resources, &old.resources);
        if munged != *old {
            errors.forbidden(spec, MUTABLE);
        }
    }
}

fn is_removed(new: Option<&BTreeMap<String, Quantity>>, old: Option<&BTreeMap<String, Quantity>>) -> bool {
    let mut names = old.into_iter().flat_map(BTreeMap::keys);
    names.any(|name| new.is_none_or(|list| !list.contains_key(name)))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ResourceRequirements;
    use serde_json::{Value, json};

    use crate::admission::{admit_create, admit_resize};
    use crate::gates::GateSet;
    use crate::pod::Pod;
    use pulselet_schema::Profile;

    fn stored(spec: &Value) -> Pod {
        let pod = json!({"metadata": {"name": "web", "namespace": "default"}, "spec": spec});
        let pod = serde_json::from_value(pod).expect("a pod");
        let admitted = admit_create(pod, Profile::Kubernetes, GateSet::ALL);
        admitted.expect("is allowed").pod
    }

    fn spec(resources: &Value) -> Value {
        json!({"containers": [{"name": "app", "image": "app:1", "resources": resources}]})
    }

    /// The fields and messages of what is wrong with a resize.
    fn refused(old: &Pod, change: impl FnOnce(&mut Pod)) -> Vec<String> {
        let mut new = old.clone();
        change(&mut new);
        let errors = admit_resize(old, new, Profile::Kubernetes, GateSet::ALL).err();
        let errors = errors.into_iter().flatten();
        errors
            .map(|error| format!("{}: {}", error.field, error.message))
            .collect()
    }

    fn set(pod: &mut Pod, resources: Value) {
        pod.spec.containers[0].resources = serde_json::from_value(resources).expect("resources");
    }

    #[test]
    fn cpu_and_memory_change_and_nothing_else_that_was_sent() {
        let old = stored(&spec(&json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}})));
        let mut new = old.clone();
        set(
            &mut new,
            json!({"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "3"}}),
        );
        new.spec.containers[0].image = "app:2".to_owned();
        new.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
        let admitted = admit_resize(&old, new, Profile::Kubernetes, GateSet::ALL).expect("is allowed");
        let pod = admitted.pod;
        let shown = serde_json::to_value(&pod.spec.containers[0].resources).expect("JSON");
        assert_eq!(
            shown,
            json!({"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "3"}})
        );
        assert_eq!(
            (&*pod.spec.containers[0].image, pod.metadata.labels),
            ("app:1", None)
        );
        assert_eq!(pod.metadata.generation, Some(2));
    }

    #[test]
    fn the_class_stays_and_nothing_is_taken_away() {
        let full =
            json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}});
        let old = stored(&spec(&full));
        let class = refused(&old, |pod| {
            set(
                pod,
                json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}),
            );
        });
        assert_eq!(
            class,
            ["spec: Invalid value: \"Guaranteed\": Pod QOS Class may not change as a result of resizing"]
        );
        let part = stored(&spec(
            &json!({"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}),
        ));
        let removed = refused(&part, |pod| {
            set(pod, json!({"requests": {"cpu": "1", "memory": "1Gi"}}));
        });
        assert_eq!(
            removed,
            ["spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed"]
        );
        let storage = refused(&part, |pod| {
            set(
                pod,
                json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi", "ephemeral-storage": "1Gi"}}),
            );
        });
        assert_eq!(
            storage,
            ["spec: Forbidden: only cpu and memory resources are mutable"]
        );
        let bad = refused(&part, |pod| {
            set(
                pod,
                json!({"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "1Gi"}}),
            );
        });
        assert!(
            bad[0].starts_with("spec.containers[0].resources.requests: Invalid value"),
            "{bad:?}"
        );
    }

    #[test]
    fn containers_stay_as_they_are() {
        let old = stored(&json!({
            "initContainers": [{"name": "first", "image": "app:1", "resources": {"requests": {"cpu": "1"}}}],
            "containers": [{"name": "app", "image": "app:1"}],
        }));
        let added = refused(&old, |pod| {
            let mut more = pod.spec.containers[0].clone();
            "more".clone_into(&mut more.name);
            pod.spec.containers.push(more);
        });
        assert_eq!(
            added,
            ["spec.containers: Forbidden: containers may not be added or removed on resize"]
        );
        let init = refused(&old, |pod| {
            let changed = json!({"requests": {"cpu": "2"}});
            pod.spec.init_containers[0].resources = serde_json::from_value(changed).expect("resources");
        });
        assert_eq!(
            init,
            ["spec: Forbidden: resources for non-sidecar init containers are immutable"]
        );
        let policy = refused(&old, |pod| {
            let restart = json!({"resourceName": "cpu", "restartPolicy": "RestartContainer"});
            pod.spec.containers[0].resize_policy = vec![serde_json::from_value(restart).expect("a policy")];
        });
        assert_eq!(
            policy,
            ["spec: Forbidden: only cpu and memory resources are mutable"]
        );
    }

    #[test]
    fn a_node_that_says_nothing_of_resources_does_not_resize() {
        let mut old = stored(&spec(&json!({"requests": {"cpu": "1"}})));
        let running = json!({"name": "app", "state": {"running": {}}});
        old.status.container_statuses = vec![serde_json::from_value(running).expect("a status")];
        let change = |pod: &mut Pod| set(pod, json!({"requests": {"cpu": "2"}}));
        assert_eq!(
            refused(&old, change),
            ["spec: Forbidden: Pod running on node without support for resize"]
        );
        old.status.container_statuses[0].resources = Some(ResourceRequirements::default());
        assert!(refused(&old, change).is_empty());
    }

    #[test]
    fn some_pods_are_never_resized() {
        let mut mirror = stored(&spec(&json!({"requests": {"cpu": "1"}})));
        mirror.metadata.annotations =
            Some([("kubernetes.io/config.mirror".to_owned(), "x".to_owned())].into());
        assert_eq!(
            refused(&mirror, |_| ()),
            [": Forbidden: static pods cannot be resized"]
        );
        let by_pod = stored(&json!({
            "containers": [{"name": "app", "image": "app:1"}], "resources": {"requests": {"cpu": "1"}},
        }));
        assert_eq!(
            refused(&by_pod, |_| ()),
            [": Forbidden: resize of pods with pod-level resources is not supported"]
        );
    }
}
