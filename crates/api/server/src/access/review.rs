//! Questions about who somebody is and what they may do: `kubectl auth whoami`, `kubectl auth can-i`, and what servers
//! beside this one ask about their own callers.
//!
//! None of this is stored. A question is sent like an object to be created, and the answer is the object with its status.

use pulselet_model::openapi::api::authentication::v1::{SelfSubjectReview, TokenReview};
use pulselet_model::openapi::api::authorization::v1::{
    LocalSubjectAccessReview, NonResourceAttributes, ResourceAttributes as AskedResource,
    SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview, SubjectAccessReviewSpec,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::attributes::{Attributes, ResourceAttributes};
use super::authn::{Authenticator, Identity, Standing};
use super::authz::{Authorizer, Completeness, Decision};
use super::tokens::{Proved, TokenError, own_audiences};
use crate::rest::status::{ApiError, StatusReason};

/// A group of questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReviewGroup {
    Authentication,
    Authorization,
}

/// A kind of question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReviewKind {
    /// Who am I?
    SelfSubject,
    /// Whose token is this?
    Token,
    /// May I do this?
    SelfAccess,
    /// What may I do?
    SelfRules,
    /// May they do this?
    Subject,
    /// May they do this in this namespace?
    LocalSubject,
}

/// Where a question is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReviewPath {
    kind: ReviewKind,
    namespace: Option<String>,
}

impl ReviewGroup {
    pub(crate) const ALL: [Self; 2] = [Self::Authentication, Self::Authorization];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Authentication => "authentication.k8s.io",
            Self::Authorization => "authorization.k8s.io",
        }
    }

    pub(crate) fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.name() == name)
    }

    pub(crate) fn api_version(self) -> String {
        format!("{}/v1", self.name())
    }

    const fn kinds(self) -> &'static [ReviewKind] {
        match self {
            Self::Authentication => &[ReviewKind::SelfSubject, ReviewKind::Token],
            Self::Authorization => &[
                ReviewKind::LocalSubject,
                ReviewKind::SelfAccess,
                ReviewKind::SelfRules,
                ReviewKind::Subject,
            ],
        }
    }

    /// The group among others in discovery.
    pub(crate) fn entry(self) -> Value {
        let version = json!({"groupVersion": self.api_version(), "version": "v1"});
        json!({"name": self.name(), "versions": [version], "preferredVersion": version})
    }

    /// `/apis/GROUP/v1`
    pub(crate) fn resources(self) -> Value {
        let resource = |kind: &ReviewKind| {
            json!({
                "name": kind.plural(),
                "singularName": kind.name().to_lowercase(),
                "namespaced": kind.is_namespaced(),
                "kind": kind.name(),
                "verbs": ["create"],
            })
        };
        let resources: Vec<Value> = self.kinds().iter().map(resource).collect();
        json!({
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": self.api_version(),
            "resources": resources,
        })
    }

    pub(crate) fn aggregated(self) -> Value {
        let resource = |kind: &ReviewKind| {
            json!({
                "resource": kind.plural(),
                "responseKind": {"group": self.name(), "version": "v1", "kind": kind.name()},
                "scope": if kind.is_namespaced() { "Namespaced" } else { "Cluster" },
                "singularResource": kind.name().to_lowercase(),
                "verbs": ["create"],
            })
        };
        let resources: Vec<Value> = self.kinds().iter().map(resource).collect();
        json!({
            "metadata": {"name": self.name(), "creationTimestamp": null},
            "versions": [{"version": "v1", "freshness": "Current", "resources": resources}],
        })
    }
}

impl ReviewKind {
    const fn name(self) -> &'static str {
        match self {
            Self::SelfSubject => "SelfSubjectReview",
            Self::Token => "TokenReview",
            Self::SelfAccess => "SelfSubjectAccessReview",
            Self::SelfRules => "SelfSubjectRulesReview",
            Self::Subject => "SubjectAccessReview",
            Self::LocalSubject => "LocalSubjectAccessReview",
        }
    }

    fn plural(self) -> String {
        format!("{}s", self.name().to_lowercase())
    }

    const fn group(self) -> ReviewGroup {
        match self {
            Self::SelfSubject | Self::Token => ReviewGroup::Authentication,
            Self::SelfAccess | Self::SelfRules | Self::Subject | Self::LocalSubject => {
                ReviewGroup::Authorization
            }
        }
    }

    const fn is_namespaced(self) -> bool {
        match self {
            Self::LocalSubject => true,
            Self::SelfSubject | Self::Token | Self::SelfAccess | Self::SelfRules | Self::Subject => false,
        }
    }
}

impl ReviewPath {
    /// What follows group and version in a path.
    pub(crate) fn parse(group: ReviewGroup, segments: &[&str]) -> Option<Self> {
        let (namespace, plural) = match *segments {
            [plural] => (None, plural),
            ["namespaces", namespace, plural] => (Some(namespace.to_owned()), plural),
            _ => return None,
        };
        let mut kinds = group.kinds().iter();
        let kind = *kinds.find(|kind| kind.plural() == plural)?;
        (kind.is_namespaced() == namespace.is_some()).then_some(Self { kind, namespace })
    }

    /// Asking, in the words of access rules.
    pub(crate) fn attributes(&self) -> Attributes {
        Attributes::Resource(ResourceAttributes {
            verb: "create".to_owned(),
            group: self.kind.group().name().to_owned(),
            version: "v1".to_owned(),
            resource: self.kind.plural(),
            namespace: self.namespace.clone().unwrap_or_default(),
            ..ResourceAttributes::default()
        })
    }

    /// Whether somebody may ask.
    pub(crate) async fn authorize(
        &self,
        identity: &Identity,
        authorizer: &Authorizer,
    ) -> Result<(), ApiError> {
        match authorizer.decide(identity, &self.attributes()).await? {
            Decision::Allowed { .. } => Ok(()),
            Decision::Denied => {
                let (group, resource) = (self.kind.group().name(), self.kind.plural());
                let scope = match &self.namespace {
                    Some(namespace) => format!("in the namespace {namespace:?}"),
                    None => "at the cluster scope".to_owned(),
                };
                let message = format!(
                    "{resource}.{group} is forbidden: User {:?} cannot create resource {resource:?} in API group \
                     {group:?} {scope}",
                    identity.user
                );
                Err(ApiError::new(StatusReason::Forbidden, message))
            }
        }
    }

    /// Answers the question in a body.
    pub(crate) async fn answer(
        &self,
        body: Value,
        identity: &Identity,
        authorizer: &Authorizer,
        authenticator: &Authenticator,
    ) -> Result<Value, ApiError> {
        self.check_type(&body)?;
        let (spec, status) = match self.kind {
            ReviewKind::SelfSubject => {
                self.decode::<SelfSubjectReview>(body)?;
                (None, json!({"userInfo": identity.shown()}))
            }
            ReviewKind::Token => {
                let spec = self.decode::<TokenReview>(body)?.spec;
                let audiences = spec.audiences.clone().unwrap_or_default();
                let status = review_token(authenticator, &spec.token, audiences).await?;
                (Some(json!(spec)), status)
            }
            ReviewKind::SelfAccess => {
                let spec = self.decode::<SelfSubjectAccessReview>(body)?.spec;
                let asked = attributes(
                    spec.resource_attributes.as_ref(),
                    spec.non_resource_attributes.as_ref(),
                );
                let status = decided(&authorizer.decide(identity, &self.required(asked)?).await?);
                (Some(json!(spec)), status)
            }
            ReviewKind::SelfRules => {
                let spec = self.decode::<SelfSubjectRulesReview>(body)?.spec;
                let namespace = spec.namespace.clone().unwrap_or_default();
                if namespace.is_empty() {
                    return Err(ApiError::bad_request("no namespace on request"));
                }
                (Some(json!(spec)), rules(authorizer, identity, &namespace).await?)
            }
            ReviewKind::Subject => {
                let spec = self.decode::<SubjectAccessReview>(body)?.spec;
                let status = self.review_subject(&spec, authorizer).await?;
                (Some(json!(spec)), status)
            }
            ReviewKind::LocalSubject => {
                let spec = self.decode::<LocalSubjectAccessReview>(body)?.spec;
                let asked = spec
                    .resource_attributes
                    .as_ref()
                    .and_then(|asked| asked.namespace.as_deref());
                if asked != self.namespace.as_deref() {
                    return Err(self.invalid(
                        "spec.resourceAttributes.namespace: Invalid value: must match metadata.namespace",
                    ));
                }
                let status = self.review_subject(&spec, authorizer).await?;
                (Some(json!(spec)), status)
            }
        };
        let mut answer = json!({
            "kind": self.kind.name(),
            "apiVersion": self.kind.group().api_version(),
            "metadata": {"creationTimestamp": null},
            "status": status,
        });
        if let Some(spec) = spec {
            answer["spec"] = spec;
        }
        if let Some(namespace) = &self.namespace {
            answer["metadata"]["namespace"] = json!(namespace);
        }
        Ok(answer)
    }

    /// A body may leave out what it is, but not claim to be something else.
    fn check_type(&self, body: &Value) -> Result<(), ApiError> {
        let (kind, version) = (self.kind.name(), self.kind.group().api_version());
        let is = |field: &str, wanted: &str| {
            let found = body.get(field).and_then(Value::as_str).unwrap_or_default();
            found.is_empty() || found == wanted
        };
        if is("kind", kind) && is("apiVersion", &version) {
            return Ok(());
        }
        Err(ApiError::bad_request(format!(
            "the object provided is no {kind} of {version}"
        )))
    }

    fn decode<T: DeserializeOwned>(&self, body: Value) -> Result<T, ApiError> {
        serde_json::from_value(body).map_err(|error| {
            let (kind, version) = (self.kind.name(), self.kind.group().api_version());
            ApiError::bad_request(format!(
                "{kind} in version {version:?} cannot be handled as a {kind}: {error}"
            ))
        })
    }

    fn invalid(&self, why: &str) -> ApiError {
        let message = format!(
            "{}.{} \"\" is invalid: {why}",
            self.kind.name(),
            self.kind.group().name()
        );
        ApiError::new(StatusReason::Invalid, message)
    }

    fn required(&self, asked: Option<Attributes>) -> Result<Attributes, ApiError> {
        asked.ok_or_else(|| {
            self.invalid(
                "spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or \
                 resourceAttributes must be specified",
            )
        })
    }

    async fn review_subject(
        &self,
        spec: &SubjectAccessReviewSpec,
        authorizer: &Authorizer,
    ) -> Result<Value, ApiError> {
        let identity = Identity {
            user: spec.user.clone().unwrap_or_default(),
            uid: spec.uid.clone().unwrap_or_default(),
            groups: spec.groups.clone().unwrap_or_default(),
            extra: spec.extra.clone().unwrap_or_default(),
            impersonator: None,
        };
        if identity.user.is_empty() && identity.groups.is_empty() {
            return Err(self
                .invalid("spec.user: Invalid value: \"\": at least one of user or group must be specified"));
        }
        let asked = attributes(
            spec.resource_attributes.as_ref(),
            spec.non_resource_attributes.as_ref(),
        );
        Ok(decided(
            &authorizer.decide(&identity, &self.required(asked)?).await?,
        ))
    }
}

/// What is asked about; `None` unless exactly one of the two is there.
fn attributes(resource: Option<&AskedResource>, path: Option<&NonResourceAttributes>) -> Option<Attributes> {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    match (resource, path) {
        (Some(asked), None) => Some(Attributes::Resource(ResourceAttributes {
            verb: text(&asked.verb),
            group: text(&asked.group),
            version: text(&asked.version),
            resource: text(&asked.resource),
            subresource: text(&asked.subresource),
            namespace: text(&asked.namespace),
            name: text(&asked.name),
        })),
        (None, Some(asked)) => Some(Attributes::Path {
            verb: text(&asked.verb),
            path: text(&asked.path),
        }),
        (Some(_), Some(_)) | (None, None) => None,
    }
}

fn decided(decision: &Decision) -> Value {
    match decision {
        Decision::Allowed { reason } if reason.is_empty() => json!({"allowed": true}),
        Decision::Allowed { reason } => json!({"allowed": true, "reason": reason}),
        Decision::Denied => json!({"allowed": false}),
    }
}

async fn review_token(
    authenticator: &Authenticator,
    token: &str,
    audiences: Vec<String>,
) -> Result<Value, ApiError> {
    if token.is_empty() {
        return Err(ApiError::bad_request(
            "token is required for TokenReview in authentication",
        ));
    }
    let audiences = if audiences.is_empty() {
        own_audiences()
    } else {
        audiences
    };
    match authenticator.authenticate_token(token, &audiences).await {
        Ok(Proved { identity, audiences }) => {
            Ok(json!({"authenticated": true, "user": identity.shown(), "audiences": audiences}))
        }
        Err(TokenError::Look(error)) => Err(error),
        Err(error @ (TokenError::Unknown | TokenError::Refused(_) | TokenError::Audience { .. })) => {
            Ok(json!({"user": {}, "error": error.to_string()}))
        }
    }
}

async fn rules(authorizer: &Authorizer, identity: &Identity, namespace: &str) -> Result<Value, ApiError> {
    let (rules, completeness) = authorizer.rules_for(identity, namespace).await?;
    let (mut resources, mut paths) = (Vec::new(), Vec::new());
    if identity.standing() == Standing::Administrator {
        resources.push(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        paths.push(json!({"verbs": ["*"], "nonResourceURLs": ["*"]}));
    }
    for rule in rules {
        if rule.non_resource_urls.is_empty() {
            resources.push(json!(rule));
        } else {
            paths.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}));
        }
    }
    let mut status = json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false});
    if completeness == Completeness::Partial {
        status["incomplete"] = json!(true);
        status["evaluationError"] = json!("what a node may do depends on its pods, rules do not say it");
    }
    Ok(status)
}
