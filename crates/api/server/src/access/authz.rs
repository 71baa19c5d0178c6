//! What a caller may do.
//!
//! Administrators may do everything, nodes what `nodes` says, every known user may discover what is served, and
//! anonymous callers may ask for health and version only.

mod nodes;

use super::authn::{Identity, Standing};
use crate::registry::Registry;
use crate::registry::resource::{Endpoint, ObjectPath};
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

/// Whether a caller may see something that is not an object.
pub(crate) fn authorize_route(identity: &Identity, route: &Route, path: &str) -> Result<(), ApiError> {
    let open = match route {
        Route::Health | Route::Readiness | Route::Version => true,
        Route::OpenApiV2
        | Route::OpenApiV3Index
        | Route::OpenApiV3(_)
        | Route::CoreVersions
        | Route::Groups
        | Route::Group(_)
        | Route::Resources(_)
        | Route::UsageGroup
        | Route::UsageResources
        | Route::Paths => !identity.is_anonymous(),
        Route::Usage(_) | Route::Metrics => identity.standing() == Standing::Administrator,
        Route::Objects(_) => false,
    };
    if open {
        return Ok(());
    }
    let message = format!("forbidden: User {:?} cannot get path {path:?}", identity.user);
    Err(ApiError::new(StatusReason::Forbidden, message))
}

/// Whether a caller may do anything at all with objects. This takes nothing but a look at who they are.
pub(crate) fn authorize_caller(identity: &Identity, access: Access<'_>) -> Result<(), ApiError> {
    match identity.standing() {
        Standing::Administrator | Standing::Node => Ok(()),
        Standing::Other | Standing::Anonymous => Err(denied(identity, access)),
    }
}

/// Whether a caller may do something with objects. For nodes that is looked up in the store.
pub(crate) async fn authorize(
    identity: &Identity,
    registry: &Registry,
    access: Access<'_>,
) -> Result<(), ApiError> {
    if identity.standing() == Standing::Administrator {
        return Ok(());
    }
    if let Some(node) = identity.node()
        && nodes::allows(node, registry, access).await?
    {
        return Ok(());
    }
    Err(denied(identity, access))
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
