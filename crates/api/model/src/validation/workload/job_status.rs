//! The status of a Job.
//!
//! Most rules apply only to what changes, so that a controller can repair the rest: a Job that has ended stays ended, and
//! its counters agree with its conditions.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Value, json};

use super::policies::{count_indexes, parse_interval};
use super::spec::{self, Condition, JobSpec};
use super::validate_count;
use crate::field::{Errors, Path, RawJson};

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct JobStatus {
    conditions: Vec<Condition>,
    start_time: Option<String>,
    completion_time: Option<String>,
    active: i32,
    succeeded: i32,
    failed: i32,
    terminating: Option<i32>,
    ready: Option<i32>,
    completed_indexes: String,
    failed_indexes: Option<String>,
    uncounted_terminated_pods: Option<Uncounted>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Uncounted {
    succeeded: Vec<String>,
    failed: Vec<String>,
}

impl Uncounted {
    fn is_empty(&self) -> bool {
        self.succeeded.is_empty() && self.failed.is_empty()
    }

    fn shown(&self) -> RawJson {
        let list = |uids: &Vec<String>| if uids.is_empty() { Value::Null } else { json!(uids) };
        RawJson(format!(
            "{{\"Succeeded\":{},\"Failed\":{}}}",
            list(&self.succeeded),
            list(&self.failed)
        ))
    }
}

impl JobStatus {
    fn has(&self, kind: &str, status: &str) -> bool {
        let mut conditions = self.conditions.iter();
        conditions.any(|condition| condition.kind == kind && condition.status == status)
    }

    fn is_complete(&self) -> bool {
        self.has("Complete", "True")
    }

    fn is_failed(&self) -> bool {
        self.has("Failed", "True")
    }

    fn is_finished(&self) -> bool {
        self.is_complete() || self.is_failed()
    }

    fn fails(&self) -> bool {
        self.has("FailureTarget", "True")
    }

    fn succeeds(&self) -> bool {
        self.has("SuccessCriteriaMet", "True")
    }
}

/// A new and a stored status, and what differs.
struct Change<'a> {
    new: &'a JobStatus,
    old: &'a JobStatus,
    spec: &'a JobSpec,
}

impl Change<'_> {
    fn of<T: PartialEq>(&self, part: impl Fn(&JobStatus) -> T) -> bool {
        part(self.new) != part(self.old)
    }
}

pub(super) fn validate(
    errors: &mut Errors,
    status: Value,
    old_status: Value,
    job_spec: Value,
) -> Result<(), serde_json::Error> {
    let (new, old): (JobStatus, JobStatus) = (spec::read(status)?, spec::read(old_status)?);
    let spec: JobSpec = spec::read(job_spec)?;
    let change = Change {
        new: &new,
        old: &old,
        spec: &spec,
    };
    let path = Path::new("status");
    validate_counters(errors, &new, path);
    validate_ends(errors, &change, path);
    validate_finished(errors, &change, path);
    validate_indexes(errors, &change, path);
    validate_pods(errors, &change, path);
    validate_success(errors, &change, path);
    validate_progress(errors, &change, path);
    Ok(())
}

fn validate_counters(errors: &mut Errors, status: &JobStatus, path: Path<'_>) {
    validate_count(errors, status.active, path.child("active"));
    validate_count(errors, status.succeeded, path.child("succeeded"));
    validate_count(errors, status.failed, path.child("failed"));
    for (field, count) in [("ready", status.ready), ("terminating", status.terminating)] {
        if let Some(count) = count {
            validate_count(errors, count, path.child(field));
        }
    }
    let Some(uncounted) = &status.uncounted_terminated_pods else {
        return;
    };
    let path = path.child("uncountedTerminatedPods");
    let mut seen = BTreeSet::new();
    for (field, uids) in [("succeeded", &uncounted.succeeded), ("failed", &uncounted.failed)] {
        let list = path.child(field);
        for (index, uid) in uids.iter().enumerate() {
            if uid.is_empty() {
                errors.invalid(list.index(index), json!(uid), "must not be empty");
            } else if !seen.insert(uid) {
                errors.duplicate(list.index(index), uid);
            }
        }
    }
}

/// How a Job ends: its conditions among each other, and its times.
fn validate_ends(errors: &mut Errors, change: &Change<'_>, path: Path<'_>) {
    let new = change.new;
    let conditions = path.child("conditions");
    let completion_path = path.child("completionTime");
    let complete_changed = change.of(JobStatus::is_complete);
    let failed_changed = change.of(JobStatus::is_failed);
    let completion_changed = change.of(|status| status.completion_time.clone());
    let started_changed = change.of(|status| status.start_time.clone());
    let complete = new.is_complete();
    if (complete_changed || failed_changed) && complete && new.is_failed() {
        errors.invalid_unshown(conditions, "cannot set Complete=True and Failed=true conditions");
    }
    if (complete_changed || change.of(JobStatus::fails)) && complete && new.fails() {
        errors.invalid_unshown(
            conditions,
            "cannot set Complete=True and FailureTarget=true conditions",
        );
    }
    if complete_changed || completion_changed {
        match &new.completion_time {
            Some(time) if !complete => {
                let detail = "cannot set completionTime when there is no Complete=True condition";
                errors.invalid(completion_path, json!(time), detail);
            }
            None if complete => {
                errors.required(completion_path, "completionTime is required for Complete jobs");
            }
            Some(_) | None => {}
        }
    }
    // Times of one form and zone compare as texts.
    if (started_changed || completion_changed)
        && let (Some(start), Some(end)) = (&new.start_time, &new.completion_time)
        && end < start
    {
        errors.invalid(
            completion_path,
            json!(end),
            "must be equal to or after `startTime`",
        );
    }
    let failed_indexes_changed = change.of(|status| status.failed_indexes.clone());
    if (failed_changed || failed_indexes_changed) && new.is_failed() && !new.fails() {
        let detail = "cannot set Failed=True condition without the FailureTarget=true condition";
        errors.invalid_unshown(conditions, detail);
    }
    if (complete_changed || change.of(JobStatus::succeeds)) && complete && !new.succeeds() {
        let detail = "cannot set Complete=True condition without the SuccessCriteriaMet=true condition";
        errors.invalid_unshown(conditions, detail);
    }
}

/// A Job that has ended has no Pods left to count.
fn validate_finished(errors: &mut Errors, change: &Change<'_>, path: Path<'_>) {
    let (new, spec) = (change.new, change.spec);
    if !new.is_finished() {
        return;
    }
    let just_finished = change.of(JobStatus::is_finished);
    if (just_finished || change.of(|status| status.active)) && new.active > 0 {
        errors.invalid(
            path.child("active"),
            new.active,
            "active>0 is invalid for finished job",
        );
    }
    let never_ran = spec.suspend == Some(true) && spec.completions == Some(0);
    let started_changed = change.of(|status| status.start_time.clone());
    if (just_finished || started_changed) && !never_ran && new.start_time.is_none() {
        errors.required(path.child("startTime"), "startTime is required for finished job");
    }
    let uncounted = new.uncounted_terminated_pods.as_ref();
    if (just_finished || change.of(|status| status.uncounted_terminated_pods.clone()))
        && let Some(uncounted) = uncounted.filter(|uncounted| !uncounted.is_empty())
    {
        let path = path.child("uncountedTerminatedPods");
        errors.invalid(path, uncounted.shown(), "must be empty for finished job");
    }
}

fn validate_indexes(errors: &mut Errors, change: &Change<'_>, path: Path<'_>) {
    let (new, spec) = (change.new, change.spec);
    let (completed_path, failed_path) = (path.child("completedIndexes"), path.child("failedIndexes"));
    let completed = new.completed_indexes.as_str();
    let completed_changed = change.of(|status| status.completed_indexes.clone());
    let failed_changed = change.of(|status| status.failed_indexes.clone());
    if completed_changed
        && let Some(completions) = spec.completions
        && let Err(error) = count_indexes(completed, completions)
    {
        let detail = format!("error parsing completedIndexes: {error}");
        errors.invalid(completed_path, completed, detail);
    }
    if failed_changed
        && spec.backoff_limit_per_index.is_some()
        && let (Some(completions), Some(failed)) = (spec.completions, new.failed_indexes.as_deref())
        && let Err(error) = count_indexes(failed, completions)
    {
        let detail = format!("error parsing failedIndexes: {error}");
        errors.invalid(failed_path, failed, detail);
    }
    if completed_changed && !completed.is_empty() && !spec.is_indexed() {
        let detail = "cannot set non-empty completedIndexes when non-indexed completion mode";
        errors.invalid(completed_path, completed, detail);
    }
    let Some(failed) = new.failed_indexes.as_deref() else {
        return;
    };
    if failed_changed && spec.backoff_limit_per_index.is_none() {
        let detail = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
        errors.invalid(failed_path, failed, detail);
    }
    if (failed_changed || completed_changed)
        && let Some(completions) = spec.completions
        && let Some(index) = overlap(completed, failed, completions)
    {
        let detail = format!("failedIndexes and completedIndexes overlap at index: {index}");
        errors.invalid(failed_path, failed, detail);
    }
}

/// The first index that is in both lists. Intervals that cannot be read have their own errors.
fn overlap(completed: &str, failed: &str, completions: i32) -> Option<i64> {
    let read = |text: &str| -> Vec<(i64, i64)> {
        let intervals = text.split(',').filter(|interval| !interval.is_empty());
        intervals
            .filter_map(|interval| parse_interval(interval, completions).ok())
            .collect()
    };
    let (completed, failed) = (read(completed), read(failed));
    let (mut done, mut lost) = (completed.iter().peekable(), failed.iter().peekable());
    while let (Some(&&(first, last)), Some(&&(lost_first, lost_last))) = (done.peek(), lost.peek()) {
        if first <= lost_last && lost_first <= last {
            return Some(first.max(lost_first));
        }
        if first <= lost_first {
            done.next();
        } else {
            lost.next();
        }
    }
    None
}

fn validate_pods(errors: &mut Errors, change: &Change<'_>, path: Path<'_>) {
    let new = change.new;
    let terminating_changed = change.of(|status| status.terminating);
    if (change.of(JobStatus::is_finished) || terminating_changed)
        && new.is_finished()
        && let Some(terminating) = new.terminating.filter(|count| *count > 0)
    {
        let detail = "terminating>0 is invalid for finished job";
        errors.invalid(path.child("terminating"), terminating, detail);
    }
    if (change.of(|status| status.ready) || change.of(|status| status.active))
        && let Some(ready) = new.ready.filter(|ready| *ready > new.active)
    {
        errors.invalid(
            path.child("ready"),
            ready,
            "cannot set more ready pods than active",
        );
    }
}

fn validate_success(errors: &mut Errors, change: &Change<'_>, path: Path<'_>) {
    let new = change.new;
    let path = path.child("conditions");
    if new.succeeds() && new.is_failed() {
        errors.invalid_unshown(
            path,
            "cannot set SuccessCriteriaMet=True and Failed=true conditions",
        );
    }
    if new.succeeds() && new.fails() {
        let detail = "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions";
        errors.invalid_unshown(path, detail);
    }
    if change.spec.success_policy.is_some() && !new.succeeds() && new.is_complete() {
        let detail = "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True";
        errors.invalid_unshown(path, detail);
    }
}

/// Counters only grow, and an end is final.
fn validate_progress(errors: &mut Errors, change: &Change<'_>, path: Path<'_>) {
    let (new, old, spec) = (change.new, change.old, change.spec);
    let conditions = path.child("conditions");
    for kind in ["Failed", "Complete", "FailureTarget"] {
        if old.has(kind, "True") && !new.has(kind, "True") {
            let detail = format!("cannot disable the terminal {kind}=True condition");
            errors.invalid_unshown(conditions, &detail);
        }
    }
    if new.failed < old.failed {
        errors.invalid(
            path.child("failed"),
            new.failed,
            "cannot decrease the failed counter",
        );
    }
    // An Indexed Job can be scaled down.
    let can_shrink = spec.is_indexed() && spec.completions == spec.parallelism;
    if new.succeeded < old.succeeded && !can_shrink {
        let detail = "cannot decrease the succeeded counter";
        errors.invalid(path.child("succeeded"), new.succeeded, detail);
    }
    if let (Some(now), Some(before)) = (&new.completion_time, &old.completion_time)
        && now != before
    {
        errors.invalid(path.child("completionTime"), json!(now), "field is immutable");
    }
    let resumes = old.has("Suspended", "True") && new.has("Suspended", "False");
    if old.start_time.is_some() && old.start_time != new.start_time && spec.suspend != Some(true) && !resumes
    {
        let detail = "field is immutable for unsuspended job once set";
        errors.invalid(path.child("startTime"), json!(new.start_time), detail);
    }
    if old.succeeds() && !new.succeeds() {
        errors.invalid_unshown(conditions, "cannot disable the SuccessCriteriaMet=True condition");
    }
    if old.is_complete() && !old.succeeds() && new.succeeds() {
        let detail = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
        errors.invalid_unshown(conditions, detail);
    }
}
