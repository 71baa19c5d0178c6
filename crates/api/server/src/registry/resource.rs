//! The catalogue: which kinds of objects are served, under which groups, with which subresources.
//!
//! Kinds without rules of their own are in `plain`. Routing, discovery, `OpenAPI` and error texts all read this one table. The rules of a kind are its
//! strategy's.

use super::plain::PlainKind;
use pulselet_model::NameRule;
use pulselet_schema::Message;

/// A group and version under which kinds are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GroupVersion {
    CoreV1,
    AppsV1,
    BatchV1,
    CertificatesV1,
    CoordinationV1,
    DiscoveryV1,
    EventsV1,
    NetworkingV1,
    NodeV1,
    PolicyV1,
    RbacV1,
    ResourceV1,
    SchedulingV1,
    StorageV1,
}

impl GroupVersion {
    pub const ALL: [Self; 14] = [
        Self::CoreV1,
        Self::AppsV1,
        Self::BatchV1,
        Self::CertificatesV1,
        Self::CoordinationV1,
        Self::DiscoveryV1,
        Self::EventsV1,
        Self::NetworkingV1,
        Self::NodeV1,
        Self::PolicyV1,
        Self::RbacV1,
        Self::ResourceV1,
        Self::SchedulingV1,
        Self::StorageV1,
    ];

    /// As in `apiVersion`.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::CoreV1 => "v1",
            Self::AppsV1 => "apps/v1",
            Self::BatchV1 => "batch/v1",
            Self::CertificatesV1 => "certificates.k8s.io/v1",
            Self::CoordinationV1 => "coordination.k8s.io/v1",
            Self::DiscoveryV1 => "discovery.k8s.io/v1",
            Self::EventsV1 => "events.k8s.io/v1",
            Self::NetworkingV1 => "networking.k8s.io/v1",
            Self::NodeV1 => "node.k8s.io/v1",
            Self::PolicyV1 => "policy/v1",
            Self::RbacV1 => "rbac.authorization.k8s.io/v1",
            Self::ResourceV1 => "resource.k8s.io/v1",
            Self::SchedulingV1 => "scheduling.k8s.io/v1",
            Self::StorageV1 => "storage.k8s.io/v1",
        }
    }

    /// Empty for the core group.
    pub fn group(self) -> &'static str {
        self.api_version().split_once('/').map_or("", |(group, _)| group)
    }

    pub fn version(self) -> &'static str {
        let api_version = self.api_version();
        api_version
            .split_once('/')
            .map_or(api_version, |(_, version)| version)
    }

    pub fn find(group: &str, version: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|candidate| candidate.group() == group && candidate.version() == version)
    }

    /// What is served here, in the order of discovery.
    pub fn endpoints(self) -> impl Iterator<Item = Endpoint> {
        ResourceKind::all().filter_map(move |kind| {
            let served = kind.info().group_versions.contains(&self);
            served.then_some(Endpoint {
                kind,
                group_version: self,
            })
        })
    }
}

/// A kind of stored object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResourceKind {
    ConfigMap,
    Event,
    Lease,
    Namespace,
    Node,
    Pod,
    Secret,
    ServiceAccount,
    /// A kind that has no rules of ours beyond those that all have.
    Plain(PlainKind),
}

impl ResourceKind {
    /// The rule for the names of objects.
    pub(crate) const fn name_rule(self) -> NameRule {
        match self {
            Self::Namespace => NameRule::Label,
            Self::Plain(kind) => kind.row().names,
            Self::ConfigMap
            | Self::Event
            | Self::Lease
            | Self::Node
            | Self::Pod
            | Self::Secret
            | Self::ServiceAccount => NameRule::Subdomain,
        }
    }

    /// Whether `metadata.generation` counts changes of what is wanted, beyond what a type of the model does.
    pub(crate) const fn has_generation(self) -> bool {
        match self {
            Self::Plain(kind) => kind.row().has_generation,
            Self::ConfigMap
            | Self::Event
            | Self::Lease
            | Self::Namespace
            | Self::Node
            | Self::Pod
            | Self::Secret
            | Self::ServiceAccount => false,
        }
    }

    /// The kinds with rules of their own.
    const SPECIAL: [Self; 8] = [
        Self::ConfigMap,
        Self::Event,
        Self::Lease,
        Self::Namespace,
        Self::Node,
        Self::Pod,
        Self::Secret,
        Self::ServiceAccount,
    ];

    /// Every kind that is served.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::SPECIAL.into_iter().chain(PlainKind::all().map(Self::Plain))
    }

    pub const fn info(self) -> &'static Info {
        match self {
            Self::ConfigMap => &CONFIG_MAP,
            Self::Event => &EVENT,
            Self::Lease => &LEASE,
            Self::Namespace => &NAMESPACE,
            Self::Node => &NODE,
            Self::Pod => &POD,
            Self::Secret => &SECRET,
            Self::ServiceAccount => &SERVICE_ACCOUNT,
            Self::Plain(kind) => kind.info(),
        }
    }

    /// The group and version in which objects are stored, and which errors name.
    pub const fn storage(self) -> Endpoint {
        Endpoint {
            kind: self,
            group_version: self.info().group_versions[0],
        }
    }

    /// Where all objects of the kind are, or those of a namespace.
    pub fn prefix(self, namespace: Option<&str>) -> String {
        let plural = self.info().plural;
        match namespace {
            Some(namespace) => format!("/registry/{plural}/{namespace}/"),
            None => format!("/registry/{plural}/"),
        }
    }

    /// Where one object is.
    pub fn key(self, namespace: Option<&str>, name: &str) -> String {
        self.prefix(namespace) + name
    }
}

/// What is fixed about a kind.
#[derive(Debug)]
pub struct Info {
    pub kind: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub short_names: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub namespaced: bool,
    /// The first is how objects are stored.
    pub group_versions: &'static [GroupVersion],
    pub subresources: &'static [Subresource],
    /// `PUT` of an object that is not there creates it.
    pub create_on_update: bool,
    /// An update may leave the resourceVersion out, and then takes whatever is there.
    pub unconditional_update: bool,
}

const PLAIN: Info = Info {
    kind: "",
    plural: "",
    singular: "",
    short_names: &[],
    categories: &[],
    namespaced: true,
    group_versions: &[GroupVersion::CoreV1],
    subresources: &[],
    create_on_update: false,
    unconditional_update: true,
};

static CONFIG_MAP: Info = Info {
    kind: "ConfigMap",
    plural: "configmaps",
    singular: "configmap",
    short_names: &["cm"],
    ..PLAIN
};
static EVENT: Info = Info {
    kind: "Event",
    plural: "events",
    singular: "event",
    short_names: &["ev"],
    group_versions: &[GroupVersion::CoreV1, GroupVersion::EventsV1],
    create_on_update: true,
    ..PLAIN
};
static LEASE: Info = Info {
    kind: "Lease",
    plural: "leases",
    singular: "lease",
    group_versions: &[GroupVersion::CoordinationV1],
    create_on_update: true,
    unconditional_update: false,
    ..PLAIN
};
static NAMESPACE: Info = Info {
    kind: "Namespace",
    plural: "namespaces",
    singular: "namespace",
    short_names: &["ns"],
    namespaced: false,
    subresources: &[Subresource::Finalize, Subresource::Status],
    ..PLAIN
};
static NODE: Info = Info {
    kind: "Node",
    plural: "nodes",
    singular: "node",
    short_names: &["no"],
    namespaced: false,
    subresources: &[Subresource::Proxy, Subresource::Status],
    ..PLAIN
};
static POD: Info = Info {
    kind: "Pod",
    plural: "pods",
    singular: "pod",
    short_names: &["po"],
    categories: &["all"],
    subresources: &[
        Subresource::Attach,
        Subresource::Binding,
        Subresource::EphemeralContainers,
        Subresource::Eviction,
        Subresource::Exec,
        Subresource::Log,
        Subresource::PortForward,
        Subresource::Proxy,
        Subresource::Resize,
        Subresource::Status,
    ],
    ..PLAIN
};
static SECRET: Info = Info {
    kind: "Secret",
    plural: "secrets",
    singular: "secret",
    ..PLAIN
};
static SERVICE_ACCOUNT: Info = Info {
    kind: "ServiceAccount",
    plural: "serviceaccounts",
    singular: "serviceaccount",
    short_names: &["sa"],
    subresources: &[Subresource::Token],
    ..PLAIN
};

/// A kind as served under one group and version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Endpoint {
    pub kind: ResourceKind,
    pub group_version: GroupVersion,
}

impl Endpoint {
    pub const fn info(self) -> &'static Info {
        self.kind.info()
    }

    /// The fields of the kind.
    ///
    /// # Panics
    ///
    /// Never: a test finds the fields of every kind in the table.
    pub(crate) fn message(self) -> &'static Message {
        Message::find(self.group_version.group(), self.info().kind)
            .expect("a test finds the fields of every kind")
    }

    /// `pods`, `leases.coordination.k8s.io`.
    pub fn qualified(self) -> String {
        qualified(self.info().plural, self.group_version.group())
    }

    /// `Pod`, `Lease.coordination.k8s.io`.
    pub fn qualified_kind(self) -> String {
        qualified(self.info().kind, self.group_version.group())
    }
}

fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() {
        name.to_owned()
    } else {
        format!("{name}.{group}")
    }
}

/// One object, or all of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectPath {
    pub endpoint: Endpoint,
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub subresource: Option<Subresource>,
}

impl ObjectPath {
    /// An object of a kind as it is stored.
    pub(crate) fn stored(kind: ResourceKind, namespace: Option<&str>, name: &str) -> Self {
        Self {
            endpoint: kind.storage(),
            namespace: namespace.map(str::to_owned),
            name: Some(name.to_owned()),
            subresource: None,
        }
    }
}

/// A part of an object, or an action on it, with a path of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subresource {
    Approval,
    Attach,
    Binding,
    EphemeralContainers,
    Eviction,
    Exec,
    Finalize,
    Log,
    PortForward,
    Proxy,
    Resize,
    Scale,
    Status,
    Token,
}

impl Subresource {
    pub const ALL: [Self; 14] = [
        Self::Approval,
        Self::Attach,
        Self::Binding,
        Self::EphemeralContainers,
        Self::Eviction,
        Self::Exec,
        Self::Finalize,
        Self::Log,
        Self::PortForward,
        Self::Proxy,
        Self::Resize,
        Self::Scale,
        Self::Status,
        Self::Token,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Approval => "approval",
            Self::Attach => "attach",
            Self::Binding => "binding",
            Self::EphemeralContainers => "ephemeralcontainers",
            Self::Eviction => "eviction",
            Self::Exec => "exec",
            Self::Finalize => "finalize",
            Self::Log => "log",
            Self::PortForward => "portforward",
            Self::Proxy => "proxy",
            Self::Resize => "resize",
            Self::Scale => "scale",
            Self::Status => "status",
            Self::Token => "token",
        }
    }

    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|candidate| candidate.name() == name)
    }

    /// What can be done with it, as discovery says.
    pub const fn verbs(self) -> &'static [&'static str] {
        match self {
            Self::Attach | Self::Exec | Self::PortForward => &["create", "get"],
            Self::Binding | Self::Eviction | Self::Token => &["create"],
            Self::Approval | Self::EphemeralContainers | Self::Resize | Self::Scale | Self::Status => {
                &["get", "patch", "update"]
            }
            Self::Proxy => &["create", "delete", "get", "patch", "update"],
            Self::Finalize => &["update"],
            Self::Log => &["get"],
        }
    }
}
