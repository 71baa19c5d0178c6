//! Events have two faces: core and `events.k8s.io`. They are stored with the core's field names.

use serde_json::{Map, Value};

/// Field names: core, `events.k8s.io`.
const NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("source", "deprecatedSource"),
    ("reportingComponent", "reportingController"),
];

pub(super) fn to_core(value: Value) -> Value {
    let mut value = rename(value, |name| {
        NAMES
            .iter()
            .find(|(_, other)| *other == name)
            .map(|(core, _)| *core)
    });
    value["apiVersion"] = Value::from("v1");
    value
}

pub(super) fn from_core(value: Value) -> Value {
    let mut value = rename(value, |name| {
        NAMES
            .iter()
            .find(|(core, _)| *core == name)
            .map(|(_, other)| *other)
    });
    value["apiVersion"] = Value::from("events.k8s.io/v1");
    value
}

fn rename(value: Value, new_name: impl Fn(&str) -> Option<&'static str>) -> Value {
    let Value::Object(map) = value else {
        return value;
    };
    let renamed: Map<String, Value> = map
        .into_iter()
        .map(|(key, value)| (new_name(&key).map_or(key, str::to_owned), value))
        .collect();
    Value::Object(renamed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn there_and_back_is_the_same() {
        let event = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"},
            "involvedObject": {"name": "web"}, "message": "hi", "count": 3, "reason": "Started",
            "reportingComponent": "node",
        });
        let other = from_core(event.clone());
        assert_eq!(other["note"], "hi");
        assert_eq!(other["regarding"]["name"], "web");
        assert_eq!(to_core(other), event);
    }
}
