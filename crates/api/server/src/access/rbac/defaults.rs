//! The roles and bindings that a cluster begins with, read from the table in `default_policy.txt`.

use serde_json::{Value, json};

use super::aggregation::gathered_rules;
use super::policy::PolicyRule;

const TABLE: &str = include_str!("default_policy.txt");
const GROUP: &str = "rbac.authorization.k8s.io";
const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";

/// The objects that a cluster begins with, by kind.
#[derive(Debug, Default)]
pub(crate) struct DefaultObjects {
    pub(crate) cluster_roles: Vec<Value>,
    pub(crate) roles: Vec<Value>,
    pub(crate) cluster_role_bindings: Vec<Value>,
    pub(crate) role_bindings: Vec<Value>,
}

impl DefaultObjects {
    /// Reads the table. It is a part of the program, and a test reads all of it.
    pub(crate) fn read() -> Self {
        let mut objects = Self::default();
        let mut scope = Scope::Cluster;
        for line in TABLE
            .lines()
            .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
        {
            let added = objects.add(line, &mut scope);
            added.unwrap_or_else(|| panic!("the table of default roles has {line:?}"));
        }
        objects.gather();
        objects
    }

    /// Reads a line; `scope` is that of the role whose rules follow.
    fn add(&mut self, line: &str, scope: &mut Scope) -> Option<()> {
        if line.starts_with(' ') {
            let roles = match scope {
                Scope::Cluster => &mut self.cluster_roles,
                Scope::Namespace => &mut self.roles,
            };
            roles.last_mut()?["rules"]
                .as_array_mut()?
                .push(json!(rule(line)?));
            return Some(());
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        match *words.as_slice() {
            ["clusterrole", name, ref options @ ..] => {
                *scope = Scope::Cluster;
                self.cluster_roles.push(cluster_role(name, options));
            }
            ["role", namespace, name] => {
                *scope = Scope::Namespace;
                let metadata = json!({"name": name, "namespace": namespace});
                self.roles
                    .push(marked(json!({"metadata": metadata, "rules": []})));
            }
            ["clusterbinding", name, "of", role, "to", ref subjects @ ..] => {
                let binding = binding(&json!({"name": name}), "ClusterRole", role, subjects)?;
                self.cluster_role_bindings.push(binding);
            }
            ["binding", namespace, name, "of", role, "to", ref subjects @ ..] => {
                let metadata = json!({"name": name, "namespace": namespace});
                self.role_bindings
                    .push(binding(&metadata, "Role", role, subjects)?);
            }
            _ => return None,
        }
        Some(())
    }

    /// Gives the roles that gather the rules of others these rules. A role may gather from one that gathers itself: the
    /// longest chain there is has three.
    fn gather(&mut self) {
        for _ in 0..3 {
            let all = self.cluster_roles.clone();
            for role in &mut self.cluster_roles {
                if let Some(rules) = gathered_rules(role, &all.iter()) {
                    role["rules"] = json!(rules);
                }
            }
        }
    }
}

/// Where the role that was read last holds.
enum Scope {
    Cluster,
    Namespace,
}

/// Marks an object as one that came with the server.
fn marked(mut object: Value) -> Value {
    object["metadata"]["labels"]["kubernetes.io/bootstrapping"] = json!("rbac-defaults");
    object["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"] = json!("true");
    object
}

fn cluster_role(name: &str, options: &[&str]) -> Value {
    let mut role = marked(json!({"metadata": {"name": name}, "rules": []}));
    for pair in options.chunks(2) {
        let [option, other] = *pair else { continue };
        let label = format!("{AGGREGATE}{other}");
        if option == "into" {
            role["metadata"]["labels"][label] = json!("true");
        } else {
            role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]});
        }
    }
    role
}

fn rule(line: &str) -> Option<PolicyRule> {
    let owned = |text: &str, separator: char| -> Vec<String> {
        let words = text.trim().split(separator).map(str::trim);
        words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let mut parts = line.split(" | ");
    let (verbs, groups, what) = (parts.next()?, parts.next()?.trim(), parts.next()?);
    let mut rule = PolicyRule {
        verbs: owned(verbs, ','),
        ..PolicyRule::default()
    };
    if groups == "url" {
        rule.non_resource_urls = owned(what, ' ');
        return Some(rule);
    }
    let group = |group: String| if group == "core" { String::new() } else { group };
    rule.api_groups = owned(groups, ',').into_iter().map(group).collect();
    rule.resources = owned(what, ' ');
    rule.resource_names = parts.next().map(|names| owned(names, ' ')).unwrap_or_default();
    Some(rule)
}

fn binding(metadata: &Value, role_kind: &str, role: &str, subjects: &[&str]) -> Option<Value> {
    let subject = |text: &&str| {
        let (kind, name) = text.split_once(':')?;
        Some(match kind {
            "user" => json!({"kind": "User", "apiGroup": GROUP, "name": name}),
            "group" => json!({"kind": "Group", "apiGroup": GROUP, "name": name}),
            "account" => {
                let (namespace, name) = name.split_once(':')?;
                json!({"kind": "ServiceAccount", "namespace": namespace, "name": name})
            }
            _ => return None,
        })
    };
    let subjects: Option<Vec<Value>> = subjects.iter().map(subject).collect();
    Some(marked(json!({
        "metadata": metadata,
        "roleRef": {"apiGroup": GROUP, "kind": role_kind, "name": role},
        "subjects": subjects?,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named<'a>(objects: &'a [Value], name: &str) -> &'a Value {
        let mut found = objects.iter().filter(|object| object["metadata"]["name"] == name);
        found.next().unwrap_or_else(|| panic!("there is no {name}"))
    }

    #[test]
    fn the_table_can_be_read_and_every_bound_role_is_there() {
        let objects = DefaultObjects::read();
        for binding in &objects.cluster_role_bindings {
            named(
                &objects.cluster_roles,
                binding["roleRef"]["name"].as_str().unwrap(),
            );
        }
        for binding in &objects.role_bindings {
            named(&objects.roles, binding["roleRef"]["name"].as_str().unwrap());
        }
        let edit = named(&objects.cluster_roles, "edit");
        assert_eq!(edit["metadata"]["labels"][format!("{AGGREGATE}admin")], "true");
        let selector = &edit["aggregationRule"]["clusterRoleSelectors"][0]["matchLabels"];
        assert_eq!(selector[format!("{AGGREGATE}edit")], "true");
        let metrics = named(&objects.cluster_roles, "system:aggregated-metrics-reader");
        assert_eq!(metrics["rules"][0]["apiGroups"], json!(["metrics.k8s.io"]));
        let locks = named(&objects.roles, "system::leader-locking-kube-scheduler");
        assert_eq!(locks["rules"].as_array().unwrap().len(), 2);
    }
}
