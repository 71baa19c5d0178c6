//! Objects that have every field, for tests that must not miss one.

use serde_json::{Map, Value, json};

use crate::{FieldType, Message, Profile, Shape};

/// An object of a message such as `core.Pod` with every field that a profile has, without its type.
///
/// # Panics
///
/// If the table has no such message.
pub fn sample(message: &str, profile: Profile) -> Value {
    let message = Message::named(message).expect("the table has the message");
    Value::Object(whole(message, profile))
}

fn whole(message: &'static Message, profile: Profile) -> Map<String, Value> {
    let mut object = Map::new();
    for field in message.fields.iter().filter(|field| field.exists_in(profile)) {
        let value = match (field.kind, field.message()) {
            (_, Some(inner)) if field.shape == Shape::Inline => {
                object.extend(whole(inner, profile));
                continue;
            }
            (_, Some(inner)) => Value::Object(whole(inner, profile)),
            (FieldType::Text | FieldType::Quantity, _) => json!("1"),
            (FieldType::Bool, _) => json!(true),
            (FieldType::Time, _) => json!("2026-01-01T00:00:00Z"),
            (FieldType::MicroTime, _) => json!("2026-01-01T00:00:00.000000Z"),
            (FieldType::Bytes, _) => json!("eA=="),
            (FieldType::Json, _) => json!({"a": 1}),
            (FieldType::Texts, _) => json!(["a"]),
            _ => json!(1),
        };
        let value = match field.shape {
            Shape::List => json!([value]),
            Shape::Map => json!({"a": value}),
            Shape::One | Shape::Optional | Shape::Inline => value,
        };
        object.insert(field.name.to_owned(), value);
    }
    object
}
