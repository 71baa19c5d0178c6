//! `OpenAPI` descriptions of what is served: `kubectl explain` reads them, and clients look there whether the server
//! checks fields itself.
//!
//! Schemas come from the same types that objects are decoded into; the fields that Pulselet adds to Pods, and what it
//! says about fields in its own words, are `documentation`'s. Documents are made when asked for, which is seldom, and not kept, because they are large.

use bytes::Bytes;
use k8s_openapi::api::{
    apps, batch, certificates, coordination, core, discovery, events, networking, node, policy, rbac,
    resource, scheduling, storage,
};
use pulselet_model::Profile;
use pulselet_vocabulary::KUBERNETES_VERSION;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::documentation;
use crate::registry::plain::PlainKind;
use crate::registry::resource::{Endpoint, GroupVersion, ResourceKind};

const V2_DEFINITIONS: &str = "/definitions";
const V3_DEFINITIONS: &str = "/components/schemas";

/// `/openapi/v3`: where the documents of each group are.
pub(crate) fn v3_index() -> Value {
    let paths: Map<String, Value> = GroupVersion::ALL
        .into_iter()
        .map(|group_version| {
            let path = base_path(group_version);
            // The hash lets clients keep a document for as long as the server is the same.
            let url = format!("/openapi/v3{path}?hash={KUBERNETES_VERSION}").replace('+', "%2B");
            (
                path.trim_start_matches('/').to_owned(),
                json!({"serverRelativeURL": url}),
            )
        })
        .collect();
    json!({"paths": paths})
}

/// `/openapi/v3/...`: the document of one group.
pub(crate) fn v3(group_version: GroupVersion, profile: Profile) -> Value {
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": KUBERNETES_VERSION},
        "paths": paths([group_version], V3_DEFINITIONS),
        "components": {"schemas": schemas(&[group_version], V3_DEFINITIONS, profile)},
    })
}

/// `/openapi/v2`: everything in one document.
pub(crate) fn v2(profile: Profile) -> Value {
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": KUBERNETES_VERSION},
        "paths": paths(GroupVersion::ALL, V2_DEFINITIONS),
        "definitions": schemas(&GroupVersion::ALL, V2_DEFINITIONS, profile),
    })
}

/// `/openapi/v2` in protobuf: a document that describes no kind, upon which clients leave checking to the server.
pub(crate) fn v2_protobuf() -> Bytes {
    let field = |number: u8, bytes: &[u8]| {
        let length = u8::try_from(bytes.len()).expect("the few texts of the document are short");
        let mut out = vec![number << 3 | 2, length];
        out.extend_from_slice(bytes);
        out
    };
    let info = [field(1, b"Kubernetes"), field(2, KUBERNETES_VERSION.as_bytes())].concat();
    let (paths, definitions) = (field(8, b""), field(9, b""));
    Bytes::from([field(1, b"2.0"), field(2, &info), paths, definitions].concat())
}

fn base_path(group_version: GroupVersion) -> String {
    let prefix = if group_version.group().is_empty() {
        "/api"
    } else {
        "/apis"
    };
    format!("{prefix}/{}", group_version.api_version())
}

/// The name of a kind's schema.
fn schema_name(endpoint: Endpoint) -> String {
    let group = endpoint.group_version.group();
    let package = group
        .split('.')
        .next()
        .filter(|package| !package.is_empty())
        .unwrap_or("core");
    format!("io.k8s.api.{package}.v1.{}", endpoint.info().kind)
}

fn schemas(groups: &[GroupVersion], definitions: &str, profile: Profile) -> Map<String, Value> {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.definitions_path = definitions.to_owned().into();
    });
    let mut generator = settings.into_generator();
    for endpoint in groups.iter().flat_map(|group| group.endpoints()) {
        match (endpoint.kind, endpoint.group_version) {
            (ResourceKind::ConfigMap, _) => generator.subschema_for::<core::v1::ConfigMap>(),
            (ResourceKind::Event, GroupVersion::EventsV1) => generator.subschema_for::<events::v1::Event>(),
            (ResourceKind::Event, _) => generator.subschema_for::<core::v1::Event>(),
            (ResourceKind::Lease, _) => generator.subschema_for::<coordination::v1::Lease>(),
            (ResourceKind::Namespace, _) => generator.subschema_for::<core::v1::Namespace>(),
            (ResourceKind::Node, _) => generator.subschema_for::<core::v1::Node>(),
            (ResourceKind::Pod, _) => generator.subschema_for::<core::v1::Pod>(),
            (ResourceKind::Secret, _) => generator.subschema_for::<core::v1::Secret>(),
            (ResourceKind::ServiceAccount, _) => generator.subschema_for::<core::v1::ServiceAccount>(),
            (ResourceKind::Plain(kind), _) => plain_schema(kind, &mut generator),
        };
    }
    let mut schemas = generator.take_definitions(true);
    for endpoint in groups.iter().flat_map(|group| group.endpoints()) {
        if let Some(schema) = schemas.get_mut(&schema_name(endpoint)) {
            schema["x-kubernetes-group-version-kind"] = json!([group_version_kind(endpoint)]);
        }
    }
    if profile == Profile::Pulselet {
        documentation::describe(&mut schemas);
    }
    schemas
}

/// The schema of a kind of the table. A test finds one for each.
fn plain_schema(kind: PlainKind, generator: &mut SchemaGenerator) -> Schema {
    match kind.info().kind {
        "CertificateSigningRequest" => {
            generator.subschema_for::<certificates::v1::CertificateSigningRequest>()
        }
        "ClusterRole" => generator.subschema_for::<rbac::v1::ClusterRole>(),
        "ClusterRoleBinding" => generator.subschema_for::<rbac::v1::ClusterRoleBinding>(),
        "Role" => generator.subschema_for::<rbac::v1::Role>(),
        "RoleBinding" => generator.subschema_for::<rbac::v1::RoleBinding>(),
        "Endpoints" => generator.subschema_for::<core::v1::Endpoints>(),
        "LimitRange" => generator.subschema_for::<core::v1::LimitRange>(),
        "PersistentVolume" => generator.subschema_for::<core::v1::PersistentVolume>(),
        "PersistentVolumeClaim" => generator.subschema_for::<core::v1::PersistentVolumeClaim>(),
        "PodTemplate" => generator.subschema_for::<core::v1::PodTemplate>(),
        "ReplicationController" => generator.subschema_for::<core::v1::ReplicationController>(),
        "ResourceQuota" => generator.subschema_for::<core::v1::ResourceQuota>(),
        "Service" => generator.subschema_for::<core::v1::Service>(),
        "ControllerRevision" => generator.subschema_for::<apps::v1::ControllerRevision>(),
        "DaemonSet" => generator.subschema_for::<apps::v1::DaemonSet>(),
        "Deployment" => generator.subschema_for::<apps::v1::Deployment>(),
        "ReplicaSet" => generator.subschema_for::<apps::v1::ReplicaSet>(),
        "StatefulSet" => generator.subschema_for::<apps::v1::StatefulSet>(),
        "CronJob" => generator.subschema_for::<batch::v1::CronJob>(),
        "Job" => generator.subschema_for::<batch::v1::Job>(),
        "EndpointSlice" => generator.subschema_for::<discovery::v1::EndpointSlice>(),
        "NetworkPolicy" => generator.subschema_for::<networking::v1::NetworkPolicy>(),
        "RuntimeClass" => generator.subschema_for::<node::v1::RuntimeClass>(),
        "PodDisruptionBudget" => generator.subschema_for::<policy::v1::PodDisruptionBudget>(),
        "DeviceClass" => generator.subschema_for::<resource::v1::DeviceClass>(),
        "ResourceClaim" => generator.subschema_for::<resource::v1::ResourceClaim>(),
        "ResourceClaimTemplate" => generator.subschema_for::<resource::v1::ResourceClaimTemplate>(),
        "ResourceSlice" => generator.subschema_for::<resource::v1::ResourceSlice>(),
        "PriorityClass" => generator.subschema_for::<scheduling::v1::PriorityClass>(),
        "CSIDriver" => generator.subschema_for::<storage::v1::CSIDriver>(),
        "CSINode" => generator.subschema_for::<storage::v1::CSINode>(),
        "CSIStorageCapacity" => generator.subschema_for::<storage::v1::CSIStorageCapacity>(),
        "StorageClass" => generator.subschema_for::<storage::v1::StorageClass>(),
        "VolumeAttachment" => generator.subschema_for::<storage::v1::VolumeAttachment>(),
        "VolumeAttributesClass" => generator.subschema_for::<storage::v1::VolumeAttributesClass>(),
        _ => json_schema!({"type": "object"}),
    }
}

fn group_version_kind(endpoint: Endpoint) -> Value {
    json!({
        "group": endpoint.group_version.group(),
        "version": endpoint.group_version.version(),
        "kind": endpoint.info().kind,
    })
}

fn paths(groups: impl IntoIterator<Item = GroupVersion>, definitions: &str) -> Map<String, Value> {
    let mut paths = Map::new();
    for endpoint in groups.into_iter().flat_map(GroupVersion::endpoints) {
        let (base, info) = (base_path(endpoint.group_version), endpoint.info());
        let plural = info.plural;
        let all = format!("{base}/{plural}");
        let list = if info.namespaced {
            paths.insert(all, json!({"get": operation(endpoint, "list", definitions)}));
            format!("{base}/namespaces/{{namespace}}/{plural}")
        } else {
            all
        };
        let item = format!("{list}/{{name}}");
        paths.insert(
            list,
            path_item(
                endpoint,
                definitions,
                &[("get", "list"), ("post", "post"), ("delete", "deletecollection")],
            ),
        );
        let verbs = [
            ("get", "get"),
            ("put", "put"),
            ("patch", "patch"),
            ("delete", "delete"),
        ];
        paths.insert(item, path_item(endpoint, definitions, &verbs));
    }
    paths
}

fn path_item(endpoint: Endpoint, definitions: &str, verbs: &[(&str, &str)]) -> Value {
    let operations = verbs.iter().map(|(method, action)| {
        let operation = operation(endpoint, action, definitions);
        ((*method).to_owned(), operation)
    });
    Value::Object(operations.collect())
}

fn operation(endpoint: Endpoint, action: &str, definitions: &str) -> Value {
    let v2 = definitions == V2_DEFINITIONS;
    let parameter = |name: &str| {
        if v2 {
            json!({"name": name, "in": "query", "type": "string", "uniqueItems": true})
        } else {
            json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}})
        }
    };
    let names: &[&str] = match action {
        "post" | "put" => &["dryRun", "fieldManager", "fieldValidation"],
        "patch" => &["dryRun", "fieldManager", "fieldValidation", "force"],
        "list" | "deletecollection" => &[
            "continue",
            "fieldSelector",
            "labelSelector",
            "limit",
            "resourceVersion",
        ],
        "delete" => &["dryRun", "gracePeriodSeconds", "propagationPolicy"],
        _ => &[],
    };
    let reference = json!({"$ref": format!("#{definitions}/{}", schema_name(endpoint))});
    let answer = if v2 {
        json!({"description": "OK", "schema": reference})
    } else {
        json!({"description": "OK", "content": {"application/json": {"schema": reference}}})
    };
    json!({
        "parameters": names.iter().map(|name| parameter(name)).collect::<Vec<_>>(),
        "responses": {"200": answer},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": group_version_kind(endpoint),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every reference in a document, checked to lead somewhere.
    fn check_references(document: &Value, value: &Value) {
        match value {
            Value::Object(map) => {
                if let Some(Value::String(reference)) = map.get("$ref") {
                    let pointer = reference.trim_start_matches('#');
                    assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
                }
                map.values().for_each(|value| check_references(document, value));
            }
            Value::Array(items) => items.iter().for_each(|value| check_references(document, value)),
            _ => {}
        }
    }

    #[test]
    fn documents_are_closed_and_know_our_fields() {
        let core = v3(GroupVersion::CoreV1, Profile::Pulselet);
        check_references(&core, &core);
        let probe = &core["components"]["schemas"]["io.k8s.api.core.v1.Probe"]["properties"];
        assert!(probe.get("periodMilliseconds").is_some());
        assert!(probe.get("periodSeconds").is_some());
        let upstream = v3(GroupVersion::CoreV1, Profile::Kubernetes);
        let probe = &upstream["components"]["schemas"]["io.k8s.api.core.v1.Probe"]["properties"];
        assert!(probe.get("periodMilliseconds").is_none());
        let all = v2(Profile::Pulselet);
        check_references(&all, &all);
        for endpoint in GroupVersion::ALL.into_iter().flat_map(GroupVersion::endpoints) {
            let schema = &all["definitions"][schema_name(endpoint)];
            assert!(
                schema.get("x-kubernetes-group-version-kind").is_some(),
                "{endpoint:?}"
            );
        }
    }
}
