//! The template of a Pod inside another object.
//!
//! A template is a Pod without a name: its spec has the same type, so that gates, defaults, rules and warnings are
//! those of Pods. [`crate::workload`] knows where the kinds keep it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::pod::PodSpec;

/// The metadata and the spec of the Pods that a workload makes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodTemplateSpec {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: PodSpec,
}

impl PodTemplateSpec {
    /// Reads a template. `null` means "unset" wherever it stands.
    pub(crate) fn from_value(mut value: Value) -> Result<Self, serde_json::Error> {
        strip_nulls(&mut value);
        serde_json::from_value(value)
    }

    /// Makes an empty map the same as none. Only errors of a new object tell them apart.
    pub(crate) fn drop_empty(&mut self) {
        for map in [&mut self.metadata.labels, &mut self.metadata.annotations] {
            map.take_if(|map| map.is_empty());
        }
    }

    /// The template as it is stored.
    pub(crate) fn to_value(&self) -> Value {
        let mut template = self.clone();
        template.drop_empty();
        serde_json::to_value(template).expect("a template has string keys only")
    }
}

/// Removes what says no more than its absence.
pub(crate) fn strip_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(strip_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
