//! Server-side apply: what the object becomes when a manager sends all the fields it wants.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::fields::{FieldSet, item_step, value_step};
use super::{ManagedEntry, entries};
use crate::patch::schema::{is_atomic_map, list_kind, root};
use crate::registry::object::Object;
use crate::registry::resource::Endpoint;
use crate::rest::body::strip_nulls;
use crate::rest::query::WriteOptions;
use crate::rest::status::{ApiError, StatusReason};
use pulselet_schema::{FieldPlace, ListKind};

/// The object with a configuration applied, or the conflicts that stand against it.
pub(crate) fn apply(
    endpoint: Endpoint,
    object: &Object,
    config: &Value,
    options: &WriteOptions,
) -> Result<Value, ApiError> {
    let mut config = config.clone();
    strip_nulls(&mut config);
    check(&config, options)?;
    let kind = endpoint.kind;
    let wanted = FieldSet::of(kind, "", &config);
    let all = entries(object);
    let is_mine = |entry: &&ManagedEntry| entry.is_of(&options.field_manager, "Apply", "");
    if !options.force {
        let differs = FieldSet::changed(kind, "", Some(object.value()), &config);
        let others = all.iter().filter(|entry| !is_mine(entry));
        let conflicts: Vec<(&ManagedEntry, FieldSet)> = others
            .map(|entry| (entry, entry.fields.intersection(&differs)))
            .filter(|(_, fields)| !fields.paths().is_empty())
            .collect();
        if !conflicts.is_empty() {
            return Err(conflict(&conflicts));
        }
    }
    let mut value = object.value().clone();
    merge(root(kind), &mut value, &config);
    if let Some(mine) = all.iter().find(is_mine) {
        let mut gone = mine.fields.difference(&wanted);
        for other in all.iter().filter(|entry| !is_mine(entry)) {
            gone = gone.difference(&other.fields);
        }
        prune(root(kind), &mut value, &gone);
    }
    Ok(value)
}

fn check(config: &Value, options: &WriteOptions) -> Result<(), ApiError> {
    if options.field_manager.is_empty() {
        return Err(ApiError::bad_request(
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
        ));
    }
    for field in ["apiVersion", "kind"] {
        if config
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .is_empty()
        {
            return Err(ApiError::bad_request(format!(
                "error decoding patch: the configuration has no {field}"
            )));
        }
    }
    if config.pointer("/metadata/managedFields").is_some() {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    Ok(())
}

fn conflict(conflicts: &[(&ManagedEntry, FieldSet)]) -> ApiError {
    let mut causes = Vec::new();
    let mut lines = String::new();
    for (entry, fields) in conflicts {
        let owner = format!("{:?} using {}", entry.manager, entry.api_version);
        let paths = fields.paths();
        let plural = if paths.len() == 1 { "" } else { "s" };
        let _ = write!(lines, " conflict{plural} with {owner}:");
        match paths.as_slice() {
            [one] => {
                let _ = write!(lines, " {one}");
            }
            many => many.iter().for_each(|path| {
                let _ = write!(lines, "\n- {path}");
            }),
        }
        causes.extend(paths.into_iter().map(|path| {
            json!({"reason": "FieldManagerConflict", "message": format!("conflict with {owner}"), "field": path})
        }));
    }
    let count = causes.len();
    let plural = if count == 1 { "" } else { "s" };
    let mut error = ApiError::new(
        StatusReason::Conflict,
        format!("Apply failed with {count} conflict{plural}:{lines}"),
    );
    error.details = Some(json!({"causes": causes}));
    error
}

fn merge(place: FieldPlace, value: &mut Value, config: &Value) {
    match (value, config) {
        (Value::Object(map), Value::Object(config)) if !is_atomic_map(place) => {
            for (key, wanted) in config {
                match map.get_mut(key) {
                    Some(found) => merge(place.below(key), found, wanted),
                    None => {
                        map.insert(key.clone(), wanted.clone());
                    }
                }
            }
        }
        (Value::Array(items), Value::Array(config)) => match list_kind(place) {
            ListKind::Atomic => items.clone_from(config),
            ListKind::Set => {
                let new = config.iter().filter(|item| !items.contains(item));
                let new: Vec<Value> = new.cloned().collect();
                items.extend(new);
            }
            ListKind::Map(keys) => merge_items(place, items, config, keys),
        },
        (value, config) => value.clone_from(config),
    }
}

/// Applied items come in their own order, at the place of the first of them; the others keep theirs.
fn merge_items(place: FieldPlace, items: &mut Vec<Value>, config: &[Value], keys: &[&str]) {
    let step = |item: &Value| item_step(keys, item);
    for wanted in config {
        match items.iter_mut().find(|item| step(item) == step(wanted)) {
            Some(item) => merge(place, item, wanted),
            None => items.push(wanted.clone()),
        }
    }
}

fn prune(place: FieldPlace, value: &mut Value, gone: &FieldSet) {
    match value {
        Value::Object(map) => prune_map(place, map, gone),
        Value::Array(items) => match list_kind(place) {
            ListKind::Atomic => {}
            ListKind::Set => items.retain(|item| !gone.children.contains_key(&value_step(item))),
            ListKind::Map(keys) => {
                let below = |item: &Value| item_step(keys, item).and_then(|step| gone.children.get(&step));
                items.retain(|item| !below(item).is_some_and(|gone| gone.member));
                for item in items {
                    if let Some(gone) = below(item) {
                        prune(place, item, gone);
                    }
                }
            }
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn prune_map(place: FieldPlace, map: &mut Map<String, Value>, gone: &FieldSet) {
    for (step, below) in &gone.children {
        let Some(key) = step.strip_prefix("f:") else {
            continue;
        };
        if below.children.is_empty() {
            map.remove(key);
        } else if let Some(value) = map.get_mut(key) {
            prune(place.below(key), value, below);
        }
    }
}
