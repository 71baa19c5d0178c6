//! Admission of the kinds of the table: their fields and defaults come from `schema`, and here are the few rules that
//! their controllers rely on.
//!
//! What must always hold: the status of an object changes only through its subresource, and its generation counts the
//! changes of everything else but metadata.

use pulselet_model::{CauseReason, FieldError, Pod};
use pulselet_schema::canonical::complete;
use serde_json::{Map, Value, json};

use super::{Admitted, Refusal, Rules};
use super::{access, service};
use super::{
    copy_field, finish, immutable_metadata, invalid, keep_system_metadata, metadata_errors, required,
};
use crate::registry::object::Object;
use crate::registry::plain::PlainKind;
use crate::registry::resource::{ResourceKind, Subresource};
use crate::rest::body::strip_nulls;
use pulselet_schema::Message;

/// Where templates of Pods are in objects that have one, and whether their Pods may end.
const TEMPLATES: [(&str, &str, Ending); 8] = [
    ("Deployment", "/spec/template", Ending::Never),
    ("ReplicaSet", "/spec/template", Ending::Never),
    ("DaemonSet", "/spec/template", Ending::Never),
    ("StatefulSet", "/spec/template", Ending::Never),
    ("ReplicationController", "/spec/template", Ending::Never),
    ("PodTemplate", "/template", Ending::Any),
    ("Job", "/spec/template", Ending::Wanted),
    ("CronJob", "/spec/jobTemplate/spec/template", Ending::Wanted),
];

/// Whether the Pods of a template are meant to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Never,
    Wanted,
    Any,
}

fn message(kind: PlainKind) -> &'static Message {
    ResourceKind::Plain(kind).storage().message()
}

pub(super) fn admit_create(kind: PlainKind, object: Object, rules: Rules) -> Result<Admitted, Refusal> {
    let mut object = object;
    if kind.info().subresources.contains(&Subresource::Status) {
        map(&mut object).remove("status");
    }
    fill(kind, &mut object);
    if kind.row().has_generation {
        object.set_meta("generation", json!(1));
    }
    match kind.info().kind {
        "Job" => select_own_pods(&mut object),
        "DaemonSet" => count_template(&mut object, 1),
        _ => {}
    }
    let mut errors = errors(kind, &object, rules)?;
    if kind.info().kind == "Service" {
        errors.extend(service::errors(&object));
    }
    finish(object, errors)
}

pub(super) fn admit_update(
    kind: PlainKind,
    subresource: Option<Subresource>,
    old: &Object,
    new: Object,
    rules: Rules,
) -> Result<Admitted, Refusal> {
    let mut object = new;
    keep_system_metadata(&mut object, old);
    let has_status = kind.info().subresources.contains(&Subresource::Status);
    if matches!(subresource, Some(Subresource::Approval | Subresource::Status)) {
        keep_all_but_status(&mut object, old);
        if kind.info().kind == "CertificateSigningRequest" {
            access::keep_parts(subresource, &mut object, old);
        }
    } else if has_status {
        copy_field(&mut object, old, "status");
    }
    fill(kind, &mut object);
    let is_whole_service = kind.info().kind == "Service" && subresource.is_none();
    if is_whole_service {
        service::drop_fields_of_old_type(&mut object, old);
    }
    if kind.row().has_generation && wanted(&object) != wanted(old) {
        let before = old.metadata().get("generation").and_then(Value::as_i64);
        object.set_meta("generation", json!(before.unwrap_or(0) + 1));
    }
    if kind.info().kind == "DaemonSet" {
        let before = old.text(TEMPLATE_GENERATION_POINTER).parse().unwrap_or(1);
        let template = |object: &Object| object.value().pointer("/spec/template").cloned();
        let count = before + i64::from(template(&object) != template(old));
        count_template(&mut object, count);
    }
    let mut errors = errors(kind, &object, rules)?;
    // A status can be reported of a Service that an earlier build stored without these checks.
    if is_whole_service {
        errors.extend(service::errors(&object));
    }
    errors.extend(immutable_metadata(&object, old));
    errors.extend(changed_for_good(kind, &object, old));
    finish(object, errors)
}

/// Fills in defaults, and then what is written although nobody said it.
fn fill(kind: PlainKind, object: &mut Object) {
    let message = message(kind);
    let template_labels = TEMPLATES
        .iter()
        .find(|(name, _, _)| *name == kind.info().kind)
        .and_then(|(_, pointer, _)| object.value().pointer(&format!("{pointer}/metadata/labels")))
        .cloned();
    if let (Some(labels), "Job" | "ReplicationController") = (template_labels, kind.info().kind) {
        object
            .metadata_mut()
            .entry("labels")
            .or_insert_with(|| labels.clone());
        if kind.info().kind == "ReplicationController" && object.value().pointer("/spec/selector").is_none() {
            object.value_mut()["spec"]["selector"] = labels;
        }
    }
    complete(message, map(object));
    pulselet_model::fill_defaults(message, object.value_mut());
    let claims = object.value_mut().pointer_mut("/spec/volumeClaimTemplates");
    for claim in claims.and_then(Value::as_array_mut).into_iter().flatten() {
        claim["apiVersion"] = json!("v1");
        claim["kind"] = json!("PersistentVolumeClaim");
    }
}

fn map(object: &mut Object) -> &mut Map<String, Value> {
    object.value_mut().as_object_mut().expect("an Object is a map")
}

/// Everything that says what is wanted.
fn wanted(object: &Object) -> Vec<(&String, &Value)> {
    let fields = object.value().as_object().into_iter().flatten();
    fields
        .filter(|(name, _)| !matches!(name.as_str(), "metadata" | "status" | "apiVersion" | "kind"))
        .collect()
}

/// A change of the status leaves the rest as it is, but annotations and finalizers, which controllers write with it.
fn keep_all_but_status(object: &mut Object, old: &Object) {
    let (Some(before), Some(labels)) = (
        old.value().as_object(),
        Some(old.metadata().get("labels").cloned().unwrap_or_default()),
    ) else {
        return;
    };
    object.set_meta("labels", labels);
    let now = map(object);
    now.retain(|name, _| matches!(name.as_str(), "metadata" | "status"));
    for (name, value) in before {
        if !matches!(name.as_str(), "metadata" | "status") {
            now.insert(name.clone(), value.clone());
        }
    }
}

/// Where the templates of a daemon set were counted before there were generations, and still are.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";
const TEMPLATE_GENERATION_POINTER: &str = "/metadata/annotations/deprecated.daemonset.template.generation";

fn count_template(set: &mut Object, count: i64) {
    let annotations = set
        .metadata_mut()
        .entry("annotations")
        .or_insert_with(|| json!({}));
    annotations[TEMPLATE_GENERATION] = json!(count.to_string());
}

/// A Job selects the Pods that carry its own uid, unless it says that it knows better.
fn select_own_pods(job: &mut Object) {
    if job.value().pointer("/spec/manualSelector") == Some(&json!(true)) {
        return;
    }
    let (uid, name) = (job.uid().to_owned(), job.name().to_owned());
    let template = job.value().pointer("/spec/template/metadata/labels").cloned();
    let unlabelled = job.metadata().get("labels").cloned() == template;
    let spec = &mut job.value_mut()["spec"];
    let labels = &mut spec["template"]["metadata"]["labels"];
    for prefix in ["", "batch.kubernetes.io/"] {
        labels[format!("{prefix}controller-uid")] = json!(uid);
        labels[format!("{prefix}job-name")] = json!(name);
    }
    // A Job without labels of its own has those of its template.
    let own = labels.clone();
    if spec["selector"].is_null() {
        spec["selector"] = json!({});
    }
    spec["selector"]["matchLabels"]["batch.kubernetes.io/controller-uid"] = json!(uid);
    if unlabelled {
        job.set_meta("labels", own);
    }
}

fn errors(kind: PlainKind, object: &Object, rules: Rules) -> Result<Vec<FieldError>, Refusal> {
    let mut errors = metadata_errors(ResourceKind::Plain(kind), object)?;
    errors.extend(number_errors(object));
    for (_, pointer, ending) in TEMPLATES.iter().filter(|(name, _, _)| *name == kind.info().kind) {
        errors.extend(selector_errors(kind, object, pointer));
        errors.extend(template_errors(object, pointer, *ending, rules)?);
    }
    errors.extend(access::errors(kind, object));
    Ok(errors)
}

/// Numbers that count something.
fn number_errors(object: &Object) -> Vec<FieldError> {
    const COUNTS: [&str; 8] = [
        "replicas",
        "minReadySeconds",
        "revisionHistoryLimit",
        "progressDeadlineSeconds",
        "parallelism",
        "completions",
        "backoffLimit",
        "ttlSecondsAfterFinished",
    ];
    let negative = COUNTS.into_iter().filter_map(|field| {
        let value = object.value().get("spec")?.get(field)?;
        (value.as_i64()? < 0).then(|| {
            invalid(
                &format!("spec.{field}"),
                value,
                "must be greater than or equal to 0",
            )
        })
    });
    negative.collect()
}

/// A selector must be there, and must select what the template makes.
fn selector_errors(kind: PlainKind, object: &Object, template: &str) -> Vec<FieldError> {
    let by_selector = matches!(
        kind.info().kind,
        "Deployment" | "ReplicaSet" | "DaemonSet" | "StatefulSet" | "Job"
    );
    if !by_selector {
        return Vec::new();
    }
    let labels = object.value().pointer(&format!("{template}/metadata/labels"));
    let mismatch = invalid(
        "spec.template.metadata.labels",
        &labels.cloned().unwrap_or_default(),
        "`selector` does not match template `labels`",
    );
    let selector = object.value().pointer("/spec/selector");
    let Some(selector) = selector.filter(|selector| selector.is_object()) else {
        return vec![required("spec.selector", ""), mismatch];
    };
    if selector.as_object().is_none_or(Map::is_empty) {
        let detail = format!("empty selector is invalid for {}", kind.info().singular);
        return vec![invalid("spec.selector", selector, &detail)];
    }
    let text = |label: &str| {
        labels
            .and_then(|labels| labels.get(label))
            .and_then(Value::as_str)
    };
    let matches = selector
        .get("matchLabels")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .all(|(label, value)| text(label) == value.as_str());
    if matches && expressions_hold(selector, &text) {
        Vec::new()
    } else {
        vec![mismatch]
    }
}

fn expressions_hold<'a>(selector: &Value, text: &impl Fn(&str) -> Option<&'a str>) -> bool {
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    expressions.into_iter().flatten().all(|expression| {
        let found = text(expression["key"].as_str().unwrap_or_default());
        let values = expression["values"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let listed = found.is_some_and(|found| values.iter().any(|value| value.as_str() == Some(found)));
        match expression["operator"].as_str() {
            Some("In") => listed,
            Some("NotIn") => !listed,
            Some("Exists") => found.is_some(),
            Some("DoesNotExist") => found.is_none(),
            _ => false,
        }
    })
}

/// What is wrong with the Pods that a template would make.
fn template_errors(
    object: &Object,
    pointer: &str,
    ending: Ending,
    rules: Rules,
) -> Result<Vec<FieldError>, Refusal> {
    let Some(template) = object
        .value()
        .pointer(pointer)
        .filter(|template| template.is_object())
    else {
        return Ok(Vec::new());
    };
    let prefix = pointer.trim_start_matches('/').replace('/', ".");
    let mut pod = json!({"metadata": {"name": "template"}, "spec": template["spec"]});
    pod["metadata"]["labels"] = template["metadata"]["labels"].clone();
    strip_nulls(&mut pod);
    let pod: Pod = serde_json::from_value(pod).map_err(|error| Refusal::Undecodable(error.to_string()))?;
    let policy = pod.spec.restart_policy.clone();
    let mut errors = match pulselet_model::admit_create(pod, rules.profile, rules.gates) {
        Ok(_) => Vec::new(),
        Err(errors) => errors,
    };
    for error in &mut errors {
        error.field = format!("{prefix}.{}", error.field);
    }
    let field = format!("{prefix}.spec.restartPolicy");
    match ending {
        Ending::Never if policy != "Always" => errors.push(FieldError {
            field,
            reason: CauseReason::NotSupported,
            message: format!("Unsupported value: {policy:?}: supported values: \"Always\""),
        }),
        Ending::Wanted if policy == "Always" => {
            errors.push(required(&field, "valid values: \"OnFailure\", \"Never\""));
        }
        Ending::Never | Ending::Wanted | Ending::Any => {}
    }
    Ok(errors)
}

/// What stays as it was created.
fn changed_for_good(kind: PlainKind, new: &Object, old: &Object) -> Vec<FieldError> {
    let fields: &[&str] = match kind.info().kind {
        "Deployment" | "ReplicaSet" | "DaemonSet" => &["spec.selector"],
        "StatefulSet" => &[
            "spec.selector",
            "spec.serviceName",
            "spec.podManagementPolicy",
            "spec.volumeClaimTemplates",
        ],
        "Job" => &["spec.selector", "spec.completionMode"],
        "RoleBinding" | "ClusterRoleBinding" => &["roleRef"],
        "ControllerRevision" => &["data"],
        "StorageClass" => &["provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"],
        "PriorityClass" => &["value", "preemptionPolicy"],
        "RuntimeClass" => &["handler"],
        "EndpointSlice" => &["addressType"],
        "CertificateSigningRequest" | "ResourceClaim" => &["spec"],
        _ => &[],
    };
    let at = |object: &Object, field: &str| {
        let pointer = format!("/{}", field.replace('.', "/"));
        object.value().pointer(&pointer).cloned().unwrap_or_default()
    };
    let changed = fields.iter().filter(|field| at(new, field) != at(old, field));
    changed
        .map(|field| invalid(field, &at(new, field), "field is immutable"))
        .collect()
}
