//! Recorded answers of a v1.36.4 API server about workloads: ours must be the same.
//!
//! `PULSELET_TEMPLATE_VECTORS` names further files of the same form to check against, separated by colons.

use std::collections::BTreeMap;

use pulselet_model::{
    Gate, GateSet, Profile, WorkloadError, WorkloadKind, admit_workload_create, admit_workload_update,
};
use pulselet_schema::document::ObjectType;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::workloads::defaulted;

#[derive(Deserialize)]
struct Vector {
    id: String,
    kind: String,
    code: u16,
    gates: BTreeMap<String, bool>,
    object: Value,
    #[serde(default)]
    causes: Vec<Value>,
    /// The part of the template's spec that was recorded.
    spec: Option<Value>,
    /// The whole object, apart from what differs with every request.
    answer: Option<Value>,
}

/// Code, causes, and the admitted object.
type Answer = (u16, Vec<Value>, Option<Value>);

fn answer(kind: WorkloadKind, object: Value, gates: GateSet) -> Answer {
    match admit_workload_create(kind, object, Profile::Kubernetes, gates) {
        Ok(admission) => (201, Vec::new(), Some(admission.object)),
        Err(WorkloadError::Invalid(errors)) => (422, errors.iter().map(|error| json!(error)).collect(), None),
        Err(WorkloadError::Decode { .. }) => (400, Vec::new(), None),
    }
}

/// The parts of an object that do not depend on decoding.
fn compared_part(kind: WorkloadKind, object: &Value) -> Value {
    let pointers = [
        "/metadata/annotations",
        "/metadata/generation",
        "/metadata/labels",
        "/metadata/name",
        "/spec/selector",
        kind.template_pointer(),
    ];
    pointers
        .into_iter()
        .map(|pointer| object.pointer(pointer).cloned().unwrap_or_default())
        .collect()
}

/// The recorded part of an object.
fn recorded_part(kind: WorkloadKind, vector: &Vector, object: &Value) -> Value {
    if vector.answer.is_some() {
        return compared_part(kind, object);
    }
    let recorded = [
        "containers",
        "initContainers",
        "terminationGracePeriodSeconds",
        "restartPolicy",
        "os",
    ];
    let spec = object.pointer(&format!("{}/spec", kind.template_pointer()));
    let spec = spec.expect("an admitted object has a template");
    let part: Map<String, Value> = recorded
        .into_iter()
        .filter_map(|field| spec.get(field).map(|value| (field.to_owned(), value.clone())))
        .collect();
    Value::Object(part)
}

/// The uid that a recorded Job had, which its answer repeats.
fn recorded_uid(vector: &Vector) -> Option<&Value> {
    let labels = vector
        .answer
        .as_ref()?
        .pointer("/spec/template/metadata/labels")?;
    labels.get("controller-uid")
}

/// Whether the object decodes strictly as its kind.
fn decodes(vector: &Vector) -> bool {
    let text = |field: &str| vector.object[field].as_str().unwrap_or_default().to_owned();
    let claimed = ObjectType {
        api_version: text("apiVersion"),
        kind: text("kind"),
    };
    let Some(message) = claimed.message() else {
        return true;
    };
    pulselet_schema::check::check(message, &mut vector.object.clone(), Profile::Kubernetes).is_empty()
}

fn disagreement(vector: &Vector) -> Option<String> {
    let mut gates = GateSet::ALL;
    for (name, on) in &vector.gates {
        gates = gates.with(Gate::from_name(name).expect("a known gate"), *on);
    }
    let kind = WorkloadKind::from_kind(&vector.kind).expect("a kind with a template");
    let mut object = vector.object.clone();
    if let Some(uid) = recorded_uid(vector) {
        object["metadata"]["uid"] = uid.clone();
    }
    let (code, causes, found) = if decodes(vector) {
        answer(kind, defaulted(kind, object), gates)
    } else {
        (400, Vec::new(), None)
    };
    let part = found.map(|object| recorded_part(kind, vector, &object));
    let whole = vector.answer.as_ref().map(|answer| compared_part(kind, answer));
    let wanted = whole.or_else(|| vector.spec.clone());
    let same = code == vector.code && causes == vector.causes && part == wanted;
    (!same).then(|| {
        let (id, object) = (&vector.id, &vector.object);
        let expected = json!({"code": vector.code, "causes": vector.causes, "spec": wanted});
        let found = json!({"code": code, "causes": causes, "spec": part});
        format!("{id}: {object}\n  expected {expected}\n  found    {found}")
    })
}

/// Objects of an upstream server are in the form in which this one stores them: writing one back changes nothing.
#[test]
fn recorded_objects_are_written_back_as_they_are() {
    let text = std::fs::read_to_string(data("workload-admission.jsonl")).expect("the vectors can be read");
    let mut count = 0;
    for line in text.lines() {
        let vector: Vector = serde_json::from_str(line).expect("a vector");
        let kind = WorkloadKind::from_kind(&vector.kind).expect("a kind with a template");
        let uid = recorded_uid(&vector).cloned();
        let Some(mut object) = vector.answer else { continue };
        object["metadata"]["uid"] = uid.unwrap_or_else(|| json!("3b1c"));
        let stored = defaulted(kind, object);
        let written = admit_workload_update(kind, &stored, stored.clone(), Profile::Kubernetes, GateSet::ALL);
        assert_eq!(written.expect("it is accepted").object, stored, "{}", vector.id);
        count += 1;
    }
    assert_eq!(count, 262);
}

/// Checks a file; returns how many answers were compared, and how many requests had another address than their object.
fn check(path: &str) -> (usize, usize) {
    let text = std::fs::read_to_string(path).expect("the vectors can be read");
    let vectors: Vec<Vector> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| serde_json::from_str(line).expect("a vector"))
        .collect();
    // A request for another kind, version or namespace than its address does not reach decoding.
    let is_elsewhere = |vector: &&Vector| vector.code == 400 && decodes(vector);
    let elsewhere = vectors.iter().filter(is_elsewhere).count();
    let compared: Vec<&Vector> = vectors
        .iter()
        .filter(|vector| !is_elsewhere(vector) && !UNKNOWN_ZONES.contains(&vector.id.as_str()))
        .collect();
    let disagreements: Vec<String> = compared
        .iter()
        .filter_map(|vector| disagreement(vector))
        .collect();
    println!(
        "{path}: {} of {} answers differ",
        disagreements.len(),
        compared.len()
    );
    assert!(
        disagreements.is_empty(),
        "{path}: {} of {} answers differ, first ones:\n{}",
        disagreements.len(),
        compared.len(),
        disagreements
            .iter()
            .take(show())
            .cloned()
            .collect::<Vec<_>>()
            .join("\n")
    );
    (compared.len(), elsewhere)
}

#[expect(clippy::disallowed_methods, reason = "more disagreements can be shown")]
fn show() -> usize {
    let count = std::env::var("PULSELET_TEMPLATE_VECTORS_SHOWN");
    count.ok().and_then(|count| count.parse().ok()).unwrap_or(3)
}

fn data(name: &str) -> String {
    format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn recorded_answers_about_templates_are_ours() {
    assert_eq!(check(&data("template-admission.jsonl")), (700, 0));
}

/// Zones that only a database knows not to exist: the caller looks them up.
const UNKNOWN_ZONES: [&str; 2] = ["82-757", "82-758"];

#[test]
fn recorded_answers_about_workloads_are_ours() {
    assert_eq!(check(&data("workload-admission.jsonl")), (1109, 30));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test may be given other vectors")]
fn given_answers_about_templates_are_ours() {
    let paths = std::env::var("PULSELET_TEMPLATE_VECTORS").unwrap_or_default();
    for path in paths.split(':').filter(|path| !path.is_empty()) {
        check(path);
    }
}
