//! Pods admitted per second on one core: JSON bytes to a defaulted, valid Pod.
//!
//! The Pods are the recorded ones that are accepted. Several rounds are run and the best and the median are printed,
//! because the machine may be busy with other things.

use std::hint::black_box;
use std::time::Instant;

use pulselet_model::{Gate, GateSet, Profile, admit_create, decode_documents, decode_pod};
use serde::Deserialize;
use serde_json::value::RawValue;

const ROUNDS: usize = 15;
/// Passes over the Pods in one round, so that a round takes a few hundred milliseconds.
const PASSES: usize = 10;

#[derive(Deserialize)]
struct Vector<'a> {
    code: u16,
    gates: std::collections::BTreeMap<String, bool>,
    #[serde(borrow)]
    pod: &'a RawValue,
}

fn admit(pod: &str, gates: GateSet) {
    let document = decode_documents(pod.as_bytes())
        .next()
        .expect("a document")
        .expect("valid JSON");
    let pod = decode_pod(&document, Profile::Kubernetes).pod.expect("decodes");
    black_box(admit_create(pod, Profile::Kubernetes, gates).expect("is accepted"));
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn main() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/pod-admission.jsonl");
    let vectors = std::fs::read_to_string(path).expect("the vectors can be read");
    let pods: Vec<(&str, GateSet)> = vectors
        .lines()
        .map(|line| serde_json::from_str::<Vector<'_>>(line).expect("a vector"))
        .filter(|vector| vector.code == 201)
        .map(|vector| {
            let gates = vector.gates.iter().fold(GateSet::ALL, |gates, (name, on)| {
                gates.with(Gate::from_name(name).expect("a known gate"), *on)
            });
            (vector.pod.get(), gates)
        })
        .collect();
    let bytes: usize = pods.iter().map(|(pod, _)| pod.len()).sum();
    let mut rates: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..PASSES {
                for (pod, gates) in &pods {
                    admit(pod, *gates);
                }
            }
            let count = u32::try_from(pods.len() * PASSES).expect("a small number");
            f64::from(count) / start.elapsed().as_secs_f64()
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    println!("{} pods of {} bytes on average", pods.len(), bytes / pods.len());
    println!(
        "median {:.0} pods/s, best {:.0} pods/s",
        rates[ROUNDS / 2],
        rates[ROUNDS - 1]
    );
}
