//! An object as the registry handles it: JSON whose metadata it knows, and the form in which it is stored.
//!
//! What must always hold of a stored value: it is one JSON object whose first member is `metadata`, which is not
//! empty and has no `resourceVersion`. The revision that made the value is its resourceVersion, known only after the
//! write; with that form it is put in by splicing, so that reads do not parse.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use jiff::Timestamp;
pub use pulselet_schema::timestamp;
use pulselet_store::{Integrity, Revision, StoredObject};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::registry::resource::Endpoint;

/// How every stored value begins.
const HEAD: &[u8] = b"{\"metadata\":{";

/// More than splicing adds to a value.
const SPLICED_BYTES: usize = 48;

/// The annotation of a Pod that only shows what a node runs from a file.
pub(crate) const MIRROR_POD: &str = "kubernetes.io/config.mirror";

/// A JSON object with metadata.
#[derive(Debug, Clone, PartialEq)]
pub struct Object(Value);

/// A stored value that is not what we wrote.
#[derive(Debug, thiserror::Error)]
#[error("the stored value of {key} is damaged: {why}")]
pub struct DamagedObject {
    pub key: String,
    pub why: String,
}

impl DamagedObject {
    pub(crate) fn of(entry: &StoredObject) -> Self {
        Self {
            key: entry.key.clone(),
            why: "it is not what was written; restore a backup, or delete the object".to_owned(),
        }
    }
}

impl Object {
    /// Takes a JSON object and adds metadata if there is none; `None` if the value is something else.
    pub fn new(mut value: Value) -> Option<Self> {
        let map = value.as_object_mut()?;
        let metadata = map.entry("metadata").or_insert_with(|| json!({}));
        if metadata.is_null() {
            *metadata = json!({});
        }
        metadata.is_object().then_some(Self(value))
    }

    pub const fn value(&self) -> &Value {
        &self.0
    }

    pub(crate) const fn value_mut(&mut self) -> &mut Value {
        &mut self.0
    }

    pub(crate) fn into_value(self) -> Value {
        self.0
    }

    pub(crate) fn metadata(&self) -> &Map<String, Value> {
        self.0["metadata"].as_object().expect("an Object has metadata")
    }

    pub(crate) fn metadata_mut(&mut self) -> &mut Map<String, Value> {
        self.0["metadata"]
            .as_object_mut()
            .expect("an Object has metadata")
    }

    fn meta_str(&self, field: &str) -> &str {
        self.metadata()
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// Whether this is the mirror of a static Pod, which belongs to a file on a node.
    pub(crate) fn is_mirror_pod(&self) -> bool {
        let annotations = self.metadata().get("annotations");
        annotations.is_some_and(|annotations| annotations.get(MIRROR_POD).is_some())
    }

    pub fn name(&self) -> &str {
        self.meta_str("name")
    }

    pub(crate) fn generate_name(&self) -> &str {
        self.meta_str("generateName")
    }

    pub fn namespace(&self) -> &str {
        self.meta_str("namespace")
    }

    pub fn uid(&self) -> &str {
        self.meta_str("uid")
    }

    pub fn resource_version(&self) -> &str {
        self.meta_str("resourceVersion")
    }

    pub fn labels(&self) -> BTreeMap<&str, &str> {
        let labels = self.metadata().get("labels").and_then(Value::as_object);
        labels
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| value.as_str().map(|value| (key.as_str(), value)))
            .collect()
    }

    pub(crate) fn has_finalizers(&self) -> bool {
        let finalizers = self.metadata().get("finalizers").and_then(Value::as_array);
        finalizers.is_some_and(|finalizers| !finalizers.is_empty())
    }

    /// Whether the object's end has begun.
    pub fn is_deleting(&self) -> bool {
        self.metadata().contains_key("deletionTimestamp")
    }

    pub(crate) fn deletion_grace(&self) -> Option<i64> {
        self.metadata()
            .get("deletionGracePeriodSeconds")
            .and_then(Value::as_i64)
    }

    /// Sets a field of the metadata; null removes it.
    pub(crate) fn set_meta(&mut self, field: &str, value: Value) {
        if value.is_null() {
            self.metadata_mut().remove(field);
        } else {
            self.metadata_mut().insert(field.to_owned(), value);
        }
    }

    /// The text at a JSON pointer, empty if there is none.
    pub fn text(&self, pointer: &str) -> &str {
        self.0
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// Sets `apiVersion` and `kind`.
    pub(crate) fn set_type(&mut self, endpoint: Endpoint) {
        self.0["apiVersion"] = json!(endpoint.group_version.api_version());
        self.0["kind"] = json!(endpoint.info().kind);
    }

    /// The form in which the object is stored.
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.extend_from_slice(HEAD);
        let metadata = self.metadata().iter();
        write_members(&mut out, metadata.filter(|(key, _)| *key != "resourceVersion"));
        out.extend_from_slice(b"},");
        let others = self.0.as_object().into_iter().flatten();
        write_members(&mut out, others.filter(|(key, _)| *key != "metadata"));
        if out.ends_with(b",") {
            out.truncate(out.len() - 1);
        }
        out.extend_from_slice(b"}");
        // A copy has no more room than it needs. Those who remember changes count their bytes, and mean memory.
        Bytes::copy_from_slice(&out)
    }

    /// A stored value with its resourceVersion.
    pub(crate) fn decode(key: &str, value: &[u8], revision: Revision) -> Result<Self, DamagedObject> {
        let damaged = |why: String| DamagedObject {
            key: key.to_owned(),
            why,
        };
        let value: Value = serde_json::from_slice(value).map_err(|error| damaged(error.to_string()))?;
        let mut object = Self::new(value).ok_or_else(|| damaged("it is not an object".to_owned()))?;
        object.set_meta("resourceVersion", json!(revision.to_string()));
        Ok(object)
    }

    pub(crate) fn from_entry(entry: &StoredObject) -> Result<Self, DamagedObject> {
        if entry.integrity == Integrity::Damaged {
            return Err(DamagedObject::of(entry));
        }
        Self::decode(&entry.key, &entry.value, entry.revision)
    }
}

/// Members of a JSON object, without its braces.
fn write_members<'a>(out: &mut BytesMut, members: impl Iterator<Item = (&'a String, &'a Value)>) {
    for (index, (key, value)) in members.enumerate() {
        if index > 0 {
            out.extend_from_slice(b",");
        }
        write_json(out, key);
        out.extend_from_slice(b":");
        write_json(out, value);
    }
}

/// Writing JSON to memory cannot fail.
fn write_json(out: &mut BytesMut, value: &(impl Serialize + ?Sized)) {
    serde_json::to_writer(out.writer(), value).expect("a JSON value can be written to memory");
}

/// Whether a stored value is one that was written: JSON, in the form that can be spliced.
pub(crate) fn is_whole(value: &[u8], integrity: Integrity) -> bool {
    match integrity {
        Integrity::Intact => true,
        Integrity::Damaged => false,
        Integrity::Unknown => looks_whole(value),
    }
}

/// What is only looked over is not asked by the parser whether it is text, so that is asked first.
fn looks_whole(value: &[u8]) -> bool {
    let is_json = |text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
    value.starts_with(HEAD) && std::str::from_utf8(value).is_ok_and(is_json)
}

/// Appends a stored value with its resourceVersion. It must be whole.
pub(crate) fn splice(out: &mut BytesMut, value: &[u8], revision: Revision) {
    debug_assert!(value.starts_with(HEAD));
    out.reserve(value.len() + SPLICED_BYTES);
    out.extend_from_slice(HEAD);
    out.extend_from_slice(format!("\"resourceVersion\":\"{revision}\",").as_bytes());
    out.extend_from_slice(&value[HEAD.len()..]);
}

/// The current time as object metadata carries it, in whole seconds.
pub(crate) fn now() -> Value {
    json!(timestamp(Timestamp::now()))
}

/// A random uid.
pub(crate) fn new_uid() -> String {
    pulselet_vocabulary::uid(rand::random())
}

/// The characters of generated names: no vowels, so that no words arise, and none that look alike.
const NAME_CHARACTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const NAME_SUFFIX_LENGTH: usize = 5;
const MAX_NAME_LENGTH: usize = 63;

/// A name from `generateName`.
pub(crate) fn generate_name(base: &str) -> String {
    let mut end = base.len().min(MAX_NAME_LENGTH - NAME_SUFFIX_LENGTH);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    let mut name = base[..end].to_owned();
    for _ in 0..NAME_SUFFIX_LENGTH {
        let index = rand::random::<u64>() % NAME_CHARACTERS.len() as u64;
        name.push(char::from(NAME_CHARACTERS[usize::try_from(index).unwrap_or(0)]));
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_with_flipped_bytes_in_a_text_is_not_whole() {
        let object = Object::new(json!({"metadata": {"name": "a"}, "data": {"x": "some text"}})).unwrap();
        let mut stored = object.encode().to_vec();
        assert!(is_whole(&stored, Integrity::Unknown));
        let at = stored.windows(9).position(|part| part == b"some text").unwrap();
        stored[at] ^= 0xff;
        assert!(!is_whole(&stored, Integrity::Unknown));
    }

    #[test]
    fn a_spliced_value_is_the_decoded_one() {
        let object = Object::new(json!({
            "kind": "ConfigMap",
            "data": {"x": "\"metadata\":{"},
            "metadata": {"name": "a", "resourceVersion": "3"},
        }))
        .unwrap();
        let stored = object.encode();
        assert!(!String::from_utf8_lossy(&stored).contains("resourceVersion"));
        let mut out = BytesMut::new();
        splice(&mut out, &stored, Revision(17));
        let spliced: Value = serde_json::from_slice(&out).unwrap();
        let decoded = Object::decode("/k", &stored, Revision(17)).unwrap();
        assert_eq!(&spliced, decoded.value());
        assert_eq!(decoded.resource_version(), "17");
    }

    #[test]
    fn uids_and_names_are_well_formed_and_differ() {
        let uid = new_uid();
        assert_eq!((uid.len(), &uid[14..15]), (36, "4"));
        assert_ne!(uid, new_uid());
        let name = generate_name(&"long".repeat(30));
        assert_eq!(name.len(), MAX_NAME_LENGTH);
        assert_ne!(generate_name("web-"), generate_name("web-"));
    }
}
