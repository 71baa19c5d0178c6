//! Tolerations, gates, DNS and host names: the parts of a spec that say where and as whom a Pod runs.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Toleration;

use super::{Context, names};
use crate::field::{Errors, Path};

/// What the resolver of a Linux libc can take.
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCH_PATHS: usize = 32;
const MAX_SEARCH_BYTES: usize = 2048;
/// The longest host name the kernel takes.
const MAX_HOSTNAME_BYTES: usize = 64;

const TAINT_EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) fn validate_tolerations(errors: &mut Errors, tolerations: &[Toleration], path: Path<'_>) {
    for (index, toleration) in tolerations.iter().enumerate() {
        let path = path.index(index);
        let key = toleration.key.as_deref().unwrap_or_default();
        let operator = toleration.operator.as_deref().unwrap_or_default();
        let value = toleration.value.as_deref().unwrap_or_default();
        let effect = toleration.effect.as_deref().unwrap_or_default();
        if !key.is_empty() {
            errors.invalid_each(path.child("key"), key, names::qualified_name(key));
        } else if operator != "Exists" {
            let detail =
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.invalid(path.child("operator"), operator, detail);
        }
        if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.invalid(path.child("effect"), effect, detail);
        }
        match operator {
            "" | "Equal" => {
                let complaints = names::label_value(value);
                if !complaints.is_empty() {
                    errors.invalid(path.child("operator"), value, complaints.join(";"));
                }
            }
            "Exists" if !value.is_empty() => {
                errors.invalid(
                    path.child("operator"),
                    value,
                    "value must be empty when `operator` is 'Exists'",
                );
            }
            "Exists" => {}
            other => errors.not_supported(path.child("operator"), other, &["Equal", "Exists"]),
        }
        if !effect.is_empty() && !TAINT_EFFECTS.contains(&effect) {
            errors.not_supported(path.child("effect"), effect, &TAINT_EFFECTS);
        }
    }
}

pub(super) fn validate_dns(errors: &mut Errors, path: Path<'_>, context: &Context<'_>) {
    let config = context.spec.dns_config.as_ref();
    if context.spec.dns_policy == "None" {
        let nameservers = config
            .and_then(|config| config.nameservers.as_deref())
            .unwrap_or_default();
        if config.is_none() {
            errors.required(path, "must provide `dnsConfig` when `dnsPolicy` is None");
            return;
        }
        if nameservers.is_empty() {
            let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.required(path.child("nameservers"), detail);
            return;
        }
    }
    let Some(config) = config else { return };
    let nameservers = config.nameservers.as_deref().unwrap_or_default();
    let list = path.child("nameservers");
    if nameservers.len() > MAX_NAMESERVERS {
        let detail = format!("must not have more than {MAX_NAMESERVERS} nameservers");
        errors.invalid(list, serde_json::json!(nameservers), detail);
    }
    for (index, address) in nameservers.iter().enumerate() {
        errors.invalid_each(list.index(index), address, names::ip_address(address));
    }
    validate_searches(
        errors,
        config.searches.as_deref().unwrap_or_default(),
        path.child("searches"),
    );
    let list = path.child("options");
    for (index, option) in config.options.iter().flatten().enumerate() {
        if option.name.as_deref().unwrap_or_default().is_empty() {
            errors.required(list.index(index), "must not be empty");
        }
    }
}

fn validate_searches(errors: &mut Errors, searches: &[String], path: Path<'_>) {
    if searches.len() > MAX_SEARCH_PATHS {
        let detail = format!("must not have more than {MAX_SEARCH_PATHS} search paths");
        errors.invalid(path, serde_json::json!(searches), detail);
    }
    let bytes = searches.iter().map(String::len).sum::<usize>() + searches.len().saturating_sub(1);
    if bytes > MAX_SEARCH_BYTES {
        let detail = format!(
            "must not have more than {MAX_SEARCH_BYTES} characters (including spaces) in the search list"
        );
        errors.invalid(path, serde_json::json!(searches), detail);
    }
    for (index, search) in searches.iter().enumerate().filter(|(_, search)| *search != ".") {
        let search = search.strip_suffix('.').unwrap_or(search);
        errors.invalid_each(
            path.index(index),
            search,
            names::dns_subdomain_with_underscore(search),
        );
    }
}

pub(super) fn validate_gates(errors: &mut Errors, spec_path: Path<'_>, context: &Context<'_>) {
    let list = spec_path.child("readinessGates");
    for (index, gate) in context.spec.readiness_gates.iter().enumerate() {
        let path = list.index(index);
        let condition = gate.condition_type.as_str();
        errors.invalid_each(
            path.child("conditionType"),
            condition,
            names::qualified_name(condition),
        );
    }
    let list = spec_path.child("schedulingGates");
    let mut seen = BTreeSet::new();
    for (index, gate) in context.spec.scheduling_gates.iter().enumerate() {
        errors.invalid_each(list.index(index), &gate.name, names::qualified_name(&gate.name));
        if !seen.insert(gate.name.as_str()) {
            errors.duplicate(list.index(index), &gate.name);
        }
    }
}

pub(super) fn validate_host_names(errors: &mut Errors, spec_path: Path<'_>, context: &Context<'_>) {
    let spec = context.spec;
    for (field, value) in [("hostname", &spec.hostname), ("subdomain", &spec.subdomain)] {
        if !value.is_empty() {
            errors.invalid_each(spec_path.child(field), value, names::dns_label(value));
        }
    }
    let Some(name) = spec.hostname_override.as_deref() else {
        return;
    };
    let path = spec_path.child("hostnameOverride");
    errors.invalid_each(path, name, names::dns_subdomain(name));
    if name.len() > MAX_HOSTNAME_BYTES {
        errors.too_long(path, MAX_HOSTNAME_BYTES);
    }
    if spec.set_hostname_as_fqdn == Some(true) {
        errors.forbidden(path, "may not be specified when setHostnameAsFQDN is true");
    }
    if spec.host_network {
        errors.forbidden(path, "may not be specified when hostNetwork is true");
    }
}

pub(super) fn validate_host_aliases(errors: &mut Errors, path: Path<'_>, context: &Context<'_>) {
    for (index, alias) in context.spec.host_aliases.iter().enumerate() {
        let path = path.index(index);
        errors.invalid_each(path.child("ip"), &alias.ip, names::ip_address(&alias.ip));
        let hostnames = path.child("hostnames");
        for (index, hostname) in alias.hostnames.iter().flatten().enumerate() {
            errors.invalid_each(hostnames.index(index), hostname, names::dns_subdomain(hostname));
        }
    }
}
