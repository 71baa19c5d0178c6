//! JSON patch, RFC 6902.

use serde::Deserialize;
use serde_json::Value;

use crate::rest::body::MAX_BODY_BYTES;

/// Operations in one patch, as upstream has it.
const MAX_OPERATIONS: usize = 10_000;

/// Levels of nesting that a patch may build. Objects have about twenty; moving values into each other could make as
/// many as there are operations, and whatever walks the result would overflow its stack.
const MAX_DEPTH: usize = 500;

/// A list of operations, carried out in order, all or none.
#[derive(Debug, Clone)]
pub(crate) struct JsonPatch(Vec<Operation>);

#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Operation {
    Add { path: String, value: Value },
    Remove { path: String },
    Replace { path: String, value: Value },
    Move { from: String, path: String },
    Copy { from: String, path: String },
    Test { path: String, value: Value },
}

impl JsonPatch {
    pub(super) fn parse(value: Value) -> Result<Self, String> {
        let count = value.as_array().map_or(0, Vec::len);
        if count > MAX_OPERATIONS {
            return Err(format!(
                "the allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {count}"
            ));
        }
        serde_json::from_value(value)
            .map(Self)
            .map_err(|error| error.to_string())
    }

    pub(super) fn apply(&self, document: &mut Value) -> Result<(), String> {
        let mut growth = Growth {
            depth: depth(document),
            copied: 0,
        };
        for operation in &self.0 {
            growth.check(operation)?;
            match operation {
                Operation::Add { path, value } => add(document, path, value.clone())?,
                Operation::Remove { path } => drop(remove(document, path)?),
                Operation::Replace { path, value } => *find(document, path)? = value.clone(),
                Operation::Move { from, path } => {
                    if path.starts_with(&format!("{from}/")) {
                        return Err(format!("{from} cannot be moved into itself"));
                    }
                    let value = remove(document, from)?;
                    add(document, path, value)?;
                }
                Operation::Copy { from, path } => {
                    let value = find(document, from)?.clone();
                    growth.count_copy(&value)?;
                    add(document, path, value)?;
                }
                Operation::Test { path, value } => {
                    let found = find(document, path)?;
                    if found != value {
                        return Err(format!("testing value {path} failed"));
                    }
                }
            }
        }
        Ok(())
    }
}

/// How large a document can have become, never less than it is.
struct Growth {
    depth: usize,
    copied: usize,
}

impl Growth {
    /// Refuses an operation that may build something too deep.
    fn check(&mut self, operation: &Operation) -> Result<(), String> {
        let steps = |path: &str| path.matches('/').count();
        let reached = match operation {
            Operation::Add { path, value } | Operation::Replace { path, value } => steps(path) + depth(value),
            Operation::Move { from, path } | Operation::Copy { from, path } => {
                steps(path) + self.depth.saturating_sub(steps(from))
            }
            Operation::Remove { .. } | Operation::Test { .. } => 0,
        };
        self.depth = self.depth.max(reached);
        if self.depth > MAX_DEPTH {
            return Err(format!("it nests values deeper than {MAX_DEPTH} levels"));
        }
        Ok(())
    }

    /// Copies of copies grow without end otherwise.
    fn count_copy(&mut self, value: &Value) -> Result<(), String> {
        self.copied += value.to_string().len();
        if self.copied > MAX_BODY_BYTES {
            return Err(format!("copies of more than {MAX_BODY_BYTES} bytes"));
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

fn missing(path: &str) -> String {
    format!("{path} is not there")
}

fn find<'a>(document: &'a mut Value, path: &str) -> Result<&'a mut Value, String> {
    document.pointer_mut(path).ok_or_else(|| missing(path))
}

/// The parent of what a path names, and the last step.
fn parent<'a>(document: &'a mut Value, path: &str) -> Result<(&'a mut Value, String), String> {
    let (head, last) = path.rsplit_once('/').ok_or_else(|| missing(path))?;
    let last = last.replace("~1", "/").replace("~0", "~");
    Ok((find(document, head)?, last))
}

fn add(document: &mut Value, path: &str, value: Value) -> Result<(), String> {
    if path.is_empty() {
        *document = value;
        return Ok(());
    }
    match parent(document, path)? {
        (Value::Object(map), key) => {
            map.insert(key, value);
            Ok(())
        }
        (Value::Array(items), index) => {
            let at = if index == "-" {
                items.len()
            } else {
                index.parse().map_err(|_| missing(path))?
            };
            if at > items.len() {
                return Err(missing(path));
            }
            items.insert(at, value);
            Ok(())
        }
        _ => Err(missing(path)),
    }
}

fn remove(document: &mut Value, path: &str) -> Result<Value, String> {
    match parent(document, path)? {
        (Value::Object(map), key) => map.remove(&key).ok_or_else(|| missing(path)),
        (Value::Array(items), index) => {
            let at: usize = index.parse().map_err(|_| missing(path))?;
            if at < items.len() {
                Ok(items.remove(at))
            } else {
                Err(missing(path))
            }
        }
        _ => Err(missing(path)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(document: Value, patch: Value) -> Result<Value, String> {
        let mut document = document;
        JsonPatch::parse(patch)?.apply(&mut document)?;
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
            json!([{"op": "frobnicate", "path": "/a"}]),
            json!({"op": "remove"}),
        ] {
            assert!(patched(document.clone(), patch.clone()).is_err(), "{patch}");
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
