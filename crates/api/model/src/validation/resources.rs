//! Resource requests, limits and overhead.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{Context, names};
use crate::field::{Errors, Path};
use pulselet_schema::quantity::Amount;

const HUGE_PAGES: &str = "hugepages-";

type ResourceList = BTreeMap<String, Quantity>;

pub(super) fn validate_container(
    errors: &mut Errors,
    resources: &ResourceRequirements,
    path: Path<'_>,
    context: &Context<'_>,
) {
    let empty = ResourceList::new();
    let limits = resources.limits.as_ref().unwrap_or(&empty);
    let requests = resources.requests.as_ref().unwrap_or(&empty);
    let limits_path = path.child("limits");
    let requests_path = path.child("requests");
    for (name, quantity) in limits {
        validate_entry(errors, name, quantity, limits_path.key(name));
    }
    for (name, quantity) in requests {
        validate_entry(errors, name, quantity, requests_path.key(name));
        validate_against_limit(
            errors,
            name,
            quantity,
            limits.get(name),
            requests_path,
            limits_path,
        );
    }
    let any = |test: fn(&str) -> bool| limits.keys().chain(requests.keys()).any(|name| test(name));
    if any(|name| name.starts_with(HUGE_PAGES)) && !any(|name| matches!(name, "cpu" | "memory")) {
        errors.forbidden(path, "HugePages require cpu or memory");
    }
    validate_claims(errors, resources, path.child("claims"), context);
}

/// Overhead is judged like the limits of a container.
pub(super) fn validate_overhead(errors: &mut Errors, overhead: &ResourceList, path: Path<'_>) {
    let limits = path.child("limits");
    for (name, quantity) in overhead {
        validate_entry(errors, name, quantity, limits.key(name));
    }
}

fn validate_entry(errors: &mut Errors, name: &str, quantity: &Quantity, path: Path<'_>) {
    validate_name(errors, name, path);
    let Ok(amount) = Amount::parse(&quantity.0) else {
        // Decoding refuses such a quantity; only a Pod built in memory can get here.
        errors.invalid(path, quantity.0.as_str(), "must be a quantity");
        return;
    };
    if amount.is_negative() {
        errors.invalid(
            path,
            amount.to_string().as_str(),
            "must be greater than or equal to 0",
        );
    }
    if is_counted(name) && !amount.is_whole() {
        errors.invalid(path, amount.to_string().as_str(), "must be an integer");
    }
}

fn validate_name(errors: &mut Errors, name: &str, path: Path<'_>) {
    let complaints = names::qualified_name(name);
    if !complaints.is_empty() {
        errors.invalid_each(path, name, complaints);
        return;
    }
    if !name.contains('/') {
        if !is_standard(name) {
            errors.invalid(path, name, "must be a standard resource type or fully qualified");
        }
        if !matches!(name, "cpu" | "memory" | "ephemeral-storage") && !name.starts_with(HUGE_PAGES) {
            errors.invalid(path, name, "must be a standard resource for containers");
        }
    } else if !is_native(name) && !is_extended(name) {
        errors.invalid(path, name, "doesn't follow extended resource name standard");
    }
}

/// Names without a domain that mean something somewhere in Kubernetes.
fn is_standard(name: &str) -> bool {
    const QUOTA: [&str; 12] = [
        "persistentvolumeclaims",
        "pods",
        "replicationcontrollers",
        "resourcequotas",
        "secrets",
        "configmaps",
        "services",
        "services.nodeports",
        "services.loadbalancers",
        "storage",
        "requests.storage",
        "limits.ephemeral-storage",
    ];
    matches!(name, "cpu" | "memory" | "ephemeral-storage")
        || name.starts_with(HUGE_PAGES)
        || name.starts_with("requests.hugepages-")
        || QUOTA.contains(&name)
        || [
            "requests.cpu",
            "requests.memory",
            "requests.ephemeral-storage",
            "limits.cpu",
            "limits.memory",
        ]
        .contains(&name)
}

fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

fn is_extended(name: &str) -> bool {
    !name.starts_with("requests.") && names::qualified_name(&format!("requests.{name}")).is_empty()
}

/// Resources that exist in whole pieces only.
fn is_counted(name: &str) -> bool {
    !is_native(name) || name.starts_with(HUGE_PAGES)
}

fn validate_against_limit(
    errors: &mut Errors,
    name: &str,
    request: &Quantity,
    limit: Option<&Quantity>,
    requests_path: Path<'_>,
    limits_path: Path<'_>,
) {
    let overcommit = is_native(name) && !name.starts_with(HUGE_PAGES);
    let Some(limit) = limit else {
        if !overcommit {
            errors.required(limits_path, "Limit must be set for non overcommitable resources");
        }
        return;
    };
    let (Ok(request), Ok(limit)) = (Amount::parse(&request.0), Amount::parse(&limit.0)) else {
        return;
    };
    if request != limit && !overcommit {
        let detail = format!("must be equal to {name} limit of {limit}");
        errors.invalid(requests_path, request.to_string().as_str(), detail);
    } else if request > limit {
        let detail = format!("must be less than or equal to {name} limit of {limit}");
        errors.invalid(requests_path, request.to_string().as_str(), detail);
    }
}

fn validate_claims(
    errors: &mut Errors,
    resources: &ResourceRequirements,
    path: Path<'_>,
    context: &Context<'_>,
) {
    let mut seen = BTreeSet::new();
    for (index, claim) in resources.claims.iter().flatten().enumerate() {
        let path = path.index(index);
        if claim.name.is_empty() {
            errors.required(path.child("name"), "");
        } else if !seen.insert((claim.name.as_str(), claim.request.as_deref())) {
            errors.duplicate(path.child("name"), &claim.name);
        } else if !context.claims.contains(claim.name.as_str()) {
            errors.not_found(path.child("name"), &claim.name);
        }
    }
}
