//! What a node may write: itself, its lease, mirrors of its static Pods, and the status of the Pods bound to it.
//!
//! These are the rules of upstream's `NodeRestriction` admission. They look at what is sent and at the very version
//! that is replaced, which `access` cannot: it decides before the body is read. A node that is broken into must neither
//! read what its Pods do not use (so a mirror names no other object) nor draw Pods to itself (so labels and taints that
//! placement goes by are not its to change).

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::Registry;
use crate::registry::object::Object;
use crate::registry::plain::{NodeAccess, PlainKind};
use crate::registry::resource::{ObjectPath, ResourceKind, Subresource};
use crate::rest::status::ApiError;

/// Where the leases of nodes are.
const LEASE_NAMESPACE: &str = "kube-node-lease";
/// Labels under this prefix are for the administrator to tell nodes apart by.
const RESTRICTED_LABELS: &str = "node-restriction.kubernetes.io";
/// The labels of Kubernetes that a node sets about itself.
const NODE_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
];
/// The prefixes of Kubernetes under which a node sets labels about itself.
const NODE_LABEL_PREFIXES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// The kinds of volumes that are served by the machine, or by a server that is no part of the API.
const LOCAL_VOLUMES: [&str; 22] = [
    "awsElasticBlockStore",
    "azureDisk",
    "cephfs",
    "cinder",
    "downwardAPI",
    "emptyDir",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];
/// The other kinds of volumes, and what they name.
const API_VOLUMES: [(&str, &str); 7] = [
    ("configMap", "configmaps (via configmap volumes)"),
    ("secret", "secrets (via secret volumes)"),
    ("csi", "csidrivers (via CSI volumes)"),
    ("glusterfs", "endpoints (via glusterFS volumes)"),
    ("persistentVolumeClaim", "persistentvolumeclaims"),
    ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
    ("azureFile", "secrets (via azureFile volumes)"),
];
const PROJECTED_SOURCES: [(&str, &str); 5] = [
    ("configMap", "configmaps (via projected volumes)"),
    ("secret", "secrets (via projected volumes)"),
    ("serviceAccountToken", "serviceaccounts (via projected volumes)"),
    ("clusterTrustBundle", "clustertrustbundles"),
    ("podCertificate", "podcertificates"),
];

/// The members of a Pod's spec that name a secret or a config map, wherever they are.
const SECRET_MEMBERS: [&str; 4] = ["secret", "secretRef", "secretKeyRef", "nodePublishSecretRef"];
const CONFIG_MAP_MEMBERS: [&str; 3] = ["configMap", "configMapRef", "configMapKeyRef"];

impl Registry {
    /// Whether a node may create this object.
    pub(super) async fn restrict_create(
        &self,
        node: &str,
        path: &ObjectPath,
        object: &Object,
    ) -> Result<(), ApiError> {
        let refused = |why: String| ApiError::forbidden(path.endpoint, object.name(), &why);
        match path.endpoint.kind {
            ResourceKind::Pod => {
                check_mirror(node, object).map_err(refused)?;
                if let Some(uid) = owner(node, object).map_err(refused)? {
                    let own = ObjectPath::stored(ResourceKind::Node, None, node);
                    let found = self.get(&own).await?;
                    if uid != found.uid() {
                        let why = format!("node {node} UID mismatch: expected {uid} got {}", found.uid());
                        return Err(refused(why));
                    }
                }
                match reference(object) {
                    Some(resource) => Err(refused(format!(
                        "node {node:?} can not create pods that reference {resource}"
                    ))),
                    None => Ok(()),
                }
            }
            ResourceKind::Node => check_new_node(node, object).map_err(refused),
            ResourceKind::Lease => check_lease(node, path, object).map_err(refused),
            ResourceKind::Event => Ok(()),
            ResourceKind::Plain(kind) => check_own(node, kind, path, object).map_err(refused),
            ResourceKind::ConfigMap
            | ResourceKind::Namespace
            | ResourceKind::Secret
            | ResourceKind::ServiceAccount => Err(refused(never(node, path))),
        }
    }
}

/// Whether a node may turn one version of an object into another.
pub(super) fn check_update(
    node: &str,
    path: &ObjectPath,
    old: &Object,
    new: &Object,
) -> Result<(), ApiError> {
    let checked = match path.endpoint.kind {
        ResourceKind::Pod => check_pod_status(node, path, old, new),
        ResourceKind::Node => check_node(node, old, new),
        ResourceKind::Lease => check_lease(node, path, old),
        ResourceKind::Event => Ok(()),
        ResourceKind::Plain(kind) => check_own(node, kind, path, old),
        ResourceKind::ConfigMap
        | ResourceKind::Namespace
        | ResourceKind::Secret
        | ResourceKind::ServiceAccount => Err(never(node, path)),
    };
    checked.map_err(|why| ApiError::forbidden(path.endpoint, old.name(), &why))
}

/// Whether a node may delete or evict an object.
pub(super) fn check_delete(node: &str, path: &ObjectPath, object: &Object) -> Result<(), ApiError> {
    let checked = match path.endpoint.kind {
        ResourceKind::Pod if object.text("/spec/nodeName") == node => Ok(()),
        ResourceKind::Pod => Err(format!(
            "node {node:?} can only delete pods with spec.nodeName set to itself"
        )),
        ResourceKind::Lease => check_lease(node, path, object),
        ResourceKind::Plain(kind) => check_own(node, kind, path, object),
        ResourceKind::ConfigMap
        | ResourceKind::Event
        | ResourceKind::Namespace
        | ResourceKind::Node
        | ResourceKind::Secret
        | ResourceKind::ServiceAccount => Err(never(node, path)),
    };
    checked.map_err(|why| ApiError::forbidden(path.endpoint, object.name(), &why))
}

fn never(node: &str, path: &ObjectPath) -> String {
    format!("node {node:?} may not change {}", path.endpoint.info().plural)
}

/// A kind of which each node has one object, by its own name.
fn check_own(node: &str, kind: PlainKind, path: &ObjectPath, object: &Object) -> Result<(), String> {
    match kind.row().node_access {
        NodeAccess::OfItsName if object.name() == node => Ok(()),
        NodeAccess::OfItsName => Err(format!(
            "node {node:?} can only access the {} with its own name",
            kind.info().singular
        )),
        NodeAccess::ByRoles => Ok(()),
        NodeAccess::Nothing | NodeAccess::Read | NodeAccess::OfItsPods(_) => Err(never(node, path)),
    }
}

fn check_mirror(node: &str, pod: &Object) -> Result<(), String> {
    if !pod.is_mirror_pod() {
        return Err(format!(
            "pod does not have {:?} annotation, node {node:?} can only create mirror pods",
            crate::registry::object::MIRROR_POD
        ));
    }
    if pod.text("/spec/nodeName") != node {
        return Err(format!(
            "node {node:?} can only create pods with spec.nodeName set to itself"
        ));
    }
    Ok(())
}

/// The uid of the Node that a mirror says owns it; `None` if nobody does.
fn owner<'a>(node: &str, pod: &'a Object) -> Result<Option<&'a str>, String> {
    let owners = pod.metadata().get("ownerReferences").and_then(Value::as_array);
    let owner = match owners.map(Vec::as_slice) {
        None | Some([]) => return Ok(None),
        Some([owner]) => owner,
        Some(_) => {
            return Err(format!(
                "node {node:?} can only create pods with a single owner reference set to itself"
            ));
        }
    };
    let text = |field: &str| owner[field].as_str().unwrap_or_default();
    if (text("apiVersion"), text("kind"), text("name")) != ("v1", "Node", node) {
        return Err(format!(
            "node {node:?} can only create pods with an owner reference set to itself"
        ));
    }
    if owner["blockOwnerDeletion"] == true {
        return Err(format!(
            "node {node:?} must not set blockOwnerDeletion on an owner reference"
        ));
    }
    Ok(Some(owner["uid"].as_str().unwrap_or_default()))
}

/// The kind of object that a Pod names; `None` if it can run without the API.
fn reference(pod: &Object) -> Option<&'static str> {
    let account = |field: &str| !pod.text(&format!("/spec/{field}")).is_empty();
    if account("serviceAccountName") || account("serviceAccount") {
        return Some("serviceaccounts");
    }
    let spec = pod.value().get("spec")?;
    let is_filled = |field: &str| {
        let items = spec.get(field).and_then(Value::as_array);
        items.is_some_and(|items| !items.is_empty())
    };
    if is_filled("imagePullSecrets") || has_member(spec, &SECRET_MEMBERS) {
        return Some("secrets");
    }
    if has_member(spec, &CONFIG_MAP_MEMBERS) {
        return Some("configmaps");
    }
    if is_filled("resourceClaims") {
        return Some("resourceclaims");
    }
    let volumes = spec.get("volumes").and_then(Value::as_array);
    volumes.into_iter().flatten().find_map(volume_reference)
}

/// Whether an object is anywhere under one of these names. Maps with free keys hold text, not objects.
fn has_member(value: &Value, names: &[&str]) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(key, value)| {
            (value.is_object() && names.contains(&key.as_str())) || has_member(value, names)
        }),
        Value::Array(items) => items.iter().any(|item| has_member(item, names)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn volume_reference(volume: &Value) -> Option<&'static str> {
    let named = |value: &Value, table: &[(&str, &'static str)]| {
        let (_, resource) = table.iter().find(|(member, _)| value.get(*member).is_some())?;
        Some(*resource)
    };
    if let Some(resource) = named(volume, &API_VOLUMES) {
        return Some(resource);
    }
    if let Some(projected) = volume.get("projected") {
        let sources = projected.get("sources").and_then(Value::as_array);
        let mut sources = sources.into_iter().flatten();
        return sources.find_map(|source| {
            let is_local = source.get("downwardAPI").is_some();
            named(source, &PROJECTED_SOURCES).or_else(|| (!is_local).then_some("an unknown projected source"))
        });
    }
    let is_local = LOCAL_VOLUMES.iter().any(|member| volume.get(*member).is_some());
    (!is_local).then_some("an unknown volume type")
}

fn check_pod_status(node: &str, path: &ObjectPath, old: &Object, new: &Object) -> Result<(), String> {
    if path.subresource != Some(Subresource::Status) {
        return Err(format!("node {node:?} can only create and delete mirror pods"));
    }
    if old.text("/spec/nodeName") != node {
        return Err(format!(
            "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
        ));
    }
    let differs = |pointer: &str| filled(old, pointer) != filled(new, pointer);
    if differs("/metadata/labels") {
        return Err(format!("node {node:?} cannot update labels through pod status"));
    }
    if differs("/status/resourceClaimStatuses") {
        return Err(format!("node {node:?} cannot update resource claim statuses"));
    }
    if differs("/status/extendedResourceClaimStatus") {
        return Err(format!(
            "node {node:?} cannot update extended resource claim status"
        ));
    }
    Ok(())
}

/// A part of an object; `None` if it is missing, null or empty, which all mean the same.
fn filled<'a>(object: &'a Object, pointer: &str) -> Option<&'a Value> {
    object.value().pointer(pointer).filter(|value| match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    })
}

fn check_lease(node: &str, path: &ObjectPath, lease: &Object) -> Result<(), String> {
    if path.namespace.as_deref() != Some(LEASE_NAMESPACE) {
        return Err(format!(
            "can only access leases in the {LEASE_NAMESPACE:?} system namespace"
        ));
    }
    if lease.name() == node {
        Ok(())
    } else {
        Err("can only access node lease with the same name as the requesting node".to_owned())
    }
}

fn check_new_node(node: &str, new: &Object) -> Result<(), String> {
    check_name(node, new)?;
    if filled(new, "/spec/configSource").is_some() {
        return Err(format!("node {node:?} is not allowed to set a configSource"));
    }
    if filled(new, "/metadata/ownerReferences").is_some() {
        return Err(format!("node {node:?} is not allowed to set ownerReferences"));
    }
    match restricted(None, labels(new)) {
        labels if labels.is_empty() => Ok(()),
        labels => Err(format!(
            "node {node:?} is not allowed to set the following labels: {}",
            joined(&labels)
        )),
    }
}

fn check_node(node: &str, old: &Object, new: &Object) -> Result<(), String> {
    check_name(node, old)?;
    let differs = |pointer: &str| filled(old, pointer) != filled(new, pointer);
    if filled(new, "/spec/configSource").is_some() && differs("/spec/configSource") {
        return Err(format!("node {node:?} is not allowed to set a configSource"));
    }
    if differs("/spec/taints") {
        return Err(format!("node {node:?} is not allowed to modify taints"));
    }
    if differs("/metadata/ownerReferences") {
        return Err(format!("node {node:?} is not allowed to modify ownerReferences"));
    }
    match restricted(labels(old), labels(new)) {
        labels if labels.is_empty() => Ok(()),
        labels => Err(format!("is not allowed to modify labels: {}", joined(&labels))),
    }
}

fn check_name(node: &str, object: &Object) -> Result<(), String> {
    let name = object.name();
    if name == node {
        Ok(())
    } else {
        Err(format!("node {node:?} is not allowed to modify node {name:?}"))
    }
}

fn labels(object: &Object) -> Option<&Map<String, Value>> {
    object.metadata().get("labels").and_then(Value::as_object)
}

fn joined(labels: &BTreeSet<&str>) -> String {
    let labels: Vec<&str> = labels.iter().copied().collect();
    labels.join(", ")
}

/// The labels that are added, changed or removed and are not a node's to set.
fn restricted<'a>(
    old: Option<&'a Map<String, Value>>,
    new: Option<&'a Map<String, Value>>,
) -> BTreeSet<&'a str> {
    let value = |labels: Option<&'a Map<String, Value>>, key: &str| labels.and_then(|labels| labels.get(key));
    let keys = old.into_iter().chain(new).flat_map(Map::keys);
    keys.map(String::as_str)
        .filter(|key| value(old, key) != value(new, key))
        .filter(|key| is_restricted(key))
        .collect()
}

fn is_restricted(label: &str) -> bool {
    let Some((prefix, _)) = label.split_once('/') else {
        return false;
    };
    let is_under = |domain: &str| {
        let rest = prefix.strip_suffix(domain);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let of_kubernetes = is_under("kubernetes.io") || is_under("k8s.io");
    let of_nodes = NODE_LABELS.contains(&label) || NODE_LABEL_PREFIXES.into_iter().any(is_under);
    is_under(RESTRICTED_LABELS) || (of_kubernetes && !of_nodes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_of_kubernetes_are_restricted_except_those_that_describe_a_node() {
        for label in [
            "node-restriction.kubernetes.io/a",
            "x.node-restriction.kubernetes.io/a",
            "kubernetes.io/a",
            "node-role.kubernetes.io/control-plane",
            "k8s.io/a",
            "x.k8s.io/a",
        ] {
            assert!(is_restricted(label), "{label}");
        }
        for label in [
            "plain",
            "example.com/a",
            "notkubernetes.io/a",
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
            "kubelet.kubernetes.io/a",
            "x.node.kubernetes.io/a",
        ] {
            assert!(!is_restricted(label), "{label}");
        }
    }

    #[test]
    fn a_pod_that_names_nothing_can_be_mirrored() {
        let pod = Object::new(json!({"metadata": {"name": "a"}, "spec": {
            "nodeSelector": {"secret": "yes", "configMap": "no"},
            "volumes": [{"name": "e", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/"}},
                {"name": "p", "projected": {"sources": [{"downwardAPI": {"items": []}}]}}],
            "containers": [{"name": "c", "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}],
        }}))
        .unwrap();
        assert_eq!(reference(&pod), None);
    }

    #[test]
    fn a_volume_of_an_unknown_kind_is_not_taken_for_a_local_one() {
        for volume in [
            json!({"name": "v"}),
            json!({"name": "v", "brandNew": {}}),
            json!({"name": "v", "projected": {"sources": [{"brandNew": {}}]}}),
            json!({"name": "v", "csi": {"driver": "d"}}),
            json!({"name": "v", "ephemeral": {}}),
        ] {
            assert!(volume_reference(&volume).is_some(), "{volume}");
        }
        let disk = json!({"rbd": {"secretRef": {"name": "s"}}});
        assert!(has_member(&disk, &SECRET_MEMBERS));
    }
}
