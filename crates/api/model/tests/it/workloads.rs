//! Workloads as a server takes them in, before the rules of the model look at them.

use pulselet_model::{Profile, WorkloadKind, fill_defaults};
use pulselet_schema::canonical::complete;
use pulselet_schema::check::check;
use pulselet_schema::document::ObjectType;
use serde_json::{Map, Value, json};

fn put(map: &mut Map<String, Value>, field: &str, value: impl Into<Value>) {
    let found = map.entry(field).or_insert(Value::Null);
    if found.is_null() || found.as_str() == Some("") {
        *found = value.into();
    }
}

/// Brings an object into form and fills in the defaults of its kind, and the name, namespace and uid that a server gives.
pub(crate) fn defaulted(kind: WorkloadKind, mut object: Value) -> Value {
    let api_version = match kind {
        WorkloadKind::Job | WorkloadKind::CronJob => "batch/v1",
        WorkloadKind::PodTemplate | WorkloadKind::ReplicationController => "v1",
        WorkloadKind::Deployment
        | WorkloadKind::ReplicaSet
        | WorkloadKind::StatefulSet
        | WorkloadKind::DaemonSet => "apps/v1",
    };
    let object_type = ObjectType {
        api_version: api_version.to_owned(),
        kind: kind.name().to_owned(),
    };
    let message = object_type.message().expect("a kind of the table");
    check(message, &mut object, Profile::Pulselet);
    let map = object.as_object_mut().expect("an object");
    let metadata = map.entry("metadata").or_insert_with(|| json!({}));
    let metadata = metadata.as_object_mut().expect("metadata is an object");
    put(metadata, "namespace", "default");
    put(metadata, "uid", "3b1c");
    if let (None, Some(generated)) = (metadata.get("name"), metadata.get("generateName")) {
        let name = format!("{}abcde", generated.as_str().unwrap_or_default());
        put(metadata, "name", name);
    }
    complete(message, map);
    fill_defaults(message, &mut object);
    object
}
