//! Selectors of labels: whether they are well-formed, and whether they select what the template makes.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::json;

use super::super::metadata::{self, IMMUTABLE};
use super::super::names;
use crate::field::{Errors, Path, RawJson};

pub(super) type Labels = BTreeMap<String, String>;

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LabelSelector {
    pub(super) match_labels: Labels,
    pub(super) match_expressions: Vec<Requirement>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Requirement {
    key: String,
    operator: String,
    values: Vec<String>,
}

/// Whether a selector may have values that no label can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Values {
    Valid,
    Any,
}

impl LabelSelector {
    pub(super) fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    /// Whether the selector selects labels; `None` if it is malformed.
    pub(super) fn matches(&self, labels: Option<&Labels>) -> Option<bool> {
        let mut errors = Errors::default();
        validate(&mut errors, self, Path::new("selector"), Values::Valid);
        if errors.len() > 0 {
            return None;
        }
        let found = |key: &str| labels.and_then(|labels| labels.get(key));
        let equal = self
            .match_labels
            .iter()
            .all(|(key, value)| found(key) == Some(value));
        Some(
            equal
                && self
                    .match_expressions
                    .iter()
                    .all(|expression| expression.holds(found(&expression.key))),
        )
    }

    pub(super) fn has_bad_value(&self) -> bool {
        let mut values = self
            .match_expressions
            .iter()
            .flat_map(|expression| &expression.values);
        values.any(|value| !names::label_value(value).is_empty())
    }

    /// As upstream shows it.
    pub(super) fn shown(&self) -> RawJson {
        let mut parts = Vec::new();
        if !self.match_labels.is_empty() {
            parts.push(format!("\"matchLabels\":{}", json!(self.match_labels)));
        }
        if !self.match_expressions.is_empty() {
            let shown: Vec<String> = self.match_expressions.iter().map(Requirement::shown).collect();
            parts.push(format!("\"matchExpressions\":[{}]", shown.join(",")));
        }
        RawJson(format!("{{{}}}", parts.join(",")))
    }
}

impl Requirement {
    fn holds(&self, found: Option<&String>) -> bool {
        let listed = found.is_some_and(|found| self.values.contains(found));
        match self.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => found.is_some(),
            "DoesNotExist" => found.is_none(),
            _ => false,
        }
    }

    fn shown(&self) -> String {
        let values = if self.values.is_empty() {
            String::new()
        } else {
            format!(",\"values\":{}", json!(self.values))
        };
        let (key, operator) = (json!(self.key), json!(self.operator));
        format!("{{\"key\":{key},\"operator\":{operator}{values}}}")
    }
}

/// The selector by itself.
pub(super) fn validate(errors: &mut Errors, selector: &LabelSelector, path: Path<'_>, allowed: Values) {
    metadata::validate_labels(errors, Some(&selector.match_labels), path.child("matchLabels"));
    let list = path.child("matchExpressions");
    for (index, requirement) in selector.match_expressions.iter().enumerate() {
        let path = list.index(index);
        let values = path.child("values");
        match (requirement.operator.as_str(), requirement.values.is_empty()) {
            ("In" | "NotIn", true) => {
                errors.required(values, "must be specified when `operator` is 'In' or 'NotIn'");
            }
            ("Exists" | "DoesNotExist", false) => {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.forbidden(values, detail);
            }
            ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => {}
            (other, _) => errors.invalid(
                path.child("operator"),
                json!(other),
                "not a valid selector operator",
            ),
        }
        let key = requirement.key.as_str();
        errors.invalid_each(path.child("key"), key, names::qualified_name(key));
        if allowed == Values::Valid {
            for (index, value) in requirement.values.iter().enumerate() {
                errors.invalid_each(values.index(index), value, names::label_value(value));
            }
        }
    }
}

/// A selector that must exist and select something.
pub(super) fn validate_required(
    errors: &mut Errors,
    selector: Option<&LabelSelector>,
    path: Path<'_>,
    kind: &str,
) {
    let Some(selector) = selector else {
        errors.required(path, "");
        return;
    };
    validate(errors, selector, path, Values::Valid);
    validate_not_empty(errors, selector, path, kind);
}

pub(super) fn validate_not_empty(errors: &mut Errors, selector: &LabelSelector, path: Path<'_>, kind: &str) {
    if selector.is_empty() {
        let detail = format!("empty selector is invalid for {kind}");
        errors.invalid(path, selector.shown(), detail);
    }
}

/// The Pods of a template would not belong to their owner.
pub(super) fn mismatch(errors: &mut Errors, labels: Option<&Labels>, template_path: Path<'_>) {
    errors.invalid(
        template_path.child("metadata").child("labels"),
        json!(labels),
        "`selector` does not match template `labels`",
    );
}

pub(super) fn validate_unchanged(
    errors: &mut Errors,
    new: Option<&LabelSelector>,
    old: Option<&LabelSelector>,
    spec_path: Path<'_>,
) {
    if new != old {
        let shown = new.map_or_else(|| RawJson("null".to_owned()), LabelSelector::shown);
        errors.invalid(spec_path.child("selector"), shown, IMMUTABLE);
    }
}
