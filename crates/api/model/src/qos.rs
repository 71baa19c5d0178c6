//! The quality-of-service class that a Pod's resources put it in.

use k8s_openapi::api::core::v1::ResourceRequirements;

use crate::pod::PodSpec;
use pulselet_schema::quantity::Amount;

/// `Guaranteed`, `Burstable` or `BestEffort`.
pub fn class(spec: &PodSpec) -> &'static str {
    // What a Pod names for itself as a whole decides alone.
    let of_pod = spec.resources.as_ref().filter(|resources| is_set(resources));
    let of_containers = spec
        .init_containers
        .iter()
        .chain(&spec.containers)
        .map(|container| &container.resources)
        .filter(|_| of_pod.is_none());
    let mut best_effort = true;
    let mut guaranteed = true;
    for resources in of_pod.into_iter().chain(of_containers) {
        for name in ["cpu", "memory"] {
            let (request, limit) = (amount(resources, name, false), amount(resources, name, true));
            best_effort &= request.is_none() && limit.is_none();
            guaranteed &= limit.is_some() && request.is_none_or(|request| Some(request) == limit);
        }
    }
    match (best_effort, guaranteed) {
        (true, _) => "BestEffort",
        (false, true) => "Guaranteed",
        (false, false) => "Burstable",
    }
}

fn is_set(resources: &ResourceRequirements) -> bool {
    [&resources.requests, &resources.limits]
        .into_iter()
        .flatten()
        .any(|list| list.contains_key("cpu") || list.contains_key("memory"))
}

/// A request or limit that is more than nothing.
fn amount(resources: &ResourceRequirements, name: &str, limit: bool) -> Option<Amount> {
    let list = if limit {
        &resources.limits
    } else {
        &resources.requests
    };
    let quantity = list.as_ref()?.get(name)?;
    Amount::parse(&quantity.0)
        .ok()
        .filter(|amount| *amount > Amount::ZERO)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn resources_of_the_pod_decide_over_those_of_its_containers() {
        let all = json!({"cpu": "1", "memory": "1Gi"});
        for (of_pod, expected) in [
            (json!({}), "BestEffort"),
            (json!({"requests": {"cpu": "1"}}), "Burstable"),
            (json!({"requests": all, "limits": all}), "Guaranteed"),
        ] {
            let spec = json!({"containers": [{"name": "app"}], "resources": of_pod});
            let spec = serde_json::from_value(spec).expect("a spec");
            assert_eq!(class(&spec), expected, "{of_pod}");
        }
    }
}
