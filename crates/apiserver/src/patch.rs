//! Patches: four ways to say what should change.
//!
//! Each takes the object as its endpoint shows it and returns the patched JSON, or says why the patch does not fit. The
//! result is decoded and checked like any update. Patches come from outside: their number of operations and the size
//! of what they build are bounded.

mod json;
mod strategic;

use serde_json::{Map, Value};

use crate::managed;
use crate::object::Object;
use crate::query::WriteOptions;
use crate::resource::Endpoint;
use crate::status::{ApiError, Reason};
pub(crate) use json::JsonPatch;

/// A patch of one of the four kinds.
#[derive(Debug, Clone)]
pub(crate) enum Patch {
    /// RFC 6902.
    Json(JsonPatch),
    /// RFC 7386.
    Merge(Value),
    /// A merge patch that knows which lists are merged by key.
    Strategic(Value),
    /// Server-side apply: the fields the manager wants, whole.
    Apply(Value),
}

/// Reads the operations of a JSON patch.
pub(crate) fn parse_json_patch(value: Value) -> Result<JsonPatch, ApiError> {
    JsonPatch::parse(value).map_err(|why| ApiError::bad_request(format!("error decoding patch: {why}")))
}

/// The patched object.
pub(crate) fn apply(
    patch: &Patch,
    endpoint: Endpoint,
    object: &Object,
    options: &WriteOptions,
) -> Result<Value, ApiError> {
    let mut value = object.value().clone();
    match patch {
        Patch::Json(patch) => {
            patch.apply(&mut value).map_err(|why| does_not_fit(&why))?;
        }
        Patch::Merge(patch) => {
            require_object(patch)?;
            merge(&mut value, patch);
        }
        Patch::Strategic(patch) => {
            let patch = require_object(patch)?;
            strategic::apply(endpoint.kind, &mut value, patch).map_err(ApiError::bad_request)?;
        }
        Patch::Apply(config) => {
            require_object(config)?;
            value = managed::apply(endpoint, object, config, options)?;
        }
    }
    Ok(value)
}

fn require_object(patch: &Value) -> Result<&Map<String, Value>, ApiError> {
    patch
        .as_object()
        .ok_or_else(|| ApiError::bad_request("error decoding patch: the patch is not an object"))
}

fn does_not_fit(why: &str) -> ApiError {
    ApiError::new(
        Reason::Invalid,
        format!("the server rejected our request due to an error in our request: {why}"),
    )
}

/// RFC 7386.
fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let Value::Object(map) = value else { return };
    for (key, change) in patch {
        if change.is_null() {
            map.remove(key);
        } else {
            merge(map.entry(key.clone()).or_insert(Value::Null), change);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_merge_patch_sets_removes_and_replaces() {
        let mut value = json!({"a": {"b": 1, "c": 2}, "d": [1, 2], "e": 1});
        merge(
            &mut value,
            &json!({"a": {"b": null, "x": {"y": null, "z": 1}}, "d": [3], "f": {}}),
        );
        assert_eq!(
            value,
            json!({"a": {"c": 2, "x": {"z": 1}}, "d": [3], "e": 1, "f": {}})
        );
    }
}
