//! Request bodies in Kubernetes' protobuf, for the kinds that kubectl and small clients send that way.
//!
//! A body is an envelope that names the kind, and the object in protobuf. It is turned into the JSON that the rest of
//! the server works on, by a table of field numbers. Kinds without a table are not understood (415). Lengths are
//! checked against what is there, and nesting is bounded by the tables, which have no cycles.

mod access;
mod pod;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// What every body begins with.
const MAGIC: &[u8] = b"k8s\0";

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProtobufError {
    #[error("the body does not begin as Kubernetes' protobuf does")]
    ReadMagic,
    #[error("the body ends too early or is not protobuf")]
    ReadField,
    #[error("a text is not UTF-8")]
    ReadText,
    #[error("objects of kind {kind} of {api_version} are not understood in protobuf")]
    UnknownKind { api_version: String, kind: String },
}

/// How a field is encoded and what it becomes.
#[derive(Clone, Copy)]
enum Field {
    Text,
    Texts,
    /// Base64 in JSON.
    Bytes,
    /// Lists of texts by a text.
    TextsMap,
    Bool,
    /// Left out when zero.
    Integer,
    /// Kept when zero: absent and zero differ.
    OptionalInteger,
    /// Whole seconds.
    Time,
    MicroTime,
    Message(&'static Message),
    Messages(&'static Message),
    TextMap,
    BytesMap,
    Integers,
    /// A message whose fields are those of the object itself.
    Inline(&'static Message),
    /// A number with its unit, as text in a message.
    Quantity,
    QuantityMap,
    IntOrString,
}

/// Field numbers, names and types.
struct Message(&'static [(u64, &'static str, Field)]);

static OWNER: Message = Message(&[
    (1, "kind", Field::Text),
    (3, "name", Field::Text),
    (4, "uid", Field::Text),
    (5, "apiVersion", Field::Text),
    (6, "controller", Field::Bool),
    (7, "blockOwnerDeletion", Field::Bool),
]);
static METADATA: Message = Message(&[
    (1, "name", Field::Text),
    (2, "generateName", Field::Text),
    (3, "namespace", Field::Text),
    (5, "uid", Field::Text),
    (6, "resourceVersion", Field::Text),
    (7, "generation", Field::Integer),
    (8, "creationTimestamp", Field::Time),
    (9, "deletionTimestamp", Field::Time),
    (10, "deletionGracePeriodSeconds", Field::OptionalInteger),
    (11, "labels", Field::TextMap),
    (12, "annotations", Field::TextMap),
    (13, "ownerReferences", Field::Messages(&OWNER)),
    (14, "finalizers", Field::Texts),
]);
static REFERENCE: Message = Message(&[
    (1, "kind", Field::Text),
    (2, "namespace", Field::Text),
    (3, "name", Field::Text),
    (4, "uid", Field::Text),
    (5, "apiVersion", Field::Text),
    (6, "resourceVersion", Field::Text),
    (7, "fieldPath", Field::Text),
]);
static LOCAL_REFERENCE: Message = Message(&[(1, "name", Field::Text)]);
static NAMESPACE_SPEC: Message = Message(&[(1, "finalizers", Field::Texts)]);
static NAMESPACE: Message = Message(&[
    (1, "metadata", Field::Message(&METADATA)),
    (2, "spec", Field::Message(&NAMESPACE_SPEC)),
]);
static CONFIG_MAP: Message = Message(&[
    (1, "metadata", Field::Message(&METADATA)),
    (2, "data", Field::TextMap),
    (3, "binaryData", Field::BytesMap),
    (4, "immutable", Field::Bool),
]);
static SECRET: Message = Message(&[
    (1, "metadata", Field::Message(&METADATA)),
    (2, "data", Field::BytesMap),
    (3, "type", Field::Text),
    (4, "stringData", Field::TextMap),
    (5, "immutable", Field::Bool),
]);
static SERVICE_ACCOUNT: Message = Message(&[
    (1, "metadata", Field::Message(&METADATA)),
    (2, "secrets", Field::Messages(&REFERENCE)),
    (3, "imagePullSecrets", Field::Messages(&LOCAL_REFERENCE)),
    (4, "automountServiceAccountToken", Field::Bool),
]);
static LEASE_SPEC: Message = Message(&[
    (1, "holderIdentity", Field::Text),
    (2, "leaseDurationSeconds", Field::OptionalInteger),
    (3, "acquireTime", Field::MicroTime),
    (4, "renewTime", Field::MicroTime),
    (5, "leaseTransitions", Field::OptionalInteger),
    (6, "strategy", Field::Text),
    (7, "preferredHolder", Field::Text),
]);
static LEASE: Message = Message(&[
    (1, "metadata", Field::Message(&METADATA)),
    (2, "spec", Field::Message(&LEASE_SPEC)),
]);
static EVENT_SOURCE: Message = Message(&[(1, "component", Field::Text), (2, "host", Field::Text)]);
static EVENT_SERIES: Message = Message(&[
    (1, "count", Field::Integer),
    (2, "lastObservedTime", Field::MicroTime),
]);
static EVENT: Message = Message(&[
    (1, "metadata", Field::Message(&METADATA)),
    (2, "involvedObject", Field::Message(&REFERENCE)),
    (3, "reason", Field::Text),
    (4, "message", Field::Text),
    (5, "source", Field::Message(&EVENT_SOURCE)),
    (6, "firstTimestamp", Field::Time),
    (7, "lastTimestamp", Field::Time),
    (8, "count", Field::Integer),
    (9, "type", Field::Text),
    (10, "eventTime", Field::MicroTime),
    (11, "series", Field::Message(&EVENT_SERIES)),
    (12, "action", Field::Text),
    (13, "related", Field::Message(&REFERENCE)),
    (14, "reportingComponent", Field::Text),
    (15, "reportingInstance", Field::Text),
]);
static BINDING: Message = Message(&[
    (1, "metadata", Field::Message(&METADATA)),
    (2, "target", Field::Message(&REFERENCE)),
]);
static PRECONDITIONS: Message = Message(&[(1, "uid", Field::Text), (2, "resourceVersion", Field::Text)]);
static DELETE_OPTIONS: Message = Message(&[
    (1, "gracePeriodSeconds", Field::OptionalInteger),
    (2, "preconditions", Field::Message(&PRECONDITIONS)),
    (4, "propagationPolicy", Field::Text),
    (5, "dryRun", Field::Texts),
]);
static EVICTION: Message = Message(&[
    (1, "metadata", Field::Message(&METADATA)),
    (2, "deleteOptions", Field::Message(&DELETE_OPTIONS)),
]);

fn message(api_version: &str, kind: &str) -> Option<&'static Message> {
    match (api_version, kind) {
        ("v1", "Pod") => Some(&pod::POD),
        ("v1", "Namespace") => Some(&NAMESPACE),
        ("v1", "ConfigMap") => Some(&CONFIG_MAP),
        ("v1", "Secret") => Some(&SECRET),
        ("v1", "ServiceAccount") => Some(&SERVICE_ACCOUNT),
        ("v1", "Event") => Some(&EVENT),
        ("v1", "Binding") => Some(&BINDING),
        ("coordination.k8s.io/v1", "Lease") => Some(&LEASE),
        ("policy/v1", "Eviction") => Some(&EVICTION),
        ("authentication.k8s.io/v1", "SelfSubjectReview") => Some(&access::SELF_SUBJECT_REVIEW),
        ("authentication.k8s.io/v1", "TokenRequest") => Some(&access::TOKEN_REQUEST),
        ("authentication.k8s.io/v1", "TokenReview") => Some(&access::TOKEN_REVIEW),
        (
            "authorization.k8s.io/v1",
            "LocalSubjectAccessReview" | "SelfSubjectAccessReview" | "SubjectAccessReview",
        ) => Some(&access::ACCESS_REVIEW),
        ("authorization.k8s.io/v1", "SelfSubjectRulesReview") => Some(&access::RULES_REVIEW),
        ("certificates.k8s.io/v1", "CertificateSigningRequest") => Some(&access::SIGNING_REQUEST),
        ("rbac.authorization.k8s.io/v1", "Role" | "ClusterRole") => Some(&access::ROLE),
        ("rbac.authorization.k8s.io/v1", "RoleBinding" | "ClusterRoleBinding") => Some(&access::ROLE_BINDING),
        (_, "DeleteOptions") => Some(&DELETE_OPTIONS),
        _ => None,
    }
}

/// Turns a body into JSON.
pub(crate) fn decode(body: &[u8]) -> Result<Value, ProtobufError> {
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
    let mut object = decode_message(message, raw)?;
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

fn decode_message(message: &Message, mut rest: &[u8]) -> Result<Map<String, Value>, ProtobufError> {
    let mut object = Map::new();
    while let Some((number, wire)) = next_field(&mut rest)? {
        let field = message.0.iter().find(|(known, _, _)| *known == number);
        if let Some((_, name, field)) = field {
            add(&mut object, name, *field, wire)?;
        }
    }
    Ok(object)
}

fn add(
    object: &mut Map<String, Value>,
    name: &str,
    field: Field,
    wire: Wire<'_>,
) -> Result<(), ProtobufError> {
    let mut set = |value: Value| {
        object.insert(name.to_owned(), value);
    };
    match (field, wire) {
        (Field::Text, Wire::Bytes(bytes)) => {
            if !bytes.is_empty() {
                set(json!(text(bytes)?));
            }
        }
        (Field::Bytes, Wire::Bytes(bytes)) => {
            if !bytes.is_empty() {
                set(json!(STANDARD.encode(bytes)));
            }
        }
        (Field::TextsMap, Wire::Bytes(entry)) => {
            let (key, mut value) = map_entry(entry)?;
            let mut texts = Vec::new();
            while let Some((number, wire)) = next_field(&mut value)? {
                if let (1, Wire::Bytes(bytes)) = (number, wire) {
                    texts.push(text(bytes)?.to_owned());
                }
            }
            let map = object.entry(name).or_insert_with(|| json!({}));
            map[key] = json!(texts);
        }
        (Field::Bool, Wire::Number(number)) => set(json!(number != 0)),
        // Negative numbers are ten bytes of two's complement.
        (Field::Integer, Wire::Number(number)) => {
            if number != 0 {
                set(json!(number.cast_signed()));
            }
        }
        (Field::OptionalInteger, Wire::Number(number)) => set(json!(number.cast_signed())),
        (Field::Time, Wire::Bytes(bytes)) => {
            if let Some(time) = time(bytes)? {
                set(json!(crate::registry::object::timestamp(time)));
            }
        }
        (Field::MicroTime, Wire::Bytes(bytes)) => {
            if let Some(time) = time(bytes)? {
                set(json!(format!("{time:.6}")));
            }
        }
        (Field::Message(message), Wire::Bytes(bytes)) => set(Value::Object(decode_message(message, bytes)?)),
        (Field::Messages(message), Wire::Bytes(bytes)) => {
            let item = Value::Object(decode_message(message, bytes)?);
            push(object, name, item);
        }
        (Field::Inline(message), Wire::Bytes(bytes)) => object.extend(decode_message(message, bytes)?),
        (Field::Quantity, Wire::Bytes(bytes)) => set(json!(quantity(bytes)?)),
        (Field::IntOrString, Wire::Bytes(bytes)) => set(int_or_string(bytes)?),
        (Field::Integers, Wire::Number(number)) => push(object, name, json!(number.cast_signed())),
        (Field::Texts, Wire::Bytes(bytes)) => push(object, name, json!(text(bytes)?)),
        (Field::TextMap | Field::BytesMap | Field::QuantityMap, Wire::Bytes(entry)) => {
            let (key, value) = map_entry(entry)?;
            let value = match field {
                Field::BytesMap => json!(STANDARD.encode(value)),
                Field::QuantityMap => json!(quantity(value)?),
                _ => json!(text(value)?),
            };
            let map = object.entry(name).or_insert_with(|| json!({}));
            map[key] = value;
        }
        _ => return Err(ProtobufError::ReadField),
    }
    Ok(())
}

fn push(object: &mut Map<String, Value>, name: &str, item: Value) {
    let list = object.entry(name).or_insert_with(|| json!([]));
    if let Value::Array(items) = list {
        items.push(item);
    }
}

fn map_entry(mut rest: &[u8]) -> Result<(&str, &[u8]), ProtobufError> {
    let (mut key, mut value) = ("", &[][..]);
    while let Some((number, wire)) = next_field(&mut rest)? {
        match (number, wire) {
            (1, Wire::Bytes(bytes)) => key = text(bytes)?,
            (2, Wire::Bytes(bytes)) => value = bytes,
            _ => return Err(ProtobufError::ReadField),
        }
    }
    Ok((key, value))
}

fn quantity(mut rest: &[u8]) -> Result<&str, ProtobufError> {
    let mut found = "";
    while let Some((number, wire)) = next_field(&mut rest)? {
        match (number, wire) {
            (1, Wire::Bytes(bytes)) => found = text(bytes)?,
            _ => return Err(ProtobufError::ReadField),
        }
    }
    Ok(found)
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

    /// An object with every field that the tables have.
    fn sample(message: &Message) -> Map<String, Value> {
        let mut object = Map::new();
        for (_, name, field) in message.0 {
            let value = match field {
                Field::Text | Field::Quantity => json!("1"),
                Field::Texts => json!(["1"]),
                Field::Bool => json!(true),
                Field::Integer | Field::OptionalInteger | Field::IntOrString => json!(1),
                Field::Time | Field::MicroTime => json!("2026-01-01T00:00:00Z"),
                Field::Message(message) => Value::Object(sample(message)),
                Field::Messages(message) => json!([sample(message)]),
                Field::TextMap | Field::QuantityMap => json!({"a": "1"}),
                Field::BytesMap => json!({"a": ""}),
                Field::Bytes => json!(""),
                Field::TextsMap => json!({"a": ["1"]}),
                Field::Integers => json!([1]),
                Field::Inline(message) => {
                    object.extend(sample(message));
                    continue;
                }
            };
            object.insert((*name).to_owned(), value);
        }
        object
    }

    #[test]
    fn every_field_of_a_pod_is_called_as_in_json() {
        let mut whole = sample(&pod::POD);
        whole.extend([
            ("apiVersion".to_owned(), json!("v1")),
            ("kind".to_owned(), json!("Pod")),
        ]);
        let text = Value::Object(whole).to_string();
        let documents = pulselet_model::decode_documents(text.as_bytes());
        for document in documents {
            let decoded = document.unwrap().decode(pulselet_model::Profile::Kubernetes);
            assert!(decoded.pod.is_ok(), "{:?}", decoded.pod);
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
            decode(&envelope("v1", "Endpoints", b"")),
            Err(ProtobufError::UnknownKind { .. })
        ));
        assert_eq!(decode(b"{}"), Err(ProtobufError::ReadMagic));
    }
}
