//! Defaults and checks of the kinds that are mostly kept as they come.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pulselet_model::{CauseReason, FieldError, data_key_error, data_size_error};
use serde_json::{Map, Value, json};

use super::{invalid, required};
use crate::registry::object::Object;
use crate::registry::resource::ResourceKind;

pub(super) fn set_defaults(kind: ResourceKind, object: &mut Object) {
    match kind {
        ResourceKind::Namespace => namespace_defaults(object),
        ResourceKind::Node => {
            let value = object.value_mut();
            for field in ["spec", "status"] {
                if value.get(field).is_none() {
                    value[field] = json!({});
                }
            }
        }
        ResourceKind::Secret => secret_defaults(object),
        ResourceKind::Event => {
            if object.value().get("involvedObject").is_none() {
                object.value_mut()["involvedObject"] = json!({});
            }
        }
        ResourceKind::ConfigMap
        | ResourceKind::Lease
        | ResourceKind::Plain(_)
        | ResourceKind::Pod
        | ResourceKind::ServiceAccount => {}
    }
}

fn namespace_defaults(object: &mut Object) {
    let name = object.name().to_owned();
    let deleting = object.is_deleting();
    let phase = if deleting { "Terminating" } else { "Active" };
    let value = object.value_mut();
    // Once its end has begun, a namespace without finalizers is one that may go.
    if value.pointer("/spec/finalizers").is_none() && !deleting {
        value["spec"] = json!({"finalizers": ["kubernetes"]});
    }
    if !value["status"].is_object() {
        value["status"] = json!({});
    }
    value["status"]["phase"] = json!(phase);
    let labels = object.metadata_mut().entry("labels").or_insert_with(|| json!({}));
    labels["kubernetes.io/metadata.name"] = json!(name);
}

/// `stringData` is written, never read: its entries become data.
fn secret_defaults(object: &mut Object) {
    let map = object.value_mut().as_object_mut().expect("an Object is a map");
    if let Some(Value::Object(plain)) = map.remove("stringData") {
        let data = map.entry("data").or_insert_with(|| json!({}));
        for (key, text) in plain {
            data[key] = json!(STANDARD.encode(text.as_str().unwrap_or_default()));
        }
    }
    let kind = map.entry("type").or_insert_with(|| json!("Opaque"));
    if kind.as_str() == Some("") {
        *kind = json!("Opaque");
    }
}

pub(super) fn validate(kind: ResourceKind, object: &Object) -> Vec<FieldError> {
    match kind {
        ResourceKind::ConfigMap => {
            let mut errors = data_errors(object, &["data", "binaryData"]);
            let keys = |field: &str| object.value().get(field).and_then(Value::as_object);
            for key in keys("data").into_iter().flat_map(Map::keys) {
                if keys("binaryData").is_some_and(|binary| binary.contains_key(key)) {
                    let detail = "duplicate of key present in data";
                    errors.push(invalid(&format!("binaryData[{key}]"), &json!(key), detail));
                }
            }
            errors
        }
        ResourceKind::Secret => data_errors(object, &["data"]),
        ResourceKind::Event => event_errors(object),
        ResourceKind::Lease => lease_errors(object),
        ResourceKind::Namespace
        | ResourceKind::Node
        | ResourceKind::Plain(_)
        | ResourceKind::Pod
        | ResourceKind::ServiceAccount => Vec::new(),
    }
}

fn data_errors(object: &Object, fields: &[&str]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut bytes = 0;
    for field in fields {
        let entries = object.value().get(*field).and_then(Value::as_object);
        for (key, value) in entries.into_iter().flatten() {
            bytes += value.as_str().map_or(0, str::len);
            errors.extend(data_key_error(field, key));
        }
    }
    errors.extend(data_size_error(fields[0], bytes));
    errors
}

fn event_errors(object: &Object) -> Vec<FieldError> {
    let involved = object.text("/involvedObject/namespace");
    let namespace = object.namespace();
    // What has no namespace is spoken of in the default one.
    let expected = if involved.is_empty() { "default" } else { involved };
    if expected == namespace || (involved.is_empty() && namespace == "kube-system") {
        Vec::new()
    } else {
        let detail = "does not match event.namespace";
        vec![invalid("involvedObject.namespace", &json!(involved), detail)]
    }
}

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

pub(super) fn validate_update(kind: ResourceKind, new: &Object, old: &Object) -> Vec<FieldError> {
    match kind {
        ResourceKind::ConfigMap => immutable_errors(new, old, &["data", "binaryData"]),
        ResourceKind::Secret => {
            let mut errors = immutable_errors(new, old, &["data"]);
            if new.value().get("type") != old.value().get("type") {
                errors.push(invalid("type", &new.value()["type"], "field is immutable"));
            }
            errors
        }
        ResourceKind::Lease => {
            if new.resource_version().is_empty() {
                vec![required(
                    "metadata.resourceVersion",
                    "must be specified for an update",
                )]
            } else {
                Vec::new()
            }
        }
        ResourceKind::Event
        | ResourceKind::Namespace
        | ResourceKind::Node
        | ResourceKind::Plain(_)
        | ResourceKind::Pod
        | ResourceKind::ServiceAccount => Vec::new(),
    }
}

/// `immutable: true` holds for good.
fn immutable_errors(new: &Object, old: &Object, fields: &[&str]) -> Vec<FieldError> {
    if old.value().get("immutable") != Some(&json!(true)) {
        return Vec::new();
    }
    let forbidden = |field: &str| FieldError {
        field: field.to_owned(),
        reason: CauseReason::Forbidden,
        message: "Forbidden: field is immutable when `immutable` is set".to_owned(),
    };
    let changed = |field: &str| new.value().get(field) != old.value().get(field);
    let fields = ["immutable"].into_iter().chain(fields.iter().copied());
    fields.filter(|field| changed(field)).map(forbidden).collect()
}
