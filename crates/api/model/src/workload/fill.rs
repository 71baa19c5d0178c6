//! Fields that an object gets without being sent: defaults that follow from the template, selectors of Jobs,
//! generations.

use serde_json::{Map, Value, json};

use super::WorkloadKind;
use crate::template::PodTemplateSpec;

/// Where the changes of a `DaemonSet`'s template are counted.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";
/// Metadata that belongs to the server.
const SYSTEM_FIELDS: [&str; 5] = [
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
];

/// An object in a field, made if it does not exist.
fn part<'a>(object: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    if !object.is_object() {
        *object = json!({});
    }
    let found = &mut object[field];
    if !found.is_object() {
        *found = json!({});
    }
    found.as_object_mut().expect("it was just made an object")
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(entries)) => entries.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Bool(_) | Value::Number(_) | Value::String(_)) => false,
    }
}

/// Defaults that follow from the template's labels, and the type of claims, which clients leave out.
pub(super) fn fill_defaults(kind: WorkloadKind, object: &mut Value, template: Option<&PodTemplateSpec>) {
    let labels = template.and_then(|template| template.metadata.labels.as_ref());
    if let (Some(labels), WorkloadKind::Job | WorkloadKind::ReplicationController) = (labels, kind) {
        if kind == WorkloadKind::ReplicationController {
            let spec = part(object, "spec");
            if is_empty(spec.get("selector")) {
                spec.insert("selector".to_owned(), json!(labels));
            }
        }
        let metadata = part(object, "metadata");
        if is_empty(metadata.get("labels")) {
            metadata.insert("labels".to_owned(), json!(labels));
        }
    }
    let claims = object.pointer_mut("/spec/volumeClaimTemplates");
    for claim in claims.and_then(Value::as_array_mut).into_iter().flatten() {
        if kind == WorkloadKind::StatefulSet && claim.is_object() {
            claim["apiVersion"] = json!("v1");
            claim["kind"] = json!("PersistentVolumeClaim");
        }
    }
}

pub(super) fn prepare_create(kind: WorkloadKind, object: &mut Value, template: Option<&mut PodTemplateSpec>) {
    part(object, "metadata").insert("generation".to_owned(), json!(1));
    match (kind, template) {
        (WorkloadKind::Job, Some(template)) => select_own_pods(object, template),
        (WorkloadKind::DaemonSet, _) => {
            let count = template_generation(object).max(1);
            count_template(object, count);
        }
        (WorkloadKind::StatefulSet, _) => drop_max_unavailable(object, None),
        (_, _) => {}
    }
}

pub(super) fn prepare_update(kind: WorkloadKind, object: &mut Value, old: &Value) {
    match kind {
        WorkloadKind::StatefulSet => drop_max_unavailable(object, Some(old)),
        // Its author does not count.
        WorkloadKind::DaemonSet => count_template(object, template_generation(old)),
        WorkloadKind::Deployment
        | WorkloadKind::ReplicaSet
        | WorkloadKind::Job
        | WorkloadKind::CronJob
        | WorkloadKind::ReplicationController
        | WorkloadKind::PodTemplate => {}
    }
}

/// Counts a change of what is wanted. A Deployment hands its annotations on, so they count too.
pub(super) fn count_change(kind: WorkloadKind, object: &mut Value, old: &Value, other_template: bool) {
    if kind == WorkloadKind::DaemonSet && other_template {
        count_template(object, template_generation(old) + 1);
    }
    let differs = |pointer: &str| {
        let [new, old] = [&*object, old].map(|object| object.pointer(pointer));
        new != old && !(is_empty(new) && is_empty(old))
    };
    // The stored template may lack defaults of today, which are no change.
    let mut rest = [object.clone(), old.clone()];
    for object in &mut rest {
        if let Some(template) = object.pointer_mut(kind.template_pointer()) {
            *template = Value::Null;
        }
    }
    let changed = other_template
        || (kind != WorkloadKind::PodTemplate && rest[0].get("spec") != rest[1].get("spec"))
        || (kind == WorkloadKind::Deployment && differs("/metadata/annotations"));
    let generation = old.pointer("/metadata/generation").and_then(Value::as_i64);
    let generation = generation.unwrap_or(0) + i64::from(changed);
    part(object, "metadata").insert("generation".to_owned(), json!(generation));
}

fn template_generation(set: &Value) -> i64 {
    let annotations = set.pointer("/metadata/annotations");
    let count = annotations.and_then(|annotations| annotations.get(TEMPLATE_GENERATION));
    count
        .and_then(Value::as_str)
        .and_then(|count| count.parse().ok())
        .unwrap_or(0)
}

fn count_template(set: &mut Value, count: i64) {
    part(set, "metadata");
    let annotations = part(&mut set["metadata"], "annotations");
    annotations.insert(TEMPLATE_GENERATION.to_owned(), json!(count.to_string()));
}

/// Its gate is off by default in v1.36.
fn drop_max_unavailable(set: &mut Value, old: Option<&Value>) {
    const POINTER: &str = "/spec/updateStrategy/rollingUpdate";
    let in_use = |set: &Value| set.pointer(&format!("{POINTER}/maxUnavailable")).is_some();
    if old.is_some_and(in_use) {
        return;
    }
    if let Some(Value::Object(strategy)) = set.pointer_mut(POINTER) {
        strategy.remove("maxUnavailable");
    }
}

/// A Job selects the Pods that carry its own uid, unless it says that it knows better. Labels that its author set stay;
/// validation rejects them if they differ.
fn select_own_pods(job: &mut Value, template: &mut PodTemplateSpec) {
    if job.pointer("/spec/manualSelector") == Some(&json!(true)) {
        return;
    }
    let text = |pointer: &str| {
        let found = job.pointer(pointer).and_then(Value::as_str);
        found.unwrap_or_default().to_owned()
    };
    let (uid, name) = (text("/metadata/uid"), text("/metadata/name"));
    let labels = template.metadata.labels.get_or_insert_default();
    for prefix in ["", "batch.kubernetes.io/"] {
        labels
            .entry(format!("{prefix}controller-uid"))
            .or_insert_with(|| uid.clone());
        labels
            .entry(format!("{prefix}job-name"))
            .or_insert_with(|| name.clone());
    }
    part(job, "spec");
    let selector = part(&mut job["spec"], "selector");
    let labels = selector.entry("matchLabels").or_insert_with(|| json!({}));
    if let Some(labels) = labels.as_object_mut() {
        labels
            .entry("batch.kubernetes.io/controller-uid")
            .or_insert_with(|| json!(uid));
    }
}

/// Keeps the metadata that a client need not send back and cannot change.
pub(super) fn keep_system_fields(new: &mut Value, old: &Value) {
    let metadata = part(new, "metadata");
    for field in SYSTEM_FIELDS {
        let sent = metadata
            .get(field)
            .filter(|value| !value.is_null() && **value != json!(""));
        // A wrong uid or time of creation is for validation to reject.
        if sent.is_some() && matches!(field, "uid" | "creationTimestamp") {
            continue;
        }
        match old.get("metadata").and_then(|metadata| metadata.get(field)) {
            Some(value) => drop(metadata.insert(field.to_owned(), value.clone())),
            None => drop(metadata.remove(field)),
        }
    }
}

/// Changes of the status go through its subresource.
pub(super) fn keep_status(new: &mut Value, old: &Value) {
    let Some(map) = new.as_object_mut() else { return };
    match old.get("status") {
        Some(status) => drop(map.insert("status".to_owned(), status.clone())),
        None => drop(map.remove("status")),
    }
}

/// A change of the status leaves what is wanted as it is. Annotations and finalizers may come with it; labels, too, except
/// for a Deployment.
pub(super) fn keep_all_but_status(kind: WorkloadKind, object: &mut Value, old: &Value) {
    let map = object.as_object_mut().expect("an object has metadata");
    map.retain(|name, _| matches!(name.as_str(), "apiVersion" | "kind" | "metadata" | "status"));
    let before = old.as_object().into_iter().flatten();
    for (name, value) in before {
        if !matches!(name.as_str(), "metadata" | "status") {
            map.insert(name.clone(), value.clone());
        }
    }
    if kind == WorkloadKind::Deployment {
        let metadata = part(object, "metadata");
        match old.pointer("/metadata/labels") {
            Some(labels) => drop(metadata.insert("labels".to_owned(), labels.clone())),
            None => drop(metadata.remove("labels")),
        }
    }
}
