//! From documents to the objects that a node and the command line can use.
//!
//! `pulselet-schema` decodes a document strictly; here its fields become types. [`decode_pod`] and [`decode_object`] reject
//! documents of other kinds. [`decode_file_object`] knows every kind that a file may hold, and skips the rest.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use pulselet_schema::Profile;
use pulselet_schema::document::{DecodeError, DecodeErrors, Decoded, Document, ObjectType};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::manifest::CompanionKind;
use crate::pod::Pod;
use crate::workload::WorkloadKind;

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

/// An object of a file.
#[derive(Debug)]
pub enum FileObject {
    Node(ManifestObject),
    /// An object with a template.
    Workload {
        kind: WorkloadKind,
        object: Value,
    },
    /// An object that Pods and workloads refer to.
    Companion {
        kind: CompanionKind,
        object: Value,
    },
    /// An object of a kind that is not read. The error names it and has its place.
    Skipped(DecodeError),
}

/// An object of a file as decoded, or why there is none; see [`DecodedObject`].
#[derive(Debug)]
pub struct DecodedFileObject {
    pub kind: String,
    pub name: String,
    pub object: Result<FileObject, DecodeErrors>,
}

/// Readers of files differ in the kinds that they can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileReader {
    /// Answers questions about an object and runs nothing.
    Inspector,
    /// Runs Pods without an API. Workloads are errors, since their Pods would be missing.
    Node,
}

/// The kinds that a node can use.
const NODE_KINDS: [&str; 3] = ["Pod", "ConfigMap", "Secret"];
const RUN_WORKLOADS: &str = "apply it to `pulselet serve`, where a kube-controller-manager makes its pods; `pulselet check`, \
                             `explain` and `simulate` read it from a file";
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
    let accept = |found: &ObjectType| match workload_kind(found) {
        Some(_) => Err(not_supported("kind", &found.kind, RUN_WORKLOADS)),
        None => supports(found, &NODE_KINDS),
    };
    let Decoded {
        object_type,
        name,
        object,
    } = document.decode(profile, accept);
    let object = object.and_then(|value| node_object(&object_type.kind, value));
    DecodedObject {
        kind: object_type.kind,
        name,
        object,
    }
}

/// Decodes a document of a file. Kinds that `reader` does not know are skipped, whatever is in them.
///
/// ```
/// use pulselet_model::{FileObject, FileReader, Profile, decode_documents, decode_file_object};
///
/// let document = decode_documents(b"apiVersion: example.com/v1\nkind: Cake\n").next().unwrap().unwrap();
/// let decoded = decode_file_object(&document, Profile::Pulselet, FileReader::Inspector);
/// assert!(matches!(decoded.object, Ok(FileObject::Skipped(_))));
/// ```
pub fn decode_file_object(
    document: &Document<'_>,
    profile: Profile,
    reader: FileReader,
) -> DecodedFileObject {
    let mut is_skipped = false;
    let accept = |found: &ObjectType| match skipped(found, reader) {
        Some(reason) => {
            is_skipped = true;
            Err(reason)
        }
        None => readable(found, reader),
    };
    let Decoded {
        object_type,
        name,
        object,
    } = document.decode(profile, accept);
    let object = match object {
        Err(reason) if is_skipped => Ok(FileObject::Skipped(reason.first().clone())),
        Err(errors) => Err(errors),
        Ok(object) => file_object(&object_type, object),
    };
    DecodedFileObject {
        kind: object_type.kind,
        name,
        object,
    }
}

fn file_object(object_type: &ObjectType, object: Value) -> Result<FileObject, DecodeErrors> {
    if let Some(kind) = workload_kind(object_type) {
        return Ok(FileObject::Workload { kind, object });
    }
    match CompanionKind::from_kind(&object_type.kind) {
        Some(kind) => Ok(FileObject::Companion { kind, object }),
        None => node_object(&object_type.kind, object).map(FileObject::Node),
    }
}

fn node_object(kind: &str, value: Value) -> Result<ManifestObject, DecodeErrors> {
    match kind {
        "ConfigMap" => typed(value).map(|map| ManifestObject::ConfigMap(Box::new(map))),
        "Secret" => typed(value).map(|secret| ManifestObject::Secret(Box::new(secret))),
        _ => typed(value).map(|pod| ManifestObject::Pod(Box::new(pod))),
    }
}

/// The kind of an object with a template, in the version that is served.
fn workload_kind(found: &ObjectType) -> Option<WorkloadKind> {
    WorkloadKind::from_kind(&found.kind).filter(|kind| kind.api_version() == found.api_version)
}

/// Why a document is skipped; `None` if it is decoded or rejected.
fn skipped(found: &ObjectType, reader: FileReader) -> Option<DecodeError> {
    let ObjectType { api_version, kind } = found;
    if NODE_KINDS.contains(&kind.as_str()) || kind.is_empty() || api_version.is_empty() {
        return None;
    }
    let companion = CompanionKind::from_kind(kind).map(|_| "v1");
    let workload = WorkloadKind::from_kind(kind).map(WorkloadKind::api_version);
    let (field, message) = match companion.or(workload) {
        Some(served) if served != api_version => (
            "apiVersion",
            format!("{kind} of apiVersion {api_version:?} is skipped: the served version is {served}"),
        ),
        Some(_) if companion.is_some() && reader == FileReader::Node => (
            "kind",
            format!(
                "kind {kind:?} is skipped: without an API only Pods, ConfigMaps and Secrets have an effect"
            ),
        ),
        Some(_) => return None,
        None => (
            "kind",
            format!("kind {kind:?} of apiVersion {api_version:?} is skipped: Pulselet does not read it"),
        ),
    };
    Some(DecodeError {
        field: field.to_owned(),
        ..DecodeError::new(message, None)
    })
}

/// Rejects what is neither skipped nor of a kind that `reader` can use.
fn readable(found: &ObjectType, reader: FileReader) -> Result<(), DecodeError> {
    match (workload_kind(found), reader) {
        (Some(_), FileReader::Inspector) => Ok(()),
        (Some(_), FileReader::Node) => Err(not_supported("kind", &found.kind, RUN_WORKLOADS)),
        (None, _) if CompanionKind::from_kind(&found.kind).is_some() => Ok(()),
        (None, _) => supports(found, &NODE_KINDS),
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
    Err(not_supported(field, value, SUPPORTED))
}

fn not_supported(field: &str, value: &str, hint: &str) -> DecodeError {
    let error = DecodeError {
        field: field.to_owned(),
        ..DecodeError::new(format!("{field} {value:?} is not supported"), None)
    };
    error.with_hint(hint)
}
