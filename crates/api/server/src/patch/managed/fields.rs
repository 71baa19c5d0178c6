//! Sets of fields, as trees in the form that `managedFields` carries.
//!
//! A step is `f:NAME` for a field, `k:{...}` for an item of a list with keys, `v:VALUE` for a value of a set.

use std::collections::BTreeMap;

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};

use crate::patch::schema::{is_atomic_map, key_default, list_kind, root};
use crate::registry::resource::ResourceKind;
use pulselet_schema::{FieldPlace, ListKind};

/// Which members of a set stay when it is compared with another one.
#[derive(Debug, Clone, Copy)]
enum Kept {
    Shared,
    OnlyOurs,
}

/// Some fields of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FieldSet {
    /// Whether the place itself is in the set, not only what is below it.
    pub(super) member: bool,
    pub(super) children: BTreeMap<String, FieldSet>,
}

impl FieldSet {
    fn leaf() -> Self {
        Self {
            member: true,
            ..Self::default()
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.member && self.children.is_empty()
    }

    /// Every field of an object that a write through this subresource can own.
    pub(super) fn of(kind: ResourceKind, subresource: &str, object: &Value) -> Self {
        Self::changed(kind, subresource, None, object)
    }

    /// Those that are not the same in `old`.
    pub(super) fn changed(kind: ResourceKind, subresource: &str, old: Option<&Value>, new: &Value) -> Self {
        let is_status = subresource == "status";
        let place = root(kind);
        let fields = new.as_object().into_iter().flatten();
        let owned = fields.filter(|(key, _)| match key.as_str() {
            "status" => is_status,
            "apiVersion" | "kind" => false,
            _ => !is_status,
        });
        let owned = owned.map(|(key, value)| {
            let (place, old) = (place.below(key), old.and_then(|old| old.get(key)));
            let child = match value {
                Value::Object(metadata) if key == "metadata" => changed_metadata(place, old, metadata),
                _ => changed(place, old, value),
            };
            (format!("f:{key}"), child)
        });
        Self {
            member: false,
            children: owned.filter(|(_, child)| !child.is_empty()).collect(),
        }
    }

    pub(super) fn union(&self, other: &Self) -> Self {
        let mut all = self.clone();
        all.member |= other.member;
        for (step, theirs) in &other.children {
            let ours = all.children.entry(step.clone()).or_default();
            *ours = ours.union(theirs);
        }
        all
    }

    pub(super) fn difference(&self, other: &Self) -> Self {
        self.keep(Kept::OnlyOurs, other)
    }

    pub(super) fn intersection(&self, other: &Self) -> Self {
        self.keep(Kept::Shared, other)
    }

    fn keep(&self, kept: Kept, other: &Self) -> Self {
        let nothing = Self::default();
        let children = self.children.iter().filter_map(|(step, ours)| {
            let theirs = other.children.get(step).unwrap_or(&nothing);
            let below = ours.keep(kept, theirs);
            (!below.is_empty()).then(|| (step.clone(), below))
        });
        Self {
            member: self.member
                && match kept {
                    Kept::Shared => other.member,
                    Kept::OnlyOurs => !other.member,
                },
            children: children.collect(),
        }
    }

    /// The paths of all members, as people read them.
    pub(super) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect_paths("", &mut paths);
        paths
    }

    fn collect_paths(&self, path: &str, paths: &mut Vec<String>) {
        if self.member && self.children.is_empty() {
            paths.push(path.to_owned());
        }
        for (step, child) in &self.children {
            child.collect_paths(&format!("{path}{}", shown(step)), paths);
        }
    }
}

fn shown(step: &str) -> String {
    match step.split_once(':') {
        Some(("f", name)) => format!(".{name}"),
        Some(("k", keys)) => {
            let keys: BTreeMap<String, Value> = serde_json::from_str(keys).unwrap_or_default();
            let keys: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
            format!("[{}]", keys.join(","))
        }
        Some((_, value)) => format!("[={value}]"),
        None => step.to_owned(),
    }
}

impl Serialize for FieldSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if self.member && !self.children.is_empty() {
            map.serialize_entry(".", &Map::new())?;
        }
        for (step, child) in &self.children {
            map.serialize_entry(step, child)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for FieldSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut children = BTreeMap::<String, Self>::deserialize(deserializer)?;
        let own = children.remove(".").is_some();
        Ok(Self {
            member: own || children.is_empty(),
            children,
        })
    }
}

/// The step that leads to an item of a list with keys; `None` if the item lacks one of them.
pub(super) fn item_step(keys: &[&str], item: &Value) -> Option<String> {
    let mut found = BTreeMap::new();
    for key in keys {
        let value = item
            .get(*key)
            .cloned()
            .or_else(|| key_default(key).map(Value::from))?;
        found.insert(*key, value);
    }
    serde_json::to_string(&found).ok().map(|text| format!("k:{text}"))
}

pub(super) fn value_step(value: &Value) -> String {
    format!("v:{value}")
}

/// The fields of the metadata that are not the server's own.
fn changed_metadata(place: FieldPlace, old: Option<&Value>, new: &Map<String, Value>) -> FieldSet {
    const SYSTEM: [&str; 9] = [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "managedFields",
        "resourceVersion",
    ];
    let owned = new.iter().filter(|(key, _)| !SYSTEM.contains(&key.as_str()));
    changed_fields(place, old.and_then(Value::as_object), owned)
}

/// What of a value is not the same in `old`.
fn changed(place: FieldPlace, old: Option<&Value>, new: &Value) -> FieldSet {
    if old == Some(new) {
        return FieldSet::default();
    }
    match new {
        Value::Object(map) if !map.is_empty() && !is_atomic_map(place) => {
            changed_fields(place, old.and_then(Value::as_object), map)
        }
        Value::Array(items) if !items.is_empty() => match list_kind(place) {
            ListKind::Atomic => FieldSet::leaf(),
            ListKind::Set => {
                let old = old.and_then(Value::as_array);
                let new = items
                    .iter()
                    .filter(|item| !old.is_some_and(|old| old.contains(item)));
                FieldSet {
                    member: false,
                    children: new.map(|item| (value_step(item), FieldSet::leaf())).collect(),
                }
            }
            ListKind::Map(keys) => changed_items(place, keys, old.and_then(Value::as_array), items),
        },
        Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_) => FieldSet::leaf(),
    }
}

fn changed_fields<'a>(
    place: FieldPlace,
    old: Option<&Map<String, Value>>,
    new: impl IntoIterator<Item = (&'a String, &'a Value)>,
) -> FieldSet {
    let mut set = FieldSet::default();
    for (key, value) in new {
        let child = changed(place.below(key), old.and_then(|old| old.get(key)), value);
        if !child.is_empty() {
            set.children.insert(format!("f:{key}"), child);
        }
    }
    set
}

/// Items are at the place of their list.
fn changed_items(place: FieldPlace, keys: &[&str], old: Option<&Vec<Value>>, new: &[Value]) -> FieldSet {
    let mut set = FieldSet::default();
    for item in new {
        let Some(step) = item_step(keys, item) else {
            continue;
        };
        let same = |other: &&Value| item_step(keys, other).as_ref() == Some(&step);
        let before = old.into_iter().flatten().find(same);
        let mut child = changed(place, before, item);
        child.member = before.is_none();
        if !child.is_empty() {
            set.children.insert(step, child);
        }
    }
    set
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Value {
        json!({"spec": {"containers": [
            {"name": "a", "image": "a:1", "ports": [{"containerPort": 80}], "command": ["x"]},
        ]}, "metadata": {"labels": {"l": "1"}, "finalizers": ["a/b"]}})
    }

    #[test]
    fn a_set_has_the_form_clients_know() {
        let expected = json!({
            "f:metadata": {"f:labels": {"f:l": {}}, "f:finalizers": {"v:\"a/b\"": {}}},
            "f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {
                ".": {}, "f:name": {}, "f:image": {}, "f:command": {},
                "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}},
            }}},
        });
        let set = FieldSet::of(ResourceKind::Pod, "", &pod());
        assert_eq!(serde_json::to_value(&set).unwrap(), expected);
        assert_eq!(serde_json::from_value::<FieldSet>(expected).unwrap(), set);
    }

    #[test]
    fn only_what_changed_is_in_a_change() {
        let mut new = pod();
        new["spec"]["containers"][0]["image"] = json!("a:2");
        let changed = FieldSet::changed(ResourceKind::Pod, "", Some(&pod()), &new);
        assert_eq!(changed.paths(), [".spec.containers[name=\"a\"].image"]);
        let all = FieldSet::of(ResourceKind::Pod, "", &new);
        assert_eq!(all.intersection(&changed), changed);
        assert!(all.difference(&all).is_empty());
        assert_eq!(all.difference(&changed).union(&changed), all);
    }
}
