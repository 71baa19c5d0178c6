//! Pod, its spec and its containers.
//!
//! The types carry every field of a v1.36 Pod, so that nothing a user wrote is lost between reading and
//! serving it. Zero, the empty string and the empty list mean "unset" where they do upstream, and are not
//! written out again. Leaf types that no rule of ours touches come from `k8s-openapi`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::probe::{Lifecycle, Probe};
use crate::status::PodStatus;

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes fields by reference"
)]
pub(crate) fn is_zero(value: &i32) -> bool {
    *value == 0
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes fields by reference"
)]
pub(crate) fn is_false(value: &bool) -> bool {
    !*value
}

/// A Pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pod {
    pub api_version: ApiVersion,
    pub kind: PodKind,
    pub metadata: ObjectMeta,
    pub spec: PodSpec,
    pub status: PodStatus,
}

impl Pod {
    /// `metadata.name`, empty when there is none.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// `metadata.namespace`, or `default` as a client would fill in.
    pub fn namespace(&self) -> &str {
        self.metadata
            .namespace
            .as_deref()
            .filter(|namespace| !namespace.is_empty())
            .unwrap_or("default")
    }

    /// A container by its name, init and ephemeral containers included.
    pub fn find_container(&self, name: &str) -> Option<Cow<'_, Container>> {
        let spec = &self.spec;
        let mut lasting = spec.init_containers.iter().chain(&spec.containers);
        let found = lasting.find(|container| container.name == name);
        found.map(Cow::Borrowed).or_else(|| {
            let mut ephemeral = spec.ephemeral_containers.iter();
            let found = ephemeral.find(|container| container.name == name)?;
            Some(Cow::Owned(found.to_container()))
        })
    }
}

/// A field that has one legal value, which is therefore not stored.
macro_rules! constant_field {
    ($(#[$meta:meta])* $name:ident = $value:literal) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $name;

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str($value)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let found = String::deserialize(deserializer)?;
                if found == $value {
                    Ok(Self)
                } else {
                    Err(de::Error::invalid_value(de::Unexpected::Str(&found), &concat!("\"", $value, "\"")))
                }
            }
        }
    };
}

constant_field!(
    /// `apiVersion: v1`.
    ApiVersion = "v1"
);
constant_field!(
    /// `kind: Pod`.
    PodKind = "Pod"
);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<core::Volume>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub init_containers: Vec<Container>,
    pub containers: Vec<Container>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ephemeral_containers: Vec<EphemeralContainer>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub restart_policy: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<i64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dns_policy: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_account_name: String,
    /// The old name of `serviceAccountName`; defaulting keeps both equal.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_account: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub automount_service_account_token: Option<bool>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    #[serde(skip_serializing_if = "is_false")]
    pub host_network: bool,
    #[serde(rename = "hostPID", skip_serializing_if = "is_false")]
    pub host_pid: bool,
    #[serde(rename = "hostIPC", skip_serializing_if = "is_false")]
    pub host_ipc: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_process_namespace: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_context: Option<core::PodSecurityContext>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<core::LocalObjectReference>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hostname: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subdomain: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<core::Affinity>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub scheduler_name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<core::Toleration>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host_aliases: Vec<core::HostAlias>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub priority_class_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_config: Option<core::PodDNSConfig>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub readiness_gates: Vec<core::PodReadinessGate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_service_links: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption_policy: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub overhead: BTreeMap<String, Quantity>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub topology_spread_constraints: Vec<core::TopologySpreadConstraint>,
    #[serde(rename = "setHostnameAsFQDN", skip_serializing_if = "Option::is_none")]
    pub set_hostname_as_fqdn: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os: Option<PodOs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_users: Option<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scheduling_gates: Vec<core::PodSchedulingGate>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_claims: Vec<core::PodResourceClaim>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<core::ResourceRequirements>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname_override: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduling_group: Option<core::PodSchedulingGroup>,
}

/// `spec.os`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodOs {
    pub name: String,
}

impl EphemeralContainer {
    /// The part it shares with the others.
    pub fn to_container(&self) -> Container {
        crate::validation::as_container(self)
    }
}

/// A container and an ephemeral container differ by one field and in what validation allows.
macro_rules! container {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $name {
            pub name: String,
            #[serde(skip_serializing_if = "String::is_empty")]
            pub image: String,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            pub command: Vec<String>,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            pub args: Vec<String>,
            #[serde(skip_serializing_if = "String::is_empty")]
            pub working_dir: String,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            pub ports: Vec<ContainerPort>,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            pub env_from: Vec<core::EnvFromSource>,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            pub env: Vec<core::EnvVar>,
            pub resources: core::ResourceRequirements,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            pub resize_policy: Vec<core::ContainerResizePolicy>,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub restart_policy: Option<String>,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            pub restart_policy_rules: Vec<core::ContainerRestartRule>,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            pub volume_mounts: Vec<core::VolumeMount>,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            pub volume_devices: Vec<core::VolumeDevice>,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub liveness_probe: Option<Probe>,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub readiness_probe: Option<Probe>,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub startup_probe: Option<Probe>,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub lifecycle: Option<Lifecycle>,
            #[serde(skip_serializing_if = "String::is_empty")]
            pub termination_message_path: String,
            #[serde(skip_serializing_if = "String::is_empty")]
            pub termination_message_policy: String,
            #[serde(skip_serializing_if = "String::is_empty")]
            pub image_pull_policy: String,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub security_context: Option<core::SecurityContext>,
            #[serde(skip_serializing_if = "is_false")]
            pub stdin: bool,
            #[serde(skip_serializing_if = "is_false")]
            pub stdin_once: bool,
            #[serde(skip_serializing_if = "is_false")]
            pub tty: bool,
            $($(#[$field_meta])* pub $field: $type,)*
        }
    };
}

container!(
    /// A container or an init container.
    Container {}
);
container!(
    /// A container added to a running Pod.
    EphemeralContainer {
        #[serde(skip_serializing_if = "String::is_empty")]
        target_container_name: String,
    }
);

impl Container {
    /// An init container that keeps running beside the main containers.
    pub fn is_sidecar(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub host_port: i32,
    pub container_port: i32,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    #[serde(rename = "hostIP", skip_serializing_if = "String::is_empty")]
    pub host_ip: String,
}
