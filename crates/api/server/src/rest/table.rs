//! Tables: the columns of `kubectl get`, computed here as upstream does.

mod plain;
mod pod;

pub(crate) use plain::selector;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::registry::object::Object;
use crate::registry::resource::ResourceKind;
use crate::rest::accept::Include;

/// Shown where there is nothing to show.
const NONE: &str = "<none>";
const UNKNOWN: &str = "<unknown>";

/// A column; those of priority 1 are shown by `-o wide` only.
struct Column {
    name: &'static str,
    format: &'static str,
    description: &'static str,
    priority: u8,
}

const fn column(name: &'static str, description: &'static str) -> Column {
    Column {
        name,
        format: "",
        description,
        priority: 0,
    }
}

const fn wide(name: &'static str, description: &'static str) -> Column {
    Column {
        name,
        format: "",
        description,
        priority: 1,
    }
}

const NAME: Column = Column {
    name: "Name",
    format: "name",
    description: "The name, unique among objects of the kind in a namespace.",
    priority: 0,
};
const AGE: Column = column("Age", "The time since the object was created.");

fn columns(kind: ResourceKind) -> Vec<Column> {
    match kind {
        ResourceKind::Pod => pod::columns(),
        ResourceKind::Namespace => vec![
            NAME,
            column("Status", "Whether the namespace is in use or ending."),
            AGE,
        ],
        ResourceKind::Node => vec![
            NAME,
            column("Status", "Whether the node is ready for pods."),
            column("Roles", "The roles its labels give it."),
            AGE,
            column("Version", "The version of its agent."),
            wide("Internal-IP", "Its address inside."),
            wide("External-IP", "Its address outside."),
            wide("OS-Image", "The system it runs."),
            wide("Kernel-Version", "The kernel it runs."),
            wide("Container-Runtime", "What runs its containers."),
        ],
        ResourceKind::Event => vec![
            column("Last Seen", "When it was last seen."),
            column("Type", "Normal or Warning."),
            column("Reason", "Why, in a word."),
            column("Object", "What it is about."),
            wide("Subobject", "The part it is about."),
            wide("Source", "Who reports it."),
            column("Message", "What happened."),
            wide("First Seen", "When it was first seen."),
            wide("Count", "How often it was seen."),
            Column { priority: 1, ..NAME },
        ],
        ResourceKind::ConfigMap => vec![NAME, column("Data", "The number of entries."), AGE],
        ResourceKind::Secret => vec![
            NAME,
            column("Type", "What it is for."),
            column("Data", "The number of entries."),
            AGE,
        ],
        ResourceKind::ServiceAccount => vec![NAME, column("Secrets", "The number of secrets."), AGE],
        ResourceKind::Lease => vec![NAME, column("Holder", "Who holds it."), AGE],
        ResourceKind::Plain(kind) => plain::columns(kind),
    }
}

fn cells(kind: ResourceKind, object: &Object, now: Timestamp) -> Vec<Value> {
    let name = json!(object.name());
    let age = json!(age(object.text("/metadata/creationTimestamp"), now));
    let count = |pointer: &str| match object.value().pointer(pointer) {
        Some(Value::Object(map)) => map.len(),
        Some(Value::Array(items)) => items.len(),
        _ => 0,
    };
    match kind {
        ResourceKind::Pod => pod::cells(object, now),
        ResourceKind::Namespace => vec![name, json!(object.text("/status/phase")), age],
        ResourceKind::Node => node_cells(object, age),
        ResourceKind::Event => event_cells(object, now),
        ResourceKind::ConfigMap => vec![name, json!(count("/data") + count("/binaryData")), age],
        ResourceKind::Secret => vec![name, json!(object.text("/type")), json!(count("/data")), age],
        ResourceKind::ServiceAccount => vec![name, json!(count("/secrets")), age],
        ResourceKind::Lease => vec![name, json!(object.text("/spec/holderIdentity")), age],
        ResourceKind::Plain(kind) => plain::cells(kind, object, now),
    }
}

fn node_cells(node: &Object, age: Value) -> Vec<Value> {
    let conditions = node
        .value()
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    let ready = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == "Ready");
    let mut status = match ready.map(|ready| ready["status"].as_str().unwrap_or_default()) {
        Some("True") => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if node.value().pointer("/spec/unschedulable") == Some(&json!(true)) {
        status.push_str(",SchedulingDisabled");
    }
    let labels = node.labels();
    let roles: Vec<&str> = labels
        .iter()
        .filter_map(
            |(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
                Some(role) if !role.is_empty() => Some(role),
                _ => (*key == "kubernetes.io/role").then_some(*value),
            },
        )
        .collect();
    let address = |kind: &str| {
        let addresses = node
            .value()
            .pointer("/status/addresses")
            .and_then(Value::as_array);
        let found = addresses
            .into_iter()
            .flatten()
            .find(|address| address["type"] == kind);
        found.map_or(json!(NONE), |address| address["address"].clone())
    };
    let info = |field: &str| {
        let text = node.text(&format!("/status/nodeInfo/{field}"));
        json!(if text.is_empty() { UNKNOWN } else { text })
    };
    vec![
        json!(node.name()),
        json!(status),
        json!(if roles.is_empty() {
            NONE.to_owned()
        } else {
            roles.join(",")
        }),
        age,
        json!(node.text("/status/nodeInfo/kubeletVersion")),
        address("InternalIP"),
        address("ExternalIP"),
        info("osImage"),
        info("kernelVersion"),
        info("containerRuntimeVersion"),
    ]
}

fn event_cells(event: &Object, now: Timestamp) -> Vec<Value> {
    let first_of = |pointers: &[&str]| {
        let texts = pointers.iter().map(|pointer| event.text(pointer));
        texts
            .into_iter()
            .find(|text| !text.is_empty())
            .unwrap_or_default()
            .to_owned()
    };
    let last = first_of(&[
        "/series/lastObservedTime",
        "/lastTimestamp",
        "/eventTime",
        "/firstTimestamp",
    ]);
    let first = first_of(&["/firstTimestamp", "/eventTime"]);
    let count = event
        .value()
        .pointer("/series/count")
        .or(event.value().get("count"));
    let object = format!(
        "{}/{}",
        event.text("/involvedObject/kind").to_lowercase(),
        event.text("/involvedObject/name")
    );
    let mut source = first_of(&["/source/component", "/reportingComponent"]);
    let host = first_of(&["/source/host", "/reportingInstance"]);
    if !host.is_empty() {
        source = format!("{source}, {host}");
    }
    vec![
        json!(age(&last, now)),
        json!(event.text("/type")),
        json!(event.text("/reason")),
        json!(object),
        json!(event.text("/involvedObject/fieldPath")),
        json!(source),
        json!(event.text("/message").trim()),
        json!(age(&first, now)),
        count
            .filter(|count| count.is_number())
            .cloned()
            .unwrap_or_else(|| json!(1)),
        json!(event.name()),
    ]
}

/// Objects as a `Table`. `objects` are as their endpoint shows them.
pub(crate) fn table(
    kind: ResourceKind,
    objects: &[(Object, Object)],
    include: Include,
    metadata: &Value,
) -> Value {
    let now = Timestamp::now();
    let definitions: Vec<Value> = columns(kind)
        .into_iter()
        .map(|column| {
            json!({
                "name": column.name,
                "type": "string",
                "format": column.format,
                "description": column.description,
                "priority": column.priority,
            })
        })
        .collect();
    let rows: Vec<Value> = objects
        .iter()
        .map(|(stored, shown)| {
            let mut row = json!({"cells": cells(kind, stored, now)});
            match include {
                Include::None => {}
                Include::Metadata => row["object"] = partial(shown),
                Include::Object => row["object"] = shown.value().clone(),
            }
            row
        })
        .collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": definitions,
        "rows": rows,
    })
}

/// `PartialObjectMetadata` of an object.
pub(crate) fn partial(object: &Object) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object.metadata(),
    })
}

/// The time since a point, in the words of kubectl.
fn age(text: &str, now: Timestamp) -> String {
    match text.parse::<Timestamp>() {
        Ok(then) => human_duration(now.as_second() - then.as_second()),
        Err(_) => UNKNOWN.to_owned(),
    }
}

fn human_duration(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let two = |large: i64, large_unit: &str, small: i64, small_unit: &str| {
        if small == 0 {
            format!("{large}{large_unit}")
        } else {
            format!("{large}{large_unit}{small}{small_unit}")
        }
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1..=0 => "0s".to_owned(),
        _ if seconds < 2 * MINUTE => format!("{seconds}s"),
        _ if seconds < 10 * MINUTE => two(seconds / MINUTE, "m", seconds % MINUTE, "s"),
        _ if seconds < 3 * HOUR => format!("{}m", seconds / MINUTE),
        _ if seconds < 8 * HOUR => two(seconds / HOUR, "h", seconds % HOUR / MINUTE, "m"),
        _ if seconds < 2 * DAY => format!("{}h", seconds / HOUR),
        _ if seconds < 8 * DAY => two(seconds / DAY, "d", seconds % DAY / HOUR, "h"),
        _ if seconds < 2 * YEAR => format!("{}d", seconds / DAY),
        _ if seconds < 8 * YEAR => two(seconds / YEAR, "y", seconds % YEAR / DAY, "d"),
        _ => format!("{}y", seconds / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_in_kubectl() {
        for (seconds, expected) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (130, "2m10s"),
            (3600, "60m"),
            (4 * 3600 + 120, "4h2m"),
            (30 * 3600, "30h"),
            (3 * 86_400 + 3600, "3d1h"),
            (100 * 86_400, "100d"),
            (3 * 365 * 86_400, "3y"),
        ] {
            assert_eq!(human_duration(seconds), expected);
        }
    }

    #[test]
    fn every_kind_has_a_cell_per_column() {
        let object = Object::new(json!({"metadata": {"name": "x"}})).unwrap();
        for kind in ResourceKind::all() {
            let cells = cells(kind, &object, Timestamp::UNIX_EPOCH);
            assert_eq!(cells.len(), columns(kind).len(), "{kind:?}");
        }
    }
}
