//! Nobody grants what they do not have.
//!
//! Whoever writes a role must hold every rule in it, or have the verb `escalate` on it; whoever writes a binding must hold
//! every rule of the role it names, or have the verb `bind` on that role. Otherwise the right to write roles would be
//! the right to everything.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::policy::{Policy, PolicyRule, RoleRef};
use crate::access::Identity;
use crate::access::attributes::{Attributes, ResourceAttributes};
use crate::registry::object::Object;
use crate::registry::resource::ResourceKind;

const GROUP: &str = "rbac.authorization.k8s.io";
const EVERYTHING: &str = "*";
/// Rules that one refusal names.
const MAX_NAMED_RULES: usize = 10;

/// What a writer of roles and bindings may grant.
#[derive(Debug, Clone)]
pub(crate) struct GrantLimit {
    pub(crate) identity: Identity,
    pub(crate) policy: Arc<Policy>,
}

impl GrantLimit {
    /// Whether the writer may store this; `old` is `None` if the object is new. The error says why not.
    pub(crate) fn check(&self, kind: ResourceKind, old: Option<&Object>, new: &Object) -> Result<(), String> {
        let changed = |fields: [&str; 2]| {
            fields
                .iter()
                .any(|field| old.is_none_or(|old| old.value().get(*field) != new.value().get(*field)))
        };
        match kind.info().plural {
            "roles" | "clusterroles" if changed(["rules", "aggregationRule"]) => self.check_role(kind, new),
            "rolebindings" | "clusterrolebindings" if changed(["roleRef", "subjects"]) => {
                self.check_binding(new)
            }
            _ => Ok(()),
        }
    }

    fn check_role(&self, kind: ResourceKind, role: &Object) -> Result<(), String> {
        if self.may("escalate", kind.info().plural, role.namespace(), role.name()) {
            return Ok(());
        }
        if role
            .value()
            .get("aggregationRule")
            .is_some_and(|rule| !rule.is_null())
            && !self.holds_everything(role.namespace())
        {
            return Err("must have cluster-admin privileges to use the aggregationRule".to_owned());
        }
        let rules = Vec::<PolicyRule>::deserialize(role.value().get("rules").unwrap_or(&Value::Null));
        self.check_rules(role.namespace(), &rules.unwrap_or_default())
    }

    fn check_binding(&self, binding: &Object) -> Result<(), String> {
        let role = binding.value().get("roleRef").unwrap_or(&Value::Null);
        let role = RoleRef::deserialize(role).unwrap_or_default();
        let namespace = binding.namespace();
        let (plural, role_namespace) = match role.kind.as_str() {
            "ClusterRole" => ("clusterroles", ""),
            _ => ("roles", namespace),
        };
        let may_bind = self.may("bind", plural, role_namespace, &role.name)
            || self.may("bind", plural, namespace, &role.name);
        if may_bind {
            return Ok(());
        }
        match self.policy.role(namespace, &role) {
            Some(rules) => self.check_rules(namespace, rules),
            // Nobody can hold the rules of a role that is still to be written.
            None => Err(format!("{plural}.{GROUP} {:?} not found", role.name)),
        }
    }

    fn may(&self, verb: &str, resource: &str, namespace: &str, name: &str) -> bool {
        let attributes = Attributes::Resource(ResourceAttributes {
            verb: verb.to_owned(),
            group: GROUP.to_owned(),
            version: "v1".to_owned(),
            resource: resource.to_owned(),
            subresource: String::new(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        });
        self.policy.allows(&self.identity, &attributes).is_some()
    }

    fn holds_everything(&self, namespace: &str) -> bool {
        let all = |list: &[String]| list.iter().any(|item| item == EVERYTHING);
        self.policy
            .rules_for(&self.identity, namespace)
            .iter()
            .any(|rule| {
                all(&rule.verbs)
                    && all(&rule.api_groups)
                    && all(&rule.resources)
                    && rule.resource_names.is_empty()
            })
    }

    fn check_rules(&self, namespace: &str, wanted: &[PolicyRule]) -> Result<(), String> {
        let held = self.policy.rules_for(&self.identity, namespace);
        let missing: Vec<String> = wanted
            .iter()
            .flat_map(single_rules)
            .filter(|single| !held.iter().any(|rule| includes(rule, single)))
            .map(|rule| shown(&rule))
            .take(MAX_NAMED_RULES)
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let Identity { user, groups, .. } = &self.identity;
        Err(format!(
            "user {user:?} (groups={groups:?}) is attempting to grant RBAC permissions not currently held:\n{}",
            missing.join("\n")
        ))
    }
}

/// A rule as rules about one thing each: together they allow the same.
fn single_rules(rule: &PolicyRule) -> Vec<PolicyRule> {
    let mut singles = Vec::new();
    let one = |item: &String| vec![item.clone()];
    let names: Vec<Vec<String>> = match rule.resource_names.as_slice() {
        [] => vec![Vec::new()],
        names => names.iter().map(one).collect(),
    };
    for verb in &rule.verbs {
        for url in &rule.non_resource_urls {
            singles.push(PolicyRule {
                verbs: one(verb),
                non_resource_urls: one(url),
                ..PolicyRule::default()
            });
        }
        for group in &rule.api_groups {
            for resource in &rule.resources {
                for names in &names {
                    singles.push(PolicyRule {
                        verbs: one(verb),
                        api_groups: one(group),
                        resources: one(resource),
                        resource_names: names.clone(),
                        non_resource_urls: Vec::new(),
                    });
                }
            }
        }
    }
    singles
}

/// Whether a rule allows all that a single one does.
fn includes(rule: &PolicyRule, single: &PolicyRule) -> bool {
    let has = |list: &[String], wanted: &[String]| {
        let is_in = |item: &String| list.iter().any(|held| held == EVERYTHING || held == item);
        wanted.iter().all(is_in)
    };
    if let [url] = single.non_resource_urls.as_slice() {
        let covers = |held: &String| match held.strip_suffix('*') {
            Some(beginning) => url.starts_with(beginning),
            None => held == url,
        };
        return has(&rule.verbs, &single.verbs) && rule.non_resource_urls.iter().any(covers);
    }
    let resource = |wanted: &String| {
        let part = wanted.split_once('/').map(|(_, part)| format!("*/{part}"));
        rule.resources
            .iter()
            .any(|held| held == EVERYTHING || held == wanted || Some(held) == part.as_ref())
    };
    let allowed = &rule.resource_names;
    let is_named = allowed.is_empty()
        || (!single.resource_names.is_empty()
            && single.resource_names.iter().all(|name| allowed.contains(name)));
    is_named
        && has(&rule.verbs, &single.verbs)
        && has(&rule.api_groups, &single.api_groups)
        && single.resources.iter().all(resource)
}

fn shown(rule: &PolicyRule) -> String {
    if !rule.non_resource_urls.is_empty() {
        return format!(
            "{{NonResourceURLs:{:?}, Verbs:{:?}}}",
            rule.non_resource_urls, rule.verbs
        );
    }
    let names = match rule.resource_names.as_slice() {
        [] => String::new(),
        names => format!(", ResourceNames:{names:?}"),
    };
    format!(
        "{{APIGroups:{:?}, Resources:{:?}{names}, Verbs:{:?}}}",
        rule.api_groups, rule.resources, rule.verbs
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(value: Value) -> PolicyRule {
        PolicyRule::deserialize(value).unwrap()
    }

    fn covered(held: &Value, wanted: &Value) -> bool {
        let held = Vec::<PolicyRule>::deserialize(held).unwrap();
        single_rules(&rule(wanted.clone()))
            .iter()
            .all(|single| held.iter().any(|rule| includes(rule, single)))
    }

    #[test]
    fn what_is_held_in_pieces_may_be_granted_as_a_whole() {
        let held = json!([
            {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]},
            {"verbs": ["*"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"]},
            {"verbs": ["list"], "apiGroups": ["*"], "resources": ["*/status", "pods"]},
            {"verbs": ["get"], "nonResourceURLs": ["/logs/*"]},
        ]);
        for (wanted, expected) in [
            (
                json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}),
                true,
            ),
            (
                json!({"verbs": ["*"], "apiGroups": [""], "resources": ["pods"]}),
                false,
            ),
            (
                json!({"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"]}),
                true,
            ),
            (
                json!({"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}),
                false,
            ),
            (
                json!({"verbs": ["list"], "apiGroups": ["apps"], "resources": ["deployments/status"]}),
                true,
            ),
            (json!({"verbs": ["get"], "nonResourceURLs": ["/logs/x"]}), true),
            (json!({"verbs": ["get"], "nonResourceURLs": ["*"]}), false),
        ] {
            assert_eq!(covered(&held, &wanted), expected, "{wanted}");
        }
    }
}
