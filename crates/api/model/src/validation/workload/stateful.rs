//! `StatefulSet`s.

use std::borrow::Cow;

use k8s_openapi::api::core::v1 as core;
use serde_json::json;

use super::selector::{self, LabelSelector};
use super::spec::{RollingUpdate, StatefulSetSpec, Strategy};
use super::{Check, Workload, apps, claims, validate_count};
use crate::field::{Errors, Path, RawJson};
use crate::template::PodTemplateSpec;
use crate::validation::{metadata, names};

const IMMUTABLE_SPEC: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
                              'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                              'minReadySeconds' are forbidden";

/// Which parts are checked again in an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    Create,
    Update,
    /// The stored set would be rejected, so its template is left alone.
    UpdateWithoutTemplate,
}

pub(super) fn validate(errors: &mut Errors, spec: &StatefulSetSpec, path: Path<'_>, check: Check<'_>) {
    validate_spec(errors, spec, path, check, Extent::Create);
}

pub(super) fn validate_update(
    errors: &mut Errors,
    spec: &StatefulSetSpec,
    old: &StatefulSetSpec,
    path: Path<'_>,
    check: Check<'_>,
) {
    let stored_is_bad = |stored: &Workload| {
        let mut errors = Errors::default();
        let check = Check {
            workload: stored,
            ..check
        };
        validate_spec(&mut errors, old, path, check, Extent::Update);
        errors.len() > 0
    };
    let extent = if check.old.is_some_and(stored_is_bad) {
        Extent::UpdateWithoutTemplate
    } else {
        Extent::Update
    };
    validate_spec(errors, spec, path, check, extent);
    let unchanged = spec.selector == old.selector
        && spec.service_name == old.service_name
        && spec.pod_management_policy == old.pod_management_policy
        && spec.volume_claim_templates == old.volume_claim_templates;
    if !unchanged {
        errors.forbidden(path, IMMUTABLE_SPEC);
    }
}

fn validate_spec(
    errors: &mut Errors,
    spec: &StatefulSetSpec,
    path: Path<'_>,
    check: Check<'_>,
    extent: Extent,
) {
    match spec.pod_management_policy.as_str() {
        "" => errors.required(path.child("podManagementPolicy"), ""),
        "OrderedReady" | "Parallel" => {}
        other => {
            let detail = "must be 'OrderedReady' or 'Parallel'";
            errors.invalid(path.child("podManagementPolicy"), json!(other), detail);
        }
    }
    validate_strategy(errors, &spec.update_strategy, path.child("updateStrategy"));
    validate_retention(errors, spec, path.child("persistentVolumeClaimRetentionPolicy"));
    if extent == Extent::Create {
        let list = path.child("volumeClaimTemplates");
        for (index, claim) in spec.volume_claim_templates.iter().enumerate() {
            let claim = claim.spec.clone().unwrap_or_default();
            claims::validate(errors, &claim, list.index(index).child("spec"));
        }
    }
    validate_count(errors, spec.replicas, path.child("replicas"));
    validate_count(errors, spec.min_ready_seconds, path.child("minReadySeconds"));
    if let Some(ordinals) = &spec.ordinals {
        validate_count(errors, ordinals.start, path.child("ordinals.start"));
    }
    if extent == Extent::Create && !spec.service_name.is_empty() {
        let complaints = names::dns_label(&spec.service_name);
        errors.invalid_each(path.child("serviceName"), &spec.service_name, complaints);
    }
    validate_selected_template(errors, spec, path, check, extent);
    apps::validate_endless(errors, path.child("template"), "StatefulSet", check);
}

fn validate_selected_template(
    errors: &mut Errors,
    spec: &StatefulSetSpec,
    path: Path<'_>,
    check: Check<'_>,
    extent: Extent,
) {
    let selector_path = path.child("selector");
    let template_path = path.child("template");
    selector::validate_required(errors, spec.selector.as_ref(), selector_path, "statefulset");
    let matches = match &spec.selector {
        None => Some(false),
        Some(selector) => selector.matches(check.labels()),
    };
    match matches {
        None => {
            let shown = spec.selector.as_ref().map(LabelSelector::shown);
            let shown = shown.unwrap_or_else(|| RawJson("null".to_owned()));
            errors.invalid(selector_path, shown, "");
            return;
        }
        Some(false) => selector::mismatch(errors, check.labels(), template_path),
        Some(true) => {}
    }
    let Some(template) = check.template() else { return };
    let template = completed(template, &spec.volume_claim_templates);
    if extent != Extent::UpdateWithoutTemplate {
        check.validate_as_template(errors, &template, template_path);
    }
    // As upstream, once more.
    metadata::validate_template(errors, &template, template_path, false);
}

/// The template with what the controller overwrites: the names of the Pods, and the volumes of claims.
fn completed<'t>(
    template: &'t PodTemplateSpec,
    claims: &[core::PersistentVolumeClaim],
) -> Cow<'t, PodTemplateSpec> {
    let spec = &template.spec;
    if spec.subdomain.is_empty() && spec.hostname.is_empty() && claims.is_empty() {
        return Cow::Borrowed(template);
    }
    let mut template = template.clone();
    template.spec.subdomain.clear();
    template.spec.hostname.clear();
    let mut volumes: Vec<core::Volume> = Vec::new();
    for claim in claims {
        let name = claim.metadata.name.clone().unwrap_or_default();
        if volumes.iter().all(|volume| volume.name != name) {
            volumes.push(core::Volume {
                name: name.clone(),
                persistent_volume_claim: Some(core::PersistentVolumeClaimVolumeSource {
                    claim_name: name,
                    ..core::PersistentVolumeClaimVolumeSource::default()
                }),
                ..core::Volume::default()
            });
        }
    }
    let own = std::mem::take(&mut template.spec.volumes).into_iter();
    let of_claims = volumes.len();
    let own = own.filter(|volume| volumes[..of_claims].iter().all(|claim| claim.name != volume.name));
    let own: Vec<core::Volume> = own.collect();
    volumes.extend(own);
    template.spec.volumes = volumes;
    Cow::Owned(template)
}

fn validate_strategy(errors: &mut Errors, strategy: &Strategy, path: Path<'_>) {
    let update_path = path.child("rollingUpdate");
    match (strategy.kind.as_str(), &strategy.rolling_update) {
        ("", _) => errors.required(path, ""),
        ("OnDelete", Some(update)) => {
            let detail = "only allowed for updateStrategy 'RollingUpdate'";
            errors.invalid(update_path, RawJson(shown(update)), detail);
        }
        ("RollingUpdate", Some(update)) => validate_rolling_update(errors, update, update_path),
        ("OnDelete" | "RollingUpdate", None) => {}
        _ => {
            let update = strategy.rolling_update.as_ref().map(shown);
            let shown = format!(
                "{{\"Type\":{},\"RollingUpdate\":{}}}",
                json!(strategy.kind),
                update.unwrap_or_else(|| "null".to_owned())
            );
            errors.invalid(path, RawJson(shown), "must be 'RollingUpdate' or 'OnDelete'");
        }
    }
}

fn validate_rolling_update(errors: &mut Errors, update: &RollingUpdate, path: Path<'_>) {
    validate_count(errors, update.partition, path.child("partition"));
    if let Some(unavailable) = &update.max_unavailable {
        let path = path.child("maxUnavailable");
        apps::validate_share(errors, unavailable, path);
        if apps::amount(unavailable) == 0 {
            errors.invalid(path, json!(unavailable), "cannot be 0");
        }
        apps::validate_whole(errors, unavailable, path);
    }
}

/// As upstream shows it.
fn shown(update: &RollingUpdate) -> String {
    format!(
        "{{\"Partition\":{},\"MaxUnavailable\":{}}}",
        update.partition,
        json!(update.max_unavailable)
    )
}

fn validate_retention(errors: &mut Errors, spec: &StatefulSetSpec, path: Path<'_>) {
    let Some(policy) = &spec.persistent_volume_claim_retention_policy else {
        return;
    };
    for (field, value) in [
        ("whenDeleted", &policy.when_deleted),
        ("whenScaled", &policy.when_scaled),
    ] {
        if !["Retain", "Delete"].contains(&value.as_str()) {
            errors.not_supported(path.child(field), value, &["Retain", "Delete"]);
        }
    }
}
