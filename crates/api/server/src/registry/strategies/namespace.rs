//! Namespaces: their finalizers, their phase, and which of them stay.

use pulselet_model::FieldError;
use serde_json::{Value, json};

use super::metadata::{self, copy_field, immutable_errors, keep_system_fields, with_part};
use super::{Admitted, AfterCreate, Refusal, Rules, Strategy, Update, finish};
use crate::registry::namespaces::SYSTEM_NAMESPACES;
use crate::registry::object::Object;
use crate::registry::resource::{ResourceKind, Subresource};

#[derive(Debug)]
pub(super) struct Namespace;

pub(super) static NAMESPACE: Namespace = Namespace;

impl Strategy for Namespace {
    fn admit_create(&self, kind: ResourceKind, mut object: Object, _: Rules) -> Result<Admitted, Refusal> {
        set_defaults(&mut object);
        let errors = metadata::errors(kind, &object)?;
        finish(object, errors)
    }

    fn admit_update(&self, kind: ResourceKind, update: Update<'_>, _: Rules) -> Result<Admitted, Refusal> {
        let old = update.old;
        let mut object = match update.subresource {
            Some(Subresource::Status) => with_status(old, &update.new),
            Some(Subresource::Finalize) => with_part(old, &update.new, "spec"),
            _ => {
                let mut new = update.new;
                keep_system_fields(&mut new, old);
                copy_field(&mut new, old, "status");
                copy_field(&mut new, old, "spec");
                new
            }
        };
        set_defaults(&mut object);
        let mut errors: Vec<FieldError> = metadata::errors(kind, &object)?;
        errors.extend(immutable_errors(&object, old));
        finish(object, errors)
    }

    fn after_create(&self) -> AfterCreate {
        AfterCreate::NamespaceDefaults
    }

    fn may_delete(&self, name: &str) -> Result<(), &'static str> {
        if SYSTEM_NAMESPACES.contains(&name) {
            return Err("this namespace may not be deleted");
        }
        Ok(())
    }

    fn is_held(&self, object: &Object) -> bool {
        object.has_finalizers() || has_finalizers(object)
    }

    fn mark_ending(&self, object: &mut Object) {
        object.value_mut()["status"]["phase"] = json!("Terminating");
    }
}

/// As upstream: a reporter about a namespace may annotate it.
fn with_status(old: &Object, new: &Object) -> Object {
    let mut object = with_part(old, new, "status");
    for field in ["annotations", "labels"] {
        object.set_meta(field, new.metadata().get(field).cloned().unwrap_or_default());
    }
    object
}

fn has_finalizers(object: &Object) -> bool {
    let finalizers = object.value().pointer("/spec/finalizers");
    let finalizers = finalizers.and_then(Value::as_array);
    finalizers.is_some_and(|finalizers| !finalizers.is_empty())
}

fn set_defaults(object: &mut Object) {
    let name = object.name().to_owned();
    let deleting = object.is_deleting();
    let phase = if deleting { "Terminating" } else { "Active" };
    let value = object.value_mut();
    // Once its end has begun, a namespace without finalizers is one that may go.
    if value.pointer("/spec/finalizers").is_none() && !deleting {
        value["spec"] = json!({"finalizers": ["kubernetes"]});
    }
    if !value["status"].is_object() {
        value["status"] = json!({});
    }
    value["status"]["phase"] = json!(phase);
    let labels = object.metadata_mut().entry("labels").or_insert_with(|| json!({}));
    labels["kubernetes.io/metadata.name"] = json!(name);
}
