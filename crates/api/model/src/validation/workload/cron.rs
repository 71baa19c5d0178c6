//! `CronJob`s.

use serde_json::json;

use super::spec::CronJobSpec;
use super::{Check, job, schedule, validate_count};
use crate::field::{Errors, Path};

/// A name, the time and a dash fit into the name of a Job.
const MAX_NAME_BYTES: usize = 52;
const POLICIES: [&str; 3] = ["Allow", "Forbid", "Replace"];

pub(super) fn validate_create(errors: &mut Errors, spec: &CronJobSpec, path: Path<'_>, check: Check<'_>) {
    validate(errors, spec, None, path, check);
    let name = check.workload.metadata.name.as_deref().unwrap_or_default();
    if name.len() > MAX_NAME_BYTES {
        let detail = format!("must be no more than {MAX_NAME_BYTES} characters");
        errors.invalid(Path::new("metadata").child("name"), name, detail);
    }
}

pub(super) fn validate(
    errors: &mut Errors,
    spec: &CronJobSpec,
    old: Option<&CronJobSpec>,
    path: Path<'_>,
    check: Check<'_>,
) {
    validate_schedule(errors, spec, old, path.child("schedule"));
    if let Some(deadline) = spec.starting_deadline_seconds {
        validate_count(errors, deadline, path.child("startingDeadlineSeconds"));
    }
    if old.is_none_or(|old| old.time_zone != spec.time_zone)
        && let Some(zone) = spec.time_zone.as_deref()
    {
        for complaint in schedule::time_zone(zone) {
            errors.invalid(path.child("timeZone"), json!(zone), complaint);
        }
    }
    let policy_path = path.child("concurrencyPolicy");
    match spec.concurrency_policy.as_str() {
        "" => errors.required(policy_path, ""),
        policy if !POLICIES.contains(&policy) => errors.not_supported(policy_path, policy, &POLICIES),
        _ => {}
    }
    let template_path = path.child("jobTemplate");
    let job_path = template_path.child("spec");
    let job = &spec.job_template.spec;
    job::validate_template_spec(errors, job, job_path, check);
    if let Some(selector) = &job.selector {
        let detail = "`selector` will be auto-generated";
        errors.invalid(job_path.child("selector"), selector.shown(), detail);
    }
    if job.manual_selector == Some(true) {
        let manual = crate::field::RawJson("true".to_owned());
        errors.not_supported_shown(job_path.child("manualSelector"), &manual, &["nil", "false"]);
    }
    for (field, limit) in [
        ("successfulJobsHistoryLimit", spec.successful_jobs_history_limit),
        ("failedJobsHistoryLimit", spec.failed_jobs_history_limit),
    ] {
        if let Some(limit) = limit {
            validate_count(errors, limit, path.child(field));
        }
    }
}

/// Zones stand in a field of their own; old schedules may have them in the text.
fn validate_schedule(errors: &mut Errors, spec: &CronJobSpec, old: Option<&CronJobSpec>, path: Path<'_>) {
    let text = spec.schedule.as_str();
    if text.is_empty() {
        errors.required(path, "");
        return;
    }
    if let Err(complaint) = schedule::parse(text) {
        errors.invalid(path, text, complaint);
    }
    if !text.contains("TZ") {
        return;
    }
    if !old.is_some_and(|old| old.schedule.contains("TZ")) {
        let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        errors.invalid(path, text, detail);
    } else if spec.time_zone.is_some() {
        let detail = "cannot use both timeZone field and TZ or CRON_TZ in schedule";
        errors.invalid(path, text, detail);
    }
}
