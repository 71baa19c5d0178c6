//! A pod's manifest, and the numbers that follow from it: what `pulselet explain` computes.

use pulselet_engine::time::Span;
use pulselet_model::Pod;
use pulselet_plan::{PlanError, explain};
use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

use crate::source::NodeRules;

#[derive(Debug, Error)]
#[error("the manifest cannot be explained: {0}")]
pub(crate) struct ExplainError(#[from] PlanError);

/// A manifest and what it means.
#[derive(Debug, Serialize)]
pub(crate) struct Explained {
    yaml: String,
    probes: Vec<ProbeNumbers>,
}

/// What one probe of one container implies.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProbeNumbers {
    pub(crate) container: String,
    pub(crate) kind: &'static str,
    pub(crate) period_seconds: f64,
    pub(crate) period_after_seconds: f64,
    pub(crate) timeout_seconds: f64,
    pub(crate) failure_threshold: u32,
    pub(crate) initial_delay_seconds: f64,
    pub(crate) startup_budget_seconds: Option<f64>,
    pub(crate) detect_min_seconds: f64,
    pub(crate) detect_max_seconds: f64,
    pub(crate) gone_by_seconds: Option<f64>,
    /// The grace period of a kill by this probe.
    pub(crate) grace_seconds: Option<f64>,
    pub(crate) advice: Vec<String>,
}

pub(crate) fn explained(pod: &Pod, rules: &NodeRules) -> Result<Explained, ExplainError> {
    let mut value = serde_json::to_value(pod).expect("a pod is plain data");
    if let Some(fields) = value.as_object_mut() {
        fields.remove("status");
    }
    Ok(Explained {
        yaml: yaml(&value),
        probes: numbers(pod, rules)?,
    })
}

/// The numbers of every probe, under the node's gates and settings.
pub(crate) fn numbers(pod: &Pod, rules: &NodeRules) -> Result<Vec<ProbeNumbers>, ExplainError> {
    let explanation = explain(pod, rules.gates, &rules.settings)?;
    let mut all = Vec::new();
    for container in &explanation.containers {
        for (place, probe) in container.probes.iter().enumerate() {
            let timing = &probe.timing;
            // What concerns the whole container is said once, with its first probe.
            let shared = if place == 0 { &container.advice[..] } else { &[] };
            let advice = shared.iter().chain(&probe.advice);
            all.push(ProbeNumbers {
                container: container.plan.name.to_string(),
                kind: timing.kind.as_str(),
                period_seconds: timing.period.as_secs_f64(),
                period_after_seconds: timing.period_after.as_secs_f64(),
                timeout_seconds: probe.plan.timeout.as_secs_f64(),
                failure_threshold: probe.plan.failure_threshold,
                initial_delay_seconds: probe.plan.initial_delay.as_secs_f64(),
                startup_budget_seconds: timing.startup_budget.map(Span::as_secs_f64),
                detect_min_seconds: timing.detect.min.as_secs_f64(),
                detect_max_seconds: timing.detect.max.as_secs_f64(),
                gone_by_seconds: timing.gone_by.map(Span::as_secs_f64),
                grace_seconds: timing.stop.map(|stop| stop.grace.as_secs_f64()),
                advice: advice.map(ToString::to_string).collect(),
            });
        }
    }
    Ok(all)
}

/// JSON as YAML that people read.
fn yaml(value: &Value) -> String {
    let mut out = String::new();
    write_yaml(&mut out, value, 0);
    out
}

fn write_yaml(out: &mut String, value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                out.push_str(&indent);
                out.push_str(&scalar(key));
                out.push(':');
                write_nested(out, value, depth + 1);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let mut text = String::new();
                write_yaml(&mut text, item, depth + 1);
                // The first line of the item stands behind the dash.
                out.push_str(&indent);
                out.push_str("- ");
                out.push_str(text.trim_start_matches(' '));
            }
        }
        flat => {
            out.push_str(&indent);
            out.push_str(&flat_text(flat));
            out.push('\n');
        }
    }
}

fn write_nested(out: &mut String, value: &Value, depth: usize) {
    let is_nested = match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    if is_nested {
        out.push('\n');
        write_yaml(out, value, depth);
    } else {
        out.push(' ');
        out.push_str(&flat_text(value));
        out.push('\n');
    }
}

fn flat_text(value: &Value) -> String {
    match value {
        Value::String(text) => scalar(text),
        other => other.to_string(),
    }
}

/// A text as it is where nothing could be mistaken, otherwise in quotes, which YAML reads as JSON does.
fn scalar(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./".contains(letter);
    let begins = text.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '/');
    let mistaken = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_word = mistaken.iter().any(|word| text.eq_ignore_ascii_case(word));
    if begins && !is_word && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        Value::from(text).to_string()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_manifest_reads_as_people_write_it() {
        let value = json!({"kind": "Pod", "metadata": {"labels": {"on": "yes"}, "name": "web"},
            "spec": {"containers": [{"args": ["-c", "echo: hi\n"], "env": [], "name": "app", "port": 80}], "x": {}}});
        let expected = "kind: Pod\nmetadata:\n  labels:\n    \"on\": \"yes\"\n  name: web\nspec:\n  containers:\n    - args:\n        \
                        - \"-c\"\n        - \"echo: hi\\n\"\n      env: []\n      name: app\n      port: 80\n  x: {}\n";
        assert_eq!(yaml(&value), expected);
    }
}
