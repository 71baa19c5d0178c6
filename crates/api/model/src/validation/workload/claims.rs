//! The claims of a `StatefulSet`.

use k8s_openapi::api::core::v1::PersistentVolumeClaimSpec;
use serde_json::{Value, json};

use super::selector::{self, LabelSelector, Values};
use crate::field::{Errors, Path};
use crate::validation::names;
use pulselet_schema::quantity::Amount;

const ACCESS_MODES: [&str; 4] = [
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];

pub(super) fn validate(errors: &mut Errors, spec: &PersistentVolumeClaimSpec, path: Path<'_>) {
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    let modes_path = path.child("accessModes");
    if modes.is_empty() {
        errors.required(modes_path, "at least 1 access mode is required");
    }
    if let Some(selector) = &spec.selector
        && let Ok(selector) = serde_json::from_value::<LabelSelector>(json!(selector))
    {
        selector::validate(errors, &selector, path.child("selector"), Values::Valid);
    }
    for mode in modes.iter().filter(|mode| !ACCESS_MODES.contains(&mode.as_str())) {
        errors.not_supported(modes_path, mode, &ACCESS_MODES);
    }
    let is_single = |mode: &&String| mode.as_str() == "ReadWriteOncePod";
    let known = modes.iter().filter(|mode| ACCESS_MODES.contains(&mode.as_str()));
    if modes.iter().any(|mode| is_single(&mode)) && known.clone().any(|mode| !is_single(&mode)) {
        errors.forbidden(modes_path, "may not use ReadWriteOncePod with other access modes");
    }
    validate_storage(errors, spec, path);
    for (field, name) in [
        ("storageClassName", &spec.storage_class_name),
        ("volumeAttributesClassName", &spec.volume_attributes_class_name),
    ] {
        let name = name.as_deref().unwrap_or_default();
        if field == "volumeAttributesClassName" {
            validate_sources(errors, spec, path);
        }
        if !name.is_empty() {
            errors.invalid_each(path.child(field), name, names::dns_subdomain(name));
        }
    }
}

fn validate_storage(errors: &mut Errors, spec: &PersistentVolumeClaimSpec, path: Path<'_>) {
    let resources = path.child("resources");
    let path = resources.key("storage");
    let requests = spec
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref());
    let Some(storage) = requests.and_then(|requests| requests.get("storage")) else {
        errors.required(path, "");
        return;
    };
    let Ok(amount) = Amount::parse(&storage.0) else {
        errors.invalid(path, storage.0.as_str(), "must be a quantity");
        return;
    };
    if amount.nanos() <= 0 {
        errors.invalid(path, amount.to_string().as_str(), "must be greater than zero");
    }
}

fn validate_sources(errors: &mut Errors, spec: &PersistentVolumeClaimSpec, path: Path<'_>) {
    if let Some(mode) = &spec.volume_mode
        && !["Block", "Filesystem"].contains(&mode.as_str())
    {
        errors.not_supported(path.child("volumeMode"), mode, &["Block", "Filesystem"]);
    }
    let source = spec.data_source.as_ref();
    if let Some(source) = source {
        let parts = (
            source.api_group.as_deref(),
            source.kind.as_str(),
            source.name.as_str(),
        );
        validate_source(errors, parts, path.child("dataSource"));
    }
    let Some(reference) = &spec.data_source_ref else {
        return;
    };
    let parts = (
        reference.api_group.as_deref(),
        reference.kind.as_str(),
        reference.name.as_str(),
    );
    let reference_path = path.child("dataSourceRef");
    validate_source(errors, parts, reference_path);
    let namespace = reference.namespace.as_deref().unwrap_or_default();
    if !namespace.is_empty() {
        errors.invalid_each(
            reference_path.child("namespace"),
            namespace,
            names::dns_label(namespace),
        );
    }
    // Upstream shows the path in place of the value.
    let shown = Value::Object(serde_json::Map::new());
    if !namespace.is_empty() && source.is_some() {
        let detail = "may not be specified when dataSourceRef.namespace is specified";
        errors.invalid(path, shown, detail);
    } else if source.is_some_and(|source| {
        (
            source.api_group.as_deref(),
            source.kind.as_str(),
            source.name.as_str(),
        ) != parts
    }) {
        errors.invalid(path, shown, "must match dataSourceRef");
    }
}

fn validate_source(errors: &mut Errors, source: (Option<&str>, &str, &str), path: Path<'_>) {
    let (group, kind, name) = source;
    if name.is_empty() {
        errors.required(path.child("name"), "");
    }
    if kind.is_empty() {
        errors.required(path.child("kind"), "");
    }
    let group = group.unwrap_or_default();
    if !group.is_empty() {
        errors.invalid_each(path.child("apiGroup"), group, names::dns_subdomain(group));
    } else if kind != "PersistentVolumeClaim" {
        let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        errors.invalid(path, kind, detail);
    }
}
