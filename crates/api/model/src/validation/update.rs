//! What an update of a stored Pod may change.
//!
//! Almost nothing of a spec: images, deadlines downwards, tolerations upwards, gates away. Errors that the stored
//! object already has are not held against the update, so that an object stored under older rules or other gates
//! can still be labelled and deleted.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Toleration;
use serde_json::Value;

use super::metadata::IMMUTABLE;
use super::{SignalRule, metadata, names, scheduling, validate_pod};
use crate::field::{Errors, FieldError, Path};
use crate::pod::{Container, Pod, PodSpec};
use pulselet_schema::Profile;

const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
                         `spec.tolerations` (only additions to existing tolerations),\
                         `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
/// Changed fields named in one error; a spec that was replaced would list hundreds.
const MAX_CHANGES_SHOWN: usize = 10;

/// All that is wrong with replacing `old` by `new`. Both are defaulted.
pub(crate) fn validate_update(new: &Pod, old: &Pod, profile: Profile) -> Vec<FieldError> {
    let mut errors = Errors::default();
    validate_metadata(&mut errors, new, old);
    let mut kept = not_known(errors, new, old, profile);
    let mut errors = Errors::default();
    validate_annotations(&mut errors, new, old);
    validate_spec_change(&mut errors, &new.spec, &old.spec);
    kept.extend(errors.into_vec());
    kept
}

/// All that is wrong with adding ephemeral containers. The Pods differ in nothing else.
pub(crate) fn validate_ephemeral_update(new: &Pod, old: &Pod, profile: Profile) -> Vec<FieldError> {
    let mut kept = not_known(Errors::default(), new, old, profile);
    let mut errors = Errors::default();
    let path = Path::new("spec");
    let path = path.child("ephemeralContainers");
    for stored in &old.spec.ephemeral_containers {
        let mut containers = new.spec.ephemeral_containers.iter();
        let what = match containers.find(|container| container.name == stored.name) {
            Some(container) if container == stored => continue,
            Some(_) => "changed",
            None => "removed",
        };
        let detail = format!(
            "existing ephemeral containers {:?} may not be {what}\n",
            stored.name
        );
        errors.forbidden(path, detail);
    }
    kept.extend(errors.into_vec());
    kept
}

/// What is wrong with the new Pod and was not already wrong with the old one, after the errors found so far.
pub(super) fn not_known(mut errors: Errors, new: &Pod, old: &Pod, profile: Profile) -> Vec<FieldError> {
    validate_pod(&mut errors, new, profile, SignalRule::Checked);
    let mut known = Errors::default();
    validate_pod(&mut known, old, profile, SignalRule::Checked);
    let known: BTreeSet<FieldError> = known.into_vec().into_iter().collect();
    let new = errors.into_vec().into_iter();
    new.filter(|error| !known.contains(error)).collect()
}

fn validate_metadata(errors: &mut Errors, new: &Pod, old: &Pod) {
    let path = Path::new("metadata");
    let fields = [
        ("name", &new.metadata.name, &old.metadata.name),
        ("namespace", &new.metadata.namespace, &old.metadata.namespace),
        ("uid", &new.metadata.uid, &old.metadata.uid),
    ];
    for (field, new, old) in fields {
        if new != old {
            errors.invalid(path.child(field), new.as_deref().unwrap_or_default(), IMMUTABLE);
        }
    }
    if new.metadata.creation_timestamp != old.metadata.creation_timestamp {
        let shown = serde_json::to_value(&new.metadata.creation_timestamp).unwrap_or_default();
        errors.invalid(path.child("creationTimestamp"), shown, IMMUTABLE);
    }
}

fn validate_annotations(errors: &mut Errors, new: &Pod, old: &Pod) {
    let path = Path::new("metadata");
    let path = path.child("annotations");
    let mirror = |pod: &Pod| {
        pod.metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(metadata::MIRROR_POD).cloned())
    };
    match (mirror(old), mirror(new)) {
        (None, Some(_)) => errors.forbidden(
            path.key(metadata::MIRROR_POD),
            "may not add mirror pod annotation",
        ),
        (old, new) if old != new => {
            errors.forbidden(
                path.key(metadata::MIRROR_POD),
                "may not remove or update mirror pod annotation",
            );
        }
        _ => {}
    }
}

fn validate_spec_change(errors: &mut Errors, new: &PodSpec, old: &PodSpec) {
    let path = Path::new("spec");
    for (field, new, old) in [
        ("containers", &new.containers, &old.containers),
        ("initContainers", &new.init_containers, &old.init_containers),
    ] {
        if new.len() != old.len() {
            errors.forbidden(path.child(field), "pod updates may not add or remove containers");
            return;
        }
    }
    if !validate_deadline(errors, new, old, path.child("activeDeadlineSeconds")) {
        return;
    }
    validate_tolerations(errors, new, old, path.child("tolerations"));
    validate_scheduling_gates(errors, new, old, path.child("schedulingGates"));
    let munged = with_updatable_fields_of(old, new.clone());
    if munged != *old {
        let changes = changed_fields(old, &munged);
        let detail = format!("pod updates may not change fields other than {UPDATABLE}\nchanged: {changes}");
        errors.forbidden(path, detail);
    }
}

/// From nothing to a deadline, or to an earlier one. Returns whether the other checks make sense.
fn validate_deadline(errors: &mut Errors, new: &PodSpec, old: &PodSpec, path: Path<'_>) -> bool {
    match (old.active_deadline_seconds, new.active_deadline_seconds) {
        (_, Some(new)) if names::positive_i32_range(new, 0).is_some() => {
            errors.invalid(path, new, names::positive_i32_range(new, 0).unwrap_or_default());
            false
        }
        (Some(old), Some(new)) if old < new => {
            errors.invalid(path, new, "must be less than or equal to previous value");
            false
        }
        (Some(_), None) => {
            errors.invalid(
                path,
                Value::Null,
                "must not update from a positive integer to nil value",
            );
            true
        }
        (_, Some(_)) | (None, None) => true,
    }
}

fn validate_tolerations(errors: &mut Errors, new: &PodSpec, old: &PodSpec, path: Path<'_>) {
    // Everything but the seconds, which may change.
    fn identity(toleration: &Toleration) -> [Option<&str>; 4] {
        let Toleration {
            key,
            operator,
            value,
            effect,
            toleration_seconds: _,
        } = toleration;
        [
            key.as_deref(),
            operator.as_deref(),
            value.as_deref(),
            effect.as_deref(),
        ]
    }
    let kept: BTreeSet<_> = new.tolerations.iter().map(identity).collect();
    if !old
        .tolerations
        .iter()
        .all(|toleration| kept.contains(&identity(toleration)))
    {
        errors.forbidden(
            path,
            "existing toleration can not be modified except its tolerationSeconds",
        );
    } else if new.tolerations != old.tolerations {
        scheduling::validate_tolerations(errors, &new.tolerations, path);
    }
}

fn validate_scheduling_gates(errors: &mut Errors, new: &PodSpec, old: &PodSpec, path: Path<'_>) {
    let known: BTreeSet<&str> = old
        .scheduling_gates
        .iter()
        .map(|gate| gate.name.as_str())
        .collect();
    for (index, gate) in new.scheduling_gates.iter().enumerate() {
        if !known.contains(gate.name.as_str()) {
            let detail = format!(
                "only deletion is allowed, but found new scheduling gate '{}'",
                gate.name
            );
            errors.forbidden(path.index(index).child("name"), detail);
        }
    }
}

/// The new spec with everything that may change put back to what it was.
fn with_updatable_fields_of(old: &PodSpec, mut new: PodSpec) -> PodSpec {
    let reset_images = |new: &mut [Container], old: &[Container]| {
        for (new, old) in new.iter_mut().zip(old) {
            new.image.clone_from(&old.image);
        }
    };
    reset_images(&mut new.containers, &old.containers);
    reset_images(&mut new.init_containers, &old.init_containers);
    new.active_deadline_seconds = old.active_deadline_seconds;
    new.scheduling_gates.clone_from(&old.scheduling_gates);
    new.tolerations.clone_from(&old.tolerations);
    let was_negative = old
        .termination_grace_period_seconds
        .is_some_and(|seconds| seconds < 0);
    if was_negative && new.termination_grace_period_seconds == Some(1) {
        new.termination_grace_period_seconds = old.termination_grace_period_seconds;
    }
    new
}

/// The paths of the fields that differ, for the reader of the error.
fn changed_fields(old: &PodSpec, new: &PodSpec) -> String {
    let mut changes = Vec::new();
    let (old, new) = (
        serde_json::to_value(old).unwrap_or_default(),
        serde_json::to_value(new).unwrap_or_default(),
    );
    collect_changes("spec", &old, &new, &mut changes);
    changes.join(", ")
}

fn collect_changes(path: &str, old: &Value, new: &Value, changes: &mut Vec<String>) {
    if changes.len() >= MAX_CHANGES_SHOWN || old == new {
        return;
    }
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let mut keys: Vec<&String> = old
                .keys()
                .chain(new.keys().filter(|key| !old.contains_key(*key)))
                .collect();
            keys.sort();
            for key in keys {
                let value = |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or_default();
                collect_changes(&format!("{path}.{key}"), &value(old), &value(new), changes);
            }
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            for (index, (old, new)) in old.iter().zip(new).enumerate() {
                collect_changes(&format!("{path}[{index}]"), old, new, changes);
            }
        }
        _ => changes.push(path.to_owned()),
    }
}
