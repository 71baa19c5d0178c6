//! The form in which an upstream server writes an object: which fields are left out when empty, and which are written even so.
//!
//! It follows from the table alone.

use serde_json::{Map, Value, json};

use crate::{Field, FieldType, Message, Presence, Shape};

/// Removes fields that are not written when they are zero, and adds those that are always written. This covers the message and
/// its inline messages, not the messages below it.
pub fn complete(message: &'static Message, map: &mut Map<String, Value>) {
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

/// The same for an object with everything in it.
pub fn complete_all(message: &'static Message, value: &mut Value) {
    let Value::Object(map) = value else { return };
    complete_below(message, map);
    complete(message, map);
}

fn complete_below(message: &'static Message, map: &mut Map<String, Value>) {
    for (name, value) in map.iter_mut() {
        let Some(field) = message.field(name) else {
            continue;
        };
        let Some(inner) = field.message() else { continue };
        match (field.shape, value) {
            (Shape::List, Value::Array(items)) => {
                for item in items {
                    complete_all(inner, item);
                }
            }
            (Shape::Map, Value::Object(entries)) => {
                for entry in entries.values_mut() {
                    complete_all(inner, entry);
                }
            }
            (_, value) => complete_all(inner, value),
        }
    }
}
