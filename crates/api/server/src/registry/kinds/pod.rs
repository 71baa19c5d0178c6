//! Pods: the rules of `pulselet-model`, applied to stored and sent objects.
//!
//! A Pod is stored with all its fields, those of gates that are off included; reads do not show them.

use pulselet_model::{CauseReason, FieldError, Gate, GateSet, Pod, Profile, decode_documents, hide_disabled};
use serde_json::{Value, json};

use super::{Admitted, Canonical, Refusal, Rules};
use crate::registry::object::Object;
use crate::registry::resource::Subresource;
use crate::rest::body::{self, Step};

/// Unknown fields taken out of one Pod before it is refused.
const MAX_UNKNOWN_FIELDS: usize = 64;

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

/// Decodes, taking unknown fields out one by one until that succeeds. What becomes of them is the caller's choice.
pub(super) fn canonical(mut value: Value, rules: Rules) -> Canonical {
    let mut unknown = Vec::new();
    loop {
        let text = value.to_string();
        let document = match decode_documents(text.as_bytes()).next() {
            Some(Ok(document)) => document,
            Some(Err(error)) => return Err(error.to_string()),
            None => return Err("the body is empty".to_owned()),
        };
        match document.decode(rules.profile).pod {
            Ok(pod) => return Ok((to_value(&pod), unknown)),
            Err(error) => {
                let is_unknown = error.message.starts_with("unknown field ");
                if !is_unknown || unknown.len() == MAX_UNKNOWN_FIELDS {
                    // Where it is in our rendering of the body means nothing to the client.
                    let hint = error.hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
                    return Err(format!("{}: {}{hint}", error.field, error.message));
                }
                let path = parse_path(&error.field);
                body::remove(&mut value, &path);
                unknown.push(path);
            }
        }
    }
}

/// Reads a field path back. Only names of fields are in it: maps with free keys have no unknown fields.
fn parse_path(text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for part in text.split('.') {
        let mut pieces = part.split('[');
        steps.push(Step::Field(pieces.next().unwrap_or_default().to_owned()));
        for piece in pieces {
            if let Ok(index) = piece.trim_end_matches(']').parse() {
                steps.push(Step::Index(index));
            }
        }
    }
    steps
}

fn to_value(pod: &Pod) -> Value {
    serde_json::to_value(pod).expect("a Pod can be written as JSON")
}

fn typed(object: &Object) -> Result<Pod, Refusal> {
    serde_json::from_value(object.value().clone()).map_err(|error| Refusal::Undecodable(error.to_string()))
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
    let stored = typed(old)?;
    match subresource {
        Some(Subresource::Status) => update_status(old, new),
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
            "spec": {"containers": [{"name": "app", "image": "app", "foo": 1,
                "resources": {"limits": {"cpu": 1}},
                "livenessProbe": {"periodMilliseconds": 5, "bar": {}, "exec": {"command": ["true"]}}}]},
        })
    }

    #[test]
    fn unknown_fields_are_taken_out_and_named() {
        let (value, unknown) = canonical(pod(), RULES).expect("it decodes without them");
        let mut paths: Vec<String> = unknown.iter().map(|path| body::render(path)).collect();
        paths.sort();
        assert_eq!(
            paths,
            ["spec.containers[0].foo", "spec.containers[0].livenessProbe.bar"]
        );
        assert_eq!(
            value["spec"]["containers"][0]["livenessProbe"]["periodMilliseconds"],
            5
        );
        let mut wrong = pod();
        wrong["spec"]["containers"][0]["name"] = json!(["app"]);
        assert!(
            canonical(wrong, RULES)
                .unwrap_err()
                .contains("spec.containers[0].name")
        );
    }

    #[test]
    fn the_kubernetes_profile_does_not_show_what_it_does_not_know() {
        let kubernetes = Rules {
            profile: Profile::Kubernetes,
            ..RULES
        };
        assert!(shows_everything(RULES));
        assert!(!shows_everything(kubernetes));
        let (value, _) = canonical(pod(), RULES).unwrap();
        let shown = hide(Object::new(value).unwrap(), kubernetes).into_value();
        let probe = &shown["spec"]["containers"][0]["livenessProbe"];
        assert!(probe.get("periodMilliseconds").is_none(), "{probe}");
        assert!(probe.get("exec").is_some(), "{probe}");
    }
}
