//! Config maps and secrets: names and size of their entries, and what is immutable.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pulselet_model::{CauseReason, FieldError, data_key_error, data_size_error};
use serde_json::{Map, Value, json};

use super::invalid;
use super::plain::Plain;
use crate::registry::object::Object;

pub(super) static CONFIG_MAP: Plain = Plain {
    errors: config_map_errors,
    update_errors: |new, old| immutable_errors(new, old, &["data", "binaryData"]),
    ..Plain::NEW
};

pub(super) static SECRET: Plain = Plain {
    fill: secret_defaults,
    errors: |secret| data_errors(secret, &["data"]),
    update_errors: secret_update_errors,
    ..Plain::NEW
};

fn config_map_errors(object: &Object) -> Vec<FieldError> {
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

fn secret_update_errors(new: &Object, old: &Object) -> Vec<FieldError> {
    let mut errors = immutable_errors(new, old, &["data"]);
    if new.value().get("type") != old.value().get("type") {
        errors.push(invalid("type", &new.value()["type"], "field is immutable"));
    }
    errors
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
