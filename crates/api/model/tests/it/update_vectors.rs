//! Recorded answers of a v1.36.4 API server about updates and status writes of stored workloads: ours must be the same.
//!
//! A line is a stored object, or a change of one with its answer. Changes are pointers with a value, or without one where
//! a field is removed.

use std::collections::BTreeMap;

use pulselet_model::{
    GateSet, Profile, WorkloadError, WorkloadKind, admit_workload_status, admit_workload_update,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::workloads::defaulted;

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Stored {
        stored: String,
        kind: String,
        object: Value,
    },
    Update(Update),
}

fn apply(object: &mut Value, changes: &[Vec<Value>]) {
    for change in changes {
        let pointer = change[0].as_str().expect("a pointer");
        let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
        let field = field.replace("~1", "/").replace("~0", "~");
        let parent = object.pointer_mut(parent).expect("a parent");
        match change.get(1) {
            Some(value) => parent[field] = value.clone(),
            None => drop(parent.as_object_mut().expect("fields").remove(&field)),
        }
    }
}

/// The causes of a rejection; the template of a Job is shown in another form than upstream's.
fn causes(error: WorkloadError) -> Vec<Value> {
    const IMMUTABLE: &str = "field is immutable";
    let WorkloadError::Invalid(errors) = error else {
        panic!("{error}");
    };
    let shorten = |mut error: Value| {
        let field = error["field"].as_str().unwrap_or_default();
        let message = error["message"].as_str().unwrap_or_default();
        if matches!(field, "spec.template" | "spec.template.spec") && message.ends_with(IMMUTABLE) {
            error["message"] = json!(IMMUTABLE);
        }
        error
    };
    errors.iter().map(|error| shorten(json!(error))).collect()
}

/// The parts that admission decides; decoding gives the status its form.
fn compared(kind: WorkloadKind, object: &Value) -> Value {
    let pointers = ["/metadata", "/spec/selector", kind.template_pointer()];
    let parts = pointers
        .into_iter()
        .map(|pointer| object.pointer(pointer).cloned().unwrap_or_default());
    parts.collect()
}

/// A change of a stored object, and what a v1.36.4 server answered.
#[derive(Deserialize)]
struct Update {
    id: String,
    old: String,
    change: Vec<Vec<Value>>,
    code: u16,
    #[serde(default)]
    subresource: String,
    #[serde(default)]
    causes: Vec<Value>,
    /// How the answer differs from the request.
    #[serde(default)]
    answer: Vec<Vec<Value>>,
}

fn disagreement(kind: WorkloadKind, old: &Value, update: &Update) -> Option<String> {
    let mut new = old.clone();
    apply(&mut new, &update.change);
    let mut accepted = new.clone();
    apply(&mut accepted, &update.answer);
    let result = if update.subresource == "status" {
        admit_workload_status(kind, old, new)
    } else {
        let new = defaulted(kind, new);
        admit_workload_update(kind, old, new, Profile::Kubernetes, GateSet::ALL)
            .map(|admission| admission.object)
    };
    let found = match result {
        Ok(object) => (200, compared(kind, &object)),
        Err(error) => (422, json!(causes(error))),
    };
    let wanted = match update.code {
        200 => (200, compared(kind, &accepted)),
        code => (code, json!(update.causes)),
    };
    let (id, change) = (&update.id, json!(update.change));
    (found != wanted).then(|| format!("{id} {kind:?} {change}\n  expected {wanted:?}\n  found    {found:?}"))
}

#[test]
fn recorded_answers_about_updates_are_ours() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/workload-updates.jsonl");
    let text = std::fs::read_to_string(path).expect("the vectors can be read");
    let mut stored = BTreeMap::new();
    let mut disagreements = Vec::new();
    let mut count = 0;
    for line in text.lines() {
        match serde_json::from_str(line).expect("a line") {
            Line::Stored {
                stored: name,
                kind,
                object,
            } => {
                let kind = WorkloadKind::from_kind(&kind).expect("a kind with a template");
                stored.insert(name, (kind, object));
            }
            Line::Update(update) => {
                let (kind, old) = &stored[&update.old];
                disagreements.extend(disagreement(*kind, old, &update));
                count += 1;
            }
        }
    }
    assert!(
        disagreements.is_empty(),
        "{} of {count} answers differ:\n{}",
        disagreements.len(),
        disagreements.join("\n")
    );
    assert_eq!(count, 584);
}
