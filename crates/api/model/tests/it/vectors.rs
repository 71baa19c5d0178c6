//! Recorded answers of a v1.36.4 API server: ours must be the same.
//!
//! `PULSELET_ADMISSION_VECTORS` names another file of the same form to check against.

use pulselet_model::{Gate, GateSet, Profile, admit_create, decode_documents, decode_pod};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Vector<'a> {
    id: String,
    code: u16,
    gates: std::collections::BTreeMap<String, bool>,
    #[serde(borrow)]
    pod: &'a RawValue,
    #[serde(default)]
    causes: Vec<Value>,
    spec: Option<Value>,
}

/// Answers as an API server would: code, causes, and the part of the spec that was recorded.
fn answer(pod: &str, gates: GateSet) -> (u16, Vec<Value>, Option<Value>) {
    let document = decode_documents(pod.as_bytes())
        .next()
        .expect("a document")
        .expect("valid JSON");
    let Ok(pod) = decode_pod(&document, Profile::Kubernetes).pod else {
        return (400, Vec::new(), None);
    };
    match admit_create(pod, Profile::Kubernetes, gates) {
        Ok(admission) => {
            let spec = serde_json::to_value(&admission.pod.spec).expect("a spec can be serialized");
            let recorded = [
                "containers",
                "initContainers",
                "terminationGracePeriodSeconds",
                "restartPolicy",
                "os",
            ];
            let part: serde_json::Map<String, Value> = recorded
                .into_iter()
                .filter_map(|field| spec.get(field).map(|value| (field.to_owned(), value.clone())))
                .collect();
            (201, Vec::new(), Some(Value::Object(part)))
        }
        Err(errors) => (422, errors.iter().map(|error| json!(error)).collect(), None),
    }
}

fn disagreement(line: &str) -> Option<String> {
    let vector: Vector<'_> = serde_json::from_str(line).expect("a vector");
    let mut gates = GateSet::ALL;
    for (name, on) in &vector.gates {
        gates = gates.with(Gate::from_name(name).expect("a known gate"), *on);
    }
    let (code, causes, spec) = answer(vector.pod.get(), gates);
    let same = code == vector.code && causes == vector.causes && (code != 201 || spec == vector.spec);
    (!same).then(|| {
        let (id, pod) = (&vector.id, vector.pod.get());
        let expected = json!({"code": vector.code, "causes": vector.causes, "spec": vector.spec});
        let found = json!({"code": code, "causes": causes, "spec": spec});
        format!("{id}: {pod}\n  expected {expected}\n  found    {found}")
    })
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test may be given other vectors")]
fn every_recorded_answer_is_ours() {
    let path = std::env::var("PULSELET_ADMISSION_VECTORS").unwrap_or_else(|_| {
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/pod-admission.jsonl").to_owned()
    });
    let vectors = std::fs::read_to_string(&path).expect("the vectors can be read");
    let lines: Vec<&str> = vectors.lines().filter(|line| !line.trim().is_empty()).collect();
    let disagreements: Vec<String> = lines.iter().filter_map(|line| disagreement(line)).collect();
    println!(
        "{} of {} answers agree",
        lines.len() - disagreements.len(),
        lines.len()
    );
    assert!(!lines.is_empty(), "{path} has no vectors");
    assert!(
        disagreements.is_empty(),
        "{} of {} answers differ, first ones:\n{}",
        disagreements.len(),
        lines.len(),
        disagreements
            .iter()
            .take(3)
            .cloned()
            .collect::<Vec<_>>()
            .join("\n")
    );
}
