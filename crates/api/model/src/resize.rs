//! What an in-place resize is about: the CPU and memory of containers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::pod::{Container, Pod};
use pulselet_schema::quantity::Amount;

/// The resources of a running container that can be changed.
pub const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// Whether the containers of two manifests have the same CPU and memory.
pub fn same_resources(one: &Pod, other: &Pod) -> bool {
    let of = |pod: &Pod| -> Vec<_> {
        containers(pod)
            .map(|container| (container.name.clone(), amounts(&container.resources)))
            .collect()
    };
    of(one) == of(other)
}

/// Gives the containers the CPU and memory that those of the same names have in another manifest.
pub fn keep_resources(pod: &mut Pod, accepted: &Pod) {
    let known: BTreeMap<&str, &ResourceRequirements> = containers(accepted)
        .map(|container| (container.name.as_str(), &container.resources))
        .collect();
    let of_pod = pod.spec.init_containers.iter_mut();
    for container in of_pod.chain(&mut pod.spec.containers) {
        if let Some(accepted) = known.get(container.name.as_str()) {
            keep(&mut container.resources, accepted);
        }
    }
}

/// The same for one container.
pub(crate) fn keep(resources: &mut ResourceRequirements, accepted: &ResourceRequirements) {
    for (own, accepted) in [
        (&mut resources.requests, &accepted.requests),
        (&mut resources.limits, &accepted.limits),
    ] {
        for name in RESIZABLE {
            match accepted.as_ref().and_then(|list| list.get(name)) {
                Some(quantity) => {
                    let list = own.get_or_insert_default();
                    list.insert(name.to_owned(), quantity.clone());
                }
                None => {
                    own.as_mut().and_then(|list| list.remove(name));
                }
            }
        }
        // An empty list and none mean the same; the manifest that is kept decides which it is.
        if accepted.is_none() && own.as_ref().is_some_and(BTreeMap::is_empty) {
            *own = None;
        }
    }
}

fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.init_containers.iter().chain(&pod.spec.containers)
}

/// `None` where nothing is said.
fn amounts(resources: &ResourceRequirements) -> [Option<Amount>; 4] {
    let amount = |list: &Option<BTreeMap<String, Quantity>>, name: &str| {
        let quantity = list.as_ref()?.get(name)?;
        Amount::parse(&quantity.0).ok()
    };
    let [cpu, memory] = RESIZABLE;
    [
        amount(&resources.requests, cpu),
        amount(&resources.requests, memory),
        amount(&resources.limits, cpu),
        amount(&resources.limits, memory),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(resources: &Value) -> Pod {
        let spec = json!({"containers": [{"name": "app", "image": "app:1", "resources": resources}]});
        serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).expect("a pod")
    }

    #[test]
    fn resources_are_compared_by_their_amounts() {
        let one = pod(&json!({"requests": {"cpu": "1", "memory": "1Gi"}}));
        assert!(same_resources(
            &one,
            &pod(&json!({"requests": {"cpu": "1000m", "memory": "1024Mi"}}))
        ));
        assert!(!same_resources(
            &one,
            &pod(&json!({"requests": {"cpu": "1001m", "memory": "1Gi"}}))
        ));
        assert!(!same_resources(&one, &pod(&json!({"requests": {"cpu": "1"}}))));
    }

    #[test]
    fn only_cpu_and_memory_are_put_back() {
        let accepted = pod(&json!({"requests": {"cpu": "1"}}));
        let mut new =
            pod(&json!({"requests": {"cpu": "2", "ephemeral-storage": "1Gi"}, "limits": {"memory": "1Gi"}}));
        new.spec.containers[0].image = "app:2".to_owned();
        keep_resources(&mut new, &accepted);
        let kept = pod(&json!({"requests": {"cpu": "1", "ephemeral-storage": "1Gi"}}));
        assert_eq!(
            new.spec.containers[0].resources,
            kept.spec.containers[0].resources
        );
        assert_eq!(new.spec.containers[0].image, "app:2");
    }
}
