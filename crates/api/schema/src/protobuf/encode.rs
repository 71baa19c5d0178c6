//! From JSON to protobuf.
//!
//! What is written is what the JSON has: zeros that it leaves out are left out here too, which means the same. Fields
//! that the table does not know are not written.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{MAGIC, message};
use crate::{Field, FieldType, Message, Shape};

/// The wire types.
const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const BYTES: u8 = 2;

/// An object or a list in its envelope; `None` if its kind has no fields in the table.
pub fn encode(value: &Value) -> Option<Vec<u8>> {
    let word = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (word("apiVersion"), word("kind"));
    let object = value.as_object()?;
    let mut raw = Vec::new();
    match message(api_version, kind) {
        Some(message) => write_message(message, object, &mut raw),
        None => write_list(api_version, kind, object, &mut raw)?,
    }
    let mut typed = Vec::new();
    write_bytes(1, api_version.as_bytes(), &mut typed);
    write_bytes(2, kind.as_bytes(), &mut typed);
    let mut out = MAGIC.to_vec();
    write_bytes(1, &typed, &mut out);
    write_bytes(2, &raw, &mut out);
    // The content's encoding and type are not named, which means that it is plain.
    write_bytes(3, b"", &mut out);
    write_bytes(4, b"", &mut out);
    Some(out)
}

/// Lists are alike for all kinds: metadata and items.
fn write_list(api_version: &str, kind: &str, list: &Map<String, Value>, out: &mut Vec<u8>) -> Option<()> {
    let item = message(api_version, kind.strip_suffix("List")?)?;
    let metadata = Message::named("meta.ListMeta")?;
    let mut inner = Vec::new();
    if let Some(Value::Object(found)) = list.get("metadata") {
        write_message(metadata, found, &mut inner);
    }
    write_bytes(1, &inner, out);
    for object in list.get("items").and_then(Value::as_array).into_iter().flatten() {
        inner.clear();
        if let Value::Object(object) = object {
            write_message(item, object, &mut inner);
        }
        write_bytes(2, &inner, out);
    }
    Some(())
}

/// An event of a watch, with its length before it; `None` if the object's kind has no fields in the table.
pub fn watch_frame(event: &str, object: &Value) -> Option<Vec<u8>> {
    let mut extension = Vec::new();
    write_bytes(1, &encode(object)?, &mut extension);
    let mut frame = Vec::new();
    write_bytes(1, event.as_bytes(), &mut frame);
    write_bytes(2, &extension, &mut frame);
    let length = u32::try_from(frame.len()).ok()?;
    Some([&length.to_be_bytes()[..], &frame].concat())
}

fn write_message(message: &'static Message, object: &Map<String, Value>, out: &mut Vec<u8>) {
    for field in &message.fields {
        if field.shape == Shape::Inline {
            if let Some(inner) = field.message() {
                let mut nested = Vec::new();
                write_message(inner, object, &mut nested);
                write_bytes(field.number, &nested, out);
            }
            continue;
        }
        match (field.shape, object.get(field.name)) {
            (_, None | Some(Value::Null)) => {}
            (Shape::List, Some(Value::Array(items))) => {
                for item in items {
                    write_value(field, field.number, item, out);
                }
            }
            (Shape::Map, Some(Value::Object(entries))) => {
                for (key, value) in entries {
                    let mut entry = Vec::new();
                    write_bytes(1, key.as_bytes(), &mut entry);
                    write_value(field, 2, value, &mut entry);
                    write_bytes(field.number, &entry, out);
                }
            }
            (_, Some(value)) => write_value(field, field.number, value, out),
        }
    }
}

/// Writes one value. A value of another type than the field's, which no stored object has, is not written.
fn write_value(field: &'static Field, number: u64, value: &Value, out: &mut Vec<u8>) {
    match (field.kind, value) {
        (FieldType::Text, Value::String(text)) => write_bytes(number, text.as_bytes(), out),
        (FieldType::Bool, Value::Bool(flag)) => write_number(number, u64::from(*flag), out),
        (FieldType::Int32 | FieldType::Int64, Value::Number(found)) => {
            write_number(number, found.as_i64().unwrap_or(0).cast_unsigned(), out);
        }
        (FieldType::Double, Value::Number(found)) => {
            write_varint(number << 3 | u64::from(FIXED64), out);
            out.extend_from_slice(&found.as_f64().unwrap_or(0.0).to_le_bytes());
        }
        (FieldType::Bytes, Value::String(text)) => {
            write_bytes(number, &STANDARD.decode(text).unwrap_or_default(), out);
        }
        (FieldType::Time | FieldType::MicroTime, Value::String(text)) => {
            if let Ok(time) = text.parse::<Timestamp>() {
                write_bytes(number, &timestamp(time), out);
            }
        }
        (FieldType::Quantity, Value::String(text)) => write_bytes(number, &only(text.as_bytes()), out),
        (FieldType::Quantity, Value::Number(found)) => {
            write_bytes(number, &only(found.to_string().as_bytes()), out);
        }
        (FieldType::IntOrString, _) => write_bytes(number, &int_or_string(value), out),
        (FieldType::Json, _) => write_bytes(number, &only(value.to_string().as_bytes()), out),
        (FieldType::Texts, Value::Array(items)) => {
            let mut nested = Vec::new();
            for text in items.iter().filter_map(Value::as_str) {
                write_bytes(1, text.as_bytes(), &mut nested);
            }
            write_bytes(number, &nested, out);
        }
        (FieldType::Message(_), Value::Object(object)) => {
            if let Some(inner) = field.message() {
                let mut nested = Vec::new();
                write_message(inner, object, &mut nested);
                write_bytes(number, &nested, out);
            }
        }
        _ => {}
    }
}

/// A message with one field.
fn only(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_bytes(1, bytes, &mut out);
    out
}

fn timestamp(time: Timestamp) -> Vec<u8> {
    let mut out = Vec::new();
    // Before the epoch a time is whole seconds further back, and a fraction forward.
    let nanos = time.subsec_nanosecond();
    let (seconds, nanos) = if nanos < 0 {
        (time.as_second() - 1, nanos + 1_000_000_000)
    } else {
        (time.as_second(), nanos)
    };
    write_number(1, seconds.cast_unsigned(), &mut out);
    write_number(2, i64::from(nanos).cast_unsigned(), &mut out);
    out
}

fn int_or_string(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    let text = value.as_str();
    write_number(1, u64::from(text.is_some()), &mut out);
    write_number(2, value.as_i64().unwrap_or(0).cast_unsigned(), &mut out);
    write_bytes(3, text.unwrap_or_default().as_bytes(), &mut out);
    out
}

fn write_number(number: u64, value: u64, out: &mut Vec<u8>) {
    write_varint(number << 3 | u64::from(VARINT), out);
    write_varint(value, out);
}

fn write_bytes(number: u64, bytes: &[u8], out: &mut Vec<u8>) {
    write_varint(number << 3 | u64::from(BYTES), out);
    write_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn write_varint(mut value: u64, out: &mut Vec<u8>) {
    loop {
        let low = u8::try_from(value & 0x7f).unwrap_or(0);
        value >>= 7;
        if value == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "default", "labels": {"a": "b"}, "generation": 2,
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "managedFields": [{"manager": "m", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}]},
            "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {}, "spec": {
                "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "100m"}},
                    "livenessProbe": {"httpGet": {"port": "web", "path": "/"}, "initialDelaySeconds": 3},
                    "securityContext": {"privileged": false, "runAsUser": -1}}],
                "volumes": [{"name": "v", "emptyDir": {}}]}},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}}},
            "status": {},
        });
        let encoded = encode(&deployment).unwrap();
        assert_eq!(super::super::decode(&encoded).unwrap(), deployment);
        let revision = json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {"name": "r"},
            "data": {"spec": [1, null]}, "revision": 0});
        assert_eq!(
            super::super::decode(&encode(&revision).unwrap()).unwrap(),
            revision
        );
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"},
            "spec": {"renewTime": "1969-12-31T23:59:59.250000Z"}});
        assert_eq!(super::super::decode(&encode(&lease).unwrap()).unwrap(), lease);
    }

    #[test]
    fn lists_and_watches_have_their_frames() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}});
        let list = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": [pod]});
        let bytes = encode(&list).unwrap();
        assert!(bytes.starts_with(MAGIC));
        assert!(bytes.windows(3).any(|part| part == [10, 1, b'p']));
        let frame = watch_frame("ADDED", &pod).unwrap();
        let length = u32::from_be_bytes(frame[..4].try_into().unwrap());
        assert_eq!(usize::try_from(length).unwrap() + 4, frame.len());
        assert_eq!(frame[4..11], [10, 5, b'A', b'D', b'D', b'E', b'D']);
        assert!(encode(&json!({"apiVersion": "x/v1", "kind": "Unheard"})).is_none());
    }
}
