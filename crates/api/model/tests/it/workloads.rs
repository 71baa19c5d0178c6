//! Workloads as a v1.36 server defaults them before its rules look at them: what decoding does, in short.
//!
//! The fields here are those that recorded objects use. The server has the whole table.

use pulselet_model::WorkloadKind;
use serde_json::{Map, Value, json};

fn part<'a>(map: &'a mut Map<String, Value>, field: &str) -> &'a mut Map<String, Value> {
    let found = map.entry(field).or_insert_with(|| json!({}));
    if !found.is_object() {
        *found = json!({});
    }
    found.as_object_mut().expect("it was just made an object")
}

/// Fills a field for which empty is unset.
fn put(map: &mut Map<String, Value>, field: &str, value: impl Into<Value>) {
    let found = map.entry(field).or_insert(Value::Null);
    if found.is_null() || found.as_str() == Some("") {
        *found = value.into();
    }
}

/// Fills a field for which only absent is unset.
fn put_absent(map: &mut Map<String, Value>, field: &str, value: impl Into<Value>) {
    let found = map.entry(field).or_insert(Value::Null);
    if found.is_null() {
        *found = value.into();
    }
}

fn text(map: &Map<String, Value>, field: &str) -> String {
    map.get(field)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

/// Fills in the defaults of the kind, and the namespace and the uid that a server gives.
pub(crate) fn defaulted(kind: WorkloadKind, mut object: Value) -> Value {
    let map = object.as_object_mut().expect("an object");
    let metadata = part(map, "metadata");
    put(metadata, "namespace", "default");
    put(metadata, "uid", "3b1c");
    let generated = text(metadata, "generateName");
    if text(metadata, "name").is_empty() && !generated.is_empty() {
        put(metadata, "name", format!("{generated}abcde"));
    }
    if kind == WorkloadKind::PodTemplate {
        return object;
    }
    let spec = part(map, "spec");
    match kind {
        WorkloadKind::Deployment => {
            put(spec, "replicas", 1);
            put(spec, "revisionHistoryLimit", 10);
            put(spec, "progressDeadlineSeconds", 600);
            fill_strategy(
                part(spec, "strategy"),
                &json!({"maxUnavailable": "25%", "maxSurge": "25%"}),
            );
        }
        WorkloadKind::DaemonSet => {
            put(spec, "revisionHistoryLimit", 10);
            fill_strategy(
                part(spec, "updateStrategy"),
                &json!({"maxUnavailable": 1, "maxSurge": 0}),
            );
        }
        WorkloadKind::StatefulSet => fill_stateful(spec),
        WorkloadKind::ReplicaSet | WorkloadKind::ReplicationController => put(spec, "replicas", 1),
        WorkloadKind::Job => fill_job(spec),
        WorkloadKind::CronJob => {
            put(spec, "concurrencyPolicy", "Allow");
            put(spec, "suspend", false);
            put(spec, "successfulJobsHistoryLimit", 3);
            put(spec, "failedJobsHistoryLimit", 1);
            fill_patterns(part(part(spec, "jobTemplate"), "spec"));
        }
        WorkloadKind::PodTemplate => {}
    }
    object
}

fn fill_strategy(strategy: &mut Map<String, Value>, bounds: &Value) {
    put(strategy, "type", "RollingUpdate");
    if text(strategy, "type") == "RollingUpdate" {
        let rolling = part(strategy, "rollingUpdate");
        for (field, value) in bounds.as_object().expect("fields") {
            put(rolling, field, value.clone());
        }
    }
}

fn fill_stateful(spec: &mut Map<String, Value>) {
    put(spec, "podManagementPolicy", "OrderedReady");
    put(spec, "replicas", 1);
    put(spec, "revisionHistoryLimit", 10);
    let strategy = part(spec, "updateStrategy");
    if text(strategy, "type").is_empty() {
        put(strategy, "type", "RollingUpdate");
        part(strategy, "rollingUpdate");
    }
    if text(strategy, "type") == "RollingUpdate" && strategy.contains_key("rollingUpdate") {
        put(part(strategy, "rollingUpdate"), "partition", 0);
    }
    let retention = part(spec, "persistentVolumeClaimRetentionPolicy");
    put(retention, "whenDeleted", "Retain");
    put(retention, "whenScaled", "Retain");
}

fn fill_job(spec: &mut Map<String, Value>) {
    let unset = |spec: &Map<String, Value>, field: &str| spec.get(field).is_none_or(Value::is_null);
    if unset(spec, "completions") && unset(spec, "parallelism") {
        put(spec, "completions", 1);
    }
    put(spec, "parallelism", 1);
    let retries = if unset(spec, "backoffLimitPerIndex") {
        6
    } else {
        i32::MAX
    };
    put(spec, "backoffLimit", retries);
    put_absent(spec, "completionMode", "NonIndexed");
    put(spec, "suspend", false);
    let replacement = if unset(spec, "podFailurePolicy") {
        "TerminatingOrFailed"
    } else {
        "Failed"
    };
    put_absent(spec, "podReplacementPolicy", replacement);
    put(spec, "manualSelector", false);
    fill_patterns(spec);
}

/// Patterns of conditions mean true ones.
fn fill_patterns(spec: &mut Map<String, Value>) {
    let policy = spec.get_mut("podFailurePolicy");
    let rules = policy
        .and_then(|policy| policy.get_mut("rules"))
        .and_then(Value::as_array_mut);
    for rule in rules.into_iter().flatten() {
        let patterns = rule.get_mut("onPodConditions").and_then(Value::as_array_mut);
        for pattern in patterns.into_iter().flatten().filter_map(Value::as_object_mut) {
            put(pattern, "status", "True");
        }
    }
}
