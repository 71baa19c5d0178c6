//! Cluster roles that gather the rules of others, chosen by their labels.

use serde::Deserialize as _;
use serde_json::Value;

use super::policy::PolicyRule;

/// The rules that a role gathers from all there are; `None` if it has rules of its own.
pub(crate) fn gathered_rules<'a>(
    role: &Value,
    all: &(impl Iterator<Item = &'a Value> + Clone),
) -> Option<Vec<PolicyRule>> {
    let selectors = role
        .pointer("/aggregationRule/clusterRoleSelectors")?
        .as_array()?;
    let mut rules: Vec<PolicyRule> = Vec::new();
    let own_name = role.pointer("/metadata/name");
    for selector in selectors {
        // In the order of their names, so that the result is always the same.
        let mut chosen: Vec<&Value> = all
            .clone()
            .filter(|other| other.pointer("/metadata/name") != own_name)
            .filter(|other| selects(selector, &other["metadata"]["labels"]))
            .collect();
        chosen.sort_by_key(|other| other["metadata"]["name"].as_str().unwrap_or_default().to_owned());
        for other in chosen {
            let found = Vec::<PolicyRule>::deserialize(&other["rules"]).unwrap_or_default();
            for rule in found {
                if !rules.contains(&rule) {
                    rules.push(rule);
                }
            }
        }
    }
    Some(rules)
}

/// Whether a label selector chooses an object with these labels.
fn selects(selector: &Value, labels: &Value) -> bool {
    let wanted = selector["matchLabels"].as_object();
    let equal = wanted
        .into_iter()
        .flatten()
        .all(|(key, value)| labels.get(key) == Some(value));
    let expressions = selector["matchExpressions"].as_array();
    equal
        && expressions
            .into_iter()
            .flatten()
            .all(|expression| holds(expression, labels))
}

fn holds(expression: &Value, labels: &Value) -> bool {
    let found = expression["key"].as_str().and_then(|key| labels.get(key));
    let among = |value: &Value| {
        expression["values"]
            .as_array()
            .is_some_and(|values| values.contains(value))
    };
    match expression["operator"].as_str() {
        Some("In") => found.is_some_and(among),
        Some("NotIn") => !found.is_some_and(among),
        Some("Exists") => found.is_some(),
        Some("DoesNotExist") => found.is_none(),
        Some(_) | None => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_are_gathered_by_label_and_only_once() {
        let get = |resource: &str| json!({"verbs": ["get"], "apiGroups": [""], "resources": [resource]});
        let role = |name: &str, label: &str, rules: Vec<Value>| json!({"metadata": {"name": name, "labels": {label: "true"}}, "rules": rules});
        let all = [
            role("b", "to-view", vec![get("pods"), get("secrets")]),
            role("a", "to-view", vec![get("pods")]),
            role("c", "to-edit", vec![get("nodes")]),
        ];
        let view = json!({"metadata": {"name": "view"}, "aggregationRule": {"clusterRoleSelectors": [
            {"matchLabels": {"to-view": "true"}},
            {"matchExpressions": [{"key": "to-edit", "operator": "In", "values": ["false"]}]},
        ]}});
        let rules = gathered_rules(&view, &all.iter()).unwrap();
        let resources: Vec<&str> = rules.iter().map(|rule| rule.resources[0].as_str()).collect();
        assert_eq!(resources, ["pods", "secrets"]);
        assert_eq!(gathered_rules(&all[0], &all.iter()), None);
    }
}
