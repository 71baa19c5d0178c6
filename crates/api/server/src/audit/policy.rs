//! What is recorded of which requests: an audit policy, in the form of upstream's `audit.k8s.io/v1`.
//!
//! The first rule that fits a request decides; a request that none fits is not recorded. What must always hold: what was sent and
//! what was answered are recorded only where a rule says so.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::access::{Attributes, Identity, ResourceAttributes};
use crate::rest::body::{self, Encoding};

/// How much is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(super) enum AuditLevel {
    None,
    /// Who asked for what, and how it ended.
    Metadata,
    /// And what was sent.
    Request,
    /// And what was answered.
    RequestResponse,
}

impl AuditLevel {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Request => "Request",
            Self::RequestResponse => "RequestResponse",
        }
    }
}

/// When something is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) enum AuditStage {
    RequestReceived,
    /// A watch or a stream begins.
    ResponseStarted,
    ResponseComplete,
    /// No request of ours ends so; policies may name it.
    Panic,
}

impl AuditStage {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::RequestReceived => "RequestReceived",
            Self::ResponseStarted => "ResponseStarted",
            Self::ResponseComplete => "ResponseComplete",
            Self::Panic => "Panic",
        }
    }
}

/// Why there is no policy.
#[derive(Debug, thiserror::Error)]
pub enum AuditPolicyError {
    #[error("cannot read the audit policy {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the audit policy {path} cannot be used: {why}")]
    Invalid { path: PathBuf, why: String },
}

/// A policy file.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct AuditPolicy {
    api_version: String,
    kind: String,
    #[serde(default, rename = "metadata")]
    _metadata: serde::de::IgnoredAny,
    #[serde(default)]
    omit_stages: Vec<AuditStage>,
    #[serde(default)]
    omit_managed_fields: bool,
    #[serde(default)]
    rules: Vec<AuditRule>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AuditRule {
    level: AuditLevel,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<AuditedResources>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<AuditStage>,
    omit_managed_fields: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AuditedResources {
    #[serde(default)]
    group: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
}

/// What is recorded of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AuditDecision {
    pub(super) level: AuditLevel,
    omitted: Vec<AuditStage>,
    pub(super) omit_managed_fields: bool,
}

impl AuditDecision {
    pub(super) fn records(&self, stage: AuditStage) -> bool {
        self.level > AuditLevel::None && !self.omitted.contains(&stage)
    }
}

impl AuditPolicy {
    pub(crate) fn read(path: &Path) -> Result<Self, AuditPolicyError> {
        let text = std::fs::read(path).map_err(|source| AuditPolicyError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|why| AuditPolicyError::Invalid {
            path: path.to_owned(),
            why,
        })
    }

    fn parse(text: &[u8]) -> Result<Self, String> {
        let parsed = body::parse(text, Encoding::Yaml).map_err(|error| error.message)?;
        if let Some(duplicate) = parsed.problems.first() {
            return Err(duplicate.to_string());
        }
        let policy: Self = serde_json::from_value(parsed.value).map_err(|error| error.to_string())?;
        if (policy.api_version.as_str(), policy.kind.as_str()) != ("audit.k8s.io/v1", "Policy") {
            return Err("it is not a Policy of audit.k8s.io/v1".to_owned());
        }
        if policy.rules.is_empty() {
            return Err("it has no rules, so nothing would be recorded".to_owned());
        }
        for (index, rule) in policy.rules.iter().enumerate() {
            rule.check().map_err(|why| format!("rules[{index}]: {why}"))?;
        }
        Ok(policy)
    }

    /// What is recorded of a request. `caller` is who proved to be there, `None` if nobody did.
    pub(super) fn decide(&self, caller: Option<&Identity>, attributes: &Attributes) -> AuditDecision {
        let rule = self.rules.iter().find(|rule| rule.fits(caller, attributes));
        let mut omitted = self.omit_stages.clone();
        omitted.extend(rule.into_iter().flat_map(|rule| &rule.omit_stages));
        AuditDecision {
            level: rule.map_or(AuditLevel::None, |rule| rule.level),
            omitted,
            omit_managed_fields: rule
                .and_then(|rule| rule.omit_managed_fields)
                .unwrap_or(self.omit_managed_fields),
        }
    }
}

impl AuditRule {
    fn check(&self) -> Result<(), String> {
        for url in self.non_resource_urls.iter().filter(|url| *url != "*") {
            if !url.starts_with('/') {
                return Err(format!("nonResourceURLs: {url:?} does not begin with a slash"));
            }
            if url.strip_suffix('*').unwrap_or(url).contains('*') {
                return Err(format!("nonResourceURLs: {url:?} has a * before its end"));
            }
        }
        let is_of_resources = !self.resources.is_empty() || !self.namespaces.is_empty();
        if is_of_resources && !self.non_resource_urls.is_empty() {
            return Err("a rule is about resources or about nonResourceURLs, not about both".to_owned());
        }
        for resources in &self.resources {
            if resources.group.contains('/') {
                return Err(format!(
                    "resources.group: {:?} has a version; name the group alone",
                    resources.group
                ));
            }
            if resources.resources.is_empty() && !resources.resource_names.is_empty() {
                return Err("resources.resourceNames needs resources".to_owned());
            }
        }
        Ok(())
    }

    fn fits(&self, caller: Option<&Identity>, attributes: &Attributes) -> bool {
        let is_user = |caller: &Identity| self.users.contains(&caller.user);
        let in_group = |caller: &Identity| caller.groups.iter().any(|group| self.user_groups.contains(group));
        let (verb, about) = match attributes {
            Attributes::Resource(resource) => (&resource.verb, self.fits_resource(resource)),
            Attributes::Path { verb, path } => (verb, self.fits_path(path)),
        };
        (self.users.is_empty() || caller.is_some_and(is_user))
            && (self.user_groups.is_empty() || caller.is_some_and(in_group))
            && (self.verbs.is_empty() || self.verbs.contains(verb))
            && about
    }

    fn fits_path(&self, path: &str) -> bool {
        if !self.resources.is_empty() || !self.namespaces.is_empty() {
            return false;
        }
        let fits = |url: &String| match url.strip_suffix('*') {
            Some(beginning) => path.starts_with(beginning),
            None => url == path,
        };
        self.non_resource_urls.is_empty() || self.non_resource_urls.iter().any(fits)
    }

    fn fits_resource(&self, asked: &ResourceAttributes) -> bool {
        if !self.non_resource_urls.is_empty() {
            return false;
        }
        let in_namespace = self.namespaces.is_empty() || self.namespaces.contains(&asked.namespace);
        let is_named = self.resources.is_empty() || self.resources.iter().any(|named| named.fit(asked));
        in_namespace && is_named
    }
}

impl AuditedResources {
    fn fit(&self, asked: &ResourceAttributes) -> bool {
        let in_group = self.group == "*" || self.group == asked.group;
        let has_name = self.resource_names.is_empty() || self.resource_names.contains(&asked.name);
        let is_it = |resource: &String| match resource.split_once('/') {
            _ if resource == "*" => true,
            None => asked.subresource.is_empty() && *resource == asked.resource,
            Some((kind, "*")) => kind == asked.resource,
            Some(("*", part)) => part == asked.subresource,
            Some((kind, part)) => kind == asked.resource && part == asked.subresource,
        };
        in_group && (self.resources.is_empty() || has_name && self.resources.iter().any(is_it))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(verb: &str, resource: &str, namespace: &str, name: &str) -> Attributes {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Attributes::Resource(ResourceAttributes {
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ..ResourceAttributes::default()
        })
    }

    const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, users: [\"system:node:n1\"], verbs: [get]}
- {level: None, nonResourceURLs: [/healthz*, /version]}
- {level: Metadata, resources: [{group: \"\", resources: [secrets, pods/log]}]}
- {level: RequestResponse, namespaces: [a], resources: [{group: \"\", resources: [\"pods/*\", \"*/scale\"]}], omitStages: [ResponseStarted], omitManagedFields: true}
- {level: Request, userGroups: [team], resources: [{group: \"\", resources: [configmaps], resourceNames: [one]}, {group: apps}]}
- {level: Metadata, verbs: [delete]}
";

    #[test]
    fn the_first_rule_that_fits_decides() {
        let policy = AuditPolicy::parse(POLICY.as_bytes()).expect("a policy");
        let someone = |user: &str, group: &str| Identity {
            user: user.to_owned(),
            groups: vec![group.to_owned()],
            ..Identity::default()
        };
        let (node, ann) = (someone("system:node:n1", "system:nodes"), someone("ann", "team"));
        let path = |path: &str| Attributes::Path {
            verb: "get".to_owned(),
            path: path.to_owned(),
        };
        let mut deployment = asks("create", "deployments", "a", "");
        if let Attributes::Resource(resource) = &mut deployment {
            resource.group = "apps".to_owned();
        }
        for (caller, asked, expected) in [
            (Some(&node), asks("get", "secrets", "a", "s"), AuditLevel::None),
            (Some(&ann), asks("get", "secrets", "a", "s"), AuditLevel::Metadata),
            (None, asks("get", "secrets", "a", "s"), AuditLevel::Metadata),
            (Some(&ann), path("/healthz/ping"), AuditLevel::None),
            (Some(&ann), path("/metrics"), AuditLevel::None),
            (
                Some(&ann),
                asks("get", "pods/log", "a", "p"),
                AuditLevel::Metadata,
            ),
            (
                Some(&ann),
                asks("create", "pods/exec", "a", "p"),
                AuditLevel::RequestResponse,
            ),
            (
                Some(&ann),
                asks("create", "pods", "a", "p"),
                AuditLevel::RequestResponse,
            ),
            (Some(&ann), asks("create", "pods", "b", "p"), AuditLevel::None),
            (
                Some(&ann),
                asks("update", "jobs/scale", "a", "j"),
                AuditLevel::RequestResponse,
            ),
            (
                Some(&ann),
                asks("update", "configmaps", "b", "one"),
                AuditLevel::Request,
            ),
            (
                Some(&ann),
                asks("update", "configmaps", "b", "two"),
                AuditLevel::None,
            ),
            (
                Some(&ann),
                asks("delete", "configmaps", "b", "two"),
                AuditLevel::Metadata,
            ),
            (
                Some(&node),
                asks("update", "configmaps", "b", "one"),
                AuditLevel::None,
            ),
            (None, asks("update", "configmaps", "b", "one"), AuditLevel::None),
            (Some(&ann), deployment, AuditLevel::Request),
        ] {
            assert_eq!(policy.decide(caller, &asked).level, expected, "{asked:?}");
        }
        let decision = policy.decide(Some(&ann), &asks("create", "pods/exec", "a", "p"));
        assert!(
            !decision.records(AuditStage::RequestReceived) && !decision.records(AuditStage::ResponseStarted)
        );
        assert!(decision.records(AuditStage::ResponseComplete) && decision.omit_managed_fields);
    }

    #[test]
    fn a_policy_that_would_not_do_what_it_seems_to_is_refused() {
        let with = |rules: &str| format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n{rules}");
        for (text, expected) in [
            (
                "kind: Policy\napiVersion: v1\nrules: [{level: None}]".to_owned(),
                "not a Policy",
            ),
            ("apiVersion: audit.k8s.io/v1\nkind: Policy".to_owned(), "no rules"),
            (with("- {level: All}"), "All"),
            (with("- {level: None, user: [a]}"), "user"),
            (with("- {users: [a]}"), "level"),
            (with("- {level: None, omitStages: [Done]}"), "Done"),
            (
                with("- {level: None, nonResourceURLs: [healthz]}"),
                "begin with a slash",
            ),
            (
                with("- {level: None, nonResourceURLs: [\"/a*b\"]}"),
                "before its end",
            ),
            (
                with("- {level: None, nonResourceURLs: [/a], namespaces: [b]}"),
                "not about both",
            ),
            (
                with("- {level: None, resources: [{group: apps/v1}]}"),
                "rules[0]: resources.group",
            ),
            (
                with("- {level: None, resources: [{resourceNames: [a]}]}"),
                "needs resources",
            ),
            (with("- {level: None, level: Metadata}"), "duplicate"),
            ("{".to_owned(), ""),
        ] {
            let error = AuditPolicy::parse(text.as_bytes()).expect_err(&text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
