//! Pods: the rules of `pulselet-model`, applied to stored and sent objects.
//!
//! A Pod is stored with all its fields, those of gates that are off included; reads do not show them.

use pulselet_model::{Admission, CauseReason, FieldError, Gate, GateSet, Pod, Profile, hide_disabled};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Admitted, Refusal, Rules, Strategy, Update};
use crate::registry::object::Object;
use crate::registry::resource::{ResourceKind, Subresource};

/// The grace period of a Pod that names none.
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// The gates as reads apply them: a profile that does not know a field does not show it.
pub(super) fn shown_gates(rules: Rules) -> GateSet {
    match rules.profile {
        Profile::Pulselet => rules.gates,
        Profile::Kubernetes => rules
            .gates
            .with(Gate::SubSecondProbes, false)
            .with(Gate::ProbeInitializationFailureThreshold, false),
    }
}

fn to_value(pod: &Pod) -> Value {
    serde_json::to_value(pod).expect("a Pod can be written as JSON")
}

fn typed(object: &Object) -> Result<Pod, Refusal> {
    Pod::deserialize(object.value()).map_err(|error| Refusal::Undecodable(error.to_string()))
}

fn admitted(admission: Result<Admission, Vec<FieldError>>) -> Result<Admitted, Refusal> {
    let admission = admission.map_err(Refusal::Invalid)?;
    Ok(Admitted {
        object: Object::new(to_value(&admission.pod)).expect("a Pod has metadata"),
        warnings: admission.warnings.iter().map(ToString::to_string).collect(),
    })
}

#[derive(Debug)]
pub(super) struct PodStrategy;

pub(super) static POD: PodStrategy = PodStrategy;

impl Strategy for PodStrategy {
    fn is_typed(&self) -> bool {
        true
    }

    fn admit_create(&self, _: ResourceKind, object: Object, rules: Rules) -> Result<Admitted, Refusal> {
        let mut pod = typed(&object)?;
        // A mirror shows a Pod that runs without the API, and so without an account at it.
        if !object.is_mirror_pod()
            && pod.spec.service_account_name.is_empty()
            && pod.spec.service_account.is_empty()
        {
            "default".clone_into(&mut pod.spec.service_account_name);
        }
        admitted(pulselet_model::admit_create(pod, rules.profile, rules.gates))
    }

    fn admit_update(&self, _: ResourceKind, update: Update<'_>, rules: Rules) -> Result<Admitted, Refusal> {
        let Update {
            subresource,
            old,
            new,
        } = update;
        if subresource == Some(Subresource::Status) {
            return update_status(old, &new);
        }
        let (stored, pod) = (typed(old)?, typed(&new)?);
        // What reads do not show, an update does not take away.
        let gates = shown_gates(rules);
        admitted(match subresource {
            Some(Subresource::EphemeralContainers) => {
                pulselet_model::admit_ephemeral_containers(&stored, pod, rules.profile, gates)
            }
            Some(Subresource::Resize) => pulselet_model::admit_resize(&stored, pod, rules.profile, gates),
            Some(_) | None => pulselet_model::admit_update(&stored, pod, rules.profile, gates),
        })
    }

    fn is_shown_whole(&self, rules: Rules) -> bool {
        shown_gates(rules) == GateSet::ALL
    }

    /// A Pod that other rules stored and these cannot read is shown whole: better than lost.
    fn hide(&self, object: Object, rules: Rules) -> Object {
        let Ok(pod) = typed(&object) else { return object };
        let shown = hide_disabled(&pod, shown_gates(rules));
        Object::new(to_value(&shown)).unwrap_or(object)
    }

    fn grace(&self, object: &Object, asked: Option<i64>) -> i64 {
        let phase = object.text("/status/phase");
        // A Pod that was never started or has ended has nothing to stop.
        if object.text("/spec/nodeName").is_empty() || phase == "Succeeded" || phase == "Failed" {
            return 0;
        }
        let own = || {
            let own = object.value().pointer("/spec/terminationGracePeriodSeconds");
            own.and_then(Value::as_i64)
        };
        let grace = asked.or_else(own).unwrap_or(DEFAULT_GRACE_SECONDS);
        // Upstream takes a negative grace period for the shortest one.
        if grace < 0 { 1 } else { grace }
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
        assert!(POD.is_shown_whole(RULES));
        assert!(!POD.is_shown_whole(kubernetes));
        let shown = POD.hide(Object::new(pod()).unwrap(), kubernetes).into_value();
        let probe = &shown["spec"]["containers"][0]["livenessProbe"];
        assert!(probe.get("periodMilliseconds").is_none(), "{probe}");
        assert!(probe.get("exec").is_some(), "{probe}");
    }
}
