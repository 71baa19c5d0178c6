//! Values together with the keys that occurred twice.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::tree::{self, Node};
use super::{DecodeError, yaml};
use crate::check::{MAX_PROBLEMS, Problem, ProblemKind};
use crate::path::Trail;
use crate::{FieldPath, PathStep};

/// A value, before anything is known of its fields.
#[derive(Debug)]
pub struct Parsed {
    pub value: Value,
    /// The keys that occurred before; the last one counts.
    pub problems: Vec<Problem>,
}

impl From<Value> for Parsed {
    fn from(value: Value) -> Self {
        Self {
            value,
            problems: Vec::new(),
        }
    }
}

/// Parses one JSON value. Depth is bounded by the parser.
pub fn parse_json(bytes: &[u8]) -> Result<Parsed, serde_json::Error> {
    let walk = Walk::default();
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = ValueSeed(&walk).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(Parsed {
        value,
        problems: walk.problems.into_inner(),
    })
}

/// Parses one YAML document as clients of Kubernetes read it.
pub fn parse_yaml(text: &str) -> Result<Parsed, DecodeError> {
    match yaml::parse(text, 1)? {
        Some(node) => from_tree(&node),
        None => Ok(Value::Null.into()),
    }
}

/// The value of a tree.
pub(super) fn from_tree(node: &Node) -> Result<Parsed, DecodeError> {
    let mut problems = Vec::new();
    let value = convert(node, &Trail::ROOT, &mut problems)?;
    Ok(Parsed { value, problems })
}

fn convert(node: &Node, trail: &Trail<'_>, problems: &mut Vec<Problem>) -> Result<Value, DecodeError> {
    Ok(match &node.value {
        tree::Value::Null => Value::Null,
        tree::Value::Bool(flag) => Value::Bool(*flag),
        tree::Value::Number(text) => Value::Number(number(text).ok_or_else(|| DecodeError {
            field: trail.path().to_string(),
            ..DecodeError::new(format!("the number {text} is too large"), Some(node.at))
        })?),
        tree::Value::String(text) => Value::String(text.clone()),
        tree::Value::Sequence(items) => {
            let items = items.iter().enumerate();
            let items = items.map(|(index, item)| convert(item, &trail.index(index), problems));
            Value::Array(items.collect::<Result<_, _>>()?)
        }
        tree::Value::Mapping(entries) => {
            let mut map = Map::new();
            for (key, entry) in entries {
                let trail = trail.field(&key.text);
                let value = convert(entry, &trail, problems)?;
                if map.insert(key.text.clone(), value).is_some() && problems.len() < MAX_PROBLEMS {
                    problems.push(Problem {
                        path: trail.path(),
                        kind: ProblemKind::DuplicateField,
                    });
                }
            }
            Value::Object(map)
        }
    })
}

fn number(text: &str) -> Option<Number> {
    if let Ok(value) = text.parse::<i64>() {
        return Some(value.into());
    }
    if let Ok(value) = text.parse::<u64>() {
        return Some(value.into());
    }
    text.parse::<f64>().ok().and_then(Number::from_f64)
}

/// Where the JSON parser is, and which keys it saw twice.
#[derive(Default)]
struct Walk {
    path: RefCell<Vec<PathStep>>,
    problems: RefCell<Vec<Problem>>,
}

struct ValueSeed<'a>(&'a Walk);

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        loop {
            self.0.path.borrow_mut().push(PathStep::Index(items.len()));
            let item = access.next_element_seed(ValueSeed(self.0))?;
            self.0.path.borrow_mut().pop();
            match item {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            let mut path = self.0.path.borrow_mut();
            path.push(PathStep::Field(key));
            drop(path);
            let value = access.next_value_seed(ValueSeed(self.0))?;
            let mut path = self.0.path.borrow_mut();
            let Some(PathStep::Field(key)) = path.pop() else {
                unreachable!("the key was pushed before its value was read");
            };
            if map.contains_key(&key) && self.0.problems.borrow().len() < MAX_PROBLEMS {
                let mut steps = path.clone();
                steps.push(PathStep::Field(key.clone()));
                self.0.problems.borrow_mut().push(Problem {
                    path: FieldPath(steps),
                    kind: ProblemKind::DuplicateField,
                });
            }
            drop(path);
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    proptest! {
        /// Any bytes give a value or an error, never a panic.
        #[test]
        fn no_text_breaks_a_parser(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "[\\[\\]{}:,\"a-c0-9 \n&*!|-]{0,80}") {
            let _ = parse_json(&bytes);
            let _ = parse_json(text.as_bytes());
            let _ = parse_yaml(&text);
        }
    }

    fn paths(parsed: &Parsed) -> Vec<String> {
        let problems = parsed.problems.iter();
        problems.map(|problem| problem.path.to_string()).collect()
    }

    #[test]
    fn duplicates_are_found_with_their_paths() {
        let body = r#"{"a": [{"b": 1, "b": 2}], "c": null}"#;
        for parsed in [parse_json(body.as_bytes()).unwrap(), parse_yaml(body).unwrap()] {
            assert_eq!(parsed.value, json!({"a": [{"b": 2}], "c": null}));
            assert_eq!(paths(&parsed), ["a[0].b"]);
        }
    }

    #[test]
    fn text_that_is_not_json_is_rejected() {
        let deep = "[".repeat(100_000);
        for body in ["", "{", "{}x", "\u{0}", deep.as_str()] {
            assert!(parse_json(body.as_bytes()).is_err());
        }
    }
}
