//! A body against the table: types are checked, fields that nobody knows are taken out and named, and what is left gets
//! the form in which an upstream server writes it.
//!
//! That form follows from the table alone: which fields are left out when empty, and which are written all the same.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use pulselet_model::quantity::Amount;
use serde_json::{Map, Value, json};

use super::{Field, FieldType, MAX_DEPTH, Message, Presence, Shape};
use crate::rest::body::Step;

/// What was found in a body, or why it does not fit its kind.
type Checked<T> = Result<T, String>;

/// Checks a body and brings it into form; returns the paths of the fields that were taken out.
pub(crate) fn canonical(message: &'static Message, value: Value) -> Checked<(Value, Vec<Vec<Step>>)> {
    let mut checker = Checker {
        path: Vec::new(),
        unknown: Vec::new(),
    };
    let value = checker.message(message, value)?;
    Ok((value, checker.unknown))
}

struct Checker {
    path: Vec<Step>,
    unknown: Vec<Vec<Step>>,
}

impl Checker {
    fn message(&mut self, message: &'static Message, value: Value) -> Checked<Value> {
        let Value::Object(given) = value else {
            return Err(self.mismatch(message.name, &value, &format!("v1.{}", short(message.name))));
        };
        if self.path.len() > MAX_DEPTH {
            return Err("the body is nested too deeply".to_owned());
        }
        let mut kept = Map::new();
        for (name, value) in given {
            self.path.push(Step::Field(name.clone()));
            let is_type = message.is_kind && matches!(name.as_str(), "apiVersion" | "kind");
            match message.field(&name) {
                _ if is_type => drop(kept.insert(name, value)),
                Some(field) if !value.is_null() => {
                    let value = self.field(message, field, value)?;
                    kept.insert(name, value);
                }
                Some(_) => {}
                None => self.unknown.push(self.path.clone()),
            }
            self.path.pop();
        }
        complete(message, &mut kept);
        Ok(Value::Object(kept))
    }

    fn field(&mut self, message: &'static Message, field: &'static Field, value: Value) -> Checked<Value> {
        match (field.shape, value) {
            (Shape::List, Value::Array(items)) => {
                let mut checked = Vec::with_capacity(items.len());
                for (index, item) in items.into_iter().enumerate() {
                    self.path.push(Step::Index(index));
                    checked.push(self.value(message, field, item)?);
                    self.path.pop();
                }
                Ok(Value::Array(checked))
            }
            (Shape::Map, Value::Object(entries)) => {
                let mut checked = Map::new();
                for (key, item) in entries {
                    self.path.push(Step::Field(key.clone()));
                    let item = self.value(message, field, item)?;
                    self.path.pop();
                    checked.insert(key, item);
                }
                Ok(Value::Object(checked))
            }
            (Shape::List | Shape::Map, value) => {
                let wanted = if field.shape == Shape::List {
                    "[]"
                } else {
                    "map[string]"
                };
                Err(self.mismatch(message.name, &value, &format!("{wanted}{}", go_name(field))))
            }
            (Shape::One | Shape::Optional | Shape::Inline, value) => self.value(message, field, value),
        }
    }

    fn value(&mut self, message: &'static Message, field: &'static Field, value: Value) -> Checked<Value> {
        if let Some(inner) = field.message() {
            return self.message(inner, value);
        }
        scalar(field.kind, &value).ok_or_else(|| self.mismatch(message.name, &value, go_name(field)))
    }

    /// As an upstream server says it.
    fn mismatch(&self, message: &str, value: &Value, wanted: &str) -> String {
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let steps = self.path.iter().filter_map(|step| match step {
            Step::Field(name) => Some(name.as_str()),
            Step::Index(_) => None,
        });
        let path: Vec<&str> = steps.collect();
        format!(
            "json: cannot unmarshal {found} into Go struct field {}.{} of type {wanted}",
            short(message),
            path.join(".")
        )
    }
}

fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// The type by the name that errors of upstream give it.
fn go_name(field: &Field) -> &'static str {
    match field.kind {
        FieldType::Text | FieldType::Texts => "string",
        FieldType::Bool => "bool",
        FieldType::Int32 => "int32",
        FieldType::Int64 => "int64",
        FieldType::Double => "float64",
        FieldType::Bytes => "[]uint8",
        FieldType::Time => "v1.Time",
        FieldType::MicroTime => "v1.MicroTime",
        FieldType::Quantity => "resource.Quantity",
        FieldType::IntOrString => "intstr.IntOrString",
        FieldType::Json => "runtime.RawExtension",
        FieldType::Message(_) => field.message().map_or("object", |message| message.name),
    }
}

/// A value that is no message, in the form it is written in; `None` if it is of another type.
fn scalar(kind: FieldType, value: &Value) -> Option<Value> {
    let fits = match (kind, value) {
        (FieldType::Text | FieldType::IntOrString, Value::String(_))
        | (FieldType::Bool, Value::Bool(_))
        | (FieldType::Double, Value::Number(_))
        | (FieldType::Json, _) => true,
        (FieldType::Int32 | FieldType::IntOrString, Value::Number(number)) => number
            .as_i64()
            .is_some_and(|number| i32::try_from(number).is_ok()),
        (FieldType::Int64, Value::Number(number)) => number.is_i64(),
        (FieldType::Bytes, Value::String(text)) => STANDARD.decode(text).is_ok(),
        (FieldType::Texts, Value::Array(items)) => items.iter().all(Value::is_string),
        (FieldType::Quantity, Value::String(text)) => return quantity(text),
        (FieldType::Quantity, Value::Number(number)) => return quantity(&number.to_string()),
        (FieldType::Time, Value::String(text)) => {
            let time: Timestamp = text.parse().ok()?;
            return Some(json!(crate::registry::object::timestamp(time)));
        }
        (FieldType::MicroTime, Value::String(text)) => {
            let time: Timestamp = text.parse().ok()?;
            return Some(json!(format!("{time:.6}")));
        }
        _ => false,
    };
    fits.then(|| value.clone())
}

fn quantity(text: &str) -> Option<Value> {
    Amount::parse(text).ok().map(|amount| json!(amount.to_string()))
}

/// Takes out what is not written when it is zero, and puts in what is written always.
pub(crate) fn complete(message: &'static Message, map: &mut Map<String, Value>) {
    for field in &message.fields {
        if field.shape == Shape::Inline {
            if let Some(inner) = field.message() {
                complete(inner, map);
            }
            continue;
        }
        let found = map.get(field.name).filter(|value| !value.is_null());
        let listed = matches!(field.shape, Shape::List | Shape::Map);
        let stays = field.presence == Presence::Always && found.is_some() && !listed;
        if stays || found.is_some_and(|value| !is_zero(field, value)) {
            continue;
        }
        match (field.presence, zero(field)) {
            (Presence::OmitZero, _) | (Presence::OmitEmpty, None) => {
                map.remove(field.name);
            }
            (Presence::Always, None) => {
                map.insert(field.name.to_owned(), plain_zero(field));
            }
            (Presence::Always | Presence::OmitEmpty, Some(zero)) => {
                map.insert(field.name.to_owned(), zero);
            }
        }
    }
}

/// Whether a value says no more than its absence. A list or a map without entries, and a pointer to nothing, do.
fn is_zero(field: &Field, value: &Value) -> bool {
    match (field.shape, value) {
        (Shape::Optional, _) => value.is_null(),
        (Shape::List, Value::Array(items)) => items.is_empty(),
        (Shape::Map, Value::Object(entries)) => entries.is_empty(),
        (_, Value::Null) => true,
        (_, Value::Bool(flag)) => !flag,
        (_, Value::String(text)) => text.is_empty() && field.kind != FieldType::IntOrString,
        (_, Value::Number(number)) => number.as_f64() == Some(0.0),
        (_, Value::Object(map)) => field.message().is_some_and(|message| {
            let mut nothing = Map::new();
            complete(message, &mut nothing);
            *map == nothing
        }),
        (_, Value::Array(_)) => false,
    }
}

/// What a field that cannot be left out holds when nothing was said; `None` if it can.
fn zero(field: &Field) -> Option<Value> {
    if field.shape != Shape::One {
        return None;
    }
    match field.kind {
        FieldType::Message(_) => field.message().map(|message| {
            let mut nothing = Map::new();
            complete(message, &mut nothing);
            Value::Object(nothing)
        }),
        FieldType::Time | FieldType::MicroTime | FieldType::Json => Some(Value::Null),
        FieldType::Quantity => Some(json!("0")),
        FieldType::IntOrString => Some(json!(0)),
        FieldType::Text
        | FieldType::Bool
        | FieldType::Int32
        | FieldType::Int64
        | FieldType::Double
        | FieldType::Bytes
        | FieldType::Texts => None,
    }
}

fn plain_zero(field: &Field) -> Value {
    match (field.shape, field.kind) {
        (Shape::One, FieldType::Text) => json!(""),
        (Shape::One, FieldType::Bool) => json!(false),
        (Shape::One, FieldType::Int32 | FieldType::Int64 | FieldType::Double) => json!(0),
        _ => Value::Null,
    }
}
