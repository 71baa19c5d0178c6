//! What all kinds have in common: metadata, and the parts of an object that a write leaves alone.

use pulselet_model::openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pulselet_model::{FieldError, validate_metadata};
use serde::Deserialize;
use serde_json::json;

use super::{Refusal, invalid};
use crate::registry::object::Object;
use crate::registry::resource::ResourceKind;

/// The stored object with one part of the new one.
pub(super) fn with_part(old: &Object, new: &Object, field: &str) -> Object {
    let mut object = old.clone();
    copy_field(&mut object, new, field);
    // A condition of the update, not a part of the object.
    object.set_meta("resourceVersion", json!(new.resource_version()));
    object
}

pub(super) fn copy_field(to: &mut Object, from: &Object, field: &str) {
    let map = to.value_mut().as_object_mut().expect("an Object is a map");
    match from.value().get(field) {
        Some(value) => {
            map.insert(field.to_owned(), value.clone());
        }
        None => {
            map.remove(field);
        }
    }
}

/// What a client need not send back, and cannot change.
pub(super) fn keep_system_fields(new: &mut Object, old: &Object) {
    for field in ["uid", "creationTimestamp"] {
        if !new.metadata().contains_key(field) || new.text(&format!("/metadata/{field}")).is_empty() {
            new.set_meta(field, old.metadata().get(field).cloned().unwrap_or_default());
        }
    }
    for field in [
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "selfLink",
    ] {
        new.set_meta(field, old.metadata().get(field).cloned().unwrap_or_default());
    }
}

pub(super) fn immutable_errors(new: &Object, old: &Object) -> Vec<FieldError> {
    ["name", "namespace", "uid", "creationTimestamp"]
        .into_iter()
        .filter(|field| new.metadata().get(*field) != old.metadata().get(*field))
        .map(|field| {
            let shown = new.metadata().get(field).cloned().unwrap_or_default();
            invalid(&format!("metadata.{field}"), &shown, "field is immutable")
        })
        .collect()
}

/// What is wrong with the metadata of an object.
pub(super) fn errors(kind: ResourceKind, object: &Object) -> Result<Vec<FieldError>, Refusal> {
    let metadata = ObjectMeta::deserialize(&object.value()["metadata"])
        .map_err(|error| Refusal::Undecodable(error.to_string()))?;
    Ok(validate_metadata(
        &metadata,
        kind.name_rule(),
        kind.info().namespaced,
    ))
}
