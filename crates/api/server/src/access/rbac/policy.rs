//! Roles and bindings as values, and what follows from them.
//!
//! A [`Policy`] is a snapshot: it never changes, so every question of one request is answered by the same rules. Rules
//! only ever allow; what no rule allows is not allowed.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::access::Identity;
use crate::access::attributes::{Attributes, ResourceAttributes};

/// The prefix of the user names of service accounts.
pub(crate) const ACCOUNT_PREFIX: &str = "system:serviceaccount:";
const EVERYTHING: &str = "*";

/// What may be done, as roles say it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PolicyRule {
    pub(crate) verbs: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) api_groups: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) resources: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) resource_names: Vec<String>,
    #[serde(rename = "nonResourceURLs", skip_serializing_if = "Vec::is_empty")]
    pub(crate) non_resource_urls: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Subject {
    kind: String,
    name: String,
    namespace: String,
}

/// The role that a binding grants.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct RoleRef {
    pub(crate) kind: String,
    pub(crate) name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BindingFields {
    subjects: Vec<Subject>,
    role_ref: RoleRef,
}

#[derive(Debug, Clone)]
struct Binding {
    name: String,
    fields: BindingFields,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RoleFields {
    rules: Vec<PolicyRule>,
}

/// The roles and bindings of a moment.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    cluster_roles: HashMap<String, Arc<[PolicyRule]>>,
    /// By namespace and name.
    roles: HashMap<(String, String), Arc<[PolicyRule]>>,
    cluster_bindings: Vec<Binding>,
    /// By namespace.
    bindings: HashMap<String, Vec<Binding>>,
}

impl Policy {
    pub(crate) fn add_cluster_role(&mut self, name: &str, object: &Value) {
        self.cluster_roles.insert(name.to_owned(), rules_in(object));
    }

    pub(crate) fn add_role(&mut self, namespace: &str, name: &str, object: &Value) {
        let key = (namespace.to_owned(), name.to_owned());
        self.roles.insert(key, rules_in(object));
    }

    pub(crate) fn add_cluster_binding(&mut self, name: &str, object: &Value) {
        self.cluster_bindings.push(binding_in(name, object));
    }

    pub(crate) fn add_binding(&mut self, namespace: &str, name: &str, object: &Value) {
        let bindings = self.bindings.entry(namespace.to_owned()).or_default();
        bindings.push(binding_in(name, object));
    }

    /// Why somebody may do something; `None` if no rule says that they may.
    pub(crate) fn allows(&self, identity: &Identity, attributes: &Attributes) -> Option<String> {
        let namespace = match attributes {
            Attributes::Resource(resource) => resource.namespace.as_str(),
            Attributes::Path { .. } => "",
        };
        self.granted(identity, namespace)
            .find(|grant| grant.rules.iter().any(|rule| rule.covers(attributes)))
            .map(|grant| grant.reason())
    }

    /// The rules that hold for somebody in a namespace, or outside of all where that is empty.
    pub(crate) fn rules_for(&self, identity: &Identity, namespace: &str) -> Vec<PolicyRule> {
        let grants = self.granted(identity, namespace);
        grants.flat_map(|grant| grant.rules.iter().cloned()).collect()
    }

    /// The rules of the role that a binding in a namespace grants; `None` if there is no such role.
    pub(crate) fn role(&self, namespace: &str, role: &RoleRef) -> Option<&[PolicyRule]> {
        let found = match role.kind.as_str() {
            "ClusterRole" => self.cluster_roles.get(&role.name),
            "Role" => self.roles.get(&(namespace.to_owned(), role.name.clone())),
            _ => None,
        };
        found.map(AsRef::as_ref)
    }

    fn granted<'a>(&'a self, identity: &'a Identity, namespace: &'a str) -> impl Iterator<Item = Grant<'a>> {
        let wide = self.cluster_bindings.iter().map(|binding| ("", binding));
        let own = self.bindings.get(namespace).filter(|_| !namespace.is_empty());
        let own = own.into_iter().flatten().map(move |binding| (namespace, binding));
        wide.chain(own).filter_map(move |(namespace, binding)| {
            let mut subjects = binding.fields.subjects.iter();
            let subject = subjects.find(|subject| subject.is(identity, namespace))?;
            let rules = self.role(namespace, &binding.fields.role_ref)?;
            Some(Grant {
                namespace,
                binding,
                subject,
                rules,
            })
        })
    }
}

fn rules_in(object: &Value) -> Arc<[PolicyRule]> {
    // What was stored has been decoded before; what cannot be read allows nothing.
    let fields = RoleFields::deserialize(object).unwrap_or_default();
    fields.rules.into()
}

fn binding_in(name: &str, object: &Value) -> Binding {
    Binding {
        name: name.to_owned(),
        fields: BindingFields::deserialize(object).unwrap_or_default(),
    }
}

/// A binding that concerns somebody.
struct Grant<'a> {
    /// Empty if it holds everywhere.
    namespace: &'a str,
    binding: &'a Binding,
    subject: &'a Subject,
    rules: &'a [PolicyRule],
}

impl Grant<'_> {
    fn reason(&self) -> String {
        let (kind, name) = if self.namespace.is_empty() {
            ("ClusterRoleBinding", self.binding.name.clone())
        } else {
            ("RoleBinding", format!("{}/{}", self.binding.name, self.namespace))
        };
        let RoleRef {
            kind: role_kind,
            name: role,
        } = &self.binding.fields.role_ref;
        let Subject {
            kind: subject_kind,
            name: subject,
            namespace,
        } = self.subject;
        let subject = if namespace.is_empty() {
            subject.clone()
        } else {
            format!("{subject}/{namespace}")
        };
        format!("RBAC: allowed by {kind} {name:?} of {role_kind} {role:?} to {subject_kind} {subject:?}")
    }
}

impl Subject {
    fn is(&self, identity: &Identity, binding_namespace: &str) -> bool {
        match self.kind.as_str() {
            "User" => self.name == identity.user,
            "Group" => identity.has_group(&self.name),
            "ServiceAccount" => {
                let namespace = if self.namespace.is_empty() {
                    binding_namespace
                } else {
                    &self.namespace
                };
                let account = identity.user.strip_prefix(ACCOUNT_PREFIX);
                !namespace.is_empty()
                    && account.and_then(|account| account.split_once(':')) == Some((namespace, &self.name))
            }
            _ => false,
        }
    }
}

impl PolicyRule {
    /// Whether the rule allows this.
    pub(crate) fn covers(&self, attributes: &Attributes) -> bool {
        match attributes {
            Attributes::Resource(resource) => self.covers_resource(resource),
            Attributes::Path { verb, path } => has(&self.verbs, verb) && self.covers_path(path),
        }
    }

    fn covers_resource(&self, asked: &ResourceAttributes) -> bool {
        let named = self.resource_names.is_empty() || self.resource_names.contains(&asked.name);
        named
            && has(&self.verbs, &asked.verb)
            && has(&self.api_groups, &asked.group)
            && self.resources.iter().any(|resource| covers_name(resource, asked))
    }

    fn covers_path(&self, path: &str) -> bool {
        self.non_resource_urls
            .iter()
            .any(|url| match url.strip_suffix('*') {
                Some(beginning) => path.starts_with(beginning),
                None => url == path,
            })
    }
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == EVERYTHING || item == wanted)
}

/// Whether the name of a resource in a rule, `pods/log` or `*/status` for example, means what is asked for.
fn covers_name(name: &str, asked: &ResourceAttributes) -> bool {
    if name == EVERYTHING {
        return true;
    }
    match name.split_once('/') {
        None => asked.subresource.is_empty() && name == asked.resource,
        Some((EVERYTHING, part)) => !part.is_empty() && part == asked.subresource,
        Some((resource, part)) => resource == asked.resource && part == asked.subresource,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn identity(user: &str, groups: &[&str]) -> Identity {
        Identity {
            user: user.to_owned(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..Identity::default()
        }
    }

    fn asks(verb: &str, resource: &str, namespace: &str, name: &str) -> Attributes {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Attributes::Resource(ResourceAttributes {
            verb: verb.to_owned(),
            group: String::new(),
            version: "v1".to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    fn policy() -> Policy {
        let mut policy = Policy::default();
        policy.add_cluster_role(
            "reader",
            &json!({"rules": [
                {"verbs": ["get"], "apiGroups": [""], "resources": ["pods", "*/status"]},
                {"verbs": ["get"], "nonResourceURLs": ["/metrics", "/logs/*"]},
            ]}),
        );
        policy.add_role(
            "a",
            "one",
            &json!({"rules": [
                {"verbs": ["*"], "apiGroups": ["*"], "resources": ["secrets"], "resourceNames": ["mine"]},
            ]}),
        );
        policy.add_cluster_binding(
            "readers",
            &json!({
                "subjects": [{"kind": "Group", "name": "readers"}],
                "roleRef": {"kind": "ClusterRole", "name": "reader"},
            }),
        );
        policy.add_binding(
            "a",
            "robots",
            &json!({
                "subjects": [{"kind": "ServiceAccount", "name": "robot"}],
                "roleRef": {"kind": "Role", "name": "one"},
            }),
        );
        policy.add_binding(
            "b",
            "ann",
            &json!({
                "subjects": [{"kind": "User", "name": "ann"}],
                "roleRef": {"kind": "ClusterRole", "name": "reader"},
            }),
        );
        policy
    }

    #[test]
    fn rules_allow_what_they_name_where_they_are_bound() {
        let policy = policy();
        let reader = identity("bob", &["readers"]);
        let ann = identity("ann", &[]);
        let robot = identity("system:serviceaccount:a:robot", &[]);
        for (who, what, expected) in [
            (&reader, asks("get", "pods", "x", "p"), true),
            (&reader, asks("get", "pods", "", ""), true),
            (&reader, asks("get", "pods/log", "x", "p"), false),
            (&reader, asks("get", "nodes/status", "", "n"), true),
            (&reader, asks("list", "pods", "x", ""), false),
            (&ann, asks("get", "pods", "b", "p"), true),
            (&ann, asks("get", "pods", "a", "p"), false),
            (&ann, asks("get", "pods", "", "p"), false),
            (&robot, asks("delete", "secrets", "a", "mine"), true),
            (&robot, asks("delete", "secrets", "a", "other"), false),
            (&robot, asks("list", "secrets", "a", ""), false),
            (&robot, asks("delete", "secrets", "b", "mine"), false),
        ] {
            assert_eq!(
                policy.allows(who, &what).is_some(),
                expected,
                "{} {what:?}",
                who.user
            );
        }
    }

    #[test]
    fn paths_are_allowed_as_a_whole_or_by_their_beginning() {
        let policy = policy();
        let reader = identity("bob", &["readers"]);
        let may = |verb: &str, path: &str| {
            let attributes = Attributes::Path {
                verb: verb.to_owned(),
                path: path.to_owned(),
            };
            policy.allows(&reader, &attributes).is_some()
        };
        assert!(may("get", "/metrics") && may("get", "/logs/a"));
        assert!(!may("get", "/metrics/x") && !may("post", "/metrics") && !may("get", "/log"));
    }

    #[test]
    fn the_reason_names_the_binding() {
        let reason = policy().allows(&identity("bob", &["readers"]), &asks("get", "pods", "x", "p"));
        let expected =
            "RBAC: allowed by ClusterRoleBinding \"readers\" of ClusterRole \"reader\" to Group \"readers\"";
        assert_eq!(reason.as_deref(), Some(expected));
    }
}
