//! What a caller may do.
//!
//! Administrators may do everything, nodes what `nodes` says, every known user may discover what is served, and
//! anonymous callers may ask for health and version. All else is allowed by roles and bindings (`rbac`), or not at all.

mod nodes;

use std::sync::Arc;

use http::Method;

use super::attributes::{Attributes, ResourceAttributes};
use super::authn::{Identity, Standing};
use super::rbac::{GrantLimit, Policy, PolicyCache, PolicyRule};
use crate::registry::Registry;
use crate::registry::resource::{Endpoint, GroupVersion, ObjectPath, Subresource};
use crate::registry::selector::Selector;
use crate::rest::route::{Route, Verb};
use crate::rest::status::{ApiError, StatusReason};

/// What is asked for, as far as access rules look. The body is not part of it: nothing is read from a caller who may
/// not do what they ask for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access<'a> {
    pub(crate) verb: Verb,
    pub(crate) path: &'a ObjectPath,
    /// The selector of a list or a watch.
    pub(crate) selector: Option<&'a Selector>,
}

/// Whether something is allowed, and by what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    Allowed { reason: String },
    Denied,
}

/// Says what callers may do.
#[derive(Debug)]
pub(crate) struct Authorizer {
    registry: Registry,
    policies: PolicyCache,
}

impl Authorizer {
    pub(crate) fn new(registry: Registry) -> Self {
        Self {
            policies: PolicyCache::new(registry.clone()),
            registry,
        }
    }

    /// Whether a caller may see something that is not an object.
    pub(crate) async fn authorize_route(
        &self,
        identity: &Identity,
        route: &Route,
        method: &Method,
        path: &str,
    ) -> Result<(), ApiError> {
        let is_open = match route {
            Route::Health(_) | Route::Version => true,
            Route::OpenApiV2
            | Route::OpenApiV3Index
            | Route::OpenApiV3(_)
            | Route::CoreVersions
            | Route::Groups
            | Route::Group(_)
            | Route::Resources(_)
            | Route::ReviewGroup(_)
            | Route::ReviewResources(_)
            | Route::UsageGroup
            | Route::UsageResources
            | Route::Paths => !identity.is_anonymous(),
            Route::Usage(_)
            | Route::Metrics
            | Route::IssuerDiscovery
            | Route::IssuerKeys
            | Route::Objects(_)
            | Route::Proxy(_)
            | Route::Review(_) => false,
        };
        if is_open || identity.standing() == Standing::Administrator {
            return Ok(());
        }
        let verb = match *method {
            Method::GET => "get".to_owned(),
            ref method => method.as_str().to_lowercase(),
        };
        let attributes = if let Route::Usage(usage) = route {
            Attributes::Resource(usage.attributes())
        } else {
            Attributes::Path {
                verb: verb.clone(),
                path: path.to_owned(),
            }
        };
        if self.policy().await?.allows(identity, &attributes).is_some() {
            return Ok(());
        }
        let message = format!("forbidden: User {:?} cannot {verb} path {path:?}", identity.user);
        Err(ApiError::new(StatusReason::Forbidden, message))
    }

    /// Whether a caller may do anything at all with objects. This takes nothing but a look at who they are and at roles.
    pub(crate) async fn authorize_caller(
        &self,
        identity: &Identity,
        access: Access<'_>,
    ) -> Result<(), ApiError> {
        match identity.standing() {
            Standing::Administrator | Standing::Node => Ok(()),
            Standing::Other | Standing::Anonymous => self.authorize(identity, access).await,
        }
    }

    /// Whether a caller may do something with objects. For nodes that is looked up in the store.
    pub(crate) async fn authorize(&self, identity: &Identity, access: Access<'_>) -> Result<(), ApiError> {
        if identity.standing() == Standing::Administrator {
            return Ok(());
        }
        if let Some(node) = identity.node()
            && nodes::allows(node, &self.registry, access).await?
        {
            return Ok(());
        }
        let attributes = ResourceAttributes::of(access);
        let asked = Attributes::Resource(attributes);
        if self.policy().await?.allows(identity, &asked).is_some() {
            return Ok(());
        }
        Err(denied(identity, access))
    }

    /// Whether somebody may do something, for those who ask without doing it.
    pub(crate) async fn decide(
        &self,
        identity: &Identity,
        attributes: &Attributes,
    ) -> Result<Decision, ApiError> {
        if identity.standing() == Standing::Administrator {
            let reason = String::new();
            return Ok(Decision::Allowed { reason });
        }
        if let (Some(node), Attributes::Resource(resource)) = (identity.node(), attributes)
            && self.node_may(node, resource).await?
        {
            let reason = String::new();
            return Ok(Decision::Allowed { reason });
        }
        Ok(match self.policy().await?.allows(identity, attributes) {
            Some(reason) => Decision::Allowed { reason },
            None => Decision::Denied,
        })
    }

    /// The rules that hold for somebody in a namespace; `None` if not all that they may do is said by rules.
    pub(crate) async fn rules_for(
        &self,
        identity: &Identity,
        namespace: &str,
    ) -> Result<(Vec<PolicyRule>, Completeness), ApiError> {
        let rules = self.policy().await?.rules_for(identity, namespace);
        let completeness = match identity.standing() {
            Standing::Node => Completeness::Partial,
            Standing::Administrator | Standing::Other | Standing::Anonymous => Completeness::Whole,
        };
        Ok((rules, completeness))
    }

    /// Whether somebody may approve of requests to a signer: by its name, or by that of its domain.
    pub(crate) async fn may_approve(&self, identity: &Identity, signer: &str) -> Result<bool, ApiError> {
        let domain = signer.split('/').next().unwrap_or_default();
        for name in [signer.to_owned(), format!("{domain}/*")] {
            let attributes = Attributes::Resource(ResourceAttributes {
                verb: "approve".to_owned(),
                group: "certificates.k8s.io".to_owned(),
                version: "v1".to_owned(),
                resource: "signers".to_owned(),
                name,
                ..ResourceAttributes::default()
            });
            if let Decision::Allowed { .. } = self.decide(identity, &attributes).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What somebody may grant to others; `None` if that is everything.
    pub(crate) async fn grant_limit(&self, identity: &Identity) -> Result<Option<GrantLimit>, ApiError> {
        if identity.standing() == Standing::Administrator {
            return Ok(None);
        }
        Ok(Some(GrantLimit {
            identity: identity.clone(),
            policy: self.policy().await?,
        }))
    }

    async fn policy(&self) -> Result<Arc<Policy>, ApiError> {
        self.policies.policy().await
    }

    async fn node_may(&self, node: &str, asked: &ResourceAttributes) -> Result<bool, ApiError> {
        if nodes::may_review(asked) {
            return Ok(true);
        }
        let Some((verb, path)) = request_of(asked) else {
            return Ok(false);
        };
        let access = Access {
            verb,
            path: &path,
            selector: None,
        };
        nodes::allows(node, &self.registry, access).await
    }
}

/// Whether rules say all that somebody may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Completeness {
    Whole,
    Partial,
}

/// The request that attributes describe; `None` if there is none that is served.
fn request_of(asked: &ResourceAttributes) -> Option<(Verb, ObjectPath)> {
    let verb = Verb::find(&asked.verb)?;
    let in_group = |version: &GroupVersion| version.group() == asked.group;
    let endpoint = GroupVersion::ALL
        .into_iter()
        .filter(in_group)
        .flat_map(GroupVersion::endpoints)
        .find(|endpoint| endpoint.info().plural == asked.resource)?;
    let subresource = match asked.subresource.as_str() {
        "" => None,
        name => Some(Subresource::find(name)?),
    };
    let filled = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let path = ObjectPath {
        endpoint,
        namespace: filled(&asked.namespace).filter(|_| endpoint.info().namespaced),
        name: filled(&asked.name),
        subresource,
    };
    Some((verb, path))
}

fn denied(identity: &Identity, access: Access<'_>) -> ApiError {
    let ObjectPath {
        endpoint,
        namespace,
        name,
        subresource,
    } = access.path;
    let Endpoint { group_version, .. } = *endpoint;
    let mut resource = endpoint.info().plural.to_owned();
    if let Some(subresource) = subresource {
        resource = format!("{resource}/{}", subresource.name());
    }
    let scope = match namespace {
        Some(namespace) => format!("in the namespace {namespace:?}"),
        None => "at the cluster scope".to_owned(),
    };
    let why = format!(
        "User {:?} cannot {} resource {resource:?} in API group {:?} {scope}",
        identity.user,
        access.verb.name(),
        group_version.group()
    );
    ApiError::forbidden(*endpoint, name.as_deref().unwrap_or_default(), &why)
}
