//! The quality-of-service class that a Pod's resources put it in.

use k8s_openapi::api::core::v1::ResourceRequirements;

use crate::pod::PodSpec;
use crate::quantity::Amount;

/// `Guaranteed`, `Burstable` or `BestEffort`.
pub fn class(spec: &PodSpec) -> &'static str {
    let mut containers = spec
        .init_containers
        .iter()
        .chain(&spec.containers)
        .map(|container| &container.resources);
    let mut best_effort = true;
    let mut guaranteed = true;
    for resources in &mut containers {
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
