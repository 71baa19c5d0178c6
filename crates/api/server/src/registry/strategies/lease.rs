//! Leases: positive durations, and updates that name the version they change.

use pulselet_model::FieldError;
use serde_json::{Value, json};

use super::plain::Plain;
use super::{invalid, required};
use crate::registry::object::Object;

pub(super) static LEASE: Plain = Plain {
    errors: lease_errors,
    update_errors,
    ..Plain::NEW
};

fn lease_errors(object: &Object) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let number = |field: &str| {
        object
            .value()
            .pointer(&format!("/spec/{field}"))
            .and_then(Value::as_i64)
    };
    if let Some(seconds) = number("leaseDurationSeconds").filter(|seconds| *seconds <= 0) {
        let detail = "must be greater than 0";
        errors.push(invalid("spec.leaseDurationSeconds", &json!(seconds), detail));
    }
    if let Some(transitions) = number("leaseTransitions").filter(|count| *count < 0) {
        let detail = "must be greater than or equal to 0";
        errors.push(invalid("spec.leaseTransitions", &json!(transitions), detail));
    }
    errors
}

fn update_errors(new: &Object, _: &Object) -> Vec<FieldError> {
    if new.resource_version().is_empty() {
        let detail = "must be specified for an update";
        vec![required("metadata.resourceVersion", detail)]
    } else {
        Vec::new()
    }
}
