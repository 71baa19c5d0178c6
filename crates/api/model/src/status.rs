//! What a node reports about a Pod.
//!
//! Upstream's status, with one addition: a container's effective stop signal is also shown as
//! `lifecycle.stopSignal`, where the stop-signal proposal has it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<core::PodCondition>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub nominated_node_name: String,
    #[serde(rename = "hostIP", skip_serializing_if = "String::is_empty")]
    pub host_ip: String,
    #[serde(rename = "hostIPs", skip_serializing_if = "Vec::is_empty")]
    pub host_ips: Vec<core::HostIP>,
    #[serde(rename = "podIP", skip_serializing_if = "String::is_empty")]
    pub pod_ip: String,
    #[serde(rename = "podIPs", skip_serializing_if = "Vec::is_empty")]
    pub pod_ips: Vec<core::PodIP>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub init_container_statuses: Vec<ContainerStatusFields>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub container_statuses: Vec<ContainerStatusFields>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ephemeral_container_statuses: Vec<ContainerStatusFields>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub qos_class: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resize: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_claim_statuses: Vec<core::PodResourceClaimStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extended_resource_claim_status: Option<core::PodExtendedResourceClaimStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_allocatable_resource_claim_statuses: Vec<core::NodeAllocatableResourceClaimStatus>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub allocated_resources: BTreeMap<String, Quantity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<core::ResourceRequirements>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatusFields {
    pub name: String,
    pub state: core::ContainerState,
    pub last_state: core::ContainerState,
    pub ready: bool,
    pub restart_count: i32,
    pub image: String,
    #[serde(rename = "imageID")]
    pub image_id: String,
    #[serde(rename = "containerID", skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<bool>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub allocated_resources: BTreeMap<String, Quantity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<core::ResourceRequirements>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volume_mounts: Vec<core::VolumeMountStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<core::ContainerUser>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allocated_resources_status: Vec<core::ResourceStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    /// The proposal's place for the effective stop signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<ContainerLifecycleStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerLifecycleStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
}
