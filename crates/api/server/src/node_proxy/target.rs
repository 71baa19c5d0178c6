//! Where a request about a running Pod goes: the Pod's node, and a path in the form that a kubelet takes.

use crate::registry::object::Object;
use crate::registry::resource::{ResourceKind, Subresource};
use crate::rest::query::Query;
use crate::rest::status::ApiError;

/// Where a request about a Pod goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeRequest {
    /// The name of the node.
    pub(crate) node: String,
    /// Path and query in the form of a kubelet: `/containerLogs/NAMESPACE/POD/CONTAINER?follow=true`.
    pub(crate) path: String,
}

/// Checks a request about a running Pod and says where it goes.
pub(crate) fn target(
    pod: &Object,
    subresource: Subresource,
    query: &Query,
    raw: &str,
) -> Result<NodeRequest, ApiError> {
    let (namespace, name) = (pod.namespace(), pod.name());
    let node = pod.text("/spec/nodeName");
    if node.is_empty() {
        return Err(ApiError::bad_request(format!(
            "pod {name} does not have a host assigned"
        )));
    }
    let path = match subresource {
        Subresource::PortForward => format!("/portForward/{namespace}/{name}"),
        Subresource::Log | Subresource::Exec | Subresource::Attach => {
            let container = container(pod, query.text("container"))?;
            let verb = match subresource {
                Subresource::Log => "containerLogs",
                Subresource::Exec => "exec",
                _ => "attach",
            };
            format!("/{verb}/{namespace}/{name}/{container}")
        }
        Subresource::Approval
        | Subresource::Binding
        | Subresource::EphemeralContainers
        | Subresource::Eviction
        | Subresource::Finalize
        | Subresource::Proxy
        | Subresource::Resize
        | Subresource::Scale
        | Subresource::Status
        | Subresource::Token => return Err(ApiError::method_not_allowed()),
    };
    let query = match subresource {
        Subresource::Exec | Subresource::Attach => kubelet_streams(raw),
        Subresource::PortForward => kubelet_ports(raw),
        _ => raw.to_owned(),
    };
    let separator = if query.is_empty() { "" } else { "?" };
    Ok(NodeRequest {
        node: node.to_owned(),
        path: format!("{path}{separator}{query}"),
    })
}

/// The container a request is about: the one named, or the only one.
fn container(pod: &Object, asked: &str) -> Result<String, ApiError> {
    let names = |field: &str| -> Vec<String> {
        let list = pod.value().pointer(&format!("/spec/{field}"));
        let items = list.and_then(serde_json::Value::as_array).into_iter().flatten();
        items
            .filter_map(|container| container["name"].as_str().map(str::to_owned))
            .collect()
    };
    let (main, init, ephemeral) = (
        names("containers"),
        names("initContainers"),
        names("ephemeralContainers"),
    );
    let name = pod.name();
    if asked.is_empty() {
        return match main.as_slice() {
            [] => Err(ApiError::not_found(ResourceKind::Pod.storage(), name)),
            [only] => Ok(only.clone()),
            _ => {
                let choices = main.join(" ");
                Err(ApiError::bad_request(format!(
                    "a container name must be specified for pod {name}, choose one of: [{choices}]"
                )))
            }
        };
    }
    if main
        .iter()
        .chain(&init)
        .chain(&ephemeral)
        .any(|known| known == asked)
    {
        Ok(asked.to_owned())
    } else {
        Err(ApiError::bad_request(format!(
            "container {asked} is not valid for pod {name}"
        )))
    }
}

/// A kubelet has other names for the streams of exec and attach.
fn kubelet_streams(query: &str) -> String {
    let renamed = query.split('&').filter_map(|part| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let on = || matches!(value, "1" | "true");
        match name {
            "stdin" => on().then(|| "input=1".to_owned()),
            "stdout" => on().then(|| "output=1".to_owned()),
            "stderr" => on().then(|| "error=1".to_owned()),
            "tty" => on().then(|| "tty=1".to_owned()),
            "container" | "" => None,
            _ => Some(part.to_owned()),
        }
    });
    renamed.collect::<Vec<_>>().join("&")
}

/// The ports that old clients name beforehand, under a kubelet's name for them.
fn kubelet_ports(query: &str) -> String {
    let ports = query.split('&').filter_map(|part| part.strip_prefix("ports="));
    ports
        .map(|ports| format!("port={ports}"))
        .collect::<Vec<_>>()
        .join("&")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(containers: &[&str]) -> Object {
        let containers: Vec<_> = containers.iter().map(|name| json!({"name": name})).collect();
        Object::new(json!({
            "metadata": {"name": "web", "namespace": "ns"},
            "spec": {"nodeName": "n1", "containers": containers},
        }))
        .unwrap()
    }

    fn path(pod: &Object, subresource: Subresource, raw: &str) -> Result<String, String> {
        target(pod, subresource, &Query::parse(raw).unwrap(), raw)
            .map(|target| target.path)
            .map_err(|error| error.message)
    }

    #[test]
    fn requests_take_the_form_a_kubelet_knows() {
        let one = pod(&["app"]);
        assert_eq!(
            path(&one, Subresource::Log, "follow=true").unwrap(),
            "/containerLogs/ns/web/app?follow=true"
        );
        assert_eq!(
            path(
                &one,
                Subresource::Exec,
                "container=app&command=a%20b&stdin=true&stdout=1&tty=false"
            )
            .unwrap(),
            "/exec/ns/web/app?command=a%20b&input=1&output=1"
        );
        assert_eq!(
            path(&one, Subresource::PortForward, "").unwrap(),
            "/portForward/ns/web"
        );
        assert_eq!(
            path(&one, Subresource::PortForward, "ports=80&ports=443").unwrap(),
            "/portForward/ns/web?port=80&port=443"
        );
    }

    #[test]
    fn a_request_about_no_container_is_refused() {
        let two = pod(&["a", "b"]);
        assert!(
            path(&two, Subresource::Log, "")
                .unwrap_err()
                .contains("choose one of: [a b]")
        );
        assert!(
            path(&two, Subresource::Log, "container=c")
                .unwrap_err()
                .contains("is not valid")
        );
        let mut unbound = pod(&["a"]);
        unbound.value_mut()["spec"]["nodeName"] = json!("");
        assert!(
            path(&unbound, Subresource::Log, "")
                .unwrap_err()
                .contains("host assigned")
        );
    }
}
