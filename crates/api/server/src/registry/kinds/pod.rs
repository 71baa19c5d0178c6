//! Pods: the rules of `pulselet-model`, applied to stored and sent objects.
//!
//! A Pod is stored with all its fields, those of gates that are off included; reads do not show them.

use pulselet_model::{CauseReason, FieldError, Gate, GateSet, Pod, Profile, hide_disabled};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Admitted, Refusal, Rules};
use crate::registry::object::Object;
use crate::registry::resource::Subresource;

/// The gates as reads apply them: a profile that does not know a field does not show it.
fn shown_gates(rules: Rules) -> GateSet {
    match rules.profile {
        Profile::Pulselet => rules.gates,
        Profile::Kubernetes => rules
            .gates
            .with(Gate::SubSecondProbes, false)
            .with(Gate::ProbeInitializationFailureThreshold, false),
    }
}

pub(super) fn shows_everything(rules: Rules) -> bool {
    shown_gates(rules) == GateSet::ALL
}

fn to_value(pod: &Pod) -> Value {
    serde_json::to_value(pod).expect("a Pod can be written as JSON")
}

fn typed(object: &Object) -> Result<Pod, Refusal> {
    Pod::deserialize(object.value()).map_err(|error| Refusal::Undecodable(error.to_string()))
}

fn admitted(admission: &pulselet_model::Admission) -> Admitted {
    Admitted {
        object: Object::new(to_value(&admission.pod)).expect("a Pod has metadata"),
        warnings: admission.warnings.iter().map(ToString::to_string).collect(),
    }
}

pub(super) fn admit_create(object: &Object, rules: Rules) -> Result<Admitted, Refusal> {
    let mut pod = typed(object)?;
    // A mirror shows a Pod that runs without the API, and so without an account at it.
    if !object.is_mirror_pod()
        && pod.spec.service_account_name.is_empty()
        && pod.spec.service_account.is_empty()
    {
        "default".clone_into(&mut pod.spec.service_account_name);
    }
    pulselet_model::admit_create(pod, rules.profile, rules.gates)
        .map(|admission| admitted(&admission))
        .map_err(Refusal::Invalid)
}

pub(super) fn admit_update(
    subresource: Option<Subresource>,
    old: &Object,
    new: &Object,
    rules: Rules,
) -> Result<Admitted, Refusal> {
    if subresource == Some(Subresource::Status) {
        return update_status(old, new);
    }
    let stored = typed(old)?;
    match subresource {
        Some(Subresource::EphemeralContainers) => {
            let new = typed(new)?;
            pulselet_model::admit_ephemeral_containers(&stored, new, rules.profile, rules.gates)
                .map(|admission| admitted(&admission))
                .map_err(Refusal::Invalid)
        }
        Some(Subresource::Resize) => {
            pulselet_model::admit_resize(&stored, typed(new)?, rules.profile, shown_gates(rules))
                .map(|admission| admitted(&admission))
                .map_err(Refusal::Invalid)
        }
        _ => {
            // What reads do not show, an update does not take away.
            let gates = shown_gates(rules);
            pulselet_model::admit_update(&stored, typed(new)?, rules.profile, gates)
                .map(|admission| admitted(&admission))
                .map_err(Refusal::Invalid)
        }
    }
}

/// A new status for a stored Pod; nothing else of what was sent counts.
fn update_status(old: &Object, new: &Object) -> Result<Admitted, Refusal> {
    let mut object = old.clone();
    let mut status = new.value().get("status").cloned().unwrap_or_else(|| json!({}));
    // The class of a Pod follows from its spec and never changes.
    status["qosClass"] = old.value()["status"]["qosClass"].clone();
    let phase = status.get("phase").and_then(Value::as_str).unwrap_or_default();
    let phases = ["Pending", "Running", "Succeeded", "Failed", "Unknown", ""];
    if !phases.contains(&phase) {
        return Err(Refusal::Invalid(vec![FieldError {
            field: "status.phase".to_owned(),
            reason: CauseReason::NotSupported,
            message: format!(
                "Unsupported value: {phase:?}: supported values: \"Failed\", \"Pending\", \"Running\", \
                 \"Succeeded\", \"Unknown\""
            ),
        }]));
    }
    object.value_mut()["status"] = status;
    object.set_meta("resourceVersion", json!(new.resource_version()));
    Ok(Admitted {
        object,
        warnings: Vec::new(),
    })
}

/// The Pod as reads show it while gates are off.
pub(super) fn hide(object: Object, rules: Rules) -> Object {
    let Ok(pod) = typed(&object) else {
        // Stored by other rules and not readable by these: better shown whole than lost.
        return object;
    };
    let shown = hide_disabled(&pod, shown_gates(rules));
    Object::new(to_value(&shown)).unwrap_or(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules {
        profile: Profile::Pulselet,
        gates: GateSet::ALL,
    };

    fn pod() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"containers": [{"name": "app", "image": "app",
                "livenessProbe": {"periodMilliseconds": 5, "exec": {"command": ["true"]}}}]},
        })
    }

    #[test]
    fn the_kubernetes_profile_does_not_show_what_it_does_not_know() {
        let kubernetes = Rules {
            profile: Profile::Kubernetes,
            ..RULES
        };
        assert!(shows_everything(RULES));
        assert!(!shows_everything(kubernetes));
        let shown = hide(Object::new(pod()).unwrap(), kubernetes).into_value();
        let probe = &shown["spec"]["containers"][0]["livenessProbe"];
        assert!(probe.get("periodMilliseconds").is_none(), "{probe}");
        assert!(probe.get("exec").is_some(), "{probe}");
    }
}
