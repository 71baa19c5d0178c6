//! Strict decoding: an object against the table, in one walk that reports every problem.
//!
//! Unknown fields, duplicate keys and wrong types are problems; Go's tolerance holds too: `null` stands for the zero value
//! everywhere. Afterwards the object has only fields that its message has, scalars have their one spelling (quantities,
//! times), and nothing is null. The caller decides which problems are errors.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Number, Value, json};

use crate::path::Trail;
use crate::quantity::Amount;
use crate::time::{micro_timestamp, timestamp};
use crate::{Field, FieldPath, FieldType, MAX_DEPTH, Message, PathStep, Profile, Shape};

/// Problems reported of one object, as many as upstream's decoder reports; more add nothing.
pub const MAX_PROBLEMS: usize = 100;

/// Longest part of a value that a message quotes, in characters.
const MAX_QUOTED: usize = 60;

/// One thing that strict decoding does not accept.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    pub path: FieldPath,
    pub kind: ProblemKind,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ProblemKind {
    /// The message lacks the field. It was removed from the object.
    UnknownField { message: &'static str },
    /// The key occurred before; the last one counts.
    DuplicateField,
    /// The value has another type than the field.
    WrongType {
        found: String,
        wanted: &'static str,
        /// The value is right if it is written as a string.
        wants_quotes: bool,
        go: GoMismatch,
    },
    /// The text does not have the form of the field's type.
    Malformed {
        text: String,
        wanted: &'static str,
        go: GoMismatch,
    },
    /// Messages nest too deeply.
    TooDeep,
}

/// A wrong type as upstream's decoder knows it. Clients see its words in answers of an API server.
#[derive(Debug, Clone, PartialEq)]
pub struct GoMismatch {
    /// The message that has the field.
    message: &'static str,
    /// JSON's name for the value that was found.
    found: &'static str,
    /// Go's name for the type of the field.
    wanted: String,
}

impl ProblemKind {
    /// Whether the object can be used if the problem is tolerated.
    pub const fn is_tolerable(&self) -> bool {
        match self {
            Self::UnknownField { .. } | Self::DuplicateField => true,
            Self::WrongType { .. } | Self::Malformed { .. } | Self::TooDeep => false,
        }
    }
}

impl fmt::Display for Problem {
    /// As an API server words it: the kind of problem and the path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ProblemKind::UnknownField { .. } => write!(f, "unknown field \"{}\"", self.path),
            ProblemKind::DuplicateField => write!(f, "duplicate field \"{}\"", self.path),
            ProblemKind::WrongType { .. } | ProblemKind::Malformed { .. } | ProblemKind::TooDeep => {
                write!(f, "{}: {}", self.path, self.kind)
            }
        }
    }
}

impl Problem {
    /// The problem in the words of upstream's API server.
    pub fn upstream_text(&self) -> String {
        match &self.kind {
            ProblemKind::Malformed { go, .. } if go.wanted == QUANTITY => QUANTITY_RULE.to_owned(),
            ProblemKind::WrongType { go, .. } | ProblemKind::Malformed { go, .. } => {
                let names = self.path.0.iter().filter_map(|step| match step {
                    PathStep::Field(name) => Some(name.as_str()),
                    PathStep::Index(_) => None,
                });
                let path: Vec<&str> = names.collect();
                format!(
                    "json: cannot unmarshal {} into Go struct field {}.{} of type {}",
                    go.found,
                    go.message,
                    path.join("."),
                    go.wanted
                )
            }
            ProblemKind::UnknownField { .. } | ProblemKind::DuplicateField | ProblemKind::TooDeep => {
                self.to_string()
            }
        }
    }
}

/// Go's name for the type of quantities.
const QUANTITY: &str = "resource.Quantity";
/// Upstream's words about a text that is no quantity.
const QUANTITY_RULE: &str = "quantities must match the regular expression \
                             '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

impl fmt::Display for ProblemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownField { message } => write!(f, "unknown field of {message}"),
            Self::DuplicateField => f.write_str("duplicate field"),
            Self::WrongType { found, wanted, .. } => {
                write!(f, "wrong type: found {found}, expected {wanted}")
            }
            Self::Malformed { text, wanted, .. } => write!(f, "{text:?} is not {wanted}"),
            Self::TooDeep => f.write_str("nested too deeply"),
        }
    }
}

/// Checks an object and brings its values into form.
pub fn check(message: &'static Message, value: &mut Value, profile: Profile) -> Vec<Problem> {
    let mut checker = Checker {
        profile,
        problems: Vec::new(),
    };
    checker.message(message, message.name, value, &Trail::ROOT);
    checker.problems
}

struct Checker {
    profile: Profile,
    problems: Vec<Problem>,
}

impl Checker {
    fn report(&mut self, trail: &Trail<'_>, kind: ProblemKind) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(Problem {
                path: trail.path(),
                kind,
            });
        }
    }

    fn mismatch(&mut self, trail: &Trail<'_>, value: &Value, expected: &Expected) {
        let kind = ProblemKind::WrongType {
            found: describe(value),
            wanted: expected.name,
            wants_quotes: expected.go == "string" && (value.is_number() || value.is_boolean()),
            go: expected.mismatch(value),
        };
        self.report(trail, kind);
    }

    /// Checks a message that is a field of `owner`.
    fn message(
        &mut self,
        message: &'static Message,
        owner: &'static str,
        value: &mut Value,
        trail: &Trail<'_>,
    ) {
        if value.is_null() {
            *value = Value::Object(Map::new());
        }
        let Value::Object(map) = value else {
            self.mismatch(
                trail,
                value,
                &Expected::new(owner, "an object", go_message(message)),
            );
            return;
        };
        if trail.depth > MAX_DEPTH {
            self.report(trail, ProblemKind::TooDeep);
            return;
        }
        map.retain(|name, value| {
            let trail = trail.field(name);
            if message.is_kind && matches!(name.as_str(), "apiVersion" | "kind") {
                if !value.is_string() && !value.is_null() {
                    self.mismatch(
                        &trail,
                        value,
                        &Expected::new(message.name, "a string", "string".to_owned()),
                    );
                }
                return !value.is_null();
            }
            match message.field(name).filter(|field| field.exists_in(self.profile)) {
                Some(_) if value.is_null() => false,
                Some(field) => {
                    self.field(message, field, value, &trail);
                    true
                }
                None => {
                    let message = short(message.name);
                    self.report(&trail, ProblemKind::UnknownField { message });
                    false
                }
            }
        });
    }

    fn field(
        &mut self,
        owner: &'static Message,
        field: &'static Field,
        value: &mut Value,
        trail: &Trail<'_>,
    ) {
        match (field.shape, &mut *value) {
            (Shape::List, Value::Array(items)) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.value(owner, field, item, &trail.index(index));
                }
            }
            (Shape::Map, Value::Object(entries)) => {
                for (key, item) in entries.iter_mut() {
                    self.value(owner, field, item, &trail.field(key));
                }
            }
            (Shape::List, _) => {
                let go = format!("[]{}", go_type(field));
                self.mismatch(trail, value, &Expected::new(owner.name, "a list", go));
            }
            (Shape::Map, _) => {
                let go = format!("map[string]{}", go_type(field));
                self.mismatch(trail, value, &Expected::new(owner.name, "an object", go));
            }
            (Shape::One | Shape::Optional | Shape::Inline, _) => self.value(owner, field, value, trail),
        }
    }

    fn value(
        &mut self,
        owner: &'static Message,
        field: &'static Field,
        value: &mut Value,
        trail: &Trail<'_>,
    ) {
        if let Some(inner) = field.message() {
            self.message(inner, owner.name, value, trail);
            return;
        }
        let expected = || Expected::new(owner.name, type_name(field.kind), go_type(field));
        if value.is_null() {
            *value = zero(field.kind);
            return;
        }
        match scalar(field.kind, value) {
            Scalar::Fits => {}
            Scalar::Becomes(form) => *value = form,
            Scalar::Malformed => {
                let expected = expected();
                let kind = ProblemKind::Malformed {
                    text: quoted(value.as_str().unwrap_or_default()),
                    wanted: expected.name,
                    go: expected.mismatch(value),
                };
                self.report(trail, kind);
            }
            Scalar::OtherType => self.mismatch(trail, value, &expected()),
        }
    }
}

/// The type that a value should have.
struct Expected {
    owner: &'static str,
    name: &'static str,
    go: String,
}

impl Expected {
    const fn new(owner: &'static str, name: &'static str, go: String) -> Self {
        Self { owner, name, go }
    }

    fn mismatch(&self, value: &Value) -> GoMismatch {
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        GoMismatch {
            message: short(self.owner),
            found,
            wanted: self.go.clone(),
        }
    }
}

fn go_message(message: &Message) -> String {
    format!("v1.{}", short(message.name))
}

/// Go's name for the type of a field's values.
fn go_type(field: &Field) -> String {
    let name = match field.kind {
        FieldType::Text => "string",
        FieldType::Texts => "[]string",
        FieldType::Bool => "bool",
        FieldType::Int32 => "int32",
        FieldType::Int64 => "int64",
        FieldType::Double => "float64",
        FieldType::Bytes => "[]uint8",
        FieldType::Time => "v1.Time",
        FieldType::MicroTime => "v1.MicroTime",
        FieldType::Quantity => QUANTITY,
        FieldType::IntOrString => "intstr.IntOrString",
        FieldType::Json => "runtime.RawExtension",
        FieldType::Message(_) => return field.message().map_or_else(String::new, go_message),
    };
    name.to_owned()
}

fn short(name: &'static str) -> &'static str {
    name.rsplit('.').next().unwrap_or(name)
}

/// A type, as a manifest's author calls it.
const fn type_name(kind: FieldType) -> &'static str {
    match kind {
        FieldType::Text => "a string",
        FieldType::Bool => "a boolean",
        FieldType::Int32 => "a 32-bit integer",
        FieldType::Int64 => "an integer",
        FieldType::Double => "a number",
        FieldType::Bytes => "base64",
        FieldType::Time | FieldType::MicroTime => "a time such as 2026-01-31T12:00:00Z",
        FieldType::Quantity => "a quantity; write a number with an optional suffix, such as 500m, 2 or 128Mi",
        FieldType::IntOrString => "an integer or a string",
        FieldType::Json => "a value",
        FieldType::Texts => "a list of strings",
        FieldType::Message(_) => "an object",
    }
}

/// A found value, short enough for a message.
fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => format!("boolean `{flag}`"),
        Value::Number(number) if number.is_f64() => format!("number `{number}`"),
        Value::Number(number) => format!("integer `{number}`"),
        Value::String(text) => format!("string {:?}", quoted(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// The meaning of `null` in a list or a map.
fn zero(kind: FieldType) -> Value {
    match kind {
        FieldType::Text => json!(""),
        FieldType::Bool => json!(false),
        FieldType::Int32 | FieldType::Int64 | FieldType::Double | FieldType::IntOrString => json!(0),
        FieldType::Quantity => json!("0"),
        FieldType::Texts => json!([]),
        FieldType::Bytes
        | FieldType::Time
        | FieldType::MicroTime
        | FieldType::Json
        | FieldType::Message(_) => Value::Null,
    }
}

enum Scalar {
    Fits,
    /// It has another spelling.
    Becomes(Value),
    Malformed,
    OtherType,
}

fn scalar(kind: FieldType, value: &Value) -> Scalar {
    let in_form = |form: Option<String>, given: &str| match form {
        Some(form) if form == given => Scalar::Fits,
        Some(form) => Scalar::Becomes(json!(form)),
        None => Scalar::Malformed,
    };
    let fits = match (kind, value) {
        (FieldType::Text | FieldType::IntOrString, Value::String(_))
        | (FieldType::Bool, Value::Bool(_))
        | (FieldType::Double, Value::Number(_))
        | (FieldType::Json, _) => true,
        (FieldType::Int32 | FieldType::IntOrString, Value::Number(number)) => is_int32(number),
        (FieldType::Int64, Value::Number(number)) => number.is_i64(),
        (FieldType::Texts, Value::Array(items)) => items.iter().all(Value::is_string),
        (FieldType::Bytes, Value::String(text)) if STANDARD.decode(text).is_ok() => true,
        (FieldType::Bytes, Value::String(_)) => return Scalar::Malformed,
        (FieldType::Quantity, Value::String(text)) => return in_form(quantity(text), text),
        (FieldType::Quantity, Value::Number(number)) => return in_form(quantity(&number.to_string()), ""),
        (FieldType::Time, Value::String(text)) => return in_form(time(text).map(timestamp), text),
        (FieldType::MicroTime, Value::String(text)) => return in_form(time(text).map(micro_timestamp), text),
        _ => false,
    };
    if fits { Scalar::Fits } else { Scalar::OtherType }
}

fn is_int32(number: &Number) -> bool {
    number
        .as_i64()
        .is_some_and(|number| i32::try_from(number).is_ok())
}

fn quantity(text: &str) -> Option<String> {
    Amount::parse(text).ok().map(|amount| amount.to_string())
}

fn time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(kind: &str, value: Value) -> (Value, Vec<String>) {
        let mut value = value;
        let message = Message::named(kind).expect("a message of the table");
        let problems = check(message, &mut value, Profile::Pulselet);
        (value, problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn every_problem_is_reported_in_one_walk() {
        let (value, problems) = problems(
            "core.Pod",
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": 5}, "spec": {"foo": {"bar": 1}, "containers": [
                {"name": "a", "tty": "yes", "livenessProbe": {"periodMilliseconds": 1, "perodSeconds": 1}},
                {"name": "b", "resources": {"limits": {"cpu": "lots", "memory": 1}}},
            ]}}),
        );
        assert_eq!(
            problems,
            [
                "metadata.name: wrong type: found integer `5`, expected a string",
                "unknown field \"spec.containers[0].livenessProbe.perodSeconds\"",
                "spec.containers[0].tty: wrong type: found string \"yes\", expected a boolean",
                "spec.containers[1].resources.limits.cpu: \"lots\" is not a quantity; write a number with an optional \
                 suffix, such as 500m, 2 or 128Mi",
                "unknown field \"spec.foo\"",
            ]
        );
        assert_eq!(
            value["spec"]["containers"][0]["livenessProbe"],
            json!({"periodMilliseconds": 1})
        );
        assert_eq!(
            value["spec"]["containers"][1]["resources"]["limits"]["memory"],
            "1"
        );
    }

    #[test]
    fn the_number_of_problems_is_bounded() {
        let spec: Map<String, Value> = (0..1000).map(|index| (format!("x{index}"), json!(1))).collect();
        let (_, problems) = problems("core.Pod", json!({"spec": spec}));
        assert_eq!(problems.len(), MAX_PROBLEMS);
    }

    #[test]
    fn null_is_the_zero_value() {
        let (value, problems) = problems(
            "core.Pod",
            json!({"metadata": {"labels": {"a": null}, "name": null}, "spec": {"containers": [null], "volumes": null}}),
        );
        assert_eq!(problems, [""; 0]);
        assert_eq!(
            value,
            json!({"metadata": {"labels": {"a": ""}}, "spec": {"containers": [{}]}})
        );
    }

    #[test]
    fn messages_that_hold_themselves_are_bounded() {
        let deep = (0..MAX_DEPTH).fold(
            json!({}),
            |inner, _| json!({"spec": {"template": {"spec": inner}}}),
        );
        let (_, problems) = problems("core.Pod", deep);
        assert!(!problems.is_empty());
    }

    #[test]
    fn own_fields_exist_in_one_profile() {
        let probe = Message::named("core.Probe").unwrap();
        let given = json!({"periodMilliseconds": 5, "periodSeconds": 1});
        assert!(check(probe, &mut given.clone(), Profile::Pulselet).is_empty());
        let mut value = given;
        let problems = check(probe, &mut value, Profile::Kubernetes);
        assert_eq!(problems[0].to_string(), "unknown field \"periodMilliseconds\"");
        assert_eq!(value, json!({"periodSeconds": 1}));
    }
}
