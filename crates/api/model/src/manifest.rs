//! Objects of files, made complete as a server would before it admits them.
//!
//! A server fills in the namespace of a request, uids and names. Files have none of these, so that objects get stand-ins
//! where a rule needs them; the stand-ins do not stay. What always holds: an object that is rejected here is rejected by a
//! server. What is left to others: the rules of a server for Services, claims and namespaces beyond their metadata.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::gates::GateSet;
use crate::object_defaults;
use crate::template::strip_nulls;
use crate::validation::{NameRule, validate_metadata};
use crate::workload::{WorkloadAdmission, WorkloadError, WorkloadKind, admit_workload_create};
use pulselet_schema::canonical::complete;
use pulselet_schema::{Message, Profile};

/// The selector of a Job has the uid of the Job, which only a server can give.
const STAND_IN_UID: &str = "00000000-0000-0000-0000-000000000000";
/// A server appends as many random characters to `generateName`.
const STAND_IN_SUFFIX: &str = "xxxxx";

/// Kinds that files hold because Pods and workloads refer to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompanionKind {
    Namespace,
    PersistentVolumeClaim,
    Service,
    ServiceAccount,
}

impl CompanionKind {
    /// The kind as `kind` names it. All are of apiVersion `v1`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Namespace => "Namespace",
            Self::PersistentVolumeClaim => "PersistentVolumeClaim",
            Self::Service => "Service",
            Self::ServiceAccount => "ServiceAccount",
        }
    }

    pub(crate) fn from_kind(kind: &str) -> Option<Self> {
        let all = [
            Self::Namespace,
            Self::PersistentVolumeClaim,
            Self::Service,
            Self::ServiceAccount,
        ];
        all.into_iter().find(|known| known.name() == kind)
    }

    const fn name_rule(self) -> NameRule {
        match self {
            Self::Namespace | Self::Service => NameRule::Label,
            Self::PersistentVolumeClaim | Self::ServiceAccount => NameRule::Subdomain,
        }
    }
}

/// Admits a decoded workload of a file, as [`admit_workload_create`] does for a server.
pub fn admit_file_workload(
    kind: WorkloadKind,
    mut object: Value,
    profile: Profile,
    gates: GateSet,
) -> Result<WorkloadAdmission, WorkloadError> {
    if let Some(message) = message(kind.api_version(), kind.name()) {
        fill(message, &mut object);
    }
    let metadata = metadata(&mut object);
    fill_namespace(metadata);
    let known = ["name", "uid"].map(|field| (field, metadata.get(field).cloned()));
    stand_in(metadata);
    let mut admission = admit_workload_create(kind, object, profile, gates)?;
    let metadata = self::metadata(&mut admission.object);
    for (field, value) in known {
        match value {
            Some(value) => metadata.insert(field.to_owned(), value),
            None => metadata.remove(field),
        };
    }
    Ok(admission)
}

/// Fills in defaults of a decoded object and checks its metadata. All errors are given together.
pub fn admit_companion(kind: CompanionKind, mut object: Value) -> Result<Value, WorkloadError> {
    if let Some(message) = message("v1", kind.name()) {
        fill(message, &mut object);
    }
    let namespaced = kind != CompanionKind::Namespace;
    let metadata = metadata(&mut object);
    if namespaced {
        fill_namespace(metadata);
    }
    let mut metadata = Value::Object(metadata.clone());
    strip_nulls(&mut metadata);
    let metadata = ObjectMeta::deserialize(metadata).map_err(|source| WorkloadError::Decode {
        kind: kind.name(),
        source,
    })?;
    let errors = validate_metadata(&metadata, kind.name_rule(), namespaced);
    if errors.is_empty() {
        Ok(object)
    } else {
        Err(WorkloadError::Invalid(errors))
    }
}

fn message(api_version: &str, kind: &str) -> Option<&'static Message> {
    let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
    Message::find(group, kind)
}

/// Fills in defaults. The status is a server's to write.
fn fill(message: &'static Message, object: &mut Value) {
    if let Value::Object(map) = object {
        map.remove("status");
        complete(message, map);
    }
    object_defaults::fill(message, object);
}

fn metadata(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = json!({});
    }
    let found = &mut object["metadata"];
    if !found.is_object() {
        *found = json!({});
    }
    found.as_object_mut().expect("it was just made an object")
}

fn text<'a>(metadata: &'a Map<String, Value>, field: &str) -> &'a str {
    metadata.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn fill_namespace(metadata: &mut Map<String, Value>) {
    if text(metadata, "namespace").is_empty() {
        metadata.insert("namespace".to_owned(), json!("default"));
    }
}

fn stand_in(metadata: &mut Map<String, Value>) {
    metadata.insert("uid".to_owned(), json!(STAND_IN_UID));
    let prefix = text(metadata, "generateName").to_owned();
    if text(metadata, "name").is_empty() && !prefix.is_empty() {
        metadata.insert("name".to_owned(), json!(format!("{prefix}{STAND_IN_SUFFIX}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(metadata: &Value) -> Value {
        let template =
            json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}})
    }

    fn admitted(metadata: &Value) -> Value {
        let admission = admit_file_workload(
            WorkloadKind::Job,
            job(metadata),
            Profile::Kubernetes,
            GateSet::ALL,
        );
        admission.expect("a valid job").object
    }

    #[test]
    fn names_and_uids_are_those_of_the_file() {
        let object = admitted(&json!({"generateName": "backup-", "uid": "mine"}));
        let metadata = &object["metadata"];
        assert_eq!((&metadata["uid"], metadata.get("name")), (&json!("mine"), None));
        assert_eq!(metadata["namespace"], "default");
        let object = admitted(&json!({"name": "backup", "namespace": "shop"}));
        let metadata = &object["metadata"];
        assert_eq!((metadata.get("uid"), &metadata["name"]), (None, &json!("backup")));
        assert_eq!(metadata["namespace"], "shop");
    }

    #[test]
    fn a_namespace_is_in_no_namespace() {
        let object = |name: &str| json!({"metadata": {"name": name}});
        let admitted = admit_companion(CompanionKind::Namespace, object("shop")).expect("a valid namespace");
        assert_eq!(admitted["metadata"], json!({"name": "shop"}));
        assert!(admit_companion(CompanionKind::Namespace, object("sh.op")).is_err());
        assert!(admit_companion(CompanionKind::ServiceAccount, object("sh.op")).is_ok());
        assert!(admit_companion(CompanionKind::Service, json!([])).is_err());
    }
}
