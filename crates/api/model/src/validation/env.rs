//! Environment variables and where their values come from.

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, EnvVarSource, FileKeySelector};
use k8s_openapi::api::core::v1::{ObjectFieldSelector, ResourceFieldSelector};

use super::names;
use crate::field::{Errors, Path};
use pulselet_schema::quantity::Amount;

/// Pod fields that a variable may take, sorted as errors list them.
const ENV_FIELD_PATHS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Pod fields that a volume may show, sorted as errors list them.
pub(super) const VOLUME_FIELD_PATHS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const HUGE_PAGE_PREFIXES: [&str; 2] = ["limits.hugepages-", "requests.hugepages-"];
const BYTE_DIVISORS: [&str; 13] = [
    "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
];

pub(super) fn validate_env(errors: &mut Errors, variables: &[EnvVar], path: Path<'_>) {
    for (index, variable) in variables.iter().enumerate() {
        let path = path.index(index);
        if variable.name.is_empty() {
            errors.required(path.child("name"), "");
        } else {
            errors.invalid_each(
                path.child("name"),
                &variable.name,
                names::env_var_name(&variable.name),
            );
        }
        if let Some(source) = &variable.value_from {
            let has_value = variable.value.as_ref().is_some_and(|value| !value.is_empty());
            validate_value_from(errors, source, has_value, path.child("valueFrom"));
        }
    }
}

fn validate_value_from(errors: &mut Errors, source: &EnvVarSource, has_value: bool, path: Path<'_>) {
    let mut sources = 0;
    if let Some(selector) = &source.field_ref {
        sources += 1;
        validate_field_ref(errors, selector, &ENV_FIELD_PATHS, path.child("fieldRef"));
    }
    if let Some(selector) = &source.resource_field_ref {
        sources += 1;
        validate_resource_field_ref(errors, selector, false, path.child("resourceFieldRef"));
    }
    if let Some(selector) = &source.config_map_key_ref {
        sources += 1;
        validate_key_ref(
            errors,
            &selector.name,
            &selector.key,
            path.child("configMapKeyRef"),
        );
    }
    if let Some(selector) = &source.secret_key_ref {
        sources += 1;
        validate_key_ref(errors, &selector.name, &selector.key, path.child("secretKeyRef"));
    }
    if let Some(selector) = &source.file_key_ref {
        sources += 1;
        validate_file_key_ref(errors, selector, path.child("fileKeyRef"));
    }
    if sources == 0 {
        let detail = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
        errors.invalid(path, "", detail);
    } else if has_value {
        errors.invalid(path, "", "may not be specified when `value` is not empty");
    } else if sources > 1 {
        errors.invalid(path, "", "may not have more than one field specified at a time");
    }
}

pub(super) fn validate_field_ref(
    errors: &mut Errors,
    selector: &ObjectFieldSelector,
    supported: &[&str],
    path: Path<'_>,
) {
    let version = selector.api_version.as_deref().unwrap_or_default();
    let field = selector.field_path.as_str();
    if version.is_empty() {
        errors.required(path.child("apiVersion"), "");
    } else if field.is_empty() {
        errors.required(path.child("fieldPath"), "");
    } else if version != "v1" {
        let detail = format!("error converting fieldPath: unsupported pod version: {version}");
        errors.invalid(path.child("fieldPath"), field, detail);
    } else if let Some((map, key)) = subscript(field) {
        match map {
            "metadata.annotations" => {
                let key = key.to_lowercase();
                errors.invalid_each(path, &key, names::qualified_name(&key));
            }
            "metadata.labels" => errors.invalid_each(path, key, names::qualified_name(key)),
            _ => {
                let detail =
                    format!("error converting fieldPath: field label does not support subscript: {field}");
                errors.invalid(path.child("fieldPath"), field, detail);
            }
        }
    } else if !is_pod_field(field) {
        let detail = format!("error converting fieldPath: field label not supported: {field}");
        errors.invalid(path.child("fieldPath"), field, detail);
    } else if !supported.contains(&field) {
        errors.not_supported(path.child("fieldPath"), field, supported);
    }
}

/// `metadata.labels['app']` into the map and its key.
fn subscript(field: &str) -> Option<(&str, &str)> {
    field
        .strip_suffix("']")?
        .split_once("['")
        .filter(|(map, _)| !map.is_empty())
}

/// Whether anything of the downward API has this name; which of them fit depends on where it is used.
fn is_pod_field(field: &str) -> bool {
    ENV_FIELD_PATHS.contains(&field)
        || VOLUME_FIELD_PATHS.contains(&field)
        || ["spec.restartPolicy", "spec.schedulerName", "status.phase"].contains(&field)
}

pub(super) fn validate_resource_field_ref(
    errors: &mut Errors,
    selector: &ResourceFieldSelector,
    needs_container: bool,
    path: Path<'_>,
) {
    let resource = selector.resource.as_str();
    let huge_pages = HUGE_PAGE_PREFIXES
        .iter()
        .any(|prefix| resource.starts_with(prefix));
    if needs_container && selector.container_name.as_deref().unwrap_or_default().is_empty() {
        errors.required(path.child("containerName"), "");
    } else if resource.is_empty() {
        errors.required(path.child("resource"), "");
    } else if !RESOURCES.contains(&resource) && !huge_pages {
        errors.not_supported(path.child("resource"), resource, &RESOURCES);
    }
    let Some(divisor) = selector
        .divisor
        .as_ref()
        .and_then(|divisor| Amount::parse(&divisor.0).ok())
    else {
        return;
    };
    if divisor == Amount::ZERO {
        return;
    }
    let (allowed, detail): (&[&str], &str) = match resource.split_once('.').map(|(_, name)| name) {
        Some("cpu") => (
            &["1m", "1"],
            "only divisor's values 1m and 1 are supported with the cpu resource",
        ),
        Some("memory") => (&BYTE_DIVISORS, BYTE_DIVISOR_MEMORY),
        Some("ephemeral-storage") => (&BYTE_DIVISORS, BYTE_DIVISOR_STORAGE),
        _ if huge_pages => (&BYTE_DIVISORS, BYTE_DIVISOR_HUGE_PAGES),
        _ => return,
    };
    if !allowed.contains(&divisor.to_string().as_str()) {
        errors.invalid(path.child("divisor"), resource, detail);
    }
}

const BYTE_DIVISOR_MEMORY: &str = "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are \
                                   supported with the memory resource";
const BYTE_DIVISOR_STORAGE: &str = "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are \
                                    supported with the local ephemeral storage resource";
const BYTE_DIVISOR_HUGE_PAGES: &str = "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei \
                                       are supported with the hugepages resource";

fn validate_key_ref(errors: &mut Errors, name: &str, key: &str, path: Path<'_>) {
    errors.invalid_each(path.child("name"), name, names::dns_subdomain(name));
    if key.is_empty() {
        errors.required(path.child("key"), "");
    } else {
        errors.invalid_each(path.child("key"), key, names::config_map_key(key));
    }
}

fn validate_file_key_ref(errors: &mut Errors, selector: &FileKeySelector, path: Path<'_>) {
    if selector.key.is_empty() {
        errors.required(path.child("key"), "");
    } else {
        errors.invalid_each(
            path.child("key"),
            &selector.key,
            names::env_var_name(&selector.key),
        );
    }
    if selector.volume_name.is_empty() {
        errors.required(path.child("volumeName"), "");
    } else {
        let name = &selector.volume_name;
        errors.invalid_each(path.child("volumeName"), name, names::dns_label(name));
    }
    if selector.path.is_empty() {
        errors.required(path.child("path"), "");
    } else {
        errors.invalid_each(
            path.child("path"),
            &selector.path,
            names::local_non_reserved_path(&selector.path),
        );
    }
}

pub(super) fn validate_env_from(errors: &mut Errors, sources: &[EnvFromSource], list: Path<'_>) {
    for (index, source) in sources.iter().enumerate() {
        let path = list.index(index);
        if let Some(prefix) = source.prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
            errors.invalid_each(path.child("prefix"), prefix, names::env_var_name(prefix));
        }
        if let Some(reference) = &source.config_map_ref {
            validate_env_source(errors, &reference.name, path.child("configMapRef"));
        }
        if let Some(reference) = &source.secret_ref {
            validate_env_source(errors, &reference.name, path.child("secretRef"));
        }
        // Upstream points at the list, not at the entry.
        match (&source.config_map_ref, &source.secret_ref) {
            (None, None) => errors.invalid(list, "", "must specify one of: `configMapRef` or `secretRef`"),
            (Some(_), Some(_)) => {
                errors.invalid(list, "", "may not have more than one field specified at a time");
            }
            (Some(_), None) | (None, Some(_)) => {}
        }
    }
}

fn validate_env_source(errors: &mut Errors, name: &str, path: Path<'_>) {
    if name.is_empty() {
        errors.required(path.child("name"), "");
    } else {
        errors.invalid_each(path.child("name"), name, names::dns_subdomain_prefix(name));
    }
}
