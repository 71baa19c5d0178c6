//! Kubernetes' protobuf: bodies, answers and watches of clients that prefer it to JSON.
//!
//! A body is an envelope that names the kind, and the object in protobuf. The rest of the server works on JSON; the table
//! of fields (`schema`) turns one into the other, for every kind that it has. Fields that upstream does not have are
//! not in protobuf. Lengths are checked against what is there, and nesting is bounded.

mod encode;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::time::{micro_timestamp, timestamp};
use crate::{Field, FieldType, MAX_DEPTH, Message, Presence, Shape};
pub use encode::{encode, watch_frame};

/// What clients call it.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// The same for watches.
pub const WATCH_MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf;stream=watch";

/// What every body begins with.
const MAGIC: &[u8] = b"k8s\0";

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    #[error("the body does not begin as Kubernetes' protobuf does")]
    ReadMagic,
    #[error("the body ends too early or is not protobuf")]
    ReadField,
    #[error("a text is not UTF-8")]
    ReadText,
    #[error("the body is nested too deeply")]
    ReadDepth,
    #[error("objects of kind {kind} of {api_version} are not understood in protobuf")]
    UnknownKind { api_version: String, kind: String },
}

/// The fields of a kind.
fn message(api_version: &str, kind: &str) -> Option<&'static Message> {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    match kind {
        // They come in every group and version.
        "DeleteOptions" => Message::named("meta.DeleteOptions"),
        "Status" => Message::named("meta.Status"),
        _ => Message::find(group, kind),
    }
}

/// Turns a body into JSON.
pub fn decode(body: &[u8]) -> Result<Value, ProtobufError> {
    let mut rest = body.strip_prefix(MAGIC).ok_or(ProtobufError::ReadMagic)?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    while let Some((number, wire)) = next_field(&mut rest)? {
        match (number, wire) {
            (1, Wire::Bytes(mut typed)) => {
                while let Some((number, wire)) = next_field(&mut typed)? {
                    match (number, wire) {
                        (1, Wire::Bytes(bytes)) => text(bytes)?.clone_into(&mut api_version),
                        (2, Wire::Bytes(bytes)) => text(bytes)?.clone_into(&mut kind),
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let Some(message) = message(&api_version, &kind) else {
        return Err(ProtobufError::UnknownKind { api_version, kind });
    };
    let mut object = decode_message(message, raw, 0)?;
    object.insert("apiVersion".to_owned(), json!(api_version));
    object.insert("kind".to_owned(), json!(kind));
    Ok(Value::Object(object))
}

/// A value as the wire has it.
#[derive(Clone, Copy)]
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn next_field<'a>(rest: &mut &'a [u8]) -> Result<Option<(u64, Wire<'a>)>, ProtobufError> {
    if rest.is_empty() {
        return Ok(None);
    }
    let tag = varint(rest)?;
    let wire = match tag & 7 {
        0 => Wire::Number(varint(rest)?),
        1 => Wire::Bytes(take(rest, 8)?),
        2 => {
            let length = usize::try_from(varint(rest)?).map_err(|_| ProtobufError::ReadField)?;
            Wire::Bytes(take(rest, length)?)
        }
        5 => Wire::Bytes(take(rest, 4)?),
        _ => return Err(ProtobufError::ReadField),
    };
    Ok(Some((tag >> 3, wire)))
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], ProtobufError> {
    let (taken, left) = rest.split_at_checked(length).ok_or(ProtobufError::ReadField)?;
    *rest = left;
    Ok(taken)
}

fn varint(rest: &mut &[u8]) -> Result<u64, ProtobufError> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(rest, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(ProtobufError::ReadField)
}

fn text(bytes: &[u8]) -> Result<&str, ProtobufError> {
    std::str::from_utf8(bytes).map_err(|_| ProtobufError::ReadText)
}

fn decode_message(
    message: &'static Message,
    mut rest: &[u8],
    depth: usize,
) -> Result<Map<String, Value>, ProtobufError> {
    if depth > MAX_DEPTH {
        return Err(ProtobufError::ReadDepth);
    }
    let mut object = Map::new();
    while let Some((number, wire)) = next_field(&mut rest)? {
        let field = message.fields.iter().find(|field| field.number == number);
        if let Some(field) = field {
            add(&mut object, field, wire, depth)?;
        }
    }
    Ok(object)
}

fn add(
    object: &mut Map<String, Value>,
    field: &'static Field,
    wire: Wire<'_>,
    depth: usize,
) -> Result<(), ProtobufError> {
    match (field.shape, wire) {
        (Shape::Inline, Wire::Bytes(bytes)) => {
            let inner = field.message().ok_or(ProtobufError::ReadField)?;
            object.extend(decode_message(inner, bytes, depth + 1)?);
        }
        (Shape::Map, Wire::Bytes(entry)) => {
            let (key, value) = map_entry(entry)?;
            let key = key.to_owned();
            let value = decode_value(field, value, depth)?.unwrap_or_default();
            let map = object.entry(field.name).or_insert_with(|| json!({}));
            map[key] = value;
        }
        (Shape::Inline | Shape::Map, Wire::Number(_)) => return Err(ProtobufError::ReadField),
        (Shape::List, wire) => {
            let item = decode_value(field, wire, depth)?.unwrap_or_default();
            let list = object.entry(field.name).or_insert_with(|| json!([]));
            if let Value::Array(items) = list {
                items.push(item);
            }
        }
        (Shape::One | Shape::Optional, wire) => {
            let value = decode_value(field, wire, depth)?;
            // Go writes zeros that mean nothing.
            let silent = field.shape == Shape::One && field.presence != Presence::Always;
            if let Some(value) = value.filter(|value| !(silent && is_zero(value))) {
                object.insert(field.name.to_owned(), value);
            }
        }
    }
    Ok(())
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

/// One value; `None` if it is a time that stands for "not set".
fn decode_value(field: &'static Field, wire: Wire<'_>, depth: usize) -> Result<Option<Value>, ProtobufError> {
    Ok(Some(match (field.kind, wire) {
        (FieldType::Text, Wire::Bytes(bytes)) => json!(text(bytes)?),
        (FieldType::Bool, Wire::Number(number)) => json!(number != 0),
        // Negative numbers are ten bytes of two's complement.
        (FieldType::Int32 | FieldType::Int64, Wire::Number(number)) => json!(number.cast_signed()),
        (FieldType::Double, Wire::Bytes(bytes)) => {
            let bytes: [u8; 8] = bytes.try_into().map_err(|_| ProtobufError::ReadField)?;
            json!(f64::from_le_bytes(bytes))
        }
        (FieldType::Bytes, Wire::Bytes(bytes)) => json!(STANDARD.encode(bytes)),
        (FieldType::Time, Wire::Bytes(bytes)) => {
            return Ok(time(bytes)?.map(|time| json!(timestamp(time))));
        }
        (FieldType::MicroTime, Wire::Bytes(bytes)) => {
            return Ok(time(bytes)?.map(|time| json!(micro_timestamp(time))));
        }
        (FieldType::Quantity, Wire::Bytes(bytes)) => json!(quantity(bytes)?),
        (FieldType::IntOrString, Wire::Bytes(bytes)) => int_or_string(bytes)?,
        (FieldType::Json, Wire::Bytes(bytes)) => {
            let raw = only_field(bytes)?;
            if raw.is_empty() {
                return Ok(None);
            }
            serde_json::from_slice(raw).map_err(|_| ProtobufError::ReadField)?
        }
        (FieldType::Texts, Wire::Bytes(mut bytes)) => {
            let mut items = Vec::new();
            while let Some((number, wire)) = next_field(&mut bytes)? {
                match (number, wire) {
                    (1, Wire::Bytes(bytes)) => items.push(json!(text(bytes)?)),
                    _ => return Err(ProtobufError::ReadField),
                }
            }
            Value::Array(items)
        }
        (FieldType::Message(_), Wire::Bytes(bytes)) => {
            let inner = field.message().ok_or(ProtobufError::ReadField)?;
            Value::Object(decode_message(inner, bytes, depth + 1)?)
        }
        _ => return Err(ProtobufError::ReadField),
    }))
}

fn map_entry(mut rest: &[u8]) -> Result<(&str, Wire<'_>), ProtobufError> {
    let (mut key, mut value) = ("", Wire::Bytes(&[]));
    while let Some((number, wire)) = next_field(&mut rest)? {
        match (number, wire) {
            (1, Wire::Bytes(bytes)) => key = text(bytes)?,
            (2, wire) => value = wire,
            _ => return Err(ProtobufError::ReadField),
        }
    }
    Ok((key, value))
}

/// The bytes of a message that has one field.
fn only_field(mut rest: &[u8]) -> Result<&[u8], ProtobufError> {
    let mut found = &[][..];
    while let Some((number, wire)) = next_field(&mut rest)? {
        match (number, wire) {
            (1, Wire::Bytes(bytes)) => found = bytes,
            _ => return Err(ProtobufError::ReadField),
        }
    }
    Ok(found)
}

fn quantity(bytes: &[u8]) -> Result<&str, ProtobufError> {
    text(only_field(bytes)?)
}

/// The first field says which of the other two counts.
fn int_or_string(mut rest: &[u8]) -> Result<Value, ProtobufError> {
    let (mut is_text, mut number, mut word) = (false, 0, "");
    while let Some((field, wire)) = next_field(&mut rest)? {
        match (field, wire) {
            (1, Wire::Number(kind)) => is_text = kind == 1,
            (2, Wire::Number(value)) => number = value.cast_signed(),
            (3, Wire::Bytes(bytes)) => word = text(bytes)?,
            _ => return Err(ProtobufError::ReadField),
        }
    }
    Ok(if is_text { json!(word) } else { json!(number) })
}

/// A point in time; `None` if it is the zero time, which stands for "not set".
fn time(mut rest: &[u8]) -> Result<Option<Timestamp>, ProtobufError> {
    let (mut seconds, mut nanos) = (None, 0);
    while let Some((number, wire)) = next_field(&mut rest)? {
        match (number, wire) {
            (1, Wire::Number(value)) => seconds = Some(value.cast_signed()),
            (2, Wire::Number(value)) => nanos = i32::try_from(value).unwrap_or(0),
            _ => return Err(ProtobufError::ReadField),
        }
    }
    let Some(seconds) = seconds else { return Ok(None) };
    Timestamp::new(seconds, nanos)
        .map(Some)
        .map_err(|_| ProtobufError::ReadField)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Field `number` with these bytes.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let length = u8::try_from(bytes.len()).expect("short test data");
        let mut out = vec![number << 3 | 2, length];
        out.extend_from_slice(bytes);
        out
    }

    fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let typed = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), field(1, &typed), field(2, raw)].concat()
    }

    #[test]
    fn a_secret_becomes_json() {
        let label = [field(1, b"app"), field(2, b"x")].concat();
        // Time is encoded also when it is not set.
        let metadata = [field(1, b"s"), field(2, b""), field(8, b""), field(11, &label)].concat();
        let entry = [field(1, b"k"), field(2, b"\xff\x00")].concat();
        let raw = [
            field(1, &metadata),
            field(2, &entry),
            field(3, b"Opaque"),
            vec![5 << 3, 1],
        ]
        .concat();
        assert_eq!(
            decode(&envelope("v1", "Secret", &raw)).unwrap(),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "labels": {"app": "x"}},
                "data": {"k": "/wA="}, "type": "Opaque", "immutable": true})
        );
    }

    #[test]
    fn a_pod_becomes_json() {
        let port = [vec![1 << 3, 1], field(3, b"web")].concat();
        let probe = field(1, &field(2, &field(2, &port)));
        let limit = [field(1, b"cpu"), field(2, &field(1, b"100m"))].concat();
        let container = [field(1, b"app"), field(8, &field(1, &limit)), field(11, &probe)].concat();
        let volume = [field(1, b"tmp"), field(2, &field(2, &field(1, b"Memory")))].concat();
        let groups = [vec![4 << 3, 7], vec![4 << 3, 8]].concat();
        let spec = [
            field(1, &volume),
            field(2, &container),
            vec![4 << 3, 0],
            field(14, &groups),
        ]
        .concat();
        let pod = decode(&envelope("v1", "Pod", &field(2, &spec))).unwrap();
        let expected = json!({
            "volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory"}}],
            "containers": [{
                "name": "app",
                "resources": {"limits": {"cpu": "100m"}},
                "readinessProbe": {"httpGet": {"port": "web"}},
            }],
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"supplementalGroups": [7, 8]},
        });
        assert_eq!(pod["spec"], expected);
    }

    fn whole_sample(group_version: &str, kind: &str) -> Value {
        let message = message(group_version, kind).expect("a kind of the table");
        let mut whole = crate::sample(message.name, crate::Profile::Pulselet);
        whole["apiVersion"] = json!(group_version);
        whole["kind"] = json!(kind);
        whole
    }

    #[test]
    fn every_field_of_every_kind_survives_protobuf() {
        let kinds = Message::all().filter(|message| message.is_kind && !message.name.ends_with("List"));
        for kind in kinds {
            let (package, name) = kind.name.split_once('.').expect("a package and a name");
            let api_version = if package == "core" {
                "v1".to_owned()
            } else {
                format!("{package}/v1")
            };
            let whole = whole_sample(&api_version, name);
            let encoded = encode(&whole).expect("a kind of the table");
            assert_eq!(decode(&encoded).unwrap(), whole, "{}", kind.name);
        }
    }

    #[test]
    fn a_lease_keeps_its_microseconds() {
        let renew = [vec![1 << 3, 10], vec![2 << 3, 0x80, 0xca, 0xb5, 0xee, 0x01]].concat();
        let spec = [field(1, b"n1"), vec![2 << 3, 40], field(4, &renew)].concat();
        let lease = decode(&envelope("coordination.k8s.io/v1", "Lease", &field(2, &spec))).unwrap();
        assert_eq!(
            lease["spec"],
            json!({"holderIdentity": "n1", "leaseDurationSeconds": 40, "renewTime": "1970-01-01T00:00:10.500000Z"})
        );
    }

    #[test]
    fn damaged_bodies_are_refused() {
        let whole = envelope("v1", "ConfigMap", &field(1, &field(1, b"name")));
        assert!(decode(&whole).is_ok());
        for end in 0..whole.len() {
            // No prefix panics; most are refused, and none is taken for the whole.
            assert_ne!(decode(&whole[..end]).ok(), decode(&whole).ok());
        }
        assert!(matches!(
            decode(&envelope("v1", "Unheard", b"")),
            Err(ProtobufError::UnknownKind { .. })
        ));
        assert_eq!(decode(b"{}"), Err(ProtobufError::ReadMagic));
    }
}
