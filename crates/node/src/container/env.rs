//! The environment of a container: literal values, `$(VAR)` references, and what the downward API offers.
//!
//! A node without an API has no config maps and no secrets; a reference to one is an error unless it is optional.

use std::collections::BTreeMap;

use pulselet_api::openapi::api::core::v1 as core;
use pulselet_api::quantity::Amount;
use pulselet_api::{Container, Pod};
use pulselet_runtime::EnvVar;

use super::error::ConfigError;
use super::expansion::expand;
use crate::facts::NodeFacts;

/// Nano-units in one unit of a quantity.
const UNIT: i128 = 1_000_000_000;

/// What the downward API can tell a container besides its manifest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Downward<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) uid: &'a str,
    /// Empty while it is not known.
    pub(crate) pod_ip: &'a str,
    pub(crate) node: &'a NodeFacts,
}

/// The variables in the manifest's order; the last of equal names is the one that counts.
pub(super) fn environment(container: &Container, downward: Downward<'_>) -> Result<Vec<EnvVar>, ConfigError> {
    for source in &container.env_from {
        if let Some(reference) = source.config_map_ref.as_ref() {
            require_optional("configmap", &reference.name, reference.optional)?;
        }
        if let Some(reference) = source.secret_ref.as_ref() {
            require_optional("secret", &reference.name, reference.optional)?;
        }
    }
    let mut known: BTreeMap<&str, String> = BTreeMap::new();
    for variable in &container.env {
        let value = match (&variable.value_from, variable.value.as_deref()) {
            (Some(source), None | Some("")) => from_source(&variable.name, source, container, downward)?,
            (_, text) => Some(expand(text.unwrap_or_default(), |name| {
                known.get(name).map(String::as_str)
            })),
        };
        if let Some(value) = value {
            known.insert(&variable.name, value);
        }
    }
    let mut ordered = Vec::with_capacity(known.len());
    for variable in &container.env {
        if let Some(value) = known.remove(variable.name.as_str()) {
            let name = variable.name.clone();
            ordered.push(EnvVar { name, value });
        }
    }
    Ok(ordered)
}

fn require_optional(kind: &'static str, name: &str, optional: Option<bool>) -> Result<(), ConfigError> {
    if optional == Some(true) {
        return Ok(());
    }
    Err(ConfigError::MissingObject {
        kind,
        name: name.to_owned(),
    })
}

/// None where the source is optional and not there: the variable is then not set.
fn from_source(
    variable: &str,
    source: &core::EnvVarSource,
    container: &Container,
    downward: Downward<'_>,
) -> Result<Option<String>, ConfigError> {
    if let Some(field) = &source.field_ref {
        return field_value(variable, &field.field_path, downward).map(Some);
    }
    if let Some(selector) = &source.resource_field_ref {
        return resource_value(variable, selector, container, downward).map(Some);
    }
    if let Some(reference) = &source.config_map_key_ref {
        return require_optional("configmap", &reference.name, reference.optional).map(|()| None);
    }
    if let Some(reference) = &source.secret_key_ref {
        return require_optional("secret", &reference.name, reference.optional).map(|()| None);
    }
    Err(ConfigError::EnvSource {
        variable: variable.to_owned(),
    })
}

fn field_value(variable: &str, path: &str, downward: Downward<'_>) -> Result<String, ConfigError> {
    let pod = downward.pod;
    let value = match path {
        "metadata.name" => pod.name().to_owned(),
        "metadata.namespace" => pod.namespace().to_owned(),
        "metadata.uid" => downward.uid.to_owned(),
        "spec.nodeName" => downward.node.name.clone(),
        "spec.serviceAccountName" => pod.spec.service_account_name.clone(),
        "status.podIP" | "status.podIPs" => downward.pod_ip.to_owned(),
        "status.hostIP" | "status.hostIPs" => downward.node.address.to_string(),
        _ => match subscript(path) {
            Some(("metadata.labels", key)) => entry(pod.metadata.labels.as_ref(), key),
            Some(("metadata.annotations", key)) => entry(pod.metadata.annotations.as_ref(), key),
            _ => {
                return Err(ConfigError::FieldPath {
                    variable: variable.to_owned(),
                    path: path.to_owned(),
                });
            }
        },
    };
    Ok(value)
}

fn entry(map: Option<&BTreeMap<String, String>>, key: &str) -> String {
    map.and_then(|map| map.get(key)).cloned().unwrap_or_default()
}

/// `metadata.labels['app']` as its field and its key.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (field, rest) = path.split_once("['")?;
    Some((field, rest.strip_suffix("']")?))
}

fn resource_value(
    variable: &str,
    selector: &core::ResourceFieldSelector,
    own: &Container,
    downward: Downward<'_>,
) -> Result<String, ConfigError> {
    let container = match selector.container_name.as_deref() {
        None | Some("") => own,
        Some(name) => find_container(downward.pod, name).ok_or_else(|| ConfigError::ResourceContainer {
            variable: variable.to_owned(),
            container: name.to_owned(),
        })?,
    };
    let unsupported = || ConfigError::Resource {
        variable: variable.to_owned(),
        resource: selector.resource.clone(),
    };
    let (side, resource) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let map = match side {
        "limits" => container.resources.limits.as_ref(),
        "requests" => container.resources.requests.as_ref(),
        _ => return Err(unsupported()),
    };
    let given = map.and_then(|map| map.get(resource));
    let nanos = match (given, side, resource) {
        (Some(quantity), _, _) => Amount::parse(&quantity.0).map_err(|_| unsupported())?.nanos(),
        // Without a limit the container may use all that the node has.
        (None, "limits", "cpu") => i128::from(downward.node.cpus) * UNIT,
        (None, "limits", "memory") => i128::from(downward.node.memory_bytes) * UNIT,
        (None, _, "cpu" | "memory" | "ephemeral-storage") => 0,
        (None, _, _) => return Err(unsupported()),
    };
    let divisor = match selector.divisor.as_ref().map(|quantity| quantity.0.as_str()) {
        None | Some("" | "0") => UNIT,
        Some(text) => Amount::parse(text).map_err(|_| unsupported())?.nanos(),
    };
    if divisor <= 0 {
        return Err(unsupported());
    }
    Ok(ceiling(nanos, divisor).to_string())
}

fn ceiling(amount: i128, divisor: i128) -> i128 {
    let whole = amount.div_euclid(divisor);
    if amount.rem_euclid(divisor) == 0 {
        whole
    } else {
        whole + 1
    }
}

/// A container of the pod by its name, init containers included.
pub(crate) fn find_container<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let all = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    all.into_iter().find(|container| container.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn resolve(env: &serde_json::Value) -> Result<Vec<(String, String)>, ConfigError> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "labels": {"app.kubernetes.io/name": "shop"}},
            "spec": {
                "serviceAccountName": "robot",
                "containers": [{
                    "name": "app", "env": env,
                    "resources": {"limits": {"cpu": "1500m", "memory": "64Mi"}},
                }],
            },
        }))
        .unwrap();
        let node = NodeFacts {
            name: "box".into(),
            address: [192, 0, 2, 7].into(),
            cpus: 4,
            memory_bytes: 1 << 30,
        };
        let downward = Downward {
            pod: &pod,
            uid: "u-1",
            pod_ip: "127.0.0.1",
            node: &node,
        };
        let variables = environment(&pod.spec.containers[0], downward)?;
        Ok(variables.into_iter().map(|v| (v.name, v.value)).collect())
    }

    fn field(path: &str) -> serde_json::Value {
        json!([{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}])
    }

    #[test]
    fn earlier_variables_can_be_used_and_the_last_of_a_name_counts() {
        let env = json!([
            {"name": "LATE", "value": "$(NOT_YET)"},
            {"name": "NOT_YET", "value": "a"},
            {"name": "BOTH", "value": "$(NOT_YET)-$$(NOT_YET)"},
            {"name": "NOT_YET", "value": "b"},
        ]);
        let expected = [("LATE", "$(NOT_YET)"), ("NOT_YET", "b"), ("BOTH", "a-$(NOT_YET)")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(resolve(&env).unwrap(), expected);
    }

    #[test]
    fn the_downward_api_knows_its_fields() {
        let cases = [
            ("metadata.name", "web"),
            ("metadata.namespace", "default"),
            ("metadata.uid", "u-1"),
            ("metadata.labels['app.kubernetes.io/name']", "shop"),
            ("metadata.annotations['none']", ""),
            ("spec.nodeName", "box"),
            ("spec.serviceAccountName", "robot"),
            ("status.podIP", "127.0.0.1"),
            ("status.hostIP", "192.0.2.7"),
        ];
        for (path, value) in cases {
            assert_eq!(resolve(&field(path)).unwrap()[0].1, value, "{path}");
        }
        assert!(resolve(&field("spec.restartPolicy")).is_err());
    }

    #[test]
    fn resources_are_divided_and_rounded_up() {
        let cases = [
            ("limits.cpu", None, "2"),
            ("limits.cpu", Some("1m"), "1500"),
            ("limits.memory", Some("1Mi"), "64"),
            ("requests.memory", None, "0"),
        ];
        for (resource, divisor, value) in cases {
            let env = json!([{"name": "X", "valueFrom": {"resourceFieldRef": {"resource": resource, "divisor": divisor}}}]);
            assert_eq!(resolve(&env).unwrap()[0].1, value, "{resource}");
        }
        let env = json!([{"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "limits.gold"}}}]);
        assert!(resolve(&env).is_err());
    }

    #[test]
    fn a_missing_secret_is_an_error_unless_it_is_optional() {
        let env = |optional: bool| json!([{"name": "X", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k", "optional": optional}}}]);
        assert_eq!(resolve(&env(true)).unwrap(), []);
        let message = resolve(&env(false)).unwrap_err().to_string();
        assert!(message.starts_with("secret \"keys\" not found"), "{message}");
    }
}
