//! Whether a controller may write a status.
//!
//! Only the status and the metadata are checked: a stored spec never stands in the way of its controller.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::job_status;
use super::spec;
use crate::field::{Errors, FieldError, Path};
use crate::template::strip_nulls;
use crate::validation::metadata;
use crate::workload::WorkloadKind;

/// The numbers of a status, in the order in which upstream checks them.
const fn counts(kind: WorkloadKind) -> &'static [&'static str] {
    match kind {
        WorkloadKind::Deployment => &[
            "observedGeneration",
            "replicas",
            "updatedReplicas",
            "readyReplicas",
            "availableReplicas",
            "unavailableReplicas",
            "terminatingReplicas",
            "collisionCount",
        ],
        WorkloadKind::ReplicaSet | WorkloadKind::ReplicationController => &[
            "replicas",
            "fullyLabeledReplicas",
            "readyReplicas",
            "availableReplicas",
            "observedGeneration",
            "terminatingReplicas",
        ],
        WorkloadKind::StatefulSet => &[
            "replicas",
            "readyReplicas",
            "currentReplicas",
            "updatedReplicas",
            "availableReplicas",
            "observedGeneration",
            "collisionCount",
        ],
        WorkloadKind::DaemonSet => &[
            "currentNumberScheduled",
            "numberMisscheduled",
            "desiredNumberScheduled",
            "numberReady",
            "observedGeneration",
            "updatedNumberScheduled",
            "numberAvailable",
            "numberUnavailable",
            "collisionCount",
        ],
        WorkloadKind::Job | WorkloadKind::CronJob | WorkloadKind::PodTemplate => &[],
    }
}

/// Numbers that are parts of `replicas`.
const fn parts(kind: WorkloadKind) -> &'static [&'static str] {
    match kind {
        WorkloadKind::Deployment => &["updatedReplicas", "readyReplicas", "availableReplicas"],
        WorkloadKind::ReplicaSet | WorkloadKind::ReplicationController => {
            &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"]
        }
        WorkloadKind::StatefulSet => &[
            "readyReplicas",
            "currentReplicas",
            "updatedReplicas",
            "availableReplicas",
        ],
        WorkloadKind::DaemonSet | WorkloadKind::Job | WorkloadKind::CronJob | WorkloadKind::PodTemplate => {
            &[]
        }
    }
}

/// All that is wrong with a new status. Both objects are whole.
pub(crate) fn validate_status(
    kind: WorkloadKind,
    new: &Value,
    old: &Value,
) -> Result<Vec<FieldError>, serde_json::Error> {
    let part = |object: &Value, name: &str| {
        let mut part = object.get(name).cloned().unwrap_or_default();
        strip_nulls(&mut part);
        part
    };
    let metadata: ObjectMeta = spec::read(part(new, "metadata"))?;
    let old_metadata: ObjectMeta = spec::read(part(old, "metadata"))?;
    let (status, old_status) = (part(new, "status"), part(old, "status"));
    let mut errors = Errors::default();
    let path = Path::new("status");
    let metadata_path = Path::new("metadata");
    metadata::validate_common_change(&mut errors, &metadata, &old_metadata, metadata_path);
    match kind {
        // Upstream checks nothing of the one, and the other has no status.
        WorkloadKind::CronJob | WorkloadKind::PodTemplate => {}
        WorkloadKind::Job => {
            metadata::validate_change(&mut errors, &metadata, &old_metadata, metadata_path);
            job_status::validate(&mut errors, status, old_status, part(old, "spec"))?;
        }
        WorkloadKind::StatefulSet => {
            validate_numbers(&mut errors, kind, &status, path);
            metadata::validate_change(&mut errors, &metadata, &old_metadata, metadata_path);
            validate_collisions(&mut errors, &status, &old_status, path);
        }
        WorkloadKind::Deployment | WorkloadKind::DaemonSet => {
            metadata::validate_change(&mut errors, &metadata, &old_metadata, metadata_path);
            validate_numbers(&mut errors, kind, &status, path);
            validate_collisions(&mut errors, &status, &old_status, path);
        }
        WorkloadKind::ReplicaSet | WorkloadKind::ReplicationController => {
            metadata::validate_change(&mut errors, &metadata, &old_metadata, metadata_path);
            validate_numbers(&mut errors, kind, &status, path);
        }
    }
    Ok(errors.into_vec())
}

fn number(status: &Value, field: &str) -> i64 {
    status.get(field).and_then(Value::as_i64).unwrap_or_default()
}

fn validate_numbers(errors: &mut Errors, kind: WorkloadKind, status: &Value, path: Path<'_>) {
    for field in counts(kind) {
        super::validate_count(errors, number(status, field), path.child(field));
    }
    let mut at_most = |field: &str, whole: &str, name: &str| {
        let count = number(status, field);
        if count > number(status, whole) {
            errors.invalid(path.child(field), count, format!("cannot be greater than {name}"));
        }
    };
    for field in parts(kind) {
        at_most(field, "replicas", "status.replicas");
    }
    if kind == WorkloadKind::StatefulSet {
        at_most("availableReplicas", "readyReplicas", "status.readyReplicas");
    } else if !parts(kind).is_empty() {
        at_most("availableReplicas", "readyReplicas", "readyReplicas");
    }
}

/// Names of `ReplicaSet`s and revisions are made from it, so it never goes back.
fn validate_collisions(errors: &mut Errors, status: &Value, old: &Value, path: Path<'_>) {
    const FIELD: &str = "collisionCount";
    let Some(before) = old.get(FIELD).and_then(Value::as_i64) else {
        return;
    };
    let now = status.get(FIELD).and_then(Value::as_i64);
    if now.is_none_or(|now| now < before) {
        errors.invalid(
            path.child(FIELD),
            json!(now.unwrap_or(0)),
            "cannot be decremented",
        );
    }
}
