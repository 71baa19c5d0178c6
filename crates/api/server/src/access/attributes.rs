//! What somebody wants to do, in the words of access rules.

use super::authz::Access;

/// What somebody wants to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Attributes {
    Resource(ResourceAttributes),
    /// About something that is not an object.
    Path {
        verb: String,
        path: String,
    },
}

/// Something about objects. What is empty was not said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ResourceAttributes {
    pub(crate) verb: String,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl ResourceAttributes {
    /// What a request asks for.
    pub(crate) fn of(access: Access<'_>) -> Self {
        let path = access.path;
        // A namespace is in itself: rules of a namespace may speak of it.
        let is_namespace = path.endpoint.info().plural == "namespaces";
        let namespace = if is_namespace { &path.name } else { &path.namespace };
        let subresource = path.subresource.map(|subresource| subresource.name().to_owned());
        Self {
            verb: access.verb.name().to_owned(),
            group: path.endpoint.group_version.group().to_owned(),
            version: path.endpoint.group_version.version().to_owned(),
            resource: path.endpoint.info().plural.to_owned(),
            subresource: subresource.unwrap_or_default(),
            namespace: namespace.clone().unwrap_or_default(),
            name: path.name.clone().unwrap_or_default(),
        }
    }
}
