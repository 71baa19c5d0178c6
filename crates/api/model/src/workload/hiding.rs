//! Templates as reads show them while gates are off.
//!
//! Fields are taken out of the JSON where it stands, so that everything else is shown as it is stored. Which fields a gate
//! governs is said in one place, for Pods and templates: `dropping`.

use serde_json::Value;

use super::{WorkloadKind, known_gates};
use crate::dropping::strip_container;
use crate::gates::{Gate, GateSet};
use crate::pod::Container;
use crate::template::strip_nulls;
use pulselet_schema::Profile;

/// Where a `ControllerRevision` has the template of its owner, below `data`.
const REVISION_TEMPLATE: &str = "/spec/template";

/// The object as reads and watches show it while some gates are off.
#[must_use]
pub fn hide_workload(kind: WorkloadKind, object: &Value, profile: Profile, gates: GateSet) -> Value {
    hide_at(kind.template_pointer(), object, known_gates(profile, gates))
}

/// The `data` of a `ControllerRevision` as reads and watches show it while some gates are off. Data of other shapes are
/// shown as they are.
#[must_use]
pub fn hide_revision_data(data: &Value, profile: Profile, gates: GateSet) -> Value {
    hide_at(REVISION_TEMPLATE, data, known_gates(profile, gates))
}

/// The `data` of a `ControllerRevision` that an update may have read while some gates are off: the stored data if nothing
/// that was shown is different. Anything else is a change, which the caller rejects.
#[must_use]
pub fn keep_hidden_revision_data(new: Value, old: &Value, profile: Profile, gates: GateSet) -> Value {
    let shown = hide_revision_data(old, profile, gates);
    if hide_revision_data(&new, profile, gates) == shown && !adds_to(&new, old) {
        old.clone()
    } else {
        new
    }
}

/// The gates whose fields the template of an object has.
#[must_use]
pub fn workload_gates_in_use(kind: WorkloadKind, object: &Value) -> GateSet {
    gates_in_use_at(kind.template_pointer(), object)
}

/// The gates whose fields the `data` of a `ControllerRevision` have.
#[must_use]
pub fn revision_gates_in_use(data: &Value) -> GateSet {
    gates_in_use_at(REVISION_TEMPLATE, data)
}

/// Whether data have a field or a value that the stored data lack.
fn adds_to(new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Object(new), Value::Object(old)) => new
            .iter()
            .any(|(name, value)| old.get(name).is_none_or(|old| adds_to(value, old))),
        (Value::Array(new), Value::Array(old)) => {
            new.len() != old.len() || new.iter().zip(old).any(|(new, old)| adds_to(new, old))
        }
        (new, old) => new != old,
    }
}

fn hide_at(pointer: &str, object: &Value, gates: GateSet) -> Value {
    let mut shown = object.clone();
    if gates == GateSet::ALL {
        return shown;
    }
    for container in containers_at(pointer, &mut shown) {
        for (field, _) in hidden_fields(container, gates) {
            remove(container, &field);
        }
    }
    shown
}

fn gates_in_use_at(pointer: &str, object: &Value) -> GateSet {
    let mut used = GateSet::NONE;
    for container in containers_at(pointer, &mut object.clone()) {
        for gate in Gate::ALL {
            let without = GateSet::ALL.with(gate, false);
            if !hidden_fields(container, without).is_empty() {
                used = used.with(gate, true);
            }
        }
    }
    used
}

fn containers_at<'a>(pointer: &str, object: &'a mut Value) -> impl Iterator<Item = &'a mut Value> {
    let template = object.pointer_mut(pointer);
    let spec = template.and_then(|template| template.get_mut("spec"));
    let fields = spec.and_then(Value::as_object_mut).into_iter().flatten();
    let lists = fields.filter(|(name, _)| matches!(name.as_str(), "initContainers" | "containers"));
    lists
        .filter_map(|(_, list)| list.as_array_mut())
        .flat_map(|list| list.iter_mut())
}

/// The fields that the gates hide of a container. Nothing is hidden of a container that cannot be decoded.
fn hidden_fields(container: &Value, gates: GateSet) -> Vec<(String, Gate)> {
    let mut container = container.clone();
    strip_nulls(&mut container);
    serde_json::from_value::<Container>(container)
        .map(|mut container| strip_container(&mut container, gates))
        .unwrap_or_default()
}

/// Removes a field, and the lifecycle around it if that says nothing else.
fn remove(container: &mut Value, field: &str) {
    let Some((parent, field)) = field.split_once('.') else {
        if let Some(container) = container.as_object_mut() {
            container.remove(field);
        }
        return;
    };
    let Some(inner) = container.get_mut(parent).and_then(Value::as_object_mut) else {
        return;
    };
    inner.remove(field);
    if inner.is_empty() && parent == "lifecycle" {
        remove(container, parent);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::dropping::hide_disabled;
    use crate::pod::Pod;

    fn revision() -> Value {
        json!({"spec": {"template": {
            "$patch": "replace",
            "metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{
                "name": "app", "image": "app:1", "resources": {},
                "lifecycle": {"stopSignal": "SIGUSR1"},
                "startupProbe": {"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": 5, "periodMilliseconds": 1},
                "livenessProbe": {"tcpSocket": {"port": 1}, "initializationFailureThreshold": 4},
            }]},
        }}})
    }

    #[test]
    fn templates_and_pods_hide_the_same() {
        let data = revision();
        let pod = |data: &Value| -> Pod {
            let pod = json!({"spec": data["spec"]["template"]["spec"]});
            serde_json::from_value(pod).expect("a pod")
        };
        for gates in GateSet::combinations() {
            let shown = hide_revision_data(&data, Profile::Pulselet, gates);
            assert_eq!(pod(&shown), hide_disabled(&pod(&data), gates), "{gates}");
            assert_eq!(shown["spec"]["template"]["$patch"], "replace");
        }
    }

    #[test]
    fn an_update_of_a_revision_keeps_what_was_hidden() {
        let stored = revision();
        for gates in GateSet::combinations() {
            let shown = hide_revision_data(&stored, Profile::Pulselet, gates);
            for sent in [shown.clone(), stored.clone()] {
                let kept = keep_hidden_revision_data(sent, &stored, Profile::Pulselet, gates);
                assert_eq!(kept, stored, "{gates}");
            }
            let mut changed = shown;
            changed["spec"]["template"]["spec"]["containers"][0]["image"] = json!("app:2");
            let kept = keep_hidden_revision_data(changed.clone(), &stored, Profile::Pulselet, gates);
            assert_eq!(kept, changed, "{gates}");
        }
    }

    #[test]
    fn data_of_another_shape_are_shown_as_they_are() {
        for data in [
            json!(null),
            json!([1]),
            json!({"spec": {"template": {"spec": {"containers": [7]}}}}),
        ] {
            assert_eq!(hide_revision_data(&data, Profile::Pulselet, GateSet::NONE), data);
            assert_eq!(revision_gates_in_use(&data), GateSet::NONE);
        }
    }
}
