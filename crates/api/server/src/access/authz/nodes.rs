//! What a node may do: look after itself and after the Pods bound to it, and nothing else.
//!
//! That is its own Node object and lease, the Pods bound to it and their status, the config maps, secrets and service
//! accounts that those Pods name, and events. A node that is broken into can harm its own Pods, not those of others.
//! Here is decided what the path and the query tell; `registry::restriction` looks at what is written.

use serde_json::Value;

use super::Access;
use crate::access::attributes::ResourceAttributes;
use crate::registry::Registry;
use crate::registry::object::Object;
use crate::registry::plain::{NodeAccess, PlainKind};
use crate::registry::resource::{ResourceKind, Subresource};
use crate::rest::route::Verb;
use crate::rest::status::{ApiError, StatusReason};

/// Where the leases of nodes are.
const LEASE_NAMESPACE: &str = "kube-node-lease";

/// Whether a node may ask this about others: its own endpoint has callers, too.
pub(super) fn may_review(asked: &ResourceAttributes) -> bool {
    let kind = (asked.group.as_str(), asked.resource.as_str());
    asked.verb == "create"
        && matches!(
            kind,
            ("authentication.k8s.io", "tokenreviews")
                | (
                    "authorization.k8s.io",
                    "subjectaccessreviews" | "localsubjectaccessreviews"
                )
        )
}

pub(super) async fn allows(node: &str, registry: &Registry, access: Access<'_>) -> Result<bool, ApiError> {
    match access.path.endpoint.kind {
        ResourceKind::Node => Ok(own_node(node, access)),
        ResourceKind::Lease => Ok(own_lease(node, access)),
        ResourceKind::Event => Ok(matches!(access.verb, Verb::Create | Verb::Update | Verb::Patch)),
        ResourceKind::Pod => own_pod(node, registry, access).await,
        ResourceKind::ConfigMap | ResourceKind::Secret => {
            let reads = matches!(access.verb, Verb::Get | Verb::List | Verb::Watch);
            Ok(reads && used_by_own_pod(node, registry, access).await?)
        }
        ResourceKind::ServiceAccount => {
            // For which pod a token is, is checked when the body is read.
            let asked = match access.path.subresource {
                None => access.verb == Verb::Get,
                Some(Subresource::Token) => access.verb == Verb::Create,
                Some(_) => false,
            };
            Ok(asked && used_by_own_pod(node, registry, access).await?)
        }
        ResourceKind::Plain(kind) => of_table(node, kind, registry, access).await,
        ResourceKind::Namespace => Ok(false),
    }
}

async fn of_table(
    node: &str,
    kind: PlainKind,
    registry: &Registry,
    access: Access<'_>,
) -> Result<bool, ApiError> {
    let whole = access.path.subresource.is_none();
    match kind.row().node_access {
        NodeAccess::Nothing | NodeAccess::ByRoles => Ok(false),
        NodeAccess::Read => Ok(whole && matches!(access.verb, Verb::Get | Verb::List | Verb::Watch)),
        NodeAccess::OfItsName => Ok(whole
            && match access.verb {
                // Under which name is seen when the body is.
                Verb::Create => true,
                Verb::Get | Verb::List | Verb::Watch | Verb::Update | Verb::Patch | Verb::Delete => {
                    subject(&access) == Some(node)
                }
                Verb::DeleteCollection => false,
            }),
        NodeAccess::OfItsPods(_) => {
            Ok(whole && access.verb == Verb::Get && used_by_own_pod(node, registry, access).await?)
        }
    }
}

/// The name that a request is about, from the path or from the selector; `None` if neither has one.
fn subject<'a>(access: &Access<'a>) -> Option<&'a str> {
    match access.verb {
        Verb::List | Verb::Watch => access.selector?.required_field("metadata.name"),
        Verb::Get | Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection => {
            access.path.name.as_deref()
        }
    }
}

fn own_node(node: &str, access: Access<'_>) -> bool {
    let part = matches!(access.path.subresource, None | Some(Subresource::Status));
    let verb = match access.verb {
        // Under which name is seen when the body is.
        Verb::Create => true,
        Verb::Get | Verb::List | Verb::Watch | Verb::Update | Verb::Patch => subject(&access) == Some(node),
        Verb::Delete | Verb::DeleteCollection => false,
    };
    part && verb
}

fn own_lease(node: &str, access: Access<'_>) -> bool {
    let verb = match access.verb {
        Verb::Create => true,
        Verb::Get | Verb::Update | Verb::Patch | Verb::Delete => subject(&access) == Some(node),
        Verb::List | Verb::Watch | Verb::DeleteCollection => false,
    };
    verb && access.path.namespace.as_deref() == Some(LEASE_NAMESPACE)
}

async fn own_pod(node: &str, registry: &Registry, access: Access<'_>) -> Result<bool, ApiError> {
    match (access.verb, access.path.subresource) {
        (Verb::List | Verb::Watch, None) => {
            let selected = access
                .selector
                .and_then(|selector| selector.required_field("spec.nodeName"));
            Ok(selected == Some(node))
        }
        (Verb::Get, None | Some(Subresource::Status)) => bound_to(node, registry, access).await,
        // Whether the Pod is a mirror, and whether it is bound to this node, is checked on the very version that is
        // written: `registry::restriction`.
        (Verb::Create | Verb::Delete, None)
        | (Verb::Update | Verb::Patch, Some(Subresource::Status))
        | (Verb::Create, Some(Subresource::Eviction)) => Ok(true),
        _ => Ok(false),
    }
}

async fn bound_to(node: &str, registry: &Registry, access: Access<'_>) -> Result<bool, ApiError> {
    match registry.get(access.path).await {
        Ok(pod) => Ok(pod.text("/spec/nodeName") == node),
        // The request will find out itself; a node must be able to see that its Pod is gone.
        Err(error) if error.reason == StatusReason::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

async fn used_by_own_pod(node: &str, registry: &Registry, access: Access<'_>) -> Result<bool, ApiError> {
    let (Some(name), Some(namespace)) = (subject(&access), access.path.namespace.as_deref()) else {
        return Ok(false);
    };
    // Nodes ask often, for every volume again and again. A name has no character that JSON would write otherwise.
    let pods = registry.mentioning(ResourceKind::Pod, namespace, name).await?;
    let kind = access.path.endpoint.kind;
    Ok(pods
        .iter()
        .filter(|pod| pod.text("/spec/nodeName") == node)
        // A node makes mirrors itself, and must not give itself access by what it writes into one.
        .filter(|pod| !pod.is_mirror_pod())
        .any(|pod| uses(pod, kind, name)))
}

/// Whether a Pod names an object of a kind anywhere in its spec.
fn uses(pod: &Object, kind: ResourceKind, name: &str) -> bool {
    if kind == ResourceKind::ServiceAccount {
        return pod.text("/spec/serviceAccountName") == name;
    }
    pod.value()
        .get("spec")
        .is_some_and(|spec| mentions(spec, kind, name))
}

/// Looks for the fields that name objects of a kind: of volumes, environment and image pulls.
fn mentions(value: &Value, kind: ResourceKind, name: &str) -> bool {
    let fields: &[(&str, &str)] = match kind {
        ResourceKind::ConfigMap => &[
            ("configMap", "name"),
            ("configMapRef", "name"),
            ("configMapKeyRef", "name"),
        ],
        ResourceKind::Secret => &[
            ("secret", "secretName"),
            ("secret", "name"),
            ("secretRef", "name"),
            ("secretKeyRef", "name"),
        ],
        ResourceKind::Plain(kind) => match kind.row().node_access {
            NodeAccess::OfItsPods(fields) => fields,
            NodeAccess::Nothing | NodeAccess::ByRoles | NodeAccess::Read | NodeAccess::OfItsName => &[],
        },
        ResourceKind::Event
        | ResourceKind::Lease
        | ResourceKind::Namespace
        | ResourceKind::Node
        | ResourceKind::Pod
        | ResourceKind::ServiceAccount => &[],
    };
    match value {
        Value::Object(map) => map.iter().any(|(key, value)| {
            let named = fields.iter().any(|(field, inner)| {
                key == field && value.get(*inner).and_then(Value::as_str) == Some(name)
            });
            let pulls = kind == ResourceKind::Secret
                && key == "imagePullSecrets"
                && value
                    .as_array()
                    .is_some_and(|secrets| secrets.iter().any(|secret| secret["name"] == name));
            named || pulls || mentions(value, kind, name)
        }),
        Value::Array(items) => items.iter().any(|item| mentions(item, kind, name)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_uses_what_its_spec_names() {
        let pod = Object::new(json!({"metadata": {}, "spec": {
            "serviceAccountName": "sa",
            "imagePullSecrets": [{"name": "pull"}],
            "volumes": [{"name": "v", "secret": {"secretName": "vol"}},
                        {"name": "p", "projected": {"sources": [{"configMap": {"name": "proj"}}]}}],
            "containers": [{"name": "c", "envFrom": [{"secretRef": {"name": "env"}}],
                "env": [{"name": "E", "valueFrom": {"configMapKeyRef": {"name": "key", "key": "k"}}}]}],
        }}))
        .unwrap();
        for name in ["pull", "vol", "env"] {
            assert!(uses(&pod, ResourceKind::Secret, name), "{name}");
            assert!(!uses(&pod, ResourceKind::ConfigMap, name), "{name}");
        }
        for name in ["proj", "key"] {
            assert!(uses(&pod, ResourceKind::ConfigMap, name), "{name}");
            assert!(!uses(&pod, ResourceKind::Secret, name), "{name}");
        }
        assert!(uses(&pod, ResourceKind::ServiceAccount, "sa"));
        assert!(!uses(&pod, ResourceKind::Secret, "v"));
    }
}
