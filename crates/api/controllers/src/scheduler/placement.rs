//! Which node a Pod goes to.
//!
//! This is a pure function from a Pod and the nodes to a name or the reasons against. It looks at readiness, cordons,
//! `nodeSelector`, taints, how many Pods a node takes, and what it has left of the resources that the Pod requests; of the
//! nodes that fit, the one with the fewest Pods wins. Affinity, topology and priorities are a cluster scheduler's business.

use std::collections::BTreeMap;

use pulselet_apiserver::Object;
use pulselet_model::{PodSpec, ResourceTotals, pod_requests};
use serde_json::Value;

/// The scheduler of Pods that name none.
const SCHEDULER: &str = "default-scheduler";
/// The taint that a cordoned node is treated as having.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// How many Pods a node takes if it does not say, as upstream has it.
const DEFAULT_PODS: usize = 110;

/// A node that may be chosen.
#[derive(Debug)]
pub(super) struct Candidate<'a> {
    pub(super) node: &'a Object,
    /// What the Pods take that are bound to it and have not ended.
    pub(super) taken: &'a Taken,
}

/// What Pods take of their node.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) pods: usize,
    pub(super) resources: ResourceTotals,
}

/// What a Pod requests of a node. One that cannot be read requests nothing: the node has the last word.
pub(super) fn requests(pod: &Object) -> ResourceTotals {
    let spec = pod.value().get("spec").cloned().unwrap_or_default();
    serde_json::from_value::<PodSpec>(spec)
        .map_or_else(|_| ResourceTotals::default(), |spec| pod_requests(&spec))
}

/// Whether this scheduler has to find a node for the Pod.
pub(super) fn wants_node(pod: &Object) -> bool {
    let gates = pod
        .value()
        .pointer("/spec/schedulingGates")
        .and_then(Value::as_array);
    pod.text("/spec/nodeName").is_empty()
        && matches!(pod.text("/spec/schedulerName"), "" | SCHEDULER)
        && gates.is_none_or(Vec::is_empty)
        && !pod.is_deleting()
        && !has_ended(pod)
}

pub(super) fn has_ended(pod: &Object) -> bool {
    matches!(pod.text("/status/phase"), "Succeeded" | "Failed")
}

/// The node for a Pod, or why there is none, in the words of upstream's scheduler.
pub(super) fn choose(pod: &Object, nodes: &[Candidate<'_>]) -> Result<String, String> {
    let mut against: BTreeMap<String, usize> = BTreeMap::new();
    let mut best: Option<&Candidate<'_>> = None;
    let requests = requests(pod);
    for candidate in nodes {
        match objection(pod, &requests, candidate) {
            Some(why) => *against.entry(why).or_default() += 1,
            None if best.is_none_or(|best| candidate.taken.pods < best.taken.pods) => best = Some(candidate),
            None => {}
        }
    }
    if let Some(best) = best {
        return Ok(best.node.name().to_owned());
    }
    let total = nodes.len();
    let reasons: Vec<String> = against
        .iter()
        .map(|(why, count)| format!("{count} {why}"))
        .collect();
    Err(if total == 0 {
        "no nodes available to schedule pods".to_owned()
    } else {
        format!("0/{total} nodes are available: {}.", reasons.join(", "))
    })
}

fn objection(pod: &Object, requests: &ResourceTotals, candidate: &Candidate<'_>) -> Option<String> {
    let node = candidate.node;
    let cordoned = node.value().pointer("/spec/unschedulable") == Some(&Value::Bool(true));
    if cordoned && !tolerates(pod, UNSCHEDULABLE, "", "NoSchedule") {
        return Some("node(s) were unschedulable".to_owned());
    }
    if node.is_deleting() || !is_ready(node) {
        return Some("node(s) were not ready".to_owned());
    }
    if !matches_selector(pod, node) {
        return Some("node(s) didn't match Pod's node affinity/selector".to_owned());
    }
    if let Some((key, value)) = untolerated_taint(pod, node) {
        return Some(format!("node(s) had untolerated taint {{{key}: {value}}}"));
    }
    let most = node
        .text("/status/allocatable/pods")
        .parse()
        .unwrap_or(DEFAULT_PODS);
    if candidate.taken.pods >= most {
        return Some("Too many pods".to_owned());
    }
    // A node that does not say what it has takes what it is given.
    let allocatable = node.value().pointer("/status/allocatable")?;
    let allocatable = serde_json::from_value(allocatable.clone()).ok()?;
    let shortage = requests.shortage(&candidate.taken.resources, &ResourceTotals::read(&allocatable))?;
    let says_it = allocatable.contains_key(&shortage.resource) || !is_measured(&shortage.resource);
    says_it.then(|| format!("Insufficient {}", shortage.resource))
}

/// Every node has some of these; one that does not name them has not been measured.
fn is_measured(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory" | "ephemeral-storage")
}

fn is_ready(node: &Object) -> bool {
    let conditions = node
        .value()
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn matches_selector(pod: &Object, node: &Object) -> bool {
    let wanted = pod
        .value()
        .pointer("/spec/nodeSelector")
        .and_then(Value::as_object);
    let labels = node.labels();
    let mut wanted = wanted.into_iter().flatten();
    wanted.all(|(key, value)| labels.get(key.as_str()).copied() == value.as_str())
}

fn untolerated_taint<'a>(pod: &Object, node: &'a Object) -> Option<(&'a str, &'a str)> {
    let taints = node.value().pointer("/spec/taints").and_then(Value::as_array);
    let text = |taint: &'a Value, field: &str| taint[field].as_str().unwrap_or_default();
    taints
        .into_iter()
        .flatten()
        .filter(|taint| matches!(text(taint, "effect"), "NoSchedule" | "NoExecute"))
        .map(|taint| (text(taint, "key"), text(taint, "value"), text(taint, "effect")))
        .find(|(key, value, effect)| !tolerates(pod, key, value, effect))
        .map(|(key, value, _)| (key, value))
}

fn tolerates(pod: &Object, key: &str, value: &str, effect: &str) -> bool {
    let tolerations = pod.value().pointer("/spec/tolerations").and_then(Value::as_array);
    tolerations.into_iter().flatten().any(|toleration| {
        let text = |field: &str| toleration[field].as_str().unwrap_or_default();
        let any_key = text("key").is_empty() && text("operator") == "Exists";
        let same_value = text("operator") == "Exists" || text("value") == value;
        matches!(text("effect"), "" | "NoSchedule" | "NoExecute")
            && (text("effect").is_empty() || text("effect") == effect)
            && (any_key || (text("key") == key && same_value))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Object {
        Object::new(value).expect("an object")
    }

    fn node(name: &str, spec: &Value, ready: &str) -> Object {
        object(json!({
            "metadata": {"name": name, "labels": {"disk": name}},
            "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": ready}], "allocatable": {"pods": "3"}},
        }))
    }

    fn pod(spec: &Value) -> Object {
        object(json!({"metadata": {"name": "web"}, "spec": spec}))
    }

    fn chosen(pod: &Object, nodes: &[(&Object, usize)]) -> Result<String, String> {
        let taken: Vec<_> = nodes
            .iter()
            .map(|(_, pods)| Taken {
                pods: *pods,
                resources: requests(&self::pod(&wanting("1500m"))),
            })
            .collect();
        let candidates: Vec<_> = nodes
            .iter()
            .zip(&taken)
            .map(|((node, _), taken)| Candidate { node, taken })
            .collect();
        choose(pod, &candidates)
    }

    fn wanting(cpu: &str) -> Value {
        json!({"containers": [{"name": "app", "resources": {"requests": {"cpu": cpu}}}]})
    }

    #[test]
    fn a_pod_waits_for_what_its_node_has_left() {
        let mut node = node("a", &json!({}), "True").value().clone();
        node["status"]["allocatable"]["cpu"] = json!("2");
        let node = object(node);
        assert_eq!(chosen(&pod(&wanting("500m")), &[(&node, 1)]).as_deref(), Ok("a"));
        assert_eq!(
            chosen(&pod(&wanting("501m")), &[(&node, 1)]).unwrap_err(),
            "0/1 nodes are available: 1 Insufficient cpu."
        );
        let device =
            json!({"containers": [{"name": "app", "resources": {"requests": {"example.com/gpu": "1"}}}]});
        assert_eq!(
            chosen(&pod(&device), &[(&node, 0)]).unwrap_err(),
            "0/1 nodes are available: 1 Insufficient example.com/gpu."
        );
    }

    #[test]
    fn the_node_with_the_fewest_pods_wins() {
        let (a, b) = (node("a", &json!({}), "True"), node("b", &json!({}), "True"));
        let any = pod(&json!({}));
        assert_eq!(chosen(&any, &[(&a, 2), (&b, 1)]).as_deref(), Ok("b"));
        assert_eq!(chosen(&any, &[(&a, 1), (&b, 1)]).as_deref(), Ok("a"));
        let selects = pod(&json!({"nodeSelector": {"disk": "a"}}));
        assert_eq!(chosen(&selects, &[(&a, 2), (&b, 1)]).as_deref(), Ok("a"));
    }

    #[test]
    fn every_objection_is_named_and_counted() {
        let away = node("away", &json!({}), "Unknown");
        let cordoned = node("cordoned", &json!({"unschedulable": true}), "True");
        let taint = json!({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]});
        let tainted = node("tainted", &taint, "True");
        let full = node("full", &json!({}), "True");
        let any = pod(&json!({}));
        let refusal = chosen(
            &any,
            &[(&away, 0), (&cordoned, 0), (&tainted, 0), (&full, 3), (&full, 3)],
        );
        assert_eq!(
            refusal.unwrap_err(),
            "0/5 nodes are available: 2 Too many pods, 1 node(s) had untolerated taint {k: v}, 1 node(s) were not \
             ready, 1 node(s) were unschedulable."
        );
        assert_eq!(
            chosen(&any, &[]).unwrap_err(),
            "no nodes available to schedule pods"
        );
        let elsewhere = pod(&json!({"nodeSelector": {"disk": "z"}}));
        assert!(
            chosen(&elsewhere, &[(&full, 0)])
                .unwrap_err()
                .contains("didn't match")
        );
    }

    #[test]
    fn tolerations_open_tainted_nodes() {
        let taint = json!({"taints": [{"key": "k", "value": "v", "effect": "NoExecute"}]});
        let tainted = node("tainted", &taint, "True");
        for toleration in [
            json!({"operator": "Exists"}),
            json!({"key": "k", "operator": "Exists", "effect": "NoExecute"}),
            json!({"key": "k", "value": "v"}),
        ] {
            let tolerant = pod(&json!({"tolerations": [toleration]}));
            assert!(chosen(&tolerant, &[(&tainted, 0)]).is_ok(), "{toleration}");
        }
        for toleration in [
            json!({"key": "k", "value": "w"}),
            json!({"key": "k", "operator": "Exists", "effect": "NoSchedule"}),
        ] {
            let strict = pod(&json!({"tolerations": [toleration]}));
            assert!(chosen(&strict, &[(&tainted, 0)]).is_err(), "{toleration}");
        }
    }

    #[test]
    fn only_pods_that_wait_for_this_scheduler_are_placed() {
        assert!(wants_node(&pod(&json!({"schedulerName": "default-scheduler"}))));
        for spec in [
            json!({"nodeName": "a"}),
            json!({"schedulerName": "mine"}),
            json!({"schedulingGates": [{"name": "g"}]}),
        ] {
            assert!(!wants_node(&pod(&spec)), "{spec}");
        }
    }
}
