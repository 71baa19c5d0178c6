//! Label and field selectors: which objects a list or a watch is about.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use serde_json::Value;

use crate::registry::object::Object;
use crate::registry::resource::ResourceKind;
use crate::rest::status::ApiError;

/// How many requirements one selector may have: far more than any real one has.
const MAX_REQUIREMENTS: usize = 256;

/// Which objects are meant. The default is all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    labels: Vec<LabelRequirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum LabelRequirement {
    In(String, BTreeSet<String>),
    NotIn(String, BTreeSet<String>),
    Exists(String),
    Missing(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldRequirement {
    field: String,
    value: String,
    equal: bool,
}

impl Selector {
    /// Parses `labelSelector` and `fieldSelector` of a request about objects of a kind.
    pub(crate) fn parse(kind: ResourceKind, labels: &str, fields: &str) -> Result<Self, ApiError> {
        let labels = parse_labels(labels)
            .map_err(|why| ApiError::bad_request(format!("unable to parse requirement: {why}")))?;
        let fields = parse_fields(kind, fields)?;
        Ok(Self { labels, fields })
    }

    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The value a field must have, if the selector asks for exactly one.
    pub(crate) fn required_field(&self, field: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|requirement| requirement.equal && requirement.field == field)
            .map(|requirement| requirement.value.as_str())
    }

    pub(crate) fn matches(&self, object: &Object) -> bool {
        let labels = object.labels();
        self.labels.iter().all(|requirement| requirement.holds(&labels))
            && self.fields.iter().all(|requirement| {
                let found = field_value(object, &requirement.field);
                (found == requirement.value) == requirement.equal
            })
    }
}

impl LabelRequirement {
    fn holds(&self, labels: &BTreeMap<&str, &str>) -> bool {
        match self {
            Self::In(key, values) => labels
                .get(key.as_str())
                .is_some_and(|value| values.contains(*value)),
            Self::NotIn(key, values) => labels
                .get(key.as_str())
                .is_none_or(|value| !values.contains(*value)),
            Self::Exists(key) => labels.contains_key(key.as_str()),
            Self::Missing(key) => !labels.contains_key(key.as_str()),
        }
    }
}

/// Splits at commas outside parentheses.
fn split_requirements(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (index, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn parse_labels(text: &str) -> Result<Vec<LabelRequirement>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let parts = split_requirements(text);
    if parts.len() > MAX_REQUIREMENTS {
        return Err(format!("more than {MAX_REQUIREMENTS} requirements"));
    }
    parts.into_iter().map(parse_label).collect()
}

fn parse_label(part: &str) -> Result<LabelRequirement, String> {
    let part = part.trim();
    if let Some(key) = part.strip_prefix('!') {
        return Ok(LabelRequirement::Missing(label_key(key)?));
    }
    let one = |value: &str| label_value(value).map(|value| BTreeSet::from([value]));
    if let Some((key, value)) = part.split_once("!=") {
        return Ok(LabelRequirement::NotIn(label_key(key)?, one(value)?));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Ok(LabelRequirement::In(label_key(key)?, one(value)?));
    }
    if let Some((head, values)) = part.split_once('(') {
        let values = values
            .trim_end()
            .strip_suffix(')')
            .ok_or_else(|| format!("found {part:?}, expected: ')'"))?;
        let values: Result<BTreeSet<String>, String> = values.split(',').map(label_value).collect();
        let mut words = head.split_whitespace();
        let (key, operator) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        return match (operator, words.next()) {
            ("in", None) => Ok(LabelRequirement::In(label_key(key)?, values?)),
            ("notin", None) => Ok(LabelRequirement::NotIn(label_key(key)?, values?)),
            _ => Err(format!("found {operator:?}, expected: in, notin, =, ==, !=")),
        };
    }
    Ok(LabelRequirement::Exists(label_key(part)?))
}

fn label_key(text: &str) -> Result<String, String> {
    let text = text.trim();
    let ok = !text.is_empty()
        && text.len() <= 317
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/'));
    if ok {
        Ok(text.to_owned())
    } else {
        Err(format!("{text:?} is not a label key"))
    }
}

fn label_value(text: &str) -> Result<String, String> {
    let text = text.trim();
    let ok = text.len() <= 63
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if ok {
        Ok(text.to_owned())
    } else {
        Err(format!("{text:?} is not a label value"))
    }
}

fn parse_fields(kind: ResourceKind, text: &str) -> Result<Vec<FieldRequirement>, ApiError> {
    let mut requirements = Vec::new();
    for part in split_escaped(text) {
        if part.trim().is_empty() {
            continue;
        }
        let (field, value, equal) = if let Some((field, value)) = part.split_once("!=") {
            (field, value, false)
        } else if let Some((field, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
            (field, value, true)
        } else {
            return Err(ApiError::bad_request(format!(
                "invalid selector: {text:?}; can't understand {part:?}"
            )));
        };
        let field = canonical_field(kind, field.trim())
            .ok_or_else(|| ApiError::bad_request(format!("field label not supported: {}", field.trim())))?;
        requirements.push(FieldRequirement {
            field,
            value: unescape(value.trim()),
            equal,
        });
        if requirements.len() > MAX_REQUIREMENTS {
            return Err(ApiError::bad_request(format!(
                "invalid selector: more than {MAX_REQUIREMENTS} requirements"
            )));
        }
    }
    Ok(requirements)
}

/// Splits at commas that no backslash precedes.
fn split_escaped(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut escaped) = (Vec::new(), 0, false);
    for (index, character) in text.char_indices() {
        match character {
            '\\' if !escaped => escaped = true,
            ',' if !escaped => {
                parts.push(&text[start..index]);
                start = index + 1;
            }
            _ => escaped = false,
        }
    }
    parts.push(&text[start..]);
    parts
}

fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut escaped = false;
    for character in text.chars() {
        if character == '\\' && !escaped {
            escaped = true;
        } else {
            plain.push(character);
            escaped = false;
        }
    }
    plain
}

/// The path a field label stands for, if the kind can be selected by it.
fn canonical_field(kind: ResourceKind, label: &str) -> Option<String> {
    const EVENT_FIELDS: [&str; 11] = [
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ];
    const POD_FIELDS: [&str; 8] = [
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ];
    if label == "metadata.name" || (label == "metadata.namespace" && kind.info().namespaced) {
        return Some(label.to_owned());
    }
    let regarding = label
        .strip_prefix("regarding.")
        .map(|rest| format!("involvedObject.{rest}"));
    let label = regarding.as_deref().unwrap_or(label);
    let label = if label == "reportingController" {
        "reportingComponent"
    } else {
        label
    };
    let known = match kind {
        ResourceKind::Pod => POD_FIELDS.contains(&label),
        ResourceKind::Event => EVENT_FIELDS.contains(&label),
        ResourceKind::Namespace => label == "status.phase",
        ResourceKind::Node => label == "spec.unschedulable",
        ResourceKind::Secret => label == "type",
        ResourceKind::Plain(kind) => kind.row().selectable.contains(&label),
        ResourceKind::ConfigMap | ResourceKind::Lease | ResourceKind::ServiceAccount => false,
    };
    known.then(|| label.to_owned())
}

/// A field as selectors compare it.
fn field_value(object: &Object, field: &str) -> String {
    let mut value = Some(object.value());
    for segment in field.split('.') {
        value = value.and_then(|value| value.get(segment));
    }
    match (field, value) {
        ("source", Some(source)) => text(source.get("component")),
        ("spec.hostNetwork" | "spec.unschedulable", None) => "false".to_owned(),
        ("status.replicas" | "status.successful", None) => "0".to_owned(),
        (_, value) => text(value),
    }
}

fn text(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(flag)) => flag.to_string(),
        Some(Value::Number(number)) => number.to_string(),
        Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn matches(labels: &str, fields: &str) -> bool {
        let pod = Object::new(json!({
            "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web", "tier": ""}},
            "spec": {"nodeName": "n1"},
            "status": {"phase": "Running"},
        }))
        .expect("an object");
        Selector::parse(ResourceKind::Pod, labels, fields)
            .expect("a selector")
            .matches(&pod)
    }

    #[test]
    fn every_form_of_label_requirement() {
        for (labels, expected) in [
            ("", true),
            ("app=web", true),
            ("app==db", false),
            ("app!=db,tier", true),
            ("missing!=x", true),
            ("!missing,!app", false),
            ("app in (db, web)", true),
            ("app notin (db,web)", false),
            ("tier=", true),
            ("tier in ()", true),
        ] {
            assert_eq!(matches(labels, ""), expected, "{labels}");
        }
    }

    #[test]
    fn fields_are_compared_as_text() {
        assert!(matches("", "spec.nodeName=n1,status.phase!=Failed"));
        assert!(!matches("", "metadata.name=other"));
        assert!(matches("", "spec.hostNetwork=false"));
    }

    #[test]
    fn nonsense_is_refused() {
        for labels in ["a in b", "a in (b", "=x", "a b", "a,,b", "a=b c"] {
            assert!(
                Selector::parse(ResourceKind::Pod, labels, "").is_err(),
                "{labels}"
            );
        }
        for fields in ["spec.foo=1", "metadata.name", "regarding.name=x"] {
            assert!(
                Selector::parse(ResourceKind::Pod, "", fields).is_err(),
                "{fields}"
            );
        }
        assert!(Selector::parse(ResourceKind::Event, "", "regarding.name=x").is_ok());
    }
}
