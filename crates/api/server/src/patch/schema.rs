//! How lists and maps inside objects are merged: by key, as sets, or as a whole.
//!
//! Both kinds of patch that know about fields read this table: strategic merge patch and server-side apply. Lists that
//! it does not name are replaced as a whole.

use crate::registry::resource::ResourceKind;

/// How two versions of a list become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListKind {
    /// The new one replaces the old.
    Atomic,
    /// Values, each at most once.
    Set,
    /// Items are the same when these fields are. The first is the merge key of strategic patches.
    Map(&'static [&'static str]),
}

const BY_NAME: ListKind = ListKind::Map(&["name"]);
const BY_IP: ListKind = ListKind::Map(&["ip"]);
const BY_TYPE: ListKind = ListKind::Map(&["type"]);

/// The kind of the list at a path of field names.
pub(crate) fn list_kind(kind: ResourceKind, path: &[String]) -> ListKind {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    match (kind, path.as_slice()) {
        (_, ["metadata", "finalizers"]) | (ResourceKind::Node, ["spec", "podCIDRs"]) => ListKind::Set,
        (_, ["metadata", "ownerReferences"]) => ListKind::Map(&["uid"]),
        (_, ["status", "conditions"]) | (ResourceKind::Node, ["status", "addresses"]) => BY_TYPE,
        (ResourceKind::Pod, ["spec", rest @ ..]) => pod_spec_list(rest),
        (ResourceKind::Pod, ["status", "podIPs" | "hostIPs"]) => BY_IP,
        (ResourceKind::Pod, ["status", "resourceClaimStatuses"])
        | (ResourceKind::ServiceAccount, ["secrets"]) => BY_NAME,
        _ => ListKind::Atomic,
    }
}

fn pod_spec_list(path: &[&str]) -> ListKind {
    match path {
        [
            "containers"
            | "initContainers"
            | "ephemeralContainers"
            | "volumes"
            | "imagePullSecrets"
            | "schedulingGates"
            | "resourceClaims",
        ] => BY_NAME,
        ["hostAliases"] => BY_IP,
        ["topologySpreadConstraints"] => ListKind::Map(&["topologyKey", "whenUnsatisfiable"]),
        ["containers" | "initContainers" | "ephemeralContainers", rest @ ..] => match rest {
            ["env"] | ["resources", "claims"] => BY_NAME,
            ["ports"] => ListKind::Map(&["containerPort", "protocol"]),
            ["volumeMounts"] => ListKind::Map(&["mountPath"]),
            ["volumeDevices"] => ListKind::Map(&["devicePath"]),
            _ => ListKind::Atomic,
        },
        _ => ListKind::Atomic,
    }
}

/// Whether the object at a path is owned as a whole, not field by field.
pub(crate) fn is_atomic_map(kind: ResourceKind, path: &[String]) -> bool {
    let last = path.last().map(String::as_str).unwrap_or_default();
    match kind {
        ResourceKind::Pod => matches!(
            last,
            "nodeSelector"
                | "fieldRef"
                | "resourceFieldRef"
                | "secretKeyRef"
                | "configMapKeyRef"
                | "labelSelector"
                | "requiredDuringSchedulingIgnoredDuringExecution"
                | "secretRef"
        ),
        ResourceKind::Event => matches!(last, "involvedObject" | "related" | "source"),
        ResourceKind::ConfigMap
        | ResourceKind::Lease
        | ResourceKind::Namespace
        | ResourceKind::Node
        | ResourceKind::Secret
        | ResourceKind::ServiceAccount => false,
    }
}

/// What a key field of a list is when an item leaves it out.
pub(crate) fn key_default(field: &str) -> Option<&'static str> {
    match field {
        "protocol" => Some("TCP"),
        "whenUnsatisfiable" => Some("DoNotSchedule"),
        _ => None,
    }
}
