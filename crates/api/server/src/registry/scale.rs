//! The subresource `scale`: how many Pods an object wants, in a form that is the same for every kind that has one.

use serde_json::{Value, json};

use super::writes::ChangedObject;
use super::{Registry, Written};
use crate::patch::managed::{self, FieldWriter};
use crate::patch::{self, Patch};
use crate::registry::object::Object;
use crate::registry::resource::{ObjectPath, ResourceKind};
use crate::rest::body;
use crate::rest::query::WriteOptions;
use crate::rest::status::ApiError;
use crate::rest::table;

const API_VERSION: &str = "autoscaling/v1";

/// The scale of an object.
pub(crate) fn of(kind: ResourceKind, object: &Object) -> Object {
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object.metadata().get(field) {
            metadata[field] = value.clone();
        }
    }
    let selector = object.value().pointer("/spec/selector");
    let selector = if kind.info().kind == "ReplicationController" {
        table::selector(Some(&json!({"matchLabels": selector})))
    } else {
        table::selector(selector)
    };
    let number = |pointer: &str| object.value().pointer(pointer).and_then(Value::as_i64);
    let mut spec = json!({});
    if let Some(replicas) = number("/spec/replicas").filter(|replicas| *replicas != 0) {
        spec["replicas"] = json!(replicas);
    }
    let scale = json!({
        "kind": "Scale",
        "apiVersion": API_VERSION,
        "metadata": metadata,
        "spec": spec,
        "status": {"replicas": number("/status/replicas").unwrap_or(0), "selector": selector},
    });
    Object::new(scale).expect("a literal object")
}

impl Registry {
    /// Replaces the scale of an object. The answer is the object.
    pub(crate) async fn update_scale(
        &self,
        path: &ObjectPath,
        scale: Value,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        let mut scale = scale;
        body::strip_nulls(&mut scale);
        self.change(path, options.dry_run, |old| scaled(path, old, &scale, options))
            .await
    }

    /// Changes the scale of an object by a patch.
    pub(crate) async fn patch_scale(
        &self,
        path: &ObjectPath,
        wanted: &Patch,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        self.change(path, options.dry_run, |old| {
            let shown = of(path.endpoint.kind, old);
            let mut scale = patch::apply(wanted, path.endpoint, &shown, options)?;
            body::strip_nulls(&mut scale);
            scaled(path, old, &scale, options)
        })
        .await
    }
}

fn scaled(
    path: &ObjectPath,
    old: &Object,
    scale: &Value,
    options: &WriteOptions,
) -> Result<ChangedObject, ApiError> {
    let refused = |why: &str| ApiError::bad_request(format!("the scale is not one: {why}"));
    for (field, expected) in [("kind", "Scale"), ("apiVersion", API_VERSION)] {
        let found = scale.get(field).and_then(Value::as_str).unwrap_or(expected);
        if found != expected {
            return Err(refused(&format!("its {field} is {found:?}, not {expected:?}")));
        }
    }
    let version = scale.pointer("/metadata/resourceVersion").and_then(Value::as_str);
    if version.is_some_and(|version| !version.is_empty() && version != old.resource_version()) {
        return Err(ApiError::modified(path.endpoint, old.name()));
    }
    let replicas = match scale.pointer("/spec/replicas") {
        None => 0,
        Some(value) => value
            .as_i64()
            .and_then(|replicas| i32::try_from(replicas).ok())
            .filter(|replicas| *replicas >= 0)
            .ok_or_else(|| refused("spec.replicas is not a number of 0 or more"))?,
    };
    let mut object = old.clone();
    object.value_mut()["spec"]["replicas"] = json!(replicas);
    if object != *old {
        let generation = old.metadata().get("generation").and_then(Value::as_i64);
        object.set_meta("generation", json!(generation.unwrap_or(0) + 1));
    }
    managed::record(Some(old), &mut object, path, options, FieldWriter::Update);
    Ok(ChangedObject {
        object,
        warnings: Vec::new(),
    })
}
