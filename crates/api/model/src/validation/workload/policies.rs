//! When a Job counts as failed or as successful.

use std::collections::BTreeSet;

use serde_json::json;

use super::spec::{JobSpec, OnExitCodes, OnPodCondition, PodFailurePolicy, PodFailureRule};
use super::spec::{SuccessPolicy, SuccessRule};
use super::validate_count;
use crate::field::{Errors, Path, go_quote};
use crate::template::PodTemplateSpec;
use crate::validation::names;

const MAX_RULES: usize = 20;
/// Exit codes in one rule: there are no more.
const MAX_EXIT_CODES: usize = 255;
const MAX_CONDITIONS: usize = 20;
const MAX_INDEXES_BYTES: usize = 64 * 1024;
const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];
const OPERATORS: [&str; 2] = ["In", "NotIn"];
const STATUSES: [&str; 3] = ["False", "True", "Unknown"];

pub(super) fn validate_failure_policy(
    errors: &mut Errors,
    policy: &PodFailurePolicy,
    spec: &JobSpec,
    path: Path<'_>,
    template: Option<&PodTemplateSpec>,
) {
    let list = path.child("rules");
    if policy.rules.len() > MAX_RULES {
        errors.too_many(list, policy.rules.len(), MAX_RULES);
    }
    let containers: BTreeSet<&str> = template
        .into_iter()
        .flat_map(|template| {
            template
                .spec
                .containers
                .iter()
                .chain(&template.spec.init_containers)
        })
        .map(|container| container.name.as_str())
        .collect();
    for (index, rule) in policy.rules.iter().enumerate() {
        validate_failure_rule(errors, rule, spec, list.index(index), &containers);
    }
}

fn validate_failure_rule(
    errors: &mut Errors,
    rule: &PodFailureRule,
    spec: &JobSpec,
    path: Path<'_>,
    containers: &BTreeSet<&str>,
) {
    let action_path = path.child("action");
    match rule.action.as_str() {
        "FailIndex" if spec.backoff_limit_per_index.is_none() => {
            let detail = "requires the backoffLimitPerIndex to be set";
            errors.invalid(action_path, json!(rule.action), detail);
        }
        action => one_of(errors, action_path, action, &ACTIONS),
    }
    if let Some(codes) = &rule.on_exit_codes {
        validate_exit_codes(errors, codes, path.child("onExitCodes"), containers);
    }
    let list = path.child("onPodConditions");
    if rule.on_pod_conditions.len() > MAX_CONDITIONS {
        errors.too_many(list, rule.on_pod_conditions.len(), MAX_CONDITIONS);
    }
    for (index, condition) in rule.on_pod_conditions.iter().enumerate() {
        let path = list.index(index);
        let complaints = names::qualified_name(&condition.kind);
        errors.invalid_each(path.child("type"), &condition.kind, complaints);
        one_of(errors, path.child("status"), &condition.status, &STATUSES);
    }
    match (rule.on_exit_codes.is_some(), !rule.on_pod_conditions.is_empty()) {
        (true, true) => errors.invalid_unshown(
            path,
            "specifying both OnExitCodes and OnPodConditions is not supported",
        ),
        (false, false) => errors.invalid_unshown(
            path,
            "specifying one of OnExitCodes and OnPodConditions is required",
        ),
        (true, false) | (false, true) => {}
    }
}

/// A value that must be one of a few; if it is empty, the error lists them.
fn one_of(errors: &mut Errors, path: Path<'_>, value: &str, supported: &[&str]) {
    if value.is_empty() {
        let quoted: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
        errors.required(path, &format!("valid values: [{}]", quoted.join(" ")));
    } else if !supported.contains(&value) {
        errors.not_supported(path, value, supported);
    }
}

fn validate_exit_codes(
    errors: &mut Errors,
    codes: &OnExitCodes,
    path: Path<'_>,
    containers: &BTreeSet<&str>,
) {
    one_of(errors, path.child("operator"), &codes.operator, &OPERATORS);
    if let Some(name) = codes.container_name.as_deref()
        && !containers.contains(name)
    {
        let detail = "must be one of the container or initContainer names in the pod template";
        errors.invalid(path.child("containerName"), name, detail);
    }
    let list = path.child("values");
    let values = codes.values.as_deref().unwrap_or_default();
    if values.is_empty() {
        errors.invalid(list, json!(codes.values), "at least one value is required");
    } else if values.len() > MAX_EXIT_CODES {
        errors.too_many(list, values.len(), MAX_EXIT_CODES);
    }
    let mut seen = BTreeSet::new();
    for (index, code) in values.iter().enumerate() {
        let path = list.index(index);
        if codes.operator == "In" && *code == 0 {
            errors.invalid(path, *code, "must not be 0 for the In operator");
        }
        if !seen.insert(code) {
            errors.duplicate_number(path, *code);
        }
    }
    if !values.is_sorted() {
        errors.invalid(list, json!(values), "must be ordered");
    }
}

/// The policy of an Indexed Job.
pub(super) fn validate_success_policy(
    errors: &mut Errors,
    policy: &SuccessPolicy,
    spec: &JobSpec,
    path: Path<'_>,
) {
    let list = path.child("rules");
    if policy.rules.is_empty() {
        let detail = "at least one rules must be specified when the successPolicy is specified";
        errors.required(list, detail);
    }
    if policy.rules.len() > MAX_RULES {
        errors.too_many(list, policy.rules.len(), MAX_RULES);
    }
    // Without completions, which have their own error, there are no indexes.
    let completions = spec.completions.unwrap_or_default();
    for (index, rule) in policy.rules.iter().enumerate() {
        validate_success_rule(errors, rule, completions, list.index(index));
    }
}

fn validate_success_rule(errors: &mut Errors, rule: &SuccessRule, completions: i32, path: Path<'_>) {
    if rule.succeeded_count.is_none() && rule.succeeded_indexes.is_none() {
        let detail = "at least one of succeededCount or succeededIndexes must be specified";
        errors.required(path, detail);
    }
    let mut listed = 0;
    if let Some(indexes) = rule.succeeded_indexes.as_deref() {
        let path = path.child("succeededIndexes");
        if indexes.len() > MAX_INDEXES_BYTES {
            errors.too_long(path, MAX_INDEXES_BYTES);
        }
        match count_indexes(indexes, completions) {
            Ok(count) => listed = count,
            Err(error) => {
                errors.invalid(path, indexes, format!("error parsing succeededIndexes: {error}"));
            }
        }
    }
    let Some(count) = rule.succeeded_count else { return };
    let path = path.child("succeededCount");
    validate_count(errors, count, path);
    if count > completions {
        let detail =
            format!("must be less than or equal to {completions} (the number of specified completions)");
        errors.invalid(path, count, detail);
    }
    if rule.succeeded_indexes.is_some() && i64::from(count) > listed {
        let detail = format!(
            "must be less than or equal to {listed} (the number of indexes in the specified succeededIndexes field)"
        );
        errors.invalid(path, count, detail);
    }
}

/// How many indexes a list such as `1,3-5` has. They grow and are below the completions.
pub(super) fn count_indexes(text: &str, completions: i32) -> Result<i64, String> {
    if text.is_empty() {
        return Ok(0);
    }
    let mut last: Option<i64> = None;
    let mut total = 0;
    for interval in text.split(',') {
        let (first, end) = parse_interval(interval, completions)?;
        if let Some(last) = last.filter(|last| *last >= first) {
            return Err(format!(
                "non-increasing order, previous: {last}, current: {first}"
            ));
        }
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}

/// The first and the last index of `3` or `3-5`.
pub(super) fn parse_interval(interval: &str, completions: i32) -> Result<(i64, i64), String> {
    let limits: Vec<&str> = interval.split('-').collect();
    if limits.len() > 2 {
        return Err(format!(
            "the fragment {} violates the requirement that an index interval can have at most two parts separated by \
             '-'",
            go_quote(interval)
        ));
    }
    let parse = |text: &str| {
        let index: i64 = text
            .parse()
            .map_err(|_| format!("cannot convert string to integer for index: {}", go_quote(text)))?;
        if index >= i64::from(completions) {
            return Err(format!("too large index: {}", go_quote(text)));
        }
        Ok(index)
    };
    let first = parse(limits[0])?;
    let Some(last) = limits.get(1) else {
        return Ok((first, first));
    };
    let last = parse(last)?;
    if first >= last {
        return Err(format!(
            "non-increasing order, previous: {first}, current: {last}"
        ));
    }
    Ok((first, last))
}

/// As upstream shows it.
pub(super) fn shown_success_policy(policy: Option<&SuccessPolicy>) -> String {
    let Some(policy) = policy else {
        return "null".to_owned();
    };
    let rules: Vec<String> = policy
        .rules
        .iter()
        .map(|rule| {
            format!(
                "{{\"SucceededIndexes\":{},\"SucceededCount\":{}}}",
                json!(rule.succeeded_indexes),
                json!(rule.succeeded_count)
            )
        })
        .collect();
    format!("{{\"Rules\":{}}}", list_or_null(&rules))
}

/// As upstream shows it.
pub(super) fn shown_failure_policy(policy: Option<&PodFailurePolicy>) -> String {
    let Some(policy) = policy else {
        return "null".to_owned();
    };
    let rules: Vec<String> = policy.rules.iter().map(shown_failure_rule).collect();
    format!("{{\"Rules\":{}}}", list_or_null(&rules))
}

fn shown_failure_rule(rule: &PodFailureRule) -> String {
    let codes = rule.on_exit_codes.as_ref().map_or_else(
        || "null".to_owned(),
        |codes| {
            format!(
                "{{\"ContainerName\":{},\"Operator\":{},\"Values\":{}}}",
                json!(codes.container_name),
                json!(codes.operator),
                json!(codes.values)
            )
        },
    );
    let shown = |condition: &OnPodCondition| {
        format!(
            "{{\"Type\":{},\"Status\":{}}}",
            json!(condition.kind),
            json!(condition.status)
        )
    };
    let conditions: Vec<String> = rule.on_pod_conditions.iter().map(shown).collect();
    format!(
        "{{\"Action\":{},\"OnExitCodes\":{codes},\"OnPodConditions\":{}}}",
        json!(rule.action),
        list_or_null(&conditions)
    )
}

fn list_or_null(items: &[String]) -> String {
    if items.is_empty() {
        "null".to_owned()
    } else {
        format!("[{}]", items.join(","))
    }
}
