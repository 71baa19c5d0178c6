//! Events have two faces: core and `events.k8s.io`. They are stored with the core's field names.

use pulselet_model::FieldError;
use serde_json::{Map, Value, json};

use super::plain::Plain;
use super::{Admitted, Refusal, Rules, Strategy, Update, invalid};
use crate::registry::object::Object;
use crate::registry::resource::ResourceKind;

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

#[derive(Debug)]
pub(super) struct Event(Plain);

pub(super) static EVENT: Event = Event(Plain {
    fill: |event| {
        if event.value().get("involvedObject").is_none() {
            event.value_mut()["involvedObject"] = json!({});
        }
    },
    errors: event_errors,
    ..Plain::NEW
});

impl Strategy for Event {
    fn to_stored(&self, value: Value) -> Value {
        to_core(value)
    }

    fn to_served(&self, value: Value) -> Value {
        from_core(value)
    }

    fn admit_create(&self, kind: ResourceKind, object: Object, rules: Rules) -> Result<Admitted, Refusal> {
        self.0.admit_create(kind, object, rules)
    }

    fn admit_update(
        &self,
        kind: ResourceKind,
        update: Update<'_>,
        rules: Rules,
    ) -> Result<Admitted, Refusal> {
        self.0.admit_update(kind, update, rules)
    }
}

fn event_errors(object: &Object) -> Vec<FieldError> {
    let involved = object.text("/involvedObject/namespace");
    let namespace = object.namespace();
    // What has no namespace is spoken of in the default one.
    let expected = if involved.is_empty() { "default" } else { involved };
    if expected == namespace || (involved.is_empty() && namespace == "kube-system") {
        Vec::new()
    } else {
        let detail = "does not match event.namespace";
        vec![invalid("involvedObject.namespace", &json!(involved), detail)]
    }
}

fn to_core(value: Value) -> Value {
    let mut value = rename(value, |name| {
        NAMES
            .iter()
            .find(|(_, other)| *other == name)
            .map(|(core, _)| *core)
    });
    value["apiVersion"] = Value::from("v1");
    value
}

fn from_core(value: Value) -> Value {
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
