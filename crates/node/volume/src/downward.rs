//! What the downward API gives a container about its pod and its node.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use pulselet_model::openapi::api::core::v1 as core;
use pulselet_model::quantity::Amount;
use pulselet_model::{Container, Pod};
use thiserror::Error;

use crate::facts::NodeFacts;

/// Nano-units in one unit of a quantity.
const UNIT: i128 = 1_000_000_000;

/// What can be given besides the manifest.
#[derive(Clone, Copy, Debug)]
pub struct Downward<'a> {
    pub pod: &'a Pod,
    pub uid: &'a str,
    /// The primary one first; empty while they are not known.
    pub pod_ips: &'a [IpAddr],
    pub node: &'a NodeFacts,
}

#[derive(Debug, Error)]
pub enum DownwardError {
    #[error("unsupported field path {path:?}")]
    FieldPath { path: String },
    #[error("unsupported resource {resource:?}")]
    Resource { resource: String },
    #[error("container {container:?} not found")]
    Container { container: String },
}

impl Downward<'_> {
    /// The value of a field; whole maps are lines of `key="value"`.
    pub fn field(&self, path: &str) -> Result<String, DownwardError> {
        let pod = self.pod;
        let value = match path {
            "metadata.name" => pod.name().to_owned(),
            "metadata.namespace" => pod.namespace().to_owned(),
            "metadata.uid" => self.uid.to_owned(),
            "metadata.labels" => lines(pod.metadata.labels.as_ref()),
            "metadata.annotations" => lines(pod.metadata.annotations.as_ref()),
            "spec.nodeName" => self.node.name.clone(),
            "spec.serviceAccountName" => pod.spec.service_account_name.clone(),
            "status.podIP" => self.pod_ips.first().map(ToString::to_string).unwrap_or_default(),
            "status.podIPs" => {
                let all: Vec<String> = self.pod_ips.iter().map(ToString::to_string).collect();
                all.join(",")
            }
            "status.hostIP" | "status.hostIPs" => self.node.address.to_string(),
            _ => match subscript(path) {
                Some(("metadata.labels", key)) => entry(pod.metadata.labels.as_ref(), key),
                Some(("metadata.annotations", key)) => entry(pod.metadata.annotations.as_ref(), key),
                _ => {
                    return Err(DownwardError::FieldPath {
                        path: path.to_owned(),
                    });
                }
            },
        };
        Ok(value)
    }

    /// A limit or request, divided and rounded up. `own` is the container that is meant when none is named.
    pub fn resource(
        &self,
        selector: &core::ResourceFieldSelector,
        own: Option<&Container>,
    ) -> Result<String, DownwardError> {
        let name = selector.container_name.as_deref().unwrap_or_default();
        let container = own
            .filter(|_| name.is_empty())
            .map(Cow::Borrowed)
            .or_else(|| self.pod.find_container(name));
        let container = container.ok_or_else(|| DownwardError::Container {
            container: name.to_owned(),
        })?;
        let unsupported = || DownwardError::Resource {
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
            // Without a limit the container may use all that pods may.
            (None, "limits", "cpu") => i128::from(self.node.allocatable.cpu_millis) * (UNIT / 1000),
            (None, "limits", "memory") => i128::from(self.node.allocatable.memory) * UNIT,
            (None, "limits", "ephemeral-storage") => {
                i128::from(self.node.allocatable.ephemeral_storage) * UNIT
            }
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
}

fn entry(map: Option<&BTreeMap<String, String>>, key: &str) -> String {
    map.and_then(|map| map.get(key)).cloned().unwrap_or_default()
}

fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<_> = map
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", quoted(value)))
        .collect();
    lines.join("\n")
}

/// In quotes and on one line, as a kubelet writes it.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        let escape = match character {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            '\x07' => "\\a",
            '\x08' => "\\b",
            '\x0b' => "\\v",
            '\x0c' => "\\f",
            other if other.is_control() => {
                let code = u32::from(other);
                // Writing to a string does not fail.
                let _ = if code < 0x80 {
                    write!(out, "\\x{code:02x}")
                } else {
                    write!(out, "\\u{code:04x}")
                };
                continue;
            }
            other => {
                out.push(other);
                continue;
            }
        };
        out.push_str(escape);
    }
    out.push('"');
    out
}

/// `metadata.labels['app']` as its field and its key.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (field, rest) = path.split_once("['")?;
    Some((field, rest.strip_suffix("']")?))
}

fn ceiling(amount: i128, divisor: i128) -> i128 {
    let whole = amount.div_euclid(divisor);
    if amount.rem_euclid(divisor) == 0 {
        whole
    } else {
        whole + 1
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::facts::tests::node_box;
    use serde_json::json;

    fn with<R>(f: impl FnOnce(Downward<'_>) -> R) -> R {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {
                "name": "web",
                "labels": {"app.kubernetes.io/name": "shop", "a": "1"},
                "annotations": {"note": "say \"hi\"\n\u{1}ä\\"},
            },
            "spec": {
                "serviceAccountName": "robot",
                "containers": [{
                    "name": "app",
                    "resources": {"limits": {"cpu": "1500m", "memory": "64Mi"}},
                }],
            },
        }))
        .unwrap();
        let node = node_box();
        f(Downward {
            pod: &pod,
            uid: "u-1",
            pod_ips: &[IpAddr::V4(Ipv4Addr::LOCALHOST)],
            node: &node,
        })
    }

    #[test]
    fn the_fields_are_known() {
        let cases = [
            ("metadata.name", "web"),
            ("metadata.namespace", "default"),
            ("metadata.uid", "u-1"),
            ("metadata.labels", "a=\"1\"\napp.kubernetes.io/name=\"shop\""),
            ("metadata.annotations", r#"note="say \"hi\"\n\x01ä\\""#),
            ("metadata.labels['app.kubernetes.io/name']", "shop"),
            ("metadata.annotations['none']", ""),
            ("spec.nodeName", "box"),
            ("spec.serviceAccountName", "robot"),
            ("status.podIP", "127.0.0.1"),
            ("status.hostIP", "192.0.2.7"),
        ];
        with(|downward| {
            for (path, value) in cases {
                assert_eq!(downward.field(path).unwrap(), value, "{path}");
            }
            assert!(downward.field("spec.restartPolicy").is_err());
        });
    }

    #[test]
    fn resources_are_divided_and_rounded_up() {
        let resource = |downward: Downward<'_>, resource: &str, divisor: Option<&str>, named: &str| {
            let selector = json!({"resource": resource, "divisor": divisor, "containerName": named});
            let own = (named.is_empty()).then(|| &downward.pod.spec.containers[0]);
            downward.resource(&serde_json::from_value(selector).unwrap(), own)
        };
        let cases = [
            ("limits.cpu", None, "2"),
            ("limits.cpu", Some("1m"), "1500"),
            ("limits.memory", Some("1Mi"), "64"),
            ("requests.memory", None, "0"),
        ];
        with(|downward| {
            for (name, divisor, value) in cases {
                assert_eq!(resource(downward, name, divisor, "").unwrap(), value, "{name}");
                assert_eq!(resource(downward, name, divisor, "app").unwrap(), value, "{name}");
            }
            assert!(matches!(
                resource(downward, "limits.gold", None, ""),
                Err(DownwardError::Resource { .. })
            ));
            assert!(matches!(
                resource(downward, "limits.cpu", None, "other"),
                Err(DownwardError::Container { .. })
            ));
        });
    }
}
