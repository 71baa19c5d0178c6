//! The fields of workloads that rules depend on, apart from the template.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::selector::LabelSelector;
use crate::workload::WorkloadKind;

/// The spec of an object, by its kind.
#[derive(Debug, Clone)]
pub(super) enum WorkloadSpec {
    Deployment(DeploymentSpec),
    ReplicaSet(ReplicaSetSpec),
    StatefulSet(StatefulSetSpec),
    DaemonSet(DaemonSetSpec),
    Job(JobSpec),
    CronJob(CronJobSpec),
    ReplicationController(ReplicationControllerSpec),
    PodTemplate,
}

impl WorkloadSpec {
    pub(super) fn read(kind: WorkloadKind, spec: Value) -> Result<Self, serde_json::Error> {
        Ok(match kind {
            WorkloadKind::Deployment => Self::Deployment(read(spec)?),
            WorkloadKind::ReplicaSet => Self::ReplicaSet(read(spec)?),
            WorkloadKind::StatefulSet => Self::StatefulSet(read(spec)?),
            WorkloadKind::DaemonSet => Self::DaemonSet(read(spec)?),
            WorkloadKind::Job => Self::Job(read(spec)?),
            WorkloadKind::CronJob => Self::CronJob(read(spec)?),
            WorkloadKind::ReplicationController => Self::ReplicationController(read(spec)?),
            WorkloadKind::PodTemplate => Self::PodTemplate,
        })
    }
}

/// Reads a part of an object; an absent part is empty.
pub(super) fn read<T: DeserializeOwned>(value: Value) -> Result<T, serde_json::Error> {
    let value = if value.is_null() {
        Value::Object(Map::new())
    } else {
        value
    };
    serde_json::from_value(value)
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct DeploymentSpec {
    pub(super) replicas: i32,
    pub(super) selector: Option<LabelSelector>,
    pub(super) strategy: Strategy,
    pub(super) min_ready_seconds: i32,
    pub(super) revision_history_limit: Option<i32>,
    pub(super) progress_deadline_seconds: Option<i32>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ReplicaSetSpec {
    pub(super) replicas: i32,
    pub(super) selector: Option<LabelSelector>,
    pub(super) min_ready_seconds: i32,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct DaemonSetSpec {
    pub(super) selector: Option<LabelSelector>,
    pub(super) update_strategy: Strategy,
    pub(super) min_ready_seconds: i32,
    pub(super) revision_history_limit: Option<i32>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct StatefulSetSpec {
    pub(super) replicas: i32,
    pub(super) selector: Option<LabelSelector>,
    pub(super) service_name: String,
    pub(super) pod_management_policy: String,
    pub(super) update_strategy: Strategy,
    pub(super) min_ready_seconds: i32,
    pub(super) ordinals: Option<Ordinals>,
    pub(super) volume_claim_templates: Vec<PersistentVolumeClaim>,
    pub(super) persistent_volume_claim_retention_policy: Option<RetentionPolicy>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Ordinals {
    pub(super) start: i32,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RetentionPolicy {
    pub(super) when_deleted: String,
    pub(super) when_scaled: String,
}

/// How the Pods of a workload are replaced. The kinds differ in which fields of `rollingUpdate` they have.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Strategy {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) rolling_update: Option<RollingUpdate>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RollingUpdate {
    pub(super) max_unavailable: Option<IntOrString>,
    pub(super) max_surge: Option<IntOrString>,
    pub(super) partition: i32,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ReplicationControllerSpec {
    pub(super) replicas: Option<i32>,
    pub(super) selector: BTreeMap<String, String>,
    pub(super) min_ready_seconds: i32,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct JobSpec {
    pub(super) parallelism: Option<i32>,
    pub(super) completions: Option<i32>,
    pub(super) active_deadline_seconds: Option<i64>,
    pub(super) backoff_limit: Option<i32>,
    pub(super) ttl_seconds_after_finished: Option<i32>,
    pub(super) backoff_limit_per_index: Option<i32>,
    pub(super) max_failed_indexes: Option<i32>,
    pub(super) managed_by: Option<String>,
    pub(super) completion_mode: Option<String>,
    pub(super) pod_failure_policy: Option<PodFailurePolicy>,
    pub(super) success_policy: Option<SuccessPolicy>,
    pub(super) pod_replacement_policy: Option<String>,
    pub(super) selector: Option<LabelSelector>,
    pub(super) manual_selector: Option<bool>,
    pub(super) suspend: Option<bool>,
}

impl JobSpec {
    pub(super) fn is_indexed(&self) -> bool {
        self.completion_mode.as_deref() == Some("Indexed")
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct PodFailurePolicy {
    pub(super) rules: Vec<PodFailureRule>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodFailureRule {
    pub(super) action: String,
    pub(super) on_exit_codes: Option<OnExitCodes>,
    pub(super) on_pod_conditions: Vec<OnPodCondition>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct OnExitCodes {
    pub(super) container_name: Option<String>,
    pub(super) operator: String,
    pub(super) values: Option<Vec<i32>>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct OnPodCondition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) status: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct SuccessPolicy {
    pub(super) rules: Vec<SuccessRule>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SuccessRule {
    pub(super) succeeded_indexes: Option<String>,
    pub(super) succeeded_count: Option<i32>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct CronJobSpec {
    pub(super) schedule: String,
    pub(super) time_zone: Option<String>,
    pub(super) starting_deadline_seconds: Option<i64>,
    pub(super) concurrency_policy: String,
    pub(super) job_template: JobTemplate,
    pub(super) successful_jobs_history_limit: Option<i32>,
    pub(super) failed_jobs_history_limit: Option<i32>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct JobTemplate {
    pub(super) spec: JobSpec,
}

/// The part of a Job's status on which rules depend.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct JobState {
    pub(super) active: i32,
    pub(super) start_time: Option<Value>,
    pub(super) conditions: Vec<Condition>,
}

impl JobState {
    pub(super) fn is_true(&self, kind: &str) -> bool {
        let mut conditions = self.conditions.iter();
        conditions.any(|condition| condition.kind == kind && condition.status == "True")
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Condition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) status: String,
}
