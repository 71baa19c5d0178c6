//! Request bodies: from bytes to a JSON value, and from there to the fields a kind really has.
//!
//! Size is bounded before this, depth by the parser. Duplicate keys are noticed here, unknown fields by decoding into
//! the kind's type; what happens about them is the client's choice (`fieldValidation`).

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::rest::protobuf::{self, ProtobufError};
use crate::rest::status::ApiError;

/// Bytes of a request body, as upstream has it.
pub(crate) const MAX_BODY_BYTES: usize = 3 * 1024 * 1024;

/// How a body is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Yaml,
    Protobuf,
}

/// The media types in which bodies may be written.
const ACCEPTED: [&str; 3] = [
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
];

impl Encoding {
    /// Reads a content type. `None` is a request without the header, which upstream reads as JSON.
    pub(crate) fn of(content_type: Option<&str>) -> Result<Self, ApiError> {
        let essence = content_type.map(|text| text.split(';').next().unwrap_or_default().trim());
        match essence {
            None | Some("" | "application/json") => Ok(Self::Json),
            Some("application/yaml") => Ok(Self::Yaml),
            Some("application/vnd.kubernetes.protobuf") => Ok(Self::Protobuf),
            Some(_) => Err(ApiError::unsupported_media_type(&ACCEPTED)),
        }
    }
}

/// A step on the way to a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Field(String),
    Index(usize),
}

/// Renders a path as upstream does: `spec.containers[0].image`.
pub(crate) fn render(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::Field(name) if text.is_empty() => text.push_str(name),
            Step::Field(name) => {
                text.push('.');
                text.push_str(name);
            }
            Step::Index(index) => {
                text.push('[');
                text.push_str(&index.to_string());
                text.push(']');
            }
        }
    }
    text
}

/// A parsed body.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub value: Value,
    /// Keys that came twice; the last one counts.
    pub duplicates: Vec<Vec<Step>>,
}

/// Parses a body.
pub(crate) fn parse(bytes: &[u8], encoding: Encoding) -> Result<Parsed, ApiError> {
    let failed = |error: &dyn fmt::Display| {
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type Object): {error}"
        ))
    };
    match encoding {
        Encoding::Json => {
            let trace = Trace::default();
            let mut deserializer = serde_json::Deserializer::from_slice(bytes);
            let value = ValueSeed(&trace)
                .deserialize(&mut deserializer)
                .map_err(|error| failed(&error))?;
            deserializer.end().map_err(|error| failed(&error))?;
            Ok(Parsed {
                value,
                duplicates: trace.duplicates.into_inner(),
            })
        }
        Encoding::Yaml => {
            let text = std::str::from_utf8(bytes).map_err(|error| failed(&error))?;
            // Duplicate keys are errors to this parser.
            let value = serde_saphyr::from_str(text).map_err(|error| failed(&error))?;
            Ok(Parsed {
                value,
                duplicates: Vec::new(),
            })
        }
        Encoding::Protobuf => match protobuf::decode(bytes) {
            Ok(value) => Ok(Parsed {
                value,
                duplicates: Vec::new(),
            }),
            Err(error @ ProtobufError::UnknownKind { .. }) => Err(ApiError {
                message: error.to_string(),
                ..ApiError::unsupported_media_type(&ACCEPTED[..2])
            }),
            Err(error) => Err(failed(&error)),
        },
    }
}

/// Removes members that are null: to every field that means "not set".
pub(crate) fn strip_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, member| !member.is_null());
            map.values_mut().for_each(strip_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Removes what a path leads to.
pub(crate) fn remove(value: &mut Value, path: &[Step]) {
    let Some((last, parents)) = path.split_last() else {
        return;
    };
    let mut found = Some(value);
    for step in parents {
        found = found.and_then(|value| match step {
            Step::Field(name) => value.get_mut(name),
            Step::Index(index) => value.get_mut(index),
        });
    }
    if let (Some(Value::Object(map)), Step::Field(name)) = (found, last) {
        map.remove(name);
    }
}

/// The path of a field that a type does not have.
pub(crate) fn unknown_path(path: &serde_ignored::Path<'_>) -> Vec<Step> {
    use serde_ignored::Path;
    match path {
        Path::Root => Vec::new(),
        Path::Seq { parent, index } => {
            let mut steps = unknown_path(parent);
            steps.push(Step::Index(*index));
            steps
        }
        Path::Map { parent, key } => {
            let mut steps = unknown_path(parent);
            steps.push(Step::Field(key.clone()));
            steps
        }
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
            unknown_path(parent)
        }
    }
}

/// Where the parser is, and which keys it saw twice.
#[derive(Default)]
struct Trace {
    path: RefCell<Vec<Step>>,
    duplicates: RefCell<Vec<Vec<Step>>>,
}

/// Duplicates reported of one body; more say nothing new.
const MAX_DUPLICATES: usize = 64;

struct ValueSeed<'a>(&'a Trace);

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
            self.0.path.borrow_mut().push(Step::Index(items.len()));
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
            self.0.path.borrow_mut().push(Step::Field(key.clone()));
            if map.contains_key(&key) && self.0.duplicates.borrow().len() < MAX_DUPLICATES {
                let path = self.0.path.borrow().clone();
                self.0.duplicates.borrow_mut().push(path);
            }
            let value = access.next_value_seed(ValueSeed(self.0))?;
            self.0.path.borrow_mut().pop();
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
        /// Whatever arrives in whatever encoding: a value or a refusal, never a panic.
        #[test]
        fn no_body_breaks_the_server(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "[\\[\\]{}:,\"a-c0-9 \n&*!|-]{0,80}") {
            let enveloped = [b"k8s\0".as_slice(), &bytes].concat();
            for body in [bytes.as_slice(), text.as_bytes(), &enveloped] {
                for encoding in [Encoding::Json, Encoding::Yaml, Encoding::Protobuf] {
                    let _ = parse(body, encoding);
                }
            }
        }
    }

    #[test]
    fn duplicates_are_found_where_they_are() {
        let body = br#"{"a": [{"b": 1, "b": 2}], "c": null}"#;
        let parsed = parse(body, Encoding::Json).unwrap();
        assert_eq!(parsed.value, json!({"a": [{"b": 2}], "c": null}));
        let paths: Vec<String> = parsed.duplicates.iter().map(|path| render(path)).collect();
        assert_eq!(paths, ["a[0].b"]);
    }

    #[test]
    fn what_is_not_json_is_refused_without_harm() {
        let deep = "[".repeat(100_000);
        for body in ["", "{", "{}x", "\u{0}", deep.as_str()] {
            assert!(parse(body.as_bytes(), Encoding::Json).is_err());
        }
        assert!(parse(b"\xff", Encoding::Yaml).is_err());
    }

    #[test]
    fn removing_a_field_leaves_its_neighbours() {
        let mut value = json!({"a": [{"b": 1, "c": 2}]});
        remove(
            &mut value,
            &[Step::Field("a".into()), Step::Index(0), Step::Field("b".into())],
        );
        assert_eq!(value, json!({"a": [{"c": 2}]}));
    }
}
