//! Strategic merge patch: a merge patch whose lists are merged by key, with directives.

use serde_json::{Map, Value};

use crate::patch::schema::patch_list_kind;
use crate::registry::resource::ResourceKind;
use pulselet_schema::ListKind;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ELEMENT_ORDER: &str = "$setElementOrder/";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";

pub(super) fn apply(kind: ResourceKind, value: &mut Value, patch: &Map<String, Value>) -> Result<(), String> {
    let mut merger = Merger {
        kind,
        path: Vec::new(),
    };
    merger.object(value, patch)
}

struct Merger {
    kind: ResourceKind,
    /// Field names from the root, for the table of lists.
    path: Vec<String>,
}

impl Merger {
    fn object(&mut self, value: &mut Value, patch: &Map<String, Value>) -> Result<(), String> {
        match patch.get(DIRECTIVE).map(Value::as_str) {
            None | Some(Some("merge")) => {}
            Some(Some("replace")) => {
                let mut patch = patch.clone();
                patch.remove(DIRECTIVE);
                *value = Value::Object(patch);
                return Ok(());
            }
            Some(Some("delete")) => {
                *value = Value::Object(Map::new());
                return Ok(());
            }
            Some(_) => return Err(format!("unrecognized patch type: {}", patch[DIRECTIVE])),
        }
        if !value.is_object() {
            *value = Value::Object(Map::new());
        }
        let Value::Object(map) = value else { return Ok(()) };
        if let Some(keys) = patch.get(RETAIN_KEYS) {
            let keys = keys.as_array().ok_or("$retainKeys is not a list")?;
            map.retain(|key, _| keys.iter().any(|kept| kept.as_str() == Some(key)));
        }
        for (key, change) in patch {
            if let Some(field) = key.strip_prefix(DELETE_FROM) {
                delete_values(map, field, change)?;
            } else if !key.starts_with('$') {
                self.path.push(key.clone());
                let merged = self.field(map, key, change);
                self.path.pop();
                merged?;
            }
        }
        for (key, order) in patch {
            if let Some(field) = key.strip_prefix(ELEMENT_ORDER) {
                self.path.push(field.to_owned());
                let list = patch_list_kind(self.kind, &self.path);
                self.path.pop();
                let order = order.as_array().ok_or("$setElementOrder is not a list")?;
                if let Some(Value::Array(items)) = map.get_mut(field) {
                    reorder(items, order, list);
                }
            }
        }
        Ok(())
    }

    fn field(&mut self, map: &mut Map<String, Value>, key: &str, change: &Value) -> Result<(), String> {
        match change {
            Value::Null => {
                map.remove(key);
                Ok(())
            }
            Value::Object(change) => {
                let deletes = change.get(DIRECTIVE).and_then(Value::as_str) == Some("delete");
                if deletes {
                    map.remove(key);
                    return Ok(());
                }
                self.object(map.entry(key).or_insert(Value::Null), change)
            }
            Value::Array(change) => {
                let items = map.entry(key).or_insert(Value::Null);
                self.list(items, change)
            }
            Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                map.insert(key.to_owned(), change.clone());
                Ok(())
            }
        }
    }

    fn list(&mut self, value: &mut Value, patch: &[Value]) -> Result<(), String> {
        let mut items = match value.take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        };
        match patch_list_kind(self.kind, &self.path) {
            ListKind::Atomic => {
                items = patch.to_vec();
            }
            ListKind::Set => {
                for item in patch {
                    if !items.contains(item) {
                        items.push(item.clone());
                    }
                }
            }
            ListKind::Map(keys) => self.keyed_list(&mut items, patch, keys[0])?,
        }
        *value = Value::Array(items);
        Ok(())
    }

    fn keyed_list(&mut self, items: &mut Vec<Value>, patch: &[Value], key: &str) -> Result<(), String> {
        let is_replace = |item: &Value| item.get(DIRECTIVE).and_then(Value::as_str) == Some("replace");
        if patch.iter().any(is_replace) {
            *items = patch.iter().filter(|item| !is_replace(item)).cloned().collect();
            return Ok(());
        }
        for change in patch {
            let change = change
                .as_object()
                .ok_or_else(|| format!("an item of {} is not an object", self.path.join(".")))?;
            let id = change.get(key).ok_or_else(|| {
                let change = Value::Object(change.clone());
                format!("map: {change} does not contain declared merge key: {key}")
            })?;
            let position = items.iter().position(|item| item.get(key) == Some(id));
            if change.get(DIRECTIVE).and_then(Value::as_str) == Some("delete") {
                items.retain(|item| item.get(key) != Some(id));
            } else if let Some(position) = position {
                self.object(&mut items[position], change)?;
            } else {
                let mut item = Value::Null;
                self.object(&mut item, change)?;
                items.push(item);
            }
        }
        Ok(())
    }
}

fn delete_values(map: &mut Map<String, Value>, field: &str, values: &Value) -> Result<(), String> {
    let values = values
        .as_array()
        .ok_or("$deleteFromPrimitiveList is not a list")?;
    if let Some(Value::Array(items)) = map.get_mut(field) {
        items.retain(|item| !values.contains(item));
    }
    Ok(())
}

/// Brings items into the wanted order. Those it does not name keep their place among their old neighbours.
fn reorder(items: &mut Vec<Value>, order: &[Value], list: ListKind) {
    let rank = |item: &Value| match list {
        ListKind::Map(keys) => order
            .iter()
            .position(|wanted| wanted.get(keys[0]) == item.get(keys[0])),
        ListKind::Set => order.iter().position(|wanted| wanted == item),
        ListKind::Atomic => None,
    };
    let all = std::mem::take(items).into_iter().enumerate();
    let (mut named, others): (Vec<_>, Vec<_>) = all.partition(|(_, item)| rank(item).is_some());
    named.sort_by_key(|(_, item)| rank(item));
    let mut others = others.into_iter().peekable();
    for (index, item) in named {
        while let Some((_, other)) = others.next_if(|(other, _)| *other < index) {
            items.push(other);
        }
        items.push(item);
    }
    items.extend(others.map(|(_, item)| item));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(mut value: Value, patch: &Value) -> Result<Value, String> {
        apply(ResourceKind::Pod, &mut value, patch.as_object().expect("a patch"))?;
        Ok(value)
    }

    fn pod() -> Value {
        json!({
            "metadata": {"finalizers": ["a/b"], "labels": {"x": "1"}},
            "spec": {
                "containers": [{"name": "a", "image": "a:1", "env": [{"name": "E", "value": "1"}]},
                               {"name": "b", "image": "b:1"}],
                "volumes": [{"name": "v", "emptyDir": {}}],
                "tolerations": [{"key": "t"}],
            },
        })
    }

    #[test]
    fn lists_are_merged_by_key_or_replaced() {
        let patch = json!({
            "metadata": {"finalizers": ["c/d", "a/b"], "labels": {"x": null}},
            "spec": {
                "containers": [{"name": "b", "image": "b:2"}, {"name": "c", "image": "c:1"},
                               {"name": "a", "env": [{"name": "F", "value": "2"}]}],
                "tolerations": [{"key": "u"}],
            },
        });
        let value = patched(pod(), &patch).unwrap();
        assert_eq!(
            value["metadata"],
            json!({"finalizers": ["a/b", "c/d"], "labels": {}})
        );
        assert_eq!(
            value["spec"]["containers"],
            json!([
                {"name": "a", "image": "a:1", "env": [{"name": "E", "value": "1"}, {"name": "F", "value": "2"}]},
                {"name": "b", "image": "b:2"},
                {"name": "c", "image": "c:1"},
            ])
        );
        assert_eq!(value["spec"]["tolerations"], json!([{"key": "u"}]));
    }

    #[test]
    fn directives_delete_replace_retain_and_order() {
        let patch = json!({"spec": {
            "$setElementOrder/containers": [{"name": "c"}, {"name": "b"}],
            "containers": [{"name": "a", "$patch": "delete"}, {"name": "c", "image": "c:1"}],
            "volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}],
            "tolerations": null,
        }});
        let value = patched(pod(), &patch).unwrap();
        let names: Vec<&Value> = value["spec"]["containers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|container| &container["name"])
            .collect();
        assert_eq!(names, ["c", "b"]);
        assert_eq!(
            value["spec"]["volumes"],
            json!([{"name": "v", "hostPath": {"path": "/x"}}])
        );
        assert!(value["spec"].get("tolerations").is_none());
        let replace = json!({"spec": {"$patch": "replace", "nodeName": "n"}});
        assert_eq!(
            patched(pod(), &replace).unwrap()["spec"],
            json!({"nodeName": "n"})
        );
        let primitive = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/b"]}});
        assert_eq!(
            patched(pod(), &primitive).unwrap()["metadata"]["finalizers"],
            json!([])
        );
    }

    #[test]
    fn an_item_without_its_key_is_refused() {
        let patch = json!({"spec": {"containers": [{"image": "x"}]}});
        assert!(patched(pod(), &patch).unwrap_err().contains("merge key: name"));
        let patch = json!({"spec": {"$patch": "explode"}});
        assert!(patched(pod(), &patch).is_err());
    }
}
