//! Who set which field: managed fields, and server-side apply that is built on them.
//!
//! A write makes its manager the owner of every field it changed. Apply goes further: a manager sends all the fields it
//! wants; what it sent before and no longer sends goes away unless someone else owns it, and what someone else owns
//! with another value is a conflict unless forced.

mod apply;
mod fields;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(crate) use apply::apply;
use fields::FieldSet;

use crate::registry::object::{self, Object};
use crate::registry::resource::{ObjectPath, ResourceKind};
use crate::rest::query::WriteOptions;

/// Managers of one object. Upstream merges the oldest updates beyond this too.
const MAX_MANAGERS: usize = 32;

/// How a write came about, as managed fields record it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FieldWriter<'a> {
    Update,
    /// With the configuration that was applied.
    Apply(&'a Value),
}

/// One entry of `metadata.managedFields`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManagedEntry {
    #[serde(default)]
    manager: String,
    #[serde(default)]
    operation: String,
    #[serde(default)]
    api_version: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    time: Value,
    #[serde(default)]
    fields_type: String,
    #[serde(rename = "fieldsV1", default)]
    fields: FieldSet,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    subresource: String,
}

impl ManagedEntry {
    fn is_of(&self, manager: &str, operation: &str, subresource: &str) -> bool {
        self.manager == manager && self.operation == operation && self.subresource == subresource
    }
}

/// The entries of an object. What cannot be read is treated as not there: it only loses ownership.
fn entries(object: &Object) -> Vec<ManagedEntry> {
    let fields = object
        .metadata()
        .get("managedFields")
        .cloned()
        .unwrap_or_default();
    serde_json::from_value(fields).unwrap_or_default()
}

/// Writes into a changed object who owns what now. Nothing changes hands when nothing changed.
pub(crate) fn record(
    old: Option<&Object>,
    new: &mut Object,
    path: &ObjectPath,
    options: &WriteOptions,
    writer: FieldWriter<'_>,
) {
    let kind = path.endpoint.kind;
    if kind == ResourceKind::Event || kind == ResourceKind::Lease {
        // Written often, by one party, and applied by nobody: who owns their fields is of no use to anyone.
        new.set_meta("managedFields", Value::Null);
        return;
    }
    let subresource = path.subresource.map_or("", |subresource| subresource.name());
    let changed = FieldSet::changed(kind, subresource, old.map(Object::value), new.value());
    let operation = match writer {
        FieldWriter::Update => "Update",
        FieldWriter::Apply(_) => "Apply",
    };
    let all = old.map(entries).unwrap_or_default();
    let is_mine = |entry: &ManagedEntry| entry.is_of(&options.field_manager, operation, subresource);
    let (mine, others): (Vec<ManagedEntry>, Vec<ManagedEntry>) = all.into_iter().partition(is_mine);
    let mine = mine.into_iter().next();
    // What nobody owned yet need not be looked at twice.
    let is_known = mine.is_some() || !others.is_empty();
    let present = is_known.then(|| FieldSet::of(kind, subresource, new.value()));
    let present = present.as_ref().unwrap_or(&changed);
    let mut all = release(others, subresource, &changed, present);
    let fields = match writer {
        FieldWriter::Update => match &mine {
            Some(mine) => mine.fields.union(&changed).intersection(present),
            None => changed.clone(),
        },
        FieldWriter::Apply(config) => FieldSet::of(kind, subresource, config),
    };
    let unchanged = changed.is_empty() && mine.as_ref().is_some_and(|mine| mine.fields == fields);
    let time = mine.filter(|_| unchanged).map(|mine| mine.time);
    if !fields.is_empty() {
        all.push(ManagedEntry {
            manager: options.field_manager.clone(),
            operation: operation.to_owned(),
            api_version: path.endpoint.group_version.api_version().to_owned(),
            time: time.unwrap_or_else(object::now),
            fields_type: "FieldsV1".to_owned(),
            fields,
            subresource: subresource.to_owned(),
        });
    }
    let order = |entry: &ManagedEntry| {
        (
            entry.operation.clone(),
            entry.manager.clone(),
            entry.subresource.clone(),
        )
    };
    all.sort_by_key(order);
    bound(&mut all);
    let value = if all.is_empty() { Value::Null } else { json!(all) };
    new.set_meta("managedFields", value);
}

/// Takes from managers what someone else changed and what is no longer there.
fn release(
    entries: Vec<ManagedEntry>,
    subresource: &str,
    changed: &FieldSet,
    present: &FieldSet,
) -> Vec<ManagedEntry> {
    let keep = |mut entry: ManagedEntry| {
        if entry.subresource == subresource {
            entry.fields = entry.fields.difference(changed).intersection(present);
        }
        (!entry.fields.is_empty()).then_some(entry)
    };
    entries.into_iter().filter_map(keep).collect()
}

/// Joins the oldest plain updates when there are too many managers.
fn bound(all: &mut Vec<ManagedEntry>) {
    while all.len() > MAX_MANAGERS {
        let oldest = |all: &[ManagedEntry]| {
            let updates = all
                .iter()
                .enumerate()
                .filter(|(_, entry)| entry.operation == "Update");
            updates
                .min_by_key(|(_, entry)| entry.time.as_str().unwrap_or_default().to_owned())
                .map(|(index, _)| index)
        };
        let Some(first) = oldest(all) else { return };
        let first = all.remove(first);
        let Some(second) = oldest(all) else { return };
        let second = &mut all[second];
        second.fields = second.fields.union(&first.fields);
        "ancient-changes".clone_into(&mut second.manager);
    }
}
