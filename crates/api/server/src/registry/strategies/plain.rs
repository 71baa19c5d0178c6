//! Kinds with few rules: their fields and defaults come from the table and the model, and a few functions check what their
//! readers rely on.
//!
//! Invariants: the status of an object changes only through its subresource, and its generation counts the changes of
//! everything else but metadata.

use pulselet_model::FieldError;
use pulselet_schema::canonical::complete;
use serde_json::{Map, Value, json};

use super::metadata::{self, copy_field, immutable_errors, keep_system_fields};
use super::{Admitted, Refusal, Rules, Strategy, Update, finish, invalid};
use crate::registry::object::Object;
use crate::registry::resource::{ResourceKind, Subresource};

/// The rules of a kind of which little is asked.
#[derive(Debug)]
pub(crate) struct Plain {
    /// Fills in defaults that the table of the model does not have.
    pub(super) fill: fn(&mut Object),
    /// Finds errors in an object.
    pub(super) errors: fn(&Object) -> Vec<FieldError>,
    /// Finds errors in a change, from the new to the old object.
    pub(super) update_errors: fn(&Object, &Object) -> Vec<FieldError>,
    /// Fields that stay as they were created.
    pub(super) immutable: &'static [&'static str],
}

/// The rules that every kind has.
pub(crate) static PLAIN: Plain = Plain::NEW;
pub(crate) static ENDPOINT_SLICE: Plain = Plain::immutable(&["addressType"]);
pub(crate) static PRIORITY_CLASS: Plain = Plain::immutable(&["value", "preemptionPolicy"]);
pub(crate) static RESOURCE_CLAIM: Plain = Plain::immutable(&["spec"]);
pub(crate) static RUNTIME_CLASS: Plain = Plain::immutable(&["handler"]);
pub(crate) static STORAGE_CLASS: Plain =
    Plain::immutable(&["provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"]);

impl Plain {
    pub(super) const NEW: Self = Self {
        fill: |_| {},
        errors: |_| Vec::new(),
        update_errors: |_, _| Vec::new(),
        immutable: &[],
    };

    pub(super) const fn immutable(immutable: &'static [&'static str]) -> Self {
        Self {
            immutable,
            ..Self::NEW
        }
    }

    /// What is wrong with the object.
    pub(super) fn all_errors(&self, kind: ResourceKind, object: &Object) -> Result<Vec<FieldError>, Refusal> {
        let mut errors = metadata::errors(kind, object)?;
        errors.extend((self.errors)(object));
        Ok(errors)
    }

    /// Makes a new object complete.
    pub(super) fn prepare_create(&self, kind: ResourceKind, object: &mut Object) {
        if kind.info().subresources.contains(&Subresource::Status) {
            map(object).remove("status");
        }
        self.complete(kind, object);
        if kind.has_generation() {
            object.set_meta("generation", json!(1));
        }
    }

    /// Makes a changed object complete. Only the part that the change is about differs from the old object afterwards.
    pub(super) fn prepare_update(&self, kind: ResourceKind, update: &mut Update<'_>) {
        let (object, old) = (&mut update.new, update.old);
        keep_system_fields(object, old);
        if matches!(
            update.subresource,
            Some(Subresource::Approval | Subresource::Status)
        ) {
            keep_all_but_status(object, old);
        } else if kind.info().subresources.contains(&Subresource::Status) {
            copy_field(object, old, "status");
        }
        self.complete(kind, object);
    }

    /// Counts a change of what is wanted.
    pub(super) fn count_change(kind: ResourceKind, object: &mut Object, old: &Object) {
        if kind.has_generation() && wanted(object) != wanted(old) {
            let before = old.metadata().get("generation").and_then(Value::as_i64);
            object.set_meta("generation", json!(before.unwrap_or(0) + 1));
        }
    }

    /// What is wrong with a change.
    pub(super) fn all_update_errors(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let mut errors = immutable_errors(new, old);
        let at = |object: &Object, field: &str| object.value().get(field).cloned().unwrap_or_default();
        let changed = self
            .immutable
            .iter()
            .filter(|field| at(new, field) != at(old, field));
        errors.extend(changed.map(|field| invalid(field, &at(new, field), "field is immutable")));
        errors.extend((self.update_errors)(new, old));
        errors
    }

    /// Fills in defaults, and the fields that are written even if nothing sets them.
    pub(super) fn complete(&self, kind: ResourceKind, object: &mut Object) {
        let message = kind.storage().message();
        (self.fill)(object);
        complete(message, map(object));
        pulselet_model::fill_defaults(message, object.value_mut());
    }
}

impl Strategy for Plain {
    fn admit_create(&self, kind: ResourceKind, mut object: Object, _: Rules) -> Result<Admitted, Refusal> {
        self.prepare_create(kind, &mut object);
        let errors = self.all_errors(kind, &object)?;
        finish(object, errors)
    }

    fn admit_update(
        &self,
        kind: ResourceKind,
        mut update: Update<'_>,
        _: Rules,
    ) -> Result<Admitted, Refusal> {
        self.prepare_update(kind, &mut update);
        Self::count_change(kind, &mut update.new, update.old);
        let mut errors = self.all_errors(kind, &update.new)?;
        errors.extend(self.all_update_errors(&update.new, update.old));
        finish(update.new, errors)
    }
}

pub(super) fn map(object: &mut Object) -> &mut Map<String, Value> {
    object.value_mut().as_object_mut().expect("an Object is a map")
}

/// Everything that says what is wanted.
fn wanted(object: &Object) -> Vec<(&String, &Value)> {
    let fields = object.value().as_object().into_iter().flatten();
    fields
        .filter(|(name, _)| !matches!(name.as_str(), "metadata" | "status" | "apiVersion" | "kind"))
        .collect()
}

/// A change of the status leaves the rest as it is, but annotations and finalizers, which controllers write with it.
fn keep_all_but_status(object: &mut Object, old: &Object) {
    let (Some(before), Some(labels)) = (
        old.value().as_object(),
        Some(old.metadata().get("labels").cloned().unwrap_or_default()),
    ) else {
        return;
    };
    object.set_meta("labels", labels);
    let now = map(object);
    now.retain(|name, _| matches!(name.as_str(), "metadata" | "status"));
    for (name, value) in before {
        if !matches!(name.as_str(), "metadata" | "status") {
            now.insert(name.clone(), value.clone());
        }
    }
}
