//! Object metadata: names, labels, annotations, owners, finalizers.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::names;
use crate::field::{Errors, FieldError, Path};
use crate::template::PodTemplateSpec;

/// All annotations of an object together.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;
pub(crate) const MIRROR_POD: &str = "kubernetes.io/config.mirror";
pub(super) const IMMUTABLE: &str = "field is immutable";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// What the names of a kind of object look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// Labels with dots between them: most kinds.
    Subdomain,
    /// One label: namespaces.
    Label,
    /// Whatever can be a part of a path: roles and bindings.
    PathSegment,
    /// As [`NameRule::Subdomain`], in the words of upstream's newer checks: replication controllers.
    LongName,
}

impl NameRule {
    fn complaints(self, name: &str) -> Vec<String> {
        match self {
            Self::Subdomain => names::dns_subdomain(name),
            Self::Label => names::dns_label(name),
            Self::PathSegment => names::path_segment(name),
            Self::LongName => names::long_name(name),
        }
    }

    /// Complaints about a name that will get a suffix: a trailing dash is fine.
    fn prefix_complaints(self, prefix: &str) -> Vec<String> {
        match self {
            Self::Subdomain | Self::Label | Self::LongName => self.complaints(&names::with_suffix(prefix)),
            Self::PathSegment => self.complaints(prefix),
        }
    }
}

/// All that is wrong with the metadata of an object of any kind.
pub fn validate_metadata(meta: &ObjectMeta, rule: NameRule, namespaced: bool) -> Vec<FieldError> {
    let mut errors = Errors::default();
    validate_any(&mut errors, meta, Path::new("metadata"), rule, namespaced);
    errors.into_vec()
}

pub(super) fn validate(errors: &mut Errors, meta: &ObjectMeta, path: Path<'_>) {
    validate_any(errors, meta, path, NameRule::Subdomain, true);
}

pub(super) fn validate_any(
    errors: &mut Errors,
    meta: &ObjectMeta,
    path: Path<'_>,
    rule: NameRule,
    namespaced: bool,
) {
    validate_fields(errors, meta, path, rule, namespaced);
    validate_standard_finalizers(errors, meta, path.child("finalizers"));
}

fn validate_fields(errors: &mut Errors, meta: &ObjectMeta, path: Path<'_>, rule: NameRule, namespaced: bool) {
    let generate_name = meta.generate_name.as_deref().unwrap_or_default();
    let name = meta.name.as_deref().unwrap_or_default();
    if !generate_name.is_empty() {
        let complaints = rule.prefix_complaints(generate_name);
        errors.invalid_each(path.child("generateName"), generate_name, complaints);
    }
    if !name.is_empty() {
        errors.invalid_each(path.child("name"), name, rule.complaints(name));
    } else if generate_name.is_empty() {
        errors.required(path.child("name"), "name or generateName is required");
    }
    match meta.namespace.as_deref().unwrap_or_default() {
        "" if namespaced => errors.required(path.child("namespace"), ""),
        "" => {}
        _ if !namespaced => errors.forbidden(path.child("namespace"), "not allowed on this type"),
        namespace => errors.invalid_each(path.child("namespace"), namespace, names::dns_label(namespace)),
    }
    if let Some(generation) = meta.generation.filter(|generation| *generation < 0) {
        errors.invalid(
            path.child("generation"),
            generation,
            "must be greater than or equal to 0",
        );
    }
    validate_labels(errors, meta.labels.as_ref(), path.child("labels"));
    validate_annotations(errors, meta.annotations.as_ref(), path.child("annotations"));
    validate_owners(errors, meta, path.child("ownerReferences"));
    let finalizers = path.child("finalizers");
    for finalizer in meta.finalizers.iter().flatten() {
        errors.invalid_each(finalizers, finalizer, names::qualified_name(finalizer));
    }
}

fn validate_standard_finalizers(errors: &mut Errors, meta: &ObjectMeta, finalizers: Path<'_>) {
    for (index, finalizer) in meta.finalizers.iter().flatten().enumerate() {
        if !finalizer.contains('/')
            && !["orphan", "foregroundDeletion", "kubernetes"].contains(&finalizer.as_str())
        {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            errors.invalid(finalizers.index(index), finalizer.as_str(), detail);
        }
    }
}

pub(super) fn validate_labels(
    errors: &mut Errors,
    labels: Option<&BTreeMap<String, String>>,
    path: Path<'_>,
) {
    for (key, value) in labels.into_iter().flatten() {
        errors.invalid_each(path, key, names::qualified_name(key));
        errors.invalid_each(path, value, names::label_value(value));
    }
}

fn validate_annotations(errors: &mut Errors, annotations: Option<&BTreeMap<String, String>>, path: Path<'_>) {
    let mut bytes = 0;
    for (key, value) in annotations.into_iter().flatten() {
        errors.invalid_each(path, key, names::qualified_name(&key.to_lowercase()));
        bytes += key.len() + value.len();
    }
    if bytes > MAX_ANNOTATION_BYTES {
        errors.too_long(path, MAX_ANNOTATION_BYTES);
    }
}

fn validate_owners(errors: &mut Errors, meta: &ObjectMeta, path: Path<'_>) {
    let mut controller: Option<String> = None;
    for owner in meta.owner_references.iter().flatten() {
        for (field, value) in [
            ("apiVersion", &owner.api_version),
            ("kind", &owner.kind),
            ("name", &owner.name),
            ("uid", &owner.uid),
        ] {
            if value.is_empty() {
                errors.invalid(path.child(field), "", "must not be empty");
            }
        }
        if owner.controller == Some(true) {
            let this = format!("{}/{}", owner.kind, owner.name);
            if let Some(first) = &controller {
                let detail = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and \
                     {this}"
                );
                errors.invalid(
                    path,
                    serde_json::to_value(&meta.owner_references).unwrap_or_default(),
                    detail,
                );
            }
            controller = Some(this);
        }
    }
}

/// Annotations that mean something on a Pod.
pub(super) fn validate_pod_annotations(
    errors: &mut Errors,
    meta: &ObjectMeta,
    node_name: &str,
    path: Path<'_>,
) {
    let Some(annotations) = &meta.annotations else {
        return;
    };
    if let Some(value) = annotations.get(MIRROR_POD)
        && node_name.is_empty()
    {
        let detail = "must set spec.nodeName if mirror pod annotation is set";
        errors.invalid(path.key(MIRROR_POD), value.as_str(), detail);
    }
    if let Some(cost) = bad_deletion_cost(meta) {
        errors.invalid(path.key(DELETION_COST), cost, "must be a 32bit integer");
    }
}

/// The cost of deleting a Pod, if it is not a number in its shortest form.
pub(super) fn bad_deletion_cost(meta: &ObjectMeta) -> Option<&str> {
    let cost = meta.annotations.as_ref()?.get(DELETION_COST)?;
    let canonical = !cost.starts_with('+') && (cost == "0" || !cost.trim_start_matches('-').starts_with('0'));
    (cost.parse::<i32>().is_err() || !canonical).then_some(cost.as_str())
}

/// A template has labels and annotations only, and upstream leaves `metadata` out of their paths.
pub(super) fn validate_template(
    errors: &mut Errors,
    template: &PodTemplateSpec,
    path: Path<'_>,
    any_deletion_cost: bool,
) {
    let mut metadata = template.metadata.clone();
    validate_labels(errors, metadata.labels.as_ref(), path.child("labels"));
    let annotations = path.child("annotations");
    validate_annotations(errors, metadata.annotations.as_ref(), annotations);
    if any_deletion_cost && let Some(annotations) = &mut metadata.annotations {
        annotations.remove(DELETION_COST);
    }
    validate_pod_annotations(errors, &metadata, &template.spec.node_name, annotations);
}

/// Rules for the metadata of a replacement of `old`, of any kind. Upstream checks them before those of the kind.
pub(super) fn validate_common_change(
    errors: &mut Errors,
    new: &ObjectMeta,
    old: &ObjectMeta,
    path: Path<'_>,
) {
    validate_fields(errors, new, path, NameRule::PathSegment, true);
    validate_fields_change(errors, new, old, path);
}

/// Rules for the metadata of a replacement of `old`.
pub(super) fn validate_change(errors: &mut Errors, new: &ObjectMeta, old: &ObjectMeta, path: Path<'_>) {
    validate_fields_change(errors, new, old, path);
    validate_standard_finalizers(errors, new, path.child("finalizers"));
}

fn validate_fields_change(errors: &mut Errors, new: &ObjectMeta, old: &ObjectMeta, path: Path<'_>) {
    if old.deletion_timestamp.is_some() {
        let known: BTreeSet<&String> = old.finalizers.iter().flatten().collect();
        let added: BTreeSet<&String> = new.finalizers.iter().flatten().collect();
        let added: Vec<String> = added.difference(&known).map(|name| format!("{name:?}")).collect();
        if !added.is_empty() {
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            );
            errors.forbidden(path.child("finalizers"), detail);
        }
    }
    for (field, new, old) in [
        ("name", &new.name, &old.name),
        ("namespace", &new.namespace, &old.namespace),
        ("uid", &new.uid, &old.uid),
    ] {
        if new != old {
            errors.invalid(path.child(field), new.as_deref().unwrap_or_default(), IMMUTABLE);
        }
    }
    let times = [
        (
            "creationTimestamp",
            &new.creation_timestamp,
            &old.creation_timestamp,
        ),
        (
            "deletionTimestamp",
            &new.deletion_timestamp,
            &old.deletion_timestamp,
        ),
    ];
    for (field, new, old) in times {
        if new != old {
            let shown = serde_json::to_value(new).unwrap_or_default();
            errors.invalid(path.child(field), shown, IMMUTABLE);
        }
    }
    validate_labels(errors, new.labels.as_ref(), path.child("labels"));
    validate_annotations(errors, new.annotations.as_ref(), path.child("annotations"));
    validate_owners(errors, new, path.child("ownerReferences"));
}
