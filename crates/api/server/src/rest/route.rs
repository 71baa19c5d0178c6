//! What a request asks for, by its method and path.
//!
//! A [`Route`] is a plain value, so that the grammar of paths is tested without a network. Whether the object exists
//! and whether the caller may touch it is decided later.

use http::Method;
use percent_encoding::percent_decode_str;

use crate::access::review::{ReviewGroup, ReviewPath};
use crate::node_proxy::ProxyPath;
use crate::node_proxy::usage::{self, UsagePath};
use crate::registry::resource::{GroupVersion, ObjectPath, Subresource};
use crate::rest::health::HealthPath;
use crate::rest::status::ApiError;

/// What a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    Health(HealthPath),
    Metrics,
    Version,
    OpenApiV2,
    OpenApiV3Index,
    OpenApiV3(GroupVersion),
    /// `/api`
    CoreVersions,
    /// `/apis`
    Groups,
    /// `/apis/GROUP`
    Group(GroupVersion),
    /// `/api/v1`, `/apis/GROUP/VERSION`
    Resources(GroupVersion),
    /// `/.well-known/openid-configuration`
    IssuerDiscovery,
    /// `/openid/v1/jwks`
    IssuerKeys,
    /// `/apis/authorization.k8s.io`
    ReviewGroup(ReviewGroup),
    /// `/apis/authorization.k8s.io/v1`
    ReviewResources(ReviewGroup),
    /// A question about who may do what, which is not stored.
    Review(ReviewPath),
    /// `/apis/metrics.k8s.io`
    UsageGroup,
    /// `/apis/metrics.k8s.io/v1beta1`
    UsageResources,
    /// What pods and nodes use, which is not stored.
    Usage(UsagePath),
    /// `/`
    Paths,
    Objects(ObjectPath),
    /// What a pod or a node serves itself.
    Proxy(ProxyPath),
}

/// What is done with objects. The names are those of access rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }

    /// Whether the verb may change something.
    pub(crate) const fn mutates(self) -> bool {
        match self {
            Self::Get | Self::List | Self::Watch => false,
            Self::Create | Self::Update | Self::Patch | Self::Delete | Self::DeleteCollection => true,
        }
    }

    /// The verb of this name.
    pub(crate) fn find(name: &str) -> Option<Self> {
        let all = [
            Self::Get,
            Self::List,
            Self::Watch,
            Self::Create,
            Self::Update,
            Self::Patch,
            Self::Delete,
            Self::DeleteCollection,
        ];
        all.into_iter().find(|verb| verb.name() == name)
    }

    /// The verb of a request to what a pod or a node serves itself.
    pub(crate) fn of_proxied(method: &Method) -> Result<Self, ApiError> {
        match *method {
            Method::GET | Method::HEAD | Method::OPTIONS => Ok(Self::Get),
            Method::POST => Ok(Self::Create),
            Method::PUT => Ok(Self::Update),
            Method::PATCH => Ok(Self::Patch),
            Method::DELETE => Ok(Self::Delete),
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    /// The verb of a request to a path of objects.
    pub(crate) fn of(method: &Method, path: &ObjectPath, watch: bool) -> Result<Self, ApiError> {
        let named = path.name.is_some();
        let streams = matches!(
            path.subresource,
            Some(Subresource::Exec | Subresource::Attach | Subresource::PortForward)
        );
        match *method {
            Method::GET | Method::POST if streams => Ok(Self::Create),
            Method::GET if watch && path.subresource.is_none() => Ok(Self::Watch),
            Method::GET if named => Ok(Self::Get),
            Method::GET => Ok(Self::List),
            Method::POST if !named || path.subresource.is_some() => Ok(Self::Create),
            Method::PUT if named => Ok(Self::Update),
            Method::PATCH if named => Ok(Self::Patch),
            Method::DELETE if named => Ok(Self::Delete),
            Method::DELETE => Ok(Self::DeleteCollection),
            _ => Err(ApiError::method_not_allowed()),
        }
    }
}

/// Finds what a path names.
pub(crate) fn parse(path: &str) -> Result<Route, ApiError> {
    if let Some(proxied) = ProxyPath::parse(path) {
        return Ok(Route::Proxy(proxied));
    }
    let mut segments = Vec::new();
    for segment in path.split('/').filter(|segment| !segment.is_empty()) {
        let decoded = percent_decode_str(segment)
            .decode_utf8()
            .map_err(|_| ApiError::bad_request("the path is not UTF-8"))?;
        // No name has a slash in it, and none may lead out of its kind's part of the store.
        if decoded.contains('/') || decoded == "." || decoded == ".." {
            return Err(ApiError::no_such_path());
        }
        segments.push(decoded);
    }
    let segments: Vec<&str> = segments.iter().map(AsRef::as_ref).collect();
    let found = match segments.as_slice() {
        [] => Some(Route::Paths),
        ["healthz" | "livez" | "readyz", ..] => HealthPath::parse(&segments).map(Route::Health),
        ["metrics"] => Some(Route::Metrics),
        ["version"] => Some(Route::Version),
        [".well-known", "openid-configuration"] => Some(Route::IssuerDiscovery),
        ["openid", "v1", "jwks"] => Some(Route::IssuerKeys),
        ["openapi", "v2"] => Some(Route::OpenApiV2),
        ["openapi", "v3"] => Some(Route::OpenApiV3Index),
        ["openapi", "v3", "api", version] => GroupVersion::find("", version).map(Route::OpenApiV3),
        ["openapi", "v3", "apis", group, version] => GroupVersion::find(group, version).map(Route::OpenApiV3),
        ["api"] => Some(Route::CoreVersions),
        ["apis"] => Some(Route::Groups),
        ["apis", usage::GROUP] => Some(Route::UsageGroup),
        ["apis", usage::GROUP, usage::VERSION] => Some(Route::UsageResources),
        ["apis", usage::GROUP, usage::VERSION, rest @ ..] => UsagePath::parse(rest).map(Route::Usage),
        ["apis", group] if ReviewGroup::find(group).is_some() => {
            ReviewGroup::find(group).map(Route::ReviewGroup)
        }
        ["apis", group, "v1", rest @ ..] if ReviewGroup::find(group).is_some() => ReviewGroup::find(group)
            .and_then(|group| match rest {
                [] => Some(Route::ReviewResources(group)),
                rest => ReviewPath::parse(group, rest).map(Route::Review),
            }),
        ["apis", group] => GroupVersion::find(group, "v1").map(Route::Group),
        ["api", version] => GroupVersion::find("", version).map(Route::Resources),
        ["apis", group, version] => GroupVersion::find(group, version).map(Route::Resources),
        ["api", version, rest @ ..] => GroupVersion::find("", version).and_then(|group| objects(group, rest)),
        ["apis", group, version, rest @ ..] => {
            GroupVersion::find(group, version).and_then(|group| objects(group, rest))
        }
        _ => None,
    };
    found.ok_or_else(ApiError::no_such_path)
}

fn objects(group_version: GroupVersion, segments: &[&str]) -> Option<Route> {
    let path = match *segments {
        // Namespaces have no kinds below them named like their subresources, so the order decides nothing else.
        ["namespaces", name, subresource @ ("status" | "finalize")] => {
            path(group_version, "namespaces", None, Some(name), Some(subresource))
        }
        ["namespaces", namespace, plural] => path(group_version, plural, Some(namespace), None, None),
        ["namespaces", namespace, plural, name] => {
            path(group_version, plural, Some(namespace), Some(name), None)
        }
        ["namespaces", namespace, plural, name, subresource] => path(
            group_version,
            plural,
            Some(namespace),
            Some(name),
            Some(subresource),
        ),
        [plural] => path(group_version, plural, None, None, None),
        [plural, name] => path(group_version, plural, None, Some(name), None),
        [plural, name, subresource] => path(group_version, plural, None, Some(name), Some(subresource)),
        _ => None,
    };
    path.map(Route::Objects)
}

fn path(
    group_version: GroupVersion,
    plural: &str,
    namespace: Option<&str>,
    name: Option<&str>,
    subresource: Option<&str>,
) -> Option<ObjectPath> {
    let endpoint = group_version
        .endpoints()
        .find(|endpoint| endpoint.info().plural == plural)?;
    let info = endpoint.info();
    // A cluster-wide list of namespaced objects has no namespace; one of them has.
    let scoped = namespace.is_some() == info.namespaced || (info.namespaced && name.is_none());
    if !scoped {
        return None;
    }
    let subresource = match subresource {
        Some(text) => {
            let found = Subresource::find(text)?;
            Some(found)
                .filter(|found| info.subresources.contains(found))?
                .into()
        }
        None => None,
    };
    Some(ObjectPath {
        endpoint,
        namespace: namespace.map(str::to_owned),
        name: name.map(str::to_owned),
        subresource,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::resource::ResourceKind;

    type Named = (ResourceKind, Option<String>, Option<String>, Option<Subresource>);

    fn objects_of(text: &str) -> Option<Named> {
        match parse(text) {
            Ok(Route::Objects(path)) => {
                Some((path.endpoint.kind, path.namespace, path.name, path.subresource))
            }
            _ => None,
        }
    }

    #[test]
    fn paths_name_kinds_namespaces_objects_and_their_parts() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            objects_of("/api/v1/pods"),
            Some((ResourceKind::Pod, None, None, None))
        );
        assert_eq!(
            objects_of("/api/v1/namespaces/a/pods/b/log"),
            Some((ResourceKind::Pod, some("a"), some("b"), Some(Subresource::Log)))
        );
        assert_eq!(
            objects_of("/api/v1/namespaces/a/status"),
            Some((
                ResourceKind::Namespace,
                None,
                some("a"),
                Some(Subresource::Status)
            ))
        );
        assert_eq!(
            objects_of("/api/v1/namespaces/a"),
            Some((ResourceKind::Namespace, None, some("a"), None))
        );
        assert_eq!(
            objects_of("/apis/events.k8s.io/v1/namespaces/a/events"),
            Some((ResourceKind::Event, some("a"), None, None))
        );
    }

    #[test]
    fn paths_of_nothing_are_not_found() {
        for text in [
            "/api/v2/pods",
            "/api/v1/deployments",
            "/api/v1/namespaces/a/nodes/b",
            "/api/v1/pods/b",
            "/api/v1/namespaces/a/pods/b/finalize",
            "/api/v1/namespaces/a/configmaps/b/status",
            "/api/v1/namespaces/a/pods/b/log/c",
            "/apis/coordination.k8s.io/v1/pods",
            "/nothing",
            "/api/v1/namespaces/a%2Fb/pods",
            "/api/v1/namespaces/%2E%2E/pods",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
