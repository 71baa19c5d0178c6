//! Deployments, `ReplicaSet`s, `DaemonSet`s and `ReplicationController`s.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::json;

use super::selector::{self, LabelSelector, Values};
use super::spec::{
    DaemonSetSpec, DeploymentSpec, ReplicaSetSpec, ReplicationControllerSpec, RollingUpdate, Strategy,
};
use super::{Check, validate_count};
use crate::field::{Errors, Path, RawJson};
use crate::validation::names;

pub(super) fn validate_deployment(
    errors: &mut Errors,
    spec: &DeploymentSpec,
    path: Path<'_>,
    check: Check<'_>,
) {
    validate_count(errors, spec.replicas, path.child("replicas"));
    validate_selected_template(errors, spec.selector.as_ref(), path, check);
    validate_deployment_strategy(errors, &spec.strategy, path.child("strategy"));
    validate_count(errors, spec.min_ready_seconds, path.child("minReadySeconds"));
    if let Some(limit) = spec.revision_history_limit {
        validate_count(errors, limit, path.child("revisionHistoryLimit"));
    }
    if let Some(deadline) = spec.progress_deadline_seconds {
        let path = path.child("progressDeadlineSeconds");
        validate_count(errors, deadline, path);
        if deadline <= spec.min_ready_seconds {
            errors.invalid(path, deadline, "must be greater than minReadySeconds");
        }
    }
}

pub(super) fn validate_replica_set(
    errors: &mut Errors,
    spec: &ReplicaSetSpec,
    path: Path<'_>,
    check: Check<'_>,
) {
    validate_count(errors, spec.replicas, path.child("replicas"));
    validate_count(errors, spec.min_ready_seconds, path.child("minReadySeconds"));
    validate_selected_template(errors, spec.selector.as_ref(), path, check);
}

/// The rules that Deployments and `ReplicaSet`s share. Upstream's texts name the other kind now and then.
fn validate_selected_template(
    errors: &mut Errors,
    selector: Option<&LabelSelector>,
    path: Path<'_>,
    check: Check<'_>,
) {
    let selector_path = path.child("selector");
    selector::validate_required(errors, selector, selector_path, "deployment");
    let template_path = path.child("template");
    let matches = match selector {
        None => Some(false),
        Some(selector) => selector.matches(check.labels()),
    };
    match matches {
        None => {
            let shown = selector.map_or_else(|| RawJson("null".to_owned()), LabelSelector::shown);
            errors.invalid(selector_path, shown, "invalid label selector");
            return;
        }
        Some(false) => selector::mismatch(errors, check.labels(), template_path),
        Some(true) => {}
    }
    check.validate_template(errors, template_path);
    validate_endless(errors, template_path, "ReplicaSet", check);
}

/// The Pods of most kinds are not meant to end.
pub(super) fn validate_endless(errors: &mut Errors, template_path: Path<'_>, kind: &str, check: Check<'_>) {
    let Some(template) = check.template() else { return };
    let path = template_path.child("spec");
    if template.spec.restart_policy != "Always" {
        errors.not_supported(
            path.child("restartPolicy"),
            &template.spec.restart_policy,
            &["Always"],
        );
    }
    if template.spec.active_deadline_seconds.is_some() {
        let detail = format!("activeDeadlineSeconds in {kind} is not Supported");
        errors.forbidden(path.child("activeDeadlineSeconds"), detail);
    }
}

fn validate_deployment_strategy(errors: &mut Errors, strategy: &Strategy, path: Path<'_>) {
    let update_path = path.child("rollingUpdate");
    match (strategy.kind.as_str(), &strategy.rolling_update) {
        ("Recreate", Some(_)) => {
            let detail = "may not be specified when strategy `type` is 'Recreate'";
            errors.forbidden(update_path, detail);
        }
        ("Recreate", None) => {}
        ("RollingUpdate", None) => {
            errors.required(update_path, "this should be defaulted and never be nil");
        }
        ("RollingUpdate", Some(update)) => {
            let (unavailable, surge) = update.bounds();
            let unavailable_path = update_path.child("maxUnavailable");
            validate_share(errors, &unavailable, unavailable_path);
            validate_share(errors, &surge, update_path.child("maxSurge"));
            if amount(&unavailable) == 0 && amount(&surge) == 0 {
                let detail = "may not be 0 when `maxSurge` is 0";
                errors.invalid(unavailable_path, shown(&unavailable), detail);
            }
            validate_whole(errors, &unavailable, unavailable_path);
        }
        _ => {
            let supported = ["Recreate", "RollingUpdate"];
            errors.not_supported_shown(path, &strategy.shown_with_bounds(), &supported);
        }
    }
}

pub(super) fn validate_daemon_set(
    errors: &mut Errors,
    spec: &DaemonSetSpec,
    path: Path<'_>,
    check: Check<'_>,
) {
    let old = check.old.map(|old| &old.spec);
    let old_selector = match old {
        Some(super::WorkloadSpec::DaemonSet(old)) => old.selector.as_ref(),
        _ => None,
    };
    let allowed = if old_selector.is_some_and(LabelSelector::has_bad_value) {
        Values::Any
    } else {
        Values::Valid
    };
    let selector_path = path.child("selector");
    let template_path = path.child("template");
    if let Some(selector) = &spec.selector {
        selector::validate(errors, selector, selector_path, allowed);
    }
    let matches = match &spec.selector {
        None => Some(false),
        Some(selector) => selector.matches(check.labels()),
    };
    if matches == Some(false) {
        selector::mismatch(errors, check.labels(), template_path);
    }
    if let Some(selector) = &spec.selector {
        selector::validate_not_empty(errors, selector, selector_path, "daemonset");
    }
    check.validate_template(errors, template_path);
    validate_endless(errors, template_path, "DaemonSet", check);
    validate_count(errors, spec.min_ready_seconds, path.child("minReadySeconds"));
    validate_daemon_strategy(errors, &spec.update_strategy, path.child("updateStrategy"));
    if let Some(limit) = spec.revision_history_limit {
        validate_count(errors, limit, path.child("revisionHistoryLimit"));
    }
}

fn validate_daemon_strategy(errors: &mut Errors, strategy: &Strategy, path: Path<'_>) {
    let path_of_update = path.child("rollingUpdate");
    match (strategy.kind.as_str(), &strategy.rolling_update) {
        ("OnDelete", _) => {}
        ("RollingUpdate", None) => errors.required(path_of_update, ""),
        ("RollingUpdate", Some(update)) => {
            let (unavailable, surge) = update.bounds();
            let unavailable_path = path_of_update.child("maxUnavailable");
            let surge_path = path_of_update.child("maxSurge");
            validate_share(errors, &unavailable, unavailable_path);
            validate_share(errors, &surge, surge_path);
            validate_whole(errors, &unavailable, unavailable_path);
            validate_whole(errors, &surge, surge_path);
            match (amount(&unavailable) != 0, amount(&surge) != 0) {
                (true, true) => {
                    let detail = "may not be set when maxUnavailable is non-zero";
                    errors.invalid(surge_path, shown(&surge), detail);
                }
                (false, false) => errors.required(unavailable_path, "cannot be 0 when maxSurge is 0"),
                (true, false) | (false, true) => {}
            }
        }
        _ => {
            let supported = ["RollingUpdate", "OnDelete"];
            errors.not_supported_shown(path, &strategy.shown_with_bounds(), &supported);
        }
    }
}

pub(super) fn validate_replication_controller(
    errors: &mut Errors,
    spec: &ReplicationControllerSpec,
    path: Path<'_>,
    check: Check<'_>,
) {
    validate_count(errors, spec.min_ready_seconds, path.child("minReadySeconds"));
    if spec.selector.is_empty() {
        errors.required(path.child("selector"), "");
    }
    match spec.replicas {
        None => errors.required(path.child("replicas"), ""),
        Some(replicas) => validate_count(errors, replicas, path.child("replicas")),
    }
    let template_path = path.child("template");
    if check.template().is_none() {
        errors.required(template_path, "");
        return;
    }
    let labels = check.labels();
    let found = |key: &String| labels.and_then(|labels| labels.get(key));
    if !spec.selector.iter().all(|(key, value)| found(key) == Some(value)) {
        selector::mismatch(errors, labels, template_path);
    }
    check.validate_template(errors, template_path);
    validate_endless(errors, template_path, "ReplicationController", check);
}

impl RollingUpdate {
    /// `maxUnavailable` and `maxSurge`, which are zero when unset.
    fn bounds(&self) -> (IntOrString, IntOrString) {
        let or_zero = |bound: &Option<IntOrString>| bound.clone().unwrap_or(IntOrString::Int(0));
        (or_zero(&self.max_unavailable), or_zero(&self.max_surge))
    }
}

impl Strategy {
    /// As upstream shows the strategies of Deployments and `DaemonSet`s.
    fn shown_with_bounds(&self) -> RawJson {
        let update = self.rolling_update.as_ref().map_or_else(
            || "null".to_owned(),
            |update| {
                let (unavailable, surge) = update.bounds();
                format!(
                    "{{\"MaxUnavailable\":{},\"MaxSurge\":{}}}",
                    json!(unavailable),
                    json!(surge)
                )
            },
        );
        RawJson(format!(
            "{{\"Type\":{},\"RollingUpdate\":{update}}}",
            json!(self.kind)
        ))
    }
}

fn shown(bound: &IntOrString) -> serde_json::Value {
    json!(bound)
}

/// A count, or a share of all.
pub(super) fn validate_share(errors: &mut Errors, bound: &IntOrString, path: Path<'_>) {
    match bound {
        IntOrString::Int(count) => validate_count(errors, *count, path),
        IntOrString::String(share) => errors.invalid_each(path, share, names::percentage(share)),
    }
}

/// A share is at most all.
pub(super) fn validate_whole(errors: &mut Errors, bound: &IntOrString, path: Path<'_>) {
    if percent(bound).is_some_and(|percent| percent > 100) {
        errors.invalid(path, shown(bound), "must not be greater than 100%");
    }
}

fn percent(bound: &IntOrString) -> Option<i64> {
    let IntOrString::String(share) = bound else {
        return None;
    };
    if !names::percentage(share).is_empty() {
        return None;
    }
    // More digits than fit are more than all.
    Some(share.trim_end_matches('%').parse().unwrap_or(i64::MAX))
}

pub(super) fn amount(bound: &IntOrString) -> i64 {
    match (bound, percent(bound)) {
        (_, Some(percent)) => percent,
        (IntOrString::Int(count), None) => i64::from(*count),
        (IntOrString::String(text), None) => text.parse().unwrap_or(0),
    }
}
