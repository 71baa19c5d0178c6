//! The way to a node: logs, exec, attach and port-forward are answered there, not here.
//!
//! The server checks the request, finds the Pod's node and hands the request over in the form a kubelet takes, upgrades
//! included. How the node is reached is the backend's business.

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;

use crate::object::Object;
use crate::query::Query;
use crate::resource::{Kind, Subresource};
use crate::status::{ApiError, Reason};

/// Errors of bodies, which nobody can do anything about but stop.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// The body of a request or of an answer.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;

/// Where a request about a Pod goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRequest {
    /// The name of the node.
    pub node: String,
    /// Path and query in the form of a kubelet: `/containerLogs/NAMESPACE/POD/CONTAINER?follow=true`.
    pub path: String,
}

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("node {node:?} cannot be reached: {why}")]
    Reach { node: String, why: String },
}

/// Carries requests to nodes.
#[async_trait]
pub trait NodeBackend: std::fmt::Debug + Send + Sync + 'static {
    /// Sends a request to a node and returns its answer. A request for an upgrade carries it in its extensions, and an
    /// answer that grants it is followed by the bytes of both sides.
    async fn forward(&self, target: NodeRequest, request: Request<Body>)
    -> Result<Response<Body>, NodeError>;
}

/// Knows no node.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoNodes;

#[async_trait]
impl NodeBackend for NoNodes {
    async fn forward(&self, target: NodeRequest, _: Request<Body>) -> Result<Response<Body>, NodeError> {
        Err(NodeError::Reach {
            node: target.node,
            why: "this server has no connection to nodes".to_owned(),
        })
    }
}

impl From<NodeError> for ApiError {
    fn from(error: NodeError) -> Self {
        Self::new(
            Reason::ServiceUnavailable,
            format!("error dialing backend: {error}"),
        )
    }
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
        Subresource::Binding
        | Subresource::EphemeralContainers
        | Subresource::Eviction
        | Subresource::Finalize
        | Subresource::Status => return Err(ApiError::method_not_allowed()),
    };
    let query = match subresource {
        Subresource::Exec | Subresource::Attach => kubelet_streams(raw),
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
            [] => Err(ApiError::not_found(Kind::Pod.storage(), name)),
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
