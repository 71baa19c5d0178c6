//! `OpenAPI` descriptions of what is served: `kubectl explain` reads them, and clients look there whether the server
//! checks fields itself.
//!
//! The definitions of objects follow from the table of fields; upstream's texts are `documentation`'s. Documents are made on
//! request, which is seldom, and not kept, because they are large.

use bytes::Bytes;
use pulselet_model::Profile;
use pulselet_schema::openapi::{OpenApiVersion, definition_name, definitions};
use pulselet_vocabulary::KUBERNETES_VERSION;
use serde_json::{Map, Value, json};

use super::documentation;
use crate::registry::resource::{Endpoint, GroupVersion};

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
        "paths": paths([group_version], OpenApiVersion::V3),
        "components": {"schemas": schemas(&[group_version], OpenApiVersion::V3, profile)},
    })
}

/// `/openapi/v2`: everything in one document.
pub(crate) fn v2(profile: Profile) -> Value {
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": KUBERNETES_VERSION},
        "paths": paths(GroupVersion::ALL, OpenApiVersion::V2),
        "definitions": schemas(&GroupVersion::ALL, OpenApiVersion::V2, profile),
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

fn schemas(groups: &[GroupVersion], version: OpenApiVersion, profile: Profile) -> Map<String, Value> {
    let endpoints = || groups.iter().flat_map(|group| group.endpoints());
    let texts = documentation::upstream();
    let mut schemas = definitions(endpoints().map(Endpoint::message), version, profile, &texts);
    for endpoint in endpoints() {
        if let Some(schema) = schemas.get_mut(&definition_name(endpoint.message())) {
            schema["x-kubernetes-group-version-kind"] = json!([group_version_kind(endpoint)]);
        }
    }
    schemas
}

fn group_version_kind(endpoint: Endpoint) -> Value {
    json!({
        "group": endpoint.group_version.group(),
        "version": endpoint.group_version.version(),
        "kind": endpoint.info().kind,
    })
}

fn paths(groups: impl IntoIterator<Item = GroupVersion>, version: OpenApiVersion) -> Map<String, Value> {
    let mut paths = Map::new();
    for endpoint in groups.into_iter().flat_map(GroupVersion::endpoints) {
        let (base, info) = (base_path(endpoint.group_version), endpoint.info());
        let plural = info.plural;
        let all = format!("{base}/{plural}");
        let list = if info.namespaced {
            paths.insert(all, json!({"get": operation(endpoint, "list", version)}));
            format!("{base}/namespaces/{{namespace}}/{plural}")
        } else {
            all
        };
        let item = format!("{list}/{{name}}");
        paths.insert(
            list,
            path_item(
                endpoint,
                version,
                &[("get", "list"), ("post", "post"), ("delete", "deletecollection")],
            ),
        );
        let verbs = [
            ("get", "get"),
            ("put", "put"),
            ("patch", "patch"),
            ("delete", "delete"),
        ];
        paths.insert(item, path_item(endpoint, version, &verbs));
    }
    paths
}

fn path_item(endpoint: Endpoint, version: OpenApiVersion, verbs: &[(&str, &str)]) -> Value {
    let operations = verbs.iter().map(|(method, action)| {
        let operation = operation(endpoint, action, version);
        ((*method).to_owned(), operation)
    });
    Value::Object(operations.collect())
}

fn operation(endpoint: Endpoint, action: &str, version: OpenApiVersion) -> Value {
    let v2 = version == OpenApiVersion::V2;
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
    let reference =
        json!({"$ref": format!("#{}/{}", version.definitions(), definition_name(endpoint.message()))});
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
            let schema = &all["definitions"][definition_name(endpoint.message())];
            assert!(
                schema.get("x-kubernetes-group-version-kind").is_some(),
                "{endpoint:?}"
            );
        }
    }
}
