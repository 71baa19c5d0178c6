//! The kinds that are kept for others: controllers of upstream act on them, ours have no logic about them.
//!
//! A row of this table is all that such a kind needs: names, parts, and the strategy with its rules. Its fields are in
//! `pulselet-schema`, its defaults in `pulselet-model`, its columns in `rest::table`. What must always hold: plurals are unique, because objects are stored under them.

use std::hash::{Hash, Hasher};

use pulselet_model::{NameRule, WorkloadKind};

use super::resource::{GroupVersion, Info, ResourceKind, Subresource};
use super::strategies::{self, Strategy, Workload};

/// A kind of the table.
#[derive(Debug, Clone, Copy)]
pub struct PlainKind(&'static PlainInfo);

impl PlainKind {
    pub(crate) const fn row(self) -> &'static PlainInfo {
        self.0
    }

    pub const fn info(self) -> &'static Info {
        &self.0.info
    }

    /// All kinds of the table.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().copied().map(Self)
    }
}

impl PartialEq for PlainKind {
    fn eq(&self, other: &Self) -> bool {
        self.0.info.plural == other.0.info.plural
    }
}

impl Eq for PlainKind {}

impl Hash for PlainKind {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.info.plural.hash(state);
    }
}

/// What is fixed about a kind of the table.
#[derive(Debug)]
pub(crate) struct PlainInfo {
    pub(crate) info: Info,
    /// The fields, beside name and namespace, by which lists are selected.
    pub(crate) selectable: &'static [&'static str],
    /// Whether `metadata.generation` counts changes of what is wanted.
    pub(crate) has_generation: bool,
    pub(crate) names: NameRule,
    pub(crate) node_access: NodeAccess,
    pub(crate) actor: Actor,
    pub(crate) strategy: &'static dyn Strategy,
}

/// What a node may do with the objects of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeAccess {
    Nothing,
    /// What roles say.
    ByRoles,
    /// Get, list and watch all of them.
    Read,
    /// Everything with the one of its own name.
    OfItsName,
    /// Get those that its Pods name in these fields: that of the reference, and that of the name in it.
    OfItsPods(&'static [(&'static str, &'static str)]),
}

/// Who makes something of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Actor {
    /// It is there to be read, by whoever has use for it.
    Readers,
    /// A program that watches objects of this plural.
    Watcher {
        program: &'static str,
        plural: &'static str,
    },
    /// The API of a cluster would; this one does not.
    Nobody { why: &'static str },
}

const fn manager(plural: &'static str) -> Actor {
    Actor::Watcher {
        program: "kube-controller-manager",
        plural,
    }
}

const STATUS: &[Subresource] = &[Subresource::Status];
const SCALE: &[Subresource] = &[Subresource::Scale, Subresource::Status];
const ALL: &[&str] = &["all"];

/// A namespaced kind that nobody acts on, without parts.
const fn plain(
    group_versions: &'static [GroupVersion],
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
) -> PlainInfo {
    PlainInfo {
        info: Info {
            kind,
            plural,
            singular,
            short_names: &[],
            categories: &[],
            namespaced: true,
            group_versions,
            subresources: &[],
            create_on_update: false,
            unconditional_update: true,
        },
        selectable: &[],
        has_generation: false,
        names: NameRule::Subdomain,
        node_access: NodeAccess::Nothing,
        actor: Actor::Readers,
        strategy: &strategies::PLAIN,
    }
}

impl PlainInfo {
    const fn short(mut self, names: &'static [&'static str]) -> Self {
        self.info.short_names = names;
        self
    }

    const fn categories(mut self, categories: &'static [&'static str]) -> Self {
        self.info.categories = categories;
        self
    }

    const fn parts(mut self, subresources: &'static [Subresource]) -> Self {
        self.info.subresources = subresources;
        self
    }

    const fn cluster_wide(mut self) -> Self {
        self.info.namespaced = false;
        self
    }

    const fn generation(mut self) -> Self {
        self.has_generation = true;
        self
    }

    const fn created_by_put(mut self) -> Self {
        self.info.create_on_update = true;
        self
    }

    const fn selectable(mut self, fields: &'static [&'static str]) -> Self {
        self.selectable = fields;
        self
    }

    /// Its names are whatever can be a part of a path.
    const fn path_names(mut self) -> Self {
        self.names = NameRule::PathSegment;
        self
    }

    const fn nodes(mut self, access: NodeAccess) -> Self {
        self.node_access = access;
        self
    }

    const fn ruled_by(mut self, strategy: &'static dyn Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    const fn acted_on(mut self, actor: Actor) -> Self {
        self.actor = actor;
        self
    }
}

const CERTIFICATES: &[GroupVersion] = &[GroupVersion::CertificatesV1];
const RBAC: &[GroupVersion] = &[GroupVersion::RbacV1];
const CORE: &[GroupVersion] = &[GroupVersion::CoreV1];
const APPS: &[GroupVersion] = &[GroupVersion::AppsV1];
const BATCH: &[GroupVersion] = &[GroupVersion::BatchV1];
const DISCOVERY: &[GroupVersion] = &[GroupVersion::DiscoveryV1];
const NETWORKING: &[GroupVersion] = &[GroupVersion::NetworkingV1];
const NODE: &[GroupVersion] = &[GroupVersion::NodeV1];
const POLICY: &[GroupVersion] = &[GroupVersion::PolicyV1];
const RESOURCE: &[GroupVersion] = &[GroupVersion::ResourceV1];
const SCHEDULING: &[GroupVersion] = &[GroupVersion::SchedulingV1];
const STORAGE: &[GroupVersion] = &[GroupVersion::StorageV1];

static SERVICE: PlainInfo = PlainInfo {
    names: NameRule::Label,
    ..plain(CORE, "Service", "services", "service")
        .short(&["svc"])
        .categories(ALL)
        .parts(&[Subresource::Proxy, Subresource::Status])
        .selectable(&["spec.clusterIP", "spec.type"])
        .nodes(NodeAccess::Read)
        .ruled_by(&strategies::SERVICE)
        .acted_on(Actor::Watcher {
            program: "kube-proxy",
            plural: "endpointslices",
        })
};
static ENDPOINTS: PlainInfo = plain(CORE, "Endpoints", "endpoints", "endpoints")
    .short(&["ep"])
    .created_by_put();
static PERSISTENT_VOLUME: PlainInfo =
    plain(CORE, "PersistentVolume", "persistentvolumes", "persistentvolume")
        .short(&["pv"])
        .cluster_wide()
        .parts(STATUS)
        .acted_on(manager("persistentvolumes"));
static PERSISTENT_VOLUME_CLAIM: PlainInfo = plain(
    CORE,
    "PersistentVolumeClaim",
    "persistentvolumeclaims",
    "persistentvolumeclaim",
)
.short(&["pvc"])
.parts(STATUS)
.nodes(NodeAccess::OfItsPods(&[("persistentVolumeClaim", "claimName")]))
.acted_on(manager("persistentvolumeclaims"));
static LIMIT_RANGE: PlainInfo = plain(CORE, "LimitRange", "limitranges", "limitrange")
    .short(&["limits"])
    .acted_on(Actor::Nobody {
        why: "limits are not enforced here; set resources in the pods themselves",
    });
static RESOURCE_QUOTA: PlainInfo = plain(CORE, "ResourceQuota", "resourcequotas", "resourcequota")
    .short(&["quota"])
    .parts(STATUS)
    .acted_on(Actor::Nobody {
        why: "quotas are not enforced here; a kube-apiserver enforces them",
    });
static REPLICATION_CONTROLLER: PlainInfo = plain(
    CORE,
    "ReplicationController",
    "replicationcontrollers",
    "replicationcontroller",
)
.short(&["rc"])
.categories(ALL)
.parts(SCALE)
.generation()
.selectable(&["status.replicas"])
.acted_on(manager("replicationcontrollers"))
.ruled_by(&Workload(WorkloadKind::ReplicationController));
static POD_TEMPLATE: PlainInfo = plain(CORE, "PodTemplate", "podtemplates", "podtemplate")
    .generation()
    .ruled_by(&Workload(WorkloadKind::PodTemplate));

static DEPLOYMENT: PlainInfo = plain(APPS, "Deployment", "deployments", "deployment")
    .short(&["deploy"])
    .categories(ALL)
    .parts(SCALE)
    .generation()
    .acted_on(manager("deployments"))
    .ruled_by(&Workload(WorkloadKind::Deployment));
static REPLICA_SET: PlainInfo = plain(APPS, "ReplicaSet", "replicasets", "replicaset")
    .short(&["rs"])
    .categories(ALL)
    .parts(SCALE)
    .generation()
    .selectable(&["status.replicas"])
    .acted_on(manager("replicasets"))
    .ruled_by(&Workload(WorkloadKind::ReplicaSet));
static DAEMON_SET: PlainInfo = plain(APPS, "DaemonSet", "daemonsets", "daemonset")
    .short(&["ds"])
    .categories(ALL)
    .parts(STATUS)
    .generation()
    .acted_on(manager("daemonsets"))
    .ruled_by(&Workload(WorkloadKind::DaemonSet));
static STATEFUL_SET: PlainInfo = plain(APPS, "StatefulSet", "statefulsets", "statefulset")
    .short(&["sts"])
    .categories(ALL)
    .parts(SCALE)
    .generation()
    .acted_on(manager("statefulsets"))
    .ruled_by(&Workload(WorkloadKind::StatefulSet));
static CONTROLLER_REVISION: PlainInfo = plain(
    APPS,
    "ControllerRevision",
    "controllerrevisions",
    "controllerrevision",
)
.ruled_by(&strategies::REVISION);

static JOB: PlainInfo = plain(BATCH, "Job", "jobs", "job")
    .categories(ALL)
    .parts(STATUS)
    .generation()
    .selectable(&["status.successful"])
    .acted_on(manager("jobs"))
    .ruled_by(&Workload(WorkloadKind::Job));
static CRON_JOB: PlainInfo = plain(BATCH, "CronJob", "cronjobs", "cronjob")
    .short(&["cj"])
    .categories(ALL)
    .parts(STATUS)
    .generation()
    .acted_on(manager("cronjobs"))
    .ruled_by(&Workload(WorkloadKind::CronJob));

static ENDPOINT_SLICE: PlainInfo = plain(DISCOVERY, "EndpointSlice", "endpointslices", "endpointslice")
    .generation()
    .ruled_by(&strategies::ENDPOINT_SLICE);
static NETWORK_POLICY: PlainInfo = plain(NETWORKING, "NetworkPolicy", "networkpolicies", "networkpolicy")
    .short(&["netpol"])
    .generation()
    .acted_on(Actor::Watcher {
        program: "a network plugin that knows network policies",
        plural: "networkpolicies",
    });
static RUNTIME_CLASS: PlainInfo = plain(NODE, "RuntimeClass", "runtimeclasses", "runtimeclass")
    .cluster_wide()
    .nodes(NodeAccess::Read)
    .ruled_by(&strategies::RUNTIME_CLASS);
static POD_DISRUPTION_BUDGET: PlainInfo = plain(
    POLICY,
    "PodDisruptionBudget",
    "poddisruptionbudgets",
    "poddisruptionbudget",
)
.short(&["pdb"])
.parts(STATUS)
.generation()
.acted_on(Actor::Nobody {
    why: "evictions do not ask for budgets here; a kube-apiserver does",
});
static PRIORITY_CLASS: PlainInfo = plain(SCHEDULING, "PriorityClass", "priorityclasses", "priorityclass")
    .short(&["pc"])
    .cluster_wide()
    .generation()
    .ruled_by(&strategies::PRIORITY_CLASS);

static STORAGE_CLASS: PlainInfo = plain(STORAGE, "StorageClass", "storageclasses", "storageclass")
    .short(&["sc"])
    .cluster_wide()
    .ruled_by(&strategies::STORAGE_CLASS);
static VOLUME_ATTRIBUTES_CLASS: PlainInfo = plain(
    STORAGE,
    "VolumeAttributesClass",
    "volumeattributesclasses",
    "volumeattributesclass",
)
.short(&["vac"])
.cluster_wide();
static CSI_DRIVER: PlainInfo = plain(STORAGE, "CSIDriver", "csidrivers", "csidriver")
    .cluster_wide()
    .nodes(NodeAccess::Read);
static CSI_NODE: PlainInfo = plain(STORAGE, "CSINode", "csinodes", "csinode")
    .cluster_wide()
    .nodes(NodeAccess::OfItsName);
static CSI_STORAGE_CAPACITY: PlainInfo = plain(
    STORAGE,
    "CSIStorageCapacity",
    "csistoragecapacities",
    "csistoragecapacity",
);
static VOLUME_ATTACHMENT: PlainInfo = plain(
    STORAGE,
    "VolumeAttachment",
    "volumeattachments",
    "volumeattachment",
)
.cluster_wide()
.parts(STATUS)
.acted_on(manager("volumeattachments"));

static DEVICE_CLASS: PlainInfo = plain(RESOURCE, "DeviceClass", "deviceclasses", "deviceclass")
    .cluster_wide()
    .generation();
static RESOURCE_CLAIM: PlainInfo = plain(RESOURCE, "ResourceClaim", "resourceclaims", "resourceclaim")
    .parts(STATUS)
    .acted_on(Actor::Watcher {
        program: "kube-scheduler",
        plural: "resourceclaims",
    })
    .ruled_by(&strategies::RESOURCE_CLAIM);
static RESOURCE_CLAIM_TEMPLATE: PlainInfo = plain(
    RESOURCE,
    "ResourceClaimTemplate",
    "resourceclaimtemplates",
    "resourceclaimtemplate",
)
.acted_on(manager("resourceclaimtemplates"));
static RESOURCE_SLICE: PlainInfo = plain(RESOURCE, "ResourceSlice", "resourceslices", "resourceslice")
    .cluster_wide()
    .generation()
    .selectable(&["spec.nodeName", "spec.driver"]);

/// The table, in the order of discovery.
static CERTIFICATE_SIGNING_REQUEST: PlainInfo = plain(
    CERTIFICATES,
    "CertificateSigningRequest",
    "certificatesigningrequests",
    "certificatesigningrequest",
)
.short(&["csr"])
.cluster_wide()
.parts(&[Subresource::Approval, Subresource::Status])
.selectable(&["spec.signerName"])
.nodes(NodeAccess::ByRoles)
.ruled_by(&strategies::CERTIFICATE_SIGNING_REQUEST);

static CLUSTER_ROLE: PlainInfo = plain(RBAC, "ClusterRole", "clusterroles", "clusterrole")
    .cluster_wide()
    .path_names()
    .ruled_by(&strategies::CLUSTER_ROLE);
static CLUSTER_ROLE_BINDING: PlainInfo = plain(
    RBAC,
    "ClusterRoleBinding",
    "clusterrolebindings",
    "clusterrolebinding",
)
.cluster_wide()
.path_names()
.ruled_by(&strategies::CLUSTER_BINDING);
static ROLE: PlainInfo = plain(RBAC, "Role", "roles", "role")
    .path_names()
    .ruled_by(&strategies::NAMESPACED_ROLE);
static ROLE_BINDING: PlainInfo = plain(RBAC, "RoleBinding", "rolebindings", "rolebinding")
    .path_names()
    .ruled_by(&strategies::NAMESPACED_BINDING);

static TABLE: [&PlainInfo; 35] = [
    &ENDPOINTS,
    &LIMIT_RANGE,
    &PERSISTENT_VOLUME_CLAIM,
    &PERSISTENT_VOLUME,
    &POD_TEMPLATE,
    &REPLICATION_CONTROLLER,
    &RESOURCE_QUOTA,
    &SERVICE,
    &CONTROLLER_REVISION,
    &DAEMON_SET,
    &DEPLOYMENT,
    &REPLICA_SET,
    &STATEFUL_SET,
    &CRON_JOB,
    &JOB,
    &CERTIFICATE_SIGNING_REQUEST,
    &ENDPOINT_SLICE,
    &NETWORK_POLICY,
    &RUNTIME_CLASS,
    &POD_DISRUPTION_BUDGET,
    &CLUSTER_ROLE_BINDING,
    &CLUSTER_ROLE,
    &ROLE_BINDING,
    &ROLE,
    &DEVICE_CLASS,
    &RESOURCE_CLAIM,
    &RESOURCE_CLAIM_TEMPLATE,
    &RESOURCE_SLICE,
    &PRIORITY_CLASS,
    &CSI_DRIVER,
    &CSI_NODE,
    &CSI_STORAGE_CAPACITY,
    &STORAGE_CLASS,
    &VOLUME_ATTACHMENT,
    &VOLUME_ATTRIBUTES_CLASS,
];

impl ResourceKind {
    pub const CERTIFICATE_SIGNING_REQUEST: Self = Self::Plain(PlainKind(&CERTIFICATE_SIGNING_REQUEST));
    pub const CLUSTER_ROLE: Self = Self::Plain(PlainKind(&CLUSTER_ROLE));
    pub const CLUSTER_ROLE_BINDING: Self = Self::Plain(PlainKind(&CLUSTER_ROLE_BINDING));
    pub const ROLE: Self = Self::Plain(PlainKind(&ROLE));
    pub const ROLE_BINDING: Self = Self::Plain(PlainKind(&ROLE_BINDING));
    pub const SERVICE: Self = Self::Plain(PlainKind(&SERVICE));
    pub const ENDPOINTS: Self = Self::Plain(PlainKind(&ENDPOINTS));
    pub const ENDPOINT_SLICE: Self = Self::Plain(PlainKind(&ENDPOINT_SLICE));
    pub const JOB: Self = Self::Plain(PlainKind(&JOB));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use pulselet_schema::Message;

    #[test]
    fn every_kind_has_fields_and_a_place_of_its_own() {
        let mut plurals = BTreeSet::new();
        for kind in ResourceKind::all() {
            let info = kind.info();
            assert!(plurals.insert(info.plural), "{} is there twice", info.plural);
            let group = kind.storage().group_version.group();
            let message = Message::find(group, info.kind);
            assert!(message.is_some(), "{} has no fields", info.kind);
        }
        for kind in PlainKind::all() {
            let group = kind.info().group_versions[0].group();
            let fields = Message::find(group, kind.info().kind).unwrap();
            let parts = kind.info().subresources;
            assert_eq!(
                parts.contains(&Subresource::Status),
                fields.field("status").is_some(),
                "{}",
                kind.info().kind
            );
        }
    }
}
