//! What is served, as clients discover it: the plain lists and the aggregated one, and the version.
//! Their schemas are in `openapi`.

mod documentation;
pub(crate) mod openapi;

use pulselet_vocabulary::{KUBERNETES_MINOR, KUBERNETES_VERSION};
use serde_json::{Value, json};

use crate::access::review::ReviewGroup;
use crate::node_proxy::usage;
use crate::registry::resource::{Endpoint, GroupVersion, ResourceKind, Subresource};

const VERBS: [&str; 8] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

pub(crate) fn version() -> Value {
    json!({
        "major": "1",
        "minor": KUBERNETES_MINOR,
        "gitVersion": KUBERNETES_VERSION,
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, architecture()),
    })
}

/// The architecture by the name that Kubernetes gives it.
const fn architecture() -> &'static str {
    match std::env::consts::ARCH.as_bytes() {
        b"x86_64" => "amd64",
        b"aarch64" => "arm64",
        _ => std::env::consts::ARCH,
    }
}

/// `/api`
pub(crate) fn core_versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
}

fn named_groups() -> impl Iterator<Item = GroupVersion> {
    GroupVersion::ALL
        .into_iter()
        .filter(|group_version| !group_version.group().is_empty())
}

/// `/apis`
pub(crate) fn groups() -> Value {
    let mut groups: Vec<Value> = named_groups().map(group_entry).collect();
    groups.extend(ReviewGroup::ALL.map(ReviewGroup::entry));
    groups.push(usage::group());
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`
pub(crate) fn group(group_version: GroupVersion) -> Value {
    group_document(group_entry(group_version))
}

/// `/apis/metrics.k8s.io`
pub(crate) fn usage_group() -> Value {
    group_document(usage::group())
}

/// `/apis/authorization.k8s.io`
pub(crate) fn review_group(group: ReviewGroup) -> Value {
    group_document(group.entry())
}

fn group_document(mut group: Value) -> Value {
    group["kind"] = json!("APIGroup");
    group["apiVersion"] = json!("v1");
    group
}

fn group_entry(group_version: GroupVersion) -> Value {
    let version = json!({
        "groupVersion": group_version.api_version(),
        "version": group_version.version(),
    });
    json!({"name": group_version.group(), "versions": [version], "preferredVersion": version})
}

/// `/api/v1`, `/apis/GROUP/VERSION`
pub(crate) fn resources(group_version: GroupVersion) -> Value {
    let mut resources = Vec::new();
    for endpoint in group_version.endpoints() {
        let info = endpoint.info();
        resources.push(json!({
            "name": info.plural,
            "singularName": info.singular,
            "namespaced": info.namespaced,
            "kind": info.kind,
            "verbs": VERBS,
            "shortNames": info.short_names,
            "categories": info.categories,
        }));
        for subresource in info.subresources {
            let (group, version, kind) = subresource_type(endpoint, *subresource);
            let mut entry = json!({
                "name": format!("{}/{}", info.plural, subresource.name()),
                "singularName": "",
                "namespaced": info.namespaced,
                "kind": kind,
                "verbs": subresource.verbs(),
            });
            if group != group_version.group() {
                entry["group"] = json!(group);
                entry["version"] = json!(version);
            }
            resources.push(entry);
        }
    }
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version.api_version(),
        "resources": resources,
    })
}

/// Group, version and kind of what a subresource takes and gives.
fn subresource_type(
    endpoint: Endpoint,
    subresource: Subresource,
) -> (&'static str, &'static str, &'static str) {
    let group = endpoint.group_version.group();
    match subresource {
        Subresource::Attach => (group, "v1", "PodAttachOptions"),
        Subresource::Binding => (group, "v1", "Binding"),
        Subresource::Eviction => ("policy", "v1", "Eviction"),
        Subresource::Exec => (group, "v1", "PodExecOptions"),
        Subresource::PortForward => (group, "v1", "PodPortForwardOptions"),
        Subresource::Scale => ("autoscaling", "v1", "Scale"),
        Subresource::Proxy if endpoint.kind == ResourceKind::SERVICE => (group, "v1", "ServiceProxyOptions"),
        Subresource::Proxy if endpoint.info().namespaced => (group, "v1", "PodProxyOptions"),
        Subresource::Proxy => (group, "v1", "NodeProxyOptions"),
        Subresource::Token => ("authentication.k8s.io", "v1", "TokenRequest"),
        Subresource::Approval
        | Subresource::EphemeralContainers
        | Subresource::Finalize
        | Subresource::Log
        | Subresource::Resize
        | Subresource::Status => (group, "v1", endpoint.info().kind),
    }
}

/// `/api` or `/apis` in one document.
pub(crate) fn aggregated(core: bool, format: &str) -> Value {
    let groups: Vec<GroupVersion> = if core {
        vec![GroupVersion::CoreV1]
    } else {
        named_groups().collect()
    };
    let mut items: Vec<Value> = groups.into_iter().map(aggregated_group).collect();
    if !core {
        items.extend(ReviewGroup::ALL.map(ReviewGroup::aggregated));
        items.push(usage::aggregated_group());
    }
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{format}"),
        "metadata": {},
        "items": items,
    })
}

fn aggregated_group(group_version: GroupVersion) -> Value {
    let resources: Vec<Value> = group_version.endpoints().map(aggregated_resource).collect();
    let mut metadata = json!({"creationTimestamp": null});
    if !group_version.group().is_empty() {
        metadata["name"] = json!(group_version.group());
    }
    json!({
        "metadata": metadata,
        "versions": [{
            "version": group_version.version(),
            "freshness": "Current",
            "resources": resources,
        }],
    })
}

fn aggregated_resource(endpoint: Endpoint) -> Value {
    let info = endpoint.info();
    let scope = if info.namespaced { "Namespaced" } else { "Cluster" };
    let kind =
        |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let subresources: Vec<Value> = info
        .subresources
        .iter()
        .map(|subresource| {
            let (group, version, name) = subresource_type(endpoint, *subresource);
            json!({
                "subresource": subresource.name(),
                "responseKind": kind(group, version, name),
                "verbs": subresource.verbs(),
            })
        })
        .collect();
    let group_version = endpoint.group_version;
    let mut resource = json!({
        "resource": info.plural,
        "responseKind": kind(group_version.group(), group_version.version(), info.kind),
        "scope": scope,
        "singularResource": info.singular,
        "verbs": VERBS,
        "shortNames": info.short_names,
        "categories": info.categories,
    });
    if !subresources.is_empty() {
        resource["subresources"] = json!(subresources);
    }
    resource
}

/// `/`
pub(crate) fn paths() -> Value {
    let mut paths = vec!["/api".to_owned(), "/api/v1".to_owned(), "/apis".to_owned()];
    for group_version in named_groups() {
        paths.push(format!("/apis/{}", group_version.group()));
        paths.push(format!("/apis/{}", group_version.api_version()));
    }
    for group in ReviewGroup::ALL {
        paths.push(format!("/apis/{}", group.name()));
        paths.push(format!("/apis/{}", group.api_version()));
    }
    paths.push(format!("/apis/{}", usage::GROUP));
    paths.push(format!("/apis/{}/{}", usage::GROUP, usage::VERSION));
    for path in [
        "/.well-known/openid-configuration",
        "/healthz",
        "/livez",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/openid/v1/jwks",
        "/readyz",
        "/version",
    ] {
        paths.push(path.to_owned());
    }
    json!({"paths": paths})
}
