//! Whether a pod that is bound to this node may be here: its selector, its node affinity and its tolerations against the
//! labels and the taints that the API has for the node.
//!
//! A scheduler looks at all of it before. A pod that names its node itself, or that was bound before a label changed, is
//! judged here alone, in a kubelet's words.

use std::collections::BTreeMap;

use pulselet_model::Pod;
use pulselet_model::openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration};
use serde_json::Value;

/// The only field that a node can be selected by.
const NAME_FIELD: &str = "metadata.name";
const NO_EXECUTE: &str = "NoExecute";

/// What the API says of the node that pods are selected by.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Selectable {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
}

/// Why a pod may not be on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Objection {
    NodeAffinity,
    TaintToleration,
}

impl Objection {
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::NodeAffinity => "NodeAffinity",
            Self::TaintToleration => "TaintToleration",
        }
    }

    pub(crate) fn message(self) -> String {
        let why = match self {
            Self::NodeAffinity => "node(s) didn't match Pod's node affinity/selector",
            Self::TaintToleration => "node(s) had taints that the pod didn't tolerate",
        };
        format!("Predicate {} failed: {why}", self.reason())
    }
}

impl Selectable {
    /// Reads a Node object.
    pub(crate) fn read(node: &Value) -> Self {
        let read = |pointer: &str| node.pointer(pointer).cloned().unwrap_or_default();
        Self {
            name: node["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
            labels: serde_json::from_value(read("/metadata/labels")).unwrap_or_default(),
            taints: serde_json::from_value(read("/spec/taints")).unwrap_or_default(),
        }
    }

    /// The first objection; `None` if the pod may run here.
    pub(crate) fn objection(&self, pod: &Pod) -> Option<Objection> {
        if !self.is_selected(pod) {
            return Some(Objection::NodeAffinity);
        }
        let mut ending = self.taints.iter().filter(|taint| taint.effect == NO_EXECUTE);
        let tolerated = ending.all(|taint| pod.spec.tolerations.iter().any(|it| tolerates(it, taint)));
        (!tolerated).then_some(Objection::TaintToleration)
    }

    fn is_selected(&self, pod: &Pod) -> bool {
        let mut selector = pod.spec.node_selector.iter();
        if !selector.all(|(key, value)| self.labels.get(key) == Some(value)) {
            return false;
        }
        let affinity = pod
            .spec
            .affinity
            .as_ref()
            .and_then(|affinity| affinity.node_affinity.as_ref());
        let required = affinity.and_then(|affinity| {
            affinity
                .required_during_scheduling_ignored_during_execution
                .as_ref()
        });
        required.is_none_or(|required| required.node_selector_terms.iter().any(|term| self.fits(term)))
    }

    /// A term that says nothing fits no node.
    fn fits(&self, term: &NodeSelectorTerm) -> bool {
        let expressions = term.match_expressions.as_deref().unwrap_or_default();
        let fields = term.match_fields.as_deref().unwrap_or_default();
        let says_something = !expressions.is_empty() || !fields.is_empty();
        let label = |key: &str| self.labels.get(key).map(String::as_str);
        let field = |key: &str| (key == NAME_FIELD).then_some(self.name.as_str());
        says_something
            && expressions
                .iter()
                .all(|wanted| is_met(wanted, label(&wanted.key)))
            && fields.iter().all(|wanted| is_met(wanted, field(&wanted.key)))
    }
}

fn is_met(wanted: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = wanted.values.as_deref().unwrap_or_default();
    let is_among = |value: &str| values.iter().any(|wanted| wanted == value);
    let number = |text: &str| text.parse::<i64>().ok();
    let compared = || Some((number(value?)?, number(values.first()?)?));
    match wanted.operator.as_str() {
        "In" => value.is_some_and(is_among),
        "NotIn" => !value.is_some_and(is_among),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared().is_some_and(|(value, limit)| value > limit),
        "Lt" => compared().is_some_and(|(value, limit)| value < limit),
        // What nobody knows cannot be met.
        _ => false,
    }
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let is_empty = |text: &Option<String>| text.as_deref().is_none_or(str::is_empty);
    let same_effect = is_empty(&toleration.effect) || toleration.effect.as_deref() == Some(&taint.effect);
    let same_key = toleration.key.as_deref().unwrap_or_default() == taint.key;
    let exists = toleration.operator.as_deref() == Some("Exists");
    let value = |text: &Option<String>| text.as_deref().unwrap_or_default().to_owned();
    let same_value = exists || value(&toleration.value) == value(&taint.value);
    let any_key = is_empty(&toleration.key) && exists;
    same_effect && (any_key || (same_key && same_value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn objection(spec: &Value) -> Option<Objection> {
        let node = Selectable::read(&json!({
            "metadata": {"name": "n1", "labels": {"zone": "a", "cores": "8"}},
            "spec": {"taints": [
                {"key": "gone", "value": "soon", "effect": "NoExecute"}, {"key": "full", "effect": "NoSchedule"},
            ]},
        }));
        let mut spec = spec.clone();
        spec["containers"] = json!([{"name": "app"}]);
        let pod = json!({"metadata": {"name": "web"}, "spec": spec});
        node.objection(&serde_json::from_value(pod).expect("a pod"))
    }

    fn requiring(term: &Value) -> Value {
        let required =
            json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}});
        json!({"affinity": {"nodeAffinity": required}, "tolerations": [{"operator": "Exists"}]})
    }

    #[test]
    fn selectors_and_affinity_are_those_of_the_scheduler() {
        let label = |key: &str, operator: &str, values: &[&str]| {
            let expression = json!({"key": key, "operator": operator, "values": values});
            objection(&requiring(&json!({"matchExpressions": [expression]})))
        };
        assert_eq!(label("zone", "In", &["b", "a"]), None);
        assert_eq!(label("zone", "NotIn", &["b"]), None);
        assert_eq!(label("rack", "NotIn", &["b"]), None);
        assert_eq!(label("cores", "Gt", &["7"]), None);
        assert_eq!(label("rack", "DoesNotExist", &[]), None);
        for (key, operator, values) in [
            ("zone", "In", &["b"][..]),
            ("zone", "NotIn", &["a"]),
            ("rack", "Exists", &[]),
            ("cores", "Lt", &["8"]),
            ("zone", "Gt", &["1"]),
            ("zone", "Like", &["a"]),
        ] {
            assert_eq!(
                label(key, operator, values),
                Some(Objection::NodeAffinity),
                "{key} {operator}"
            );
        }
        let named = |name: &str| {
            let field = json!({"key": "metadata.name", "operator": "In", "values": [name]});
            objection(&requiring(&json!({"matchFields": [field]})))
        };
        assert_eq!((named("n1"), named("n2")), (None, Some(Objection::NodeAffinity)));
        assert_eq!(objection(&requiring(&json!({}))), Some(Objection::NodeAffinity));
        let selector = |zone: &str| {
            objection(&json!({"nodeSelector": {"zone": zone}, "tolerations": [{"operator": "Exists"}]}))
        };
        assert_eq!(
            (selector("a"), selector("b")),
            (None, Some(Objection::NodeAffinity))
        );
    }

    #[test]
    fn only_taints_that_end_pods_count() {
        let tolerating = |toleration: Value| objection(&json!({"tolerations": [toleration]}));
        assert_eq!(objection(&json!({})), Some(Objection::TaintToleration));
        assert_eq!(tolerating(json!({"key": "gone", "value": "soon"})), None);
        assert_eq!(
            tolerating(json!({"key": "gone", "operator": "Exists", "effect": "NoExecute"})),
            None
        );
        let other = tolerating(json!({"key": "gone", "value": "late"}));
        assert_eq!(other, Some(Objection::TaintToleration));
    }
}
