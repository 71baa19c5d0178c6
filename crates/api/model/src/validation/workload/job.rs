//! Jobs, and the templates of Jobs in `CronJob`s.

use k8s_openapi::api::core::v1::Affinity;
use serde_json::json;

use super::selector::{self, LabelSelector, Labels, Values};
use super::spec::JobSpec;
use super::{Check, Workload, policies, validate_count};
use crate::field::{Errors, Path, RawJson};
use crate::template::PodTemplateSpec;
use crate::validation::metadata::IMMUTABLE;
use crate::validation::names;

/// Indexes that fit into the status of an Indexed Job.
const MAX_INDEXED_PARALLELISM: i32 = 100_000;
const MAX_FAILED_INDEXES: i32 = 100_000;
/// From here on, back-off per index has tighter limits.
const MANY_COMPLETIONS: i32 = 100_000;
const MAX_PARALLELISM_OF_MANY: i32 = 10_000;
const MAX_FAILED_INDEXES_OF_MANY: i32 = 10_000;
const MAX_MANAGED_BY_BYTES: usize = 63;
const CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";
const JOB_NAME: &str = "batch.kubernetes.io/job-name";

/// The rules of a new Job, apart from its metadata.
pub(super) fn validate_new(errors: &mut Errors, spec: &JobSpec, path: Path<'_>, check: Check<'_>) {
    let allowed = match check.old {
        Some(old) if selector_of(old).is_some_and(LabelSelector::has_bad_value) => Values::Any,
        Some(_) | None => Values::Valid,
    };
    validate_generated_selector(errors, spec, path, check);
    validate_spec(errors, spec, path, check, allowed);
    if spec.is_indexed()
        && let Some(completions) = spec.completions.filter(|completions| *completions > 0)
    {
        let name = check.workload.metadata.name.as_deref().unwrap_or_default();
        let longest = format!("{name}-{}", completions - 1);
        if !names::dns_label(&longest).is_empty() {
            let detail = format!("will not able to create pod with invalid DNS label: {longest}");
            errors.invalid(Path::new("metadata").child("name"), name, detail);
        }
    }
}

/// Upstream judges a changed Job as a new one first, and then its spec again.
pub(super) fn validate_update(
    errors: &mut Errors,
    spec: &JobSpec,
    old: &JobSpec,
    path: Path<'_>,
    check: Check<'_>,
) {
    let allowed = if old.selector.as_ref().is_some_and(LabelSelector::has_bad_value) {
        Values::Any
    } else {
        Values::Valid
    };
    check.validate_metadata(errors);
    validate_new(errors, spec, path, check);
    check.validate_metadata_change(errors);
    validate_spec(errors, spec, path, check, allowed);
    validate_completions_change(errors, spec, old, path.child("completions"));
    selector::validate_unchanged(errors, spec.selector.as_ref(), old.selector.as_ref(), path);
    validate_template_change(errors, old, path, check);
    validate_immutable(errors, spec, old, path);
}

fn validate_immutable(errors: &mut Errors, spec: &JobSpec, old: &JobSpec, path: Path<'_>) {
    unchanged(
        errors,
        path.child("completionMode"),
        &spec.completion_mode,
        &old.completion_mode,
        |mode| json!(mode).to_string(),
    );
    unchanged(
        errors,
        path.child("podFailurePolicy"),
        &spec.pod_failure_policy,
        &old.pod_failure_policy,
        |policy| policies::shown_failure_policy(policy.as_ref()),
    );
    unchanged(
        errors,
        path.child("backoffLimitPerIndex"),
        &spec.backoff_limit_per_index,
        &old.backoff_limit_per_index,
        |limit| json!(limit).to_string(),
    );
    unchanged(
        errors,
        path.child("managedBy"),
        &spec.managed_by,
        &old.managed_by,
        |manager| json!(manager).to_string(),
    );
    unchanged(
        errors,
        path.child("successPolicy"),
        &spec.success_policy,
        &old.success_policy,
        |policy| policies::shown_success_policy(policy.as_ref()),
    );
}

fn unchanged<T: PartialEq>(
    errors: &mut Errors,
    path: Path<'_>,
    new: &T,
    old: &T,
    shown: impl FnOnce(&T) -> String,
) {
    if new != old {
        errors.invalid(path, RawJson(shown(new)), IMMUTABLE);
    }
}

fn selector_of(job: &Workload) -> Option<&LabelSelector> {
    match &job.spec {
        super::WorkloadSpec::Job(spec) => spec.selector.as_ref(),
        _ => None,
    }
}

/// A Job that does not choose its Pods itself selects them by its uid.
fn validate_generated_selector(errors: &mut Errors, spec: &JobSpec, path: Path<'_>, check: Check<'_>) {
    let Some(selector) = spec
        .selector
        .as_ref()
        .filter(|_| spec.manual_selector != Some(true))
    else {
        return;
    };
    let metadata = &check.workload.metadata;
    let uid = metadata.uid.as_deref().unwrap_or_default();
    let name = metadata.name.as_deref().unwrap_or_default();
    if uid.is_empty() {
        errors.required(Path::new("metadata").child("uid"), "");
    }
    let mut expected = vec![("controller-uid", uid), ("job-name", name)];
    // Jobs from before these labels lack them.
    let old_labels = check.old.map(|old| {
        let labels = old
            .template
            .as_ref()
            .and_then(|template| template.metadata.labels.as_ref());
        [CONTROLLER_UID, JOB_NAME].map(|label| labels.is_some_and(|labels| labels.contains_key(label)))
    });
    if old_labels.is_none_or(|found| found == [true, true]) {
        expected.extend([(CONTROLLER_UID, uid), (JOB_NAME, name)]);
    }
    let template_path = path.child("template");
    let metadata_path = template_path.child("metadata");
    let labels_path = metadata_path.child("labels");
    for (label, value) in &expected {
        let detail = format!("must be '{value}'");
        match check.labels().and_then(|labels| labels.get(*label)) {
            None => errors.required(labels_path.key(label), &detail),
            Some(found) if found != value => {
                errors.invalid(labels_path.key(label), json!(check.labels()), detail);
            }
            Some(_) => {}
        }
    }
    let expected: Labels = expected
        .into_iter()
        .map(|(label, value)| (label.to_owned(), value.to_owned()))
        .collect();
    if selector.matches(Some(&expected)) == Some(false) {
        errors.invalid(
            path.child("selector"),
            selector.shown(),
            "`selector` not auto-generated",
        );
    }
}

fn validate_spec(errors: &mut Errors, spec: &JobSpec, path: Path<'_>, check: Check<'_>, allowed: Values) {
    validate_template_spec(errors, spec, path, check);
    let selector_path = path.child("selector");
    match &spec.selector {
        None => errors.required(selector_path, ""),
        Some(selector) => selector::validate(errors, selector, selector_path, allowed),
    }
    let matches = match &spec.selector {
        None => Some(false),
        Some(selector) => selector.matches(check.labels()),
    };
    if matches == Some(false) {
        selector::mismatch(errors, check.labels(), path.child("template"));
    }
}

/// The rules that Jobs and the templates of Jobs share.
pub(super) fn validate_template_spec(errors: &mut Errors, spec: &JobSpec, path: Path<'_>, check: Check<'_>) {
    validate_counts(errors, spec, path);
    if let Some(manager) = spec.managed_by.as_deref() {
        validate_manager(errors, manager, path.child("managedBy"));
    }
    validate_mode(errors, spec, path);
    if let Some(policy) = &spec.pod_failure_policy {
        policies::validate_failure_policy(
            errors,
            policy,
            spec,
            path.child("podFailurePolicy"),
            check.template(),
        );
    }
    if let Some(policy) = &spec.success_policy {
        let path = path.child("successPolicy");
        if spec.is_indexed() {
            policies::validate_success_policy(errors, policy, spec, path);
        } else {
            let shown = RawJson(policies::shown_success_policy(Some(policy)));
            errors.invalid(path, shown, "requires indexed completion mode");
        }
    }
    if let Some(policy) = spec.pod_replacement_policy.as_deref() {
        let supported: &[&str] = if spec.pod_failure_policy.is_some() {
            &["Failed"]
        } else {
            &["Failed", "TerminatingOrFailed"]
        };
        if !supported.contains(&policy) {
            errors.not_supported(path.child("podReplacementPolicy"), policy, supported);
        }
    }
    check.validate_template(errors, path.child("template"));
    validate_restart_policy(errors, spec, path, check);
}

fn validate_counts(errors: &mut Errors, spec: &JobSpec, path: Path<'_>) {
    let counts = [
        ("parallelism", spec.parallelism.map(i64::from)),
        ("completions", spec.completions.map(i64::from)),
        ("activeDeadlineSeconds", spec.active_deadline_seconds),
        ("backoffLimit", spec.backoff_limit.map(i64::from)),
        (
            "ttlSecondsAfterFinished",
            spec.ttl_seconds_after_finished.map(i64::from),
        ),
        (
            "backoffLimitPerIndex",
            spec.backoff_limit_per_index.map(i64::from),
        ),
        ("maxFailedIndexes", spec.max_failed_indexes.map(i64::from)),
    ];
    for (field, count) in counts {
        if let Some(count) = count {
            validate_count(errors, count, path.child(field));
        }
    }
    if spec.max_failed_indexes.is_some() && spec.backoff_limit_per_index.is_none() {
        let detail = "when maxFailedIndexes is specified";
        errors.required(path.child("backoffLimitPerIndex"), detail);
    }
}

fn validate_manager(errors: &mut Errors, manager: &str, path: Path<'_>) {
    match manager.split_once('/') {
        _ if manager.is_empty() => errors.required(path, ""),
        Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
            errors.invalid_each(path, domain, names::dns_subdomain(domain));
            if !names::is_http_path(rest) {
                let detail = "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";
                errors.invalid(path, rest, detail);
            }
        }
        Some(_) | None => {
            let detail = "must be a domain-prefixed path (such as \"acme.io/foo\")";
            errors.invalid(path, manager, detail);
        }
    }
    if manager.len() > MAX_MANAGED_BY_BYTES {
        errors.too_long(path, MAX_MANAGED_BY_BYTES);
    }
}

fn validate_mode(errors: &mut Errors, spec: &JobSpec, path: Path<'_>) {
    match spec.completion_mode.as_deref() {
        Some("Indexed") => validate_indexed(errors, spec, path),
        None | Some("NonIndexed") => {
            for (field, value) in [
                ("backoffLimitPerIndex", spec.backoff_limit_per_index),
                ("maxFailedIndexes", spec.max_failed_indexes),
            ] {
                if let Some(value) = value {
                    errors.invalid(path.child(field), value, "requires indexed completion mode");
                }
            }
        }
        Some(other) => {
            errors.not_supported(path.child("completionMode"), other, &["NonIndexed", "Indexed"]);
        }
    }
}

fn validate_indexed(errors: &mut Errors, spec: &JobSpec, path: Path<'_>) {
    let parallelism_path = path.child("parallelism");
    let failed_path = path.child("maxFailedIndexes");
    if spec.completions.is_none() {
        errors.required(path.child("completions"), "when completion mode is Indexed");
    }
    if let Some(parallelism) = spec.parallelism.filter(|count| *count > MAX_INDEXED_PARALLELISM) {
        let detail = format!(
            "must be less than or equal to {MAX_INDEXED_PARALLELISM} when completion mode is Indexed"
        );
        errors.invalid(parallelism_path, parallelism, detail);
    }
    if let (Some(completions), Some(failed)) = (spec.completions, spec.max_failed_indexes)
        && failed > completions
    {
        errors.invalid(failed_path, failed, "must be less than or equal to completions");
    }
    if let Some(failed) = spec
        .max_failed_indexes
        .filter(|count| *count > MAX_FAILED_INDEXES)
    {
        let detail = format!("must be less than or equal to {MAX_FAILED_INDEXES}");
        errors.invalid(failed_path, failed, detail);
    }
    let many = spec.completions.is_some_and(|count| count > MANY_COMPLETIONS);
    if !many || spec.backoff_limit_per_index.is_none() {
        return;
    }
    if spec.max_failed_indexes.is_none() {
        let detail = format!("must be specified when completions is above {MANY_COMPLETIONS}");
        errors.required(failed_path, &detail);
    }
    for (path, value, max) in [
        (parallelism_path, spec.parallelism, MAX_PARALLELISM_OF_MANY),
        (failed_path, spec.max_failed_indexes, MAX_FAILED_INDEXES_OF_MANY),
    ] {
        if let Some(value) = value.filter(|value| *value > max) {
            let detail = format!(
                "must be less than or equal to {max} when completions are above {MANY_COMPLETIONS} and used with \
                 backoff limit per index"
            );
            errors.invalid(path, value, detail);
        }
    }
}

/// The Pods of a Job are meant to end.
fn validate_restart_policy(errors: &mut Errors, spec: &JobSpec, path: Path<'_>, check: Check<'_>) {
    let Some(template) = check.template() else { return };
    let template_path = path.child("template");
    let spec_path = template_path.child("spec");
    let path = spec_path.child("restartPolicy");
    match template.spec.restart_policy.as_str() {
        "" | "Always" => errors.required(path, "valid values: \"OnFailure\", \"Never\""),
        "OnFailure" if spec.pod_failure_policy.is_some() => {
            let detail = "only \"Never\" is supported when podFailurePolicy is specified";
            errors.invalid(path, json!("OnFailure"), detail);
        }
        "OnFailure" | "Never" => {}
        other => errors.not_supported(path, other, &["OnFailure", "Never"]),
    }
}

/// Completions of an Indexed Job change together with its parallelism, those of others never.
fn validate_completions_change(errors: &mut Errors, spec: &JobSpec, old: &JobSpec, path: Path<'_>) {
    if spec.completions == old.completions {
        return;
    }
    if !spec.is_indexed() {
        errors.invalid(path, json!(spec.completions), IMMUTABLE);
    } else if let Some(completions) = spec.completions
        && spec.parallelism != Some(completions)
    {
        errors.invalid(
            path,
            completions,
            "can only be modified in tandem with spec.parallelism",
        );
    }
}

/// While a Job is suspended and runs nothing, its Pods may still get other resources and another place.
fn validate_template_change(errors: &mut Errors, old: &JobSpec, path: Path<'_>, check: Check<'_>) {
    let (Some(new), Some(stored)) = (check.template(), check.old) else {
        return;
    };
    let Some(before) = &stored.template else { return };
    let state = &stored.state;
    let idle = old.suspend == Some(true)
        && (state.start_time.is_none() || state.is_true("Suspended"))
        && state.active == 0;
    let template_path = path.child("template");
    if !idle {
        if new != before {
            errors.invalid(template_path, new.to_value(), IMMUTABLE);
        }
        return;
    }
    let mut allowed = with_scheduling_of(new, before.clone());
    for (new, old) in [
        (&new.spec.containers, &mut allowed.spec.containers),
        (&new.spec.init_containers, &mut allowed.spec.init_containers),
    ] {
        if new.len() == old.len() {
            let pairs = new.iter().zip(old).filter(|(new, old)| new.name == old.name);
            pairs.for_each(|(new, old)| old.resources = new.resources.clone());
        }
    }
    if new.spec != allowed.spec {
        let shown = new.to_value()["spec"].take();
        errors.invalid(path.child("template.spec"), shown, IMMUTABLE);
    }
}

/// The stored template with everything that says where its Pods run taken from the new one.
fn with_scheduling_of(new: &PodTemplateSpec, mut old: PodTemplateSpec) -> PodTemplateSpec {
    match (&new.spec.affinity, &mut old.spec.affinity) {
        (None, Some(affinity)) => {
            affinity.node_affinity = None;
            old.spec
                .affinity
                .take_if(|affinity| *affinity == Affinity::default());
        }
        (Some(new), None) => {
            old.spec.affinity = Some(Affinity {
                node_affinity: new.node_affinity.clone(),
                ..Affinity::default()
            });
        }
        (Some(new), Some(affinity)) => affinity.node_affinity.clone_from(&new.node_affinity),
        (None, None) => {}
    }
    old.spec.node_selector.clone_from(&new.spec.node_selector);
    old.spec.tolerations.clone_from(&new.spec.tolerations);
    old.spec.scheduling_gates.clone_from(&new.spec.scheduling_gates);
    old.metadata.annotations.clone_from(&new.metadata.annotations);
    old.metadata.labels.clone_from(&new.metadata.labels);
    old
}
