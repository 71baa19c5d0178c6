//! A pod's status on its way to the API: what the node says, what others said before, and the difference.

use jiff::Timestamp;
use pulselet_model::openapi::api::core::v1::PodCondition;
use pulselet_model::openapi::apimachinery::pkg::apis::meta::v1::Time;
use pulselet_model::{Pod, PodStatus};
use serde_json::{Map, Value, json};

use crate::client::{Call, to_value};
use crate::paths;

/// The condition whose transition the scheduler knows, not the node.
const SCHEDULED: &str = "PodScheduled";
/// The condition that readiness gates hold back.
const READY: &str = "Ready";

/// Conditions that are the node's alone: one that it does not say has ended.
const OF_NODE: [&str; 2] = ["PodResizePending", "PodResizeInProgress"];

/// The status to report: the node's, with the conditions that are not the node's to say kept as they are.
pub(crate) fn merged(api: &Pod, node: &PodStatus) -> PodStatus {
    let generation = api.metadata.generation;
    let mut status = node.clone();
    status.observed_generation = generation;
    for condition in &mut status.conditions {
        condition.observed_generation = generation;
    }
    for other in &api.status.conditions {
        let own = status.conditions.iter_mut().find(|own| own.type_ == other.type_);
        match own {
            Some(own) => keep_transition(own, other),
            None if OF_NODE.contains(&&*other.type_) => {}
            None => status.conditions.push(other.clone()),
        }
    }
    hold_back(api, &mut status, Timestamp::now());
    status.qos_class.clone_from(&api.status.qos_class);
    status
        .nominated_node_name
        .clone_from(&api.status.nominated_node_name);
    status
        .resource_claim_statuses
        .clone_from(&api.status.resource_claim_statuses);
    status
}

/// A pod whose containers are ready is ready once the conditions are true that its readiness gates name. They are others'
/// to set, so only the API knows them.
fn hold_back(api: &Pod, status: &mut PodStatus, now: Timestamp) {
    let unmet: Vec<_> = api
        .spec
        .readiness_gates
        .iter()
        .filter_map(|gate| unmet(&gate.condition_type, &status.conditions))
        .collect();
    let before = api.status.conditions.iter().find(|it| it.type_ == READY);
    let Some(ready) = status.conditions.iter_mut().find(|it| it.type_ == READY) else {
        return;
    };
    if api.spec.readiness_gates.is_empty() || ready.status != "True" {
        return;
    }
    if !unmet.is_empty() {
        "False".clone_into(&mut ready.status);
        ready.reason = Some("ReadinessGatesNotReady".to_owned());
        ready.message = Some(unmet.join(", "));
    }
    // The node's own time is that of its containers; the gates may have changed later.
    ready.last_transition_time = match before {
        Some(before) if before.status == ready.status => before.last_transition_time.clone(),
        Some(_) | None => Some(Time(Timestamp::from_second(now.as_second()).unwrap_or(now))),
    };
}

/// Why a gate holds its pod back, in a kubelet's words; `None` if it does not.
fn unmet(gate: &str, conditions: &[PodCondition]) -> Option<String> {
    match conditions.iter().find(|condition| condition.type_ == gate) {
        None => Some(format!(
            "corresponding condition of pod readiness gate {gate:?} does not exist."
        )),
        Some(condition) if condition.status != "True" => Some(format!(
            "the status of pod readiness gate {gate:?} is not \"True\", but {}",
            condition.status
        )),
        Some(_) => None,
    }
}

/// The time of a transition that others saw first is theirs.
fn keep_transition(own: &mut PodCondition, other: &PodCondition) {
    if own.type_ == SCHEDULED && own.status == other.status {
        own.last_transition_time.clone_from(&other.last_transition_time);
    }
}

/// The request that makes the API's status this one; none if it is.
pub(crate) fn report(api: &Pod, status: &PodStatus) -> Option<Call> {
    let changes = difference(&to_value(&api.status), &to_value(status))?;
    let path = format!("{}/status", paths::pod(api.namespace(), api.name()));
    // The uid is a condition: another pod of that name must not get this status.
    let body = json!({"metadata": {"uid": api.metadata.uid}, "status": changes});
    Some(Call::merge(path, &body))
}

/// What a merge patch must say to turn one value into another; none if they are equal.
fn difference(from: &Value, to: &Value) -> Option<Value> {
    if from == to {
        return None;
    }
    let (Value::Object(from), Value::Object(to)) = (from, to) else {
        return Some(to.clone());
    };
    let mut patch = Map::new();
    for (key, value) in to {
        let change = match from.get(key) {
            Some(before) => difference(before, value),
            None => Some(value.clone()),
        };
        patch.extend(change.map(|change| (key.clone(), change)));
    }
    for key in from.keys().filter(|key| !to.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    Some(Value::Object(patch))
}

/// The status of a pod that the node cannot take.
pub(crate) fn rejected(api: &Pod, reason: &str, message: String) -> PodStatus {
    PodStatus {
        phase: "Failed".to_owned(),
        reason: reason.to_owned(),
        message,
        ..merged(api, &api.status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(status: &Value) -> Pod {
        let pod = json!({
            "metadata": {"name": "web", "namespace": "default", "uid": "u", "generation": 2},
            "status": status,
        });
        serde_json::from_value(pod).unwrap()
    }

    fn status(value: Value) -> PodStatus {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn conditions_of_others_are_kept_and_own_ones_carry_the_generation() {
        let api = pod(&json!({"qosClass": "BestEffort", "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "example.com/gate", "status": "True"},
        ]}));
        let node = status(json!({"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-02-02T00:00:00Z"},
        ]}));
        let merged = to_value(&merged(&api, &node));
        assert_eq!(merged["observedGeneration"], 2);
        assert_eq!(merged["qosClass"], "BestEffort");
        assert_eq!(merged["conditions"][0]["observedGeneration"], 2);
        assert_eq!(
            merged["conditions"][1]["lastTransitionTime"],
            "2026-01-01T00:00:00Z"
        );
        assert_eq!(merged["conditions"][2]["type"], "example.com/gate");
    }

    #[test]
    fn only_what_differs_is_sent_and_what_is_gone_is_removed() {
        let api = pod(&json!({"phase": "Pending", "reason": "Old", "podIP": "10.0.0.1"}));
        let call = report(&api, &status(json!({"phase": "Running", "podIP": "10.0.0.1"}))).unwrap();
        assert_eq!(call.path, "/api/v1/namespaces/default/pods/web/status");
        let body: Value = serde_json::from_slice(&call.body).unwrap();
        assert_eq!(
            body,
            json!({"metadata": {"uid": "u"}, "status": {"phase": "Running", "reason": null}})
        );
        assert_eq!(report(&api, &api.status), None);
    }
}
