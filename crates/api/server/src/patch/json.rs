//! JSON patch, RFC 6902.
//!
//! The crate `json-patch` carries out single operations. What this module adds are bounds that the crate does not have,
//! on the number of operations, the bytes they copy and the depth they build, and the errors that clients know. A patch
//! is applied to a copy of the object, so a failure in its middle changes nothing.

use json_patch::{PatchErrorKind, PatchOperation, jsonptr};
use serde_json::Value;

use crate::rest::body::MAX_BODY_BYTES;

/// Operations in one patch, as upstream has it.
const MAX_OPERATIONS: usize = 10_000;

/// Levels of nesting that a patch may build. Objects have about twenty; moving values into each other could make as
/// many as there are operations, and whatever walks the result would overflow its stack.
const MAX_DEPTH: usize = 500;

/// A list of operations, carried out in order, all or none.
#[derive(Debug, Clone)]
pub(crate) struct JsonPatch(Vec<PatchOperation>);

/// Why a body is not a patch.
#[derive(Debug, thiserror::Error)]
pub(super) enum DecodePatchError {
    #[error("the allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {count}")]
    TooManyOperations { count: usize },
    #[error(transparent)]
    Decode(#[from] serde_json::Error),
    /// It is a patch, but one that fits no object.
    #[error(transparent)]
    Apply(#[from] ApplyPatchError),
}

/// Why a patch does not fit an object.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ApplyPatchError {
    #[error("{path} is not there")]
    Missing { path: String },
    #[error("{from} cannot be moved into itself")]
    MoveIntoItself { from: String },
    #[error("testing value {path} failed")]
    TestFailed { path: String },
    #[error("it nests values deeper than {MAX_DEPTH} levels")]
    TooDeep,
    #[error("copies of more than {MAX_BODY_BYTES} bytes")]
    CopiesTooMuch,
}

fn missing(path: &str) -> ApplyPatchError {
    ApplyPatchError::Missing {
        path: path.to_owned(),
    }
}

impl JsonPatch {
    pub(super) fn parse(value: Value) -> Result<Self, DecodePatchError> {
        let operations = value.as_array().map(Vec::as_slice).unwrap_or_default();
        let count = operations.len();
        if count > MAX_OPERATIONS {
            return Err(DecodePatchError::TooManyOperations { count });
        }
        for operation in operations {
            check_pointers(operation)?;
        }
        Ok(Self(serde_json::from_value(value)?))
    }

    pub(super) fn apply(&self, document: &mut Value) -> Result<(), ApplyPatchError> {
        let mut growth = Growth {
            depth: depth(document),
            copied: 0,
        };
        for operation in &self.0 {
            growth.check(document, operation)?;
            json_patch::patch_unsafe(document, std::slice::from_ref(operation))
                .map_err(|error| explain(operation, &error.kind))?;
        }
        Ok(())
    }
}

/// Refuses paths that no object can have, before the operations are decoded: clients know these as patches that do not
/// fit, not as bodies that cannot be read.
fn check_pointers(operation: &Value) -> Result<(), ApplyPatchError> {
    for field in ["from", "path"] {
        if let Some(text) = operation.get(field).and_then(Value::as_str) {
            jsonptr::Pointer::parse(text).map_err(|_| missing(text))?;
        }
    }
    Ok(())
}

fn explain(operation: &PatchOperation, kind: &PatchErrorKind) -> ApplyPatchError {
    let path = operation.path().to_string();
    let from = match operation {
        PatchOperation::Move(operation) => operation.from.to_string(),
        PatchOperation::Copy(operation) => operation.from.to_string(),
        PatchOperation::Add(_)
        | PatchOperation::Remove(_)
        | PatchOperation::Replace(_)
        | PatchOperation::Test(_) => String::new(),
    };
    match kind {
        PatchErrorKind::TestFailed => ApplyPatchError::TestFailed { path },
        PatchErrorKind::CannotMoveInsideItself => ApplyPatchError::MoveIntoItself { from },
        PatchErrorKind::InvalidFromPointer => ApplyPatchError::Missing { path: from },
        // The crate may add kinds; all that exist mean that a path leads nowhere.
        _ => ApplyPatchError::Missing { path },
    }
}

/// How large a document can have become, never less than it is.
struct Growth {
    depth: usize,
    copied: usize,
}

impl Growth {
    /// Refuses an operation that may build something too deep or copies too much.
    fn check(&mut self, document: &Value, operation: &PatchOperation) -> Result<(), ApplyPatchError> {
        let moved = |from: &jsonptr::Pointer, path: &jsonptr::Pointer| {
            path.count() + self.depth.saturating_sub(from.count())
        };
        let reached = match operation {
            PatchOperation::Add(operation) => operation.path.count() + depth(&operation.value),
            PatchOperation::Replace(operation) => operation.path.count() + depth(&operation.value),
            PatchOperation::Move(operation) => moved(&operation.from, &operation.path),
            PatchOperation::Copy(operation) => {
                let value = document.pointer(operation.from.as_str());
                // Copies of copies grow without end otherwise.
                self.copied += value.map_or(0, |value| value.to_string().len());
                if self.copied > MAX_BODY_BYTES {
                    return Err(ApplyPatchError::CopiesTooMuch);
                }
                moved(&operation.from, &operation.path)
            }
            PatchOperation::Remove(_) | PatchOperation::Test(_) => 0,
        };
        self.depth = self.depth.max(reached);
        if self.depth > MAX_DEPTH {
            return Err(ApplyPatchError::TooDeep);
        }
        Ok(())
    }
}

/// Levels of nesting. What was parsed is at most as deep as the parser allows.
fn depth(value: &Value) -> usize {
    match value {
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(document: Value, patch: Value) -> Result<Value, String> {
        let mut document = document;
        let patch = JsonPatch::parse(patch).map_err(|error| error.to_string())?;
        patch.apply(&mut document).map_err(|error| error.to_string())?;
        Ok(document)
    }

    #[test]
    fn every_operation() {
        let document = json!({"a": [1, 2], "b": {"c/d": 1}});
        let patch = json!([
            {"op": "test", "path": "/a/0", "value": 1},
            {"op": "add", "path": "/a/1", "value": 9},
            {"op": "add", "path": "/a/-", "value": 3},
            {"op": "replace", "path": "/b/c~1d", "value": 2},
            {"op": "copy", "from": "/b", "path": "/e"},
            {"op": "move", "from": "/b", "path": "/f"},
            {"op": "remove", "path": "/a/0"},
        ]);
        assert_eq!(
            patched(document, patch).unwrap(),
            json!({"a": [9, 2, 3], "e": {"c/d": 2}, "f": {"c/d": 2}})
        );
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let document = json!({"a": [1]});
        for patch in [
            json!([{"op": "remove", "path": "/x"}]),
            json!([{"op": "add", "path": "/a/5", "value": 1}]),
            json!([{"op": "test", "path": "/a/0", "value": 2}]),
            json!([{"op": "move", "from": "/a", "path": "/a/b"}]),
            json!([{"op": "remove", "path": "/a/-"}]),
            json!([{"op": "remove", "path": ""}]),
            json!([{"op": "frobnicate", "path": "/a"}]),
            json!({"op": "remove"}),
        ] {
            assert!(patched(document.clone(), patch.clone()).is_err(), "{patch}");
        }
    }

    #[test]
    fn a_refusal_names_the_path() {
        let refusal = |patch: Value| patched(json!({"a": [1]}), json!([patch])).unwrap_err();
        for (patch, text) in [
            (json!({"op": "remove", "path": "/x"}), "/x is not there"),
            (json!({"op": "remove", "path": "x"}), "x is not there"),
            (
                json!({"op": "replace", "path": "/a~2", "value": 1}),
                "/a~2 is not there",
            ),
            (
                json!({"op": "move", "from": "/x", "path": "/y"}),
                "/x is not there",
            ),
            (
                json!({"op": "copy", "from": "/a", "path": "/x/y"}),
                "/x/y is not there",
            ),
            (
                json!({"op": "move", "from": "/a", "path": "/a/b"}),
                "/a cannot be moved into itself",
            ),
            (
                json!({"op": "test", "path": "/a/0", "value": 2}),
                "testing value /a/0 failed",
            ),
        ] {
            assert_eq!(refusal(patch.clone()), text, "{patch}");
        }
    }

    #[test]
    fn copies_cannot_grow_without_end() {
        let document = json!({"a": ["x".repeat(1000)]});
        let copies: Vec<Value> = (0..40)
            .map(|_| json!({"op": "copy", "from": "/a", "path": "/a/-"}))
            .collect();
        assert!(patched(document, json!(copies)).unwrap_err().contains("bytes"));
    }

    #[test]
    fn values_cannot_be_nested_without_end() {
        let document = json!({"a": {}});
        let wraps: Vec<Value> = (0..3000)
            .flat_map(|_| {
                [
                    json!({"op": "add", "path": "/b", "value": {}}),
                    json!({"op": "move", "from": "/a", "path": "/b/x"}),
                    json!({"op": "move", "from": "/b", "path": "/a"}),
                ]
            })
            .collect();
        assert!(patched(document, json!(wraps)).unwrap_err().contains("deeper"));
    }
}
