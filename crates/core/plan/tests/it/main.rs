//! Tests of the plan crate through its public API.

mod advice;
mod blueprint;
mod convert;
mod timing;

use pulselet_engine::plan::PodPlan;
use pulselet_model::{GateSet, Pod};

/// A Pod from JSON, as decoding would give it: neither defaulted nor validated.
fn pod(spec: &serde_json::Value) -> Pod {
    let json = serde_json::json!({"metadata": {"name": "web"}, "spec": spec});
    serde_json::from_value(json).expect("a Pod")
}

fn plan(spec: &serde_json::Value, gates: GateSet) -> PodPlan {
    let blueprint = pulselet_plan::convert(&pod(spec), gates).expect("a plan");
    PodPlan::clone(&blueprint.plan)
}
