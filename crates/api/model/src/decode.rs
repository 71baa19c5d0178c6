//! From documents to the objects that a node and the command line can use.
//!
//! `pulselet-schema` decodes a document strictly; here its fields become types. A document of another kind is rejected.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use pulselet_schema::Profile;
use pulselet_schema::document::{DecodeError, DecodeErrors, Decoded, Document, ObjectType};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::pod::Pod;

/// A Pod as decoded, or why there is none; `kind` and `name` are known in both cases as far as they could be read.
#[derive(Debug)]
pub struct DecodedPod {
    pub kind: String,
    pub name: String,
    pub pod: Result<Pod, DecodeErrors>,
}

/// The objects that a file may hold for a node.
#[derive(Debug)]
pub enum ManifestObject {
    Pod(Box<Pod>),
    ConfigMap(Box<ConfigMap>),
    Secret(Box<Secret>),
}

/// An object as decoded, or why there is none; `kind` and `name` are known in both cases as far as they could be read.
#[derive(Debug)]
pub struct DecodedObject {
    pub kind: String,
    pub name: String,
    pub object: Result<ManifestObject, DecodeErrors>,
}

const SUPPORTED: &str = "supported are kind Pod, ConfigMap, Secret and List of apiVersion v1; other kinds need an API \
                         server with their controllers, which `pulselet node --kubeconfig` can join";

/// Decodes a document that must be a Pod.
pub fn decode_pod(document: &Document<'_>, profile: Profile) -> DecodedPod {
    let Decoded {
        object_type,
        name,
        object,
    } = document.decode(profile, |found| supports(found, &["Pod"]));
    DecodedPod {
        kind: object_type.kind,
        name,
        pod: object.and_then(typed),
    }
}

/// Decodes a document that must be of a kind that a node can use.
pub fn decode_object(document: &Document<'_>, profile: Profile) -> DecodedObject {
    let accept = |found: &ObjectType| supports(found, &["Pod", "ConfigMap", "Secret"]);
    let Decoded {
        object_type,
        name,
        object,
    } = document.decode(profile, accept);
    let object = object.and_then(|value| match object_type.kind.as_str() {
        "ConfigMap" => typed(value).map(|map| ManifestObject::ConfigMap(Box::new(map))),
        "Secret" => typed(value).map(|secret| ManifestObject::Secret(Box::new(secret))),
        _ => typed(value).map(|pod| ManifestObject::Pod(Box::new(pod))),
    });
    DecodedObject {
        kind: object_type.kind,
        name,
        object,
    }
}

/// A decoded value as its type. The types have the fields of the table, which a test checks.
fn typed<T: DeserializeOwned>(value: Value) -> Result<T, DecodeErrors> {
    serde_json::from_value(value).map_err(|error| DecodeError::new(error.to_string(), None).into())
}

/// Names what is supported before anyone reads a list of unknown fields.
fn supports(found: &ObjectType, kinds: &[&str]) -> Result<(), DecodeError> {
    let (field, value) = if !kinds.contains(&found.kind.as_str()) {
        ("kind", &found.kind)
    } else if found.api_version != "v1" {
        ("apiVersion", &found.api_version)
    } else {
        return Ok(());
    };
    Err(DecodeError {
        field: field.to_owned(),
        ..DecodeError::new(format!("{field} {value:?} is not supported"), None)
    }
    .with_hint(SUPPORTED))
}
