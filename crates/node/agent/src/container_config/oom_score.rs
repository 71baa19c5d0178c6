//! Which containers the kernel kills first when memory runs out: those of pods that asked for least.

use pulselet_model::quantity::Amount;
use pulselet_model::{Container, Pod, qos_class};

/// Scores by class, as a kubelet has them: `Guaranteed` goes last of all pods, `BestEffort` first.
const GUARANTEED: i32 = -997;
const BEST_EFFORT: i32 = 1000;
/// A `Burstable` container is always between the two.
const LEAST_BURSTABLE: i128 = 2;
const MOST_BURSTABLE: i128 = 999;

/// Pods of this priority keep the node itself going.
const NODE_CRITICAL: &str = "system-node-critical";

pub(super) fn of_container(pod: &Pod, container: &Container) -> i32 {
    let system = rustix::system::sysinfo();
    let capacity = i128::from(system.totalram) * i128::from(system.mem_unit.max(1));
    score(pod, container, capacity)
}

/// `capacity` is the machine's memory in bytes.
fn score(pod: &Pod, container: &Container, capacity: i128) -> i32 {
    if pod.spec.priority_class_name == NODE_CRITICAL {
        return GUARANTEED;
    }
    match qos_class(&pod.spec) {
        "Guaranteed" => GUARANTEED,
        "BestEffort" => BEST_EFFORT,
        _ => burstable(requested_memory(container), capacity),
    }
}

fn burstable(request: i128, capacity: i128) -> i32 {
    let score = 1000 - 1000 * request / capacity.max(1);
    i32::try_from(score.clamp(LEAST_BURSTABLE, MOST_BURSTABLE)).unwrap_or(BEST_EFFORT)
}

/// In bytes.
fn requested_memory(container: &Container) -> i128 {
    let requests = container.resources.requests.as_ref();
    let amount = requests.and_then(|all| Amount::parse(&all.get("memory")?.0).ok());
    amount.map_or(0, |amount| amount.nanos() / 1_000_000_000).max(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const GIB: i128 = 1 << 30;

    fn score_of(resources: &Value, class: &str) -> i32 {
        let spec =
            json!({"priorityClassName": class, "containers": [{"name": "app", "resources": resources}]});
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
        score(&pod, &pod.spec.containers[0], 4 * GIB)
    }

    #[test]
    fn the_score_follows_the_class_and_the_share_of_memory() {
        let full = json!({"cpu": "1", "memory": "1Gi"});
        for (resources, expected) in [
            (json!({}), 1000),
            (json!({"limits": full, "requests": full}), -997),
            (json!({"requests": {"memory": "1Gi"}}), 750),
            (json!({"requests": {"memory": "4Gi"}}), 2),
            (json!({"requests": {"memory": "400Gi"}}), 2),
            (json!({"requests": {"memory": "1"}}), 999),
            (json!({"requests": {"cpu": "1"}}), 999),
        ] {
            assert_eq!(score_of(&resources, ""), expected, "{resources}");
        }
        assert_eq!(score_of(&json!({}), "system-node-critical"), -997);
    }
}
