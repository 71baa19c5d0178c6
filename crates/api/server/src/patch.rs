//! Patches: four ways to say what should change.
//!
//! Each takes the object as its endpoint shows it and returns the patched JSON, or says why the patch does not fit. The
//! result is decoded and checked like any update. Patches come from outside: their number of operations and the size
//! of what they build are bounded.

mod json;
pub(crate) mod managed;
mod schema;
mod strategic;

use serde_json::{Map, Value};

use crate::registry::object::Object;
use crate::registry::resource::Endpoint;
use crate::rest::body::{self, Encoding};
use crate::rest::query::WriteOptions;
use crate::rest::status::{ApiError, StatusReason};
pub(crate) use json::JsonPatch;
use json::{ApplyPatchError, DecodePatchError};

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

/// Reads the body of a patch.
pub(crate) fn parse(content_type: Option<&str>, bytes: &[u8]) -> Result<Patch, ApiError> {
    let essence = content_type.map(|text| text.split(';').next().unwrap_or_default().trim());
    let json = |bytes| body::parse(bytes, Encoding::Json).map(|parsed| parsed.value);
    match essence {
        Some("application/json-patch+json") => parse_json_patch(json(bytes)?).map(Patch::Json),
        Some("application/merge-patch+json") => json(bytes).map(Patch::Merge),
        Some("application/strategic-merge-patch+json") => json(bytes).map(Patch::Strategic),
        Some("application/apply-patch+yaml") => {
            body::parse(bytes, Encoding::Yaml).map(|parsed| Patch::Apply(parsed.value))
        }
        _ => Err(ApiError::unsupported_media_type(&[
            "application/json-patch+json",
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
            "application/apply-patch+yaml",
        ])),
    }
}

/// Reads the operations of a JSON patch.
pub(crate) fn parse_json_patch(value: Value) -> Result<JsonPatch, ApiError> {
    JsonPatch::parse(value).map_err(|error| match error {
        DecodePatchError::TooManyOperations { .. } | DecodePatchError::Decode(_) => {
            ApiError::bad_request(format!("error decoding patch: {error}"))
        }
        DecodePatchError::Apply(error) => does_not_fit(&error),
    })
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
            patch.apply(&mut value).map_err(|error| does_not_fit(&error))?;
        }
        Patch::Merge(patch) => {
            require_object(patch)?;
            json_patch::merge(&mut value, patch);
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

fn does_not_fit(why: &ApplyPatchError) -> ApiError {
    ApiError::new(
        StatusReason::Invalid,
        format!("the server rejected our request due to an error in our request: {why}"),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use json_patch::merge;

    use super::*;
    use crate::registry::resource::ResourceKind;

    /// Names that mean something to patches, so that random ones meet each other.
    fn any_name() -> impl Strategy<Value = String> {
        prop::sample::select(vec![
            "name",
            "spec",
            "metadata",
            "containers",
            "env",
            "finalizers",
            "$patch",
            "$retainKeys",
            "$setElementOrder/containers",
            "$deleteFromPrimitiveList/finalizers",
            "a",
            "",
        ])
        .prop_map(str::to_owned)
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            prop::sample::select(vec!["a", "delete", "replace", "merge", ""]).prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(any_name(), inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn any_operations() -> impl Strategy<Value = Value> {
        let path = prop::collection::vec(
            prop::sample::select(vec!["/spec", "/metadata", "/0", "/-", "/a", "", "a", "~2", "/1"]),
            0..4,
        )
        .prop_map(|parts| parts.concat());
        let name = prop::sample::select(vec!["add", "remove", "replace", "move", "copy", "test", "x"]);
        let operation = (name, path.clone(), path, any_json()).prop_map(
            |(op, path, from, value)| json!({"op": op, "path": path, "from": from, "value": value}),
        );
        prop::collection::vec(operation, 0..8).prop_map(Value::from)
    }

    proptest! {
        /// Whatever is patched with whatever: an answer or a refusal, never a panic.
        #[test]
        fn no_patch_breaks_the_server(document in any_json(), change in any_json(), operations in any_operations()) {
            let Some(object) = Object::new(document) else { return Ok(()) };
            let query = crate::rest::query::Query::parse("force=true").expect("a query");
            let options = WriteOptions::parse(&query, "tester/1").expect("options");
            let endpoint = ResourceKind::Pod.storage();
            for patch in [Patch::Merge(change.clone()), Patch::Strategic(change.clone()), Patch::Apply(change)] {
                let _ = apply(&patch, endpoint, &object, &options);
            }
            if let Ok(patch) = parse_json_patch(operations) {
                let _ = apply(&Patch::Json(patch), endpoint, &object, &options);
            }
        }

        /// A merge patch applied twice is a merge patch applied once.
        #[test]
        fn merging_twice_is_merging_once(document in any_json(), change in any_json()) {
            let mut once = document;
            merge(&mut once, &change);
            let mut twice = once.clone();
            merge(&mut twice, &change);
            prop_assert_eq!(once, twice);
        }
    }

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
