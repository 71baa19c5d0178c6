//! Other CPU and memory for what runs, in an order in which no container ever has more than its pod.

use std::sync::Arc;

use pulselet_cgroup::CgroupError;
use pulselet_engine::LifeKey;
use pulselet_model::Pod;
use pulselet_plan::PodBlueprint;
use pulselet_runtime::{ContainerId, Error, Operation, Resources};

use super::{JobContext, JobResult, PodRef, bounded};
use crate::container_config::{container_resources, pod_claim, pod_resources};

#[derive(Debug)]
pub(crate) struct ResizeJob {
    /// With the resources that everything is to have.
    pub(crate) pod: PodRef,
    /// What was made of its manifest.
    pub(crate) blueprint: Arc<PodBlueprint>,
    /// Those that are changed as they run.
    pub(crate) containers: Vec<ContainerResize>,
    /// Those that are to be restarted once there is room for their successors.
    pub(crate) restarts: Vec<LifeKey>,
    /// Whether nothing else runs that has other resources: the pod may get less than it has.
    pub(crate) is_last: bool,
}

/// A container that is changed as it runs.
#[derive(Debug)]
pub(crate) struct ContainerResize {
    pub(crate) life: LifeKey,
    pub(crate) id: ContainerId,
    pub(crate) name: String,
}

/// What came of a job.
#[derive(Debug)]
pub(crate) struct Resized {
    /// Those that have the resources of the blueprint now.
    pub(crate) lives: Vec<LifeKey>,
    pub(crate) blueprint: Arc<PodBlueprint>,
    pub(crate) restarts: Vec<LifeKey>,
    pub(crate) is_last: bool,
    /// Why not all of it was done; what was done stays.
    pub(crate) error: Option<String>,
}

#[derive(Debug, thiserror::Error)]
enum ResizeError {
    #[error(
        "cannot decrease memory limits: attempting to set container {name:?} memory limit ({limit}) below current usage ({usage})"
    )]
    BelowUsage { name: String, limit: u64, usage: u64 },
    #[error("the pod's cgroup cannot be changed: {0}")]
    Cgroup(#[from] CgroupError),
    #[error("container {name:?} cannot be changed: {source}")]
    Container { name: String, source: Error },
    #[error("the pod's sandbox cannot be changed: {0}")]
    Sandbox(Error),
}

impl JobContext {
    pub(crate) async fn resize(&self, job: ResizeJob) {
        let _permit = self.limits.operations.acquire().await;
        let mut lives = Vec::new();
        let done = self.resize_all(&job, &mut lives).await;
        let resized = Resized {
            lives,
            blueprint: job.blueprint,
            restarts: if done.is_ok() { job.restarts } else { Vec::new() },
            is_last: job.is_last,
            error: done.err().map(|error| error.to_string()),
        };
        self.answer(job.pod.key, JobResult::Resized(resized)).await;
    }

    async fn resize_all(&self, job: &ResizeJob, lives: &mut Vec<LifeKey>) -> Result<(), ResizeError> {
        for container in &job.containers {
            self.check_usage(container, &job.pod.spec).await?;
        }
        self.resize_pod(job, false).await?;
        for container in &job.containers {
            let wanted = container_resources(&job.pod.spec, &container.name);
            let changed = self.runtime.update_container(&container.id, &wanted);
            match bounded(Operation::UpdateContainer, changed).await {
                // One that is gone has a successor with the new resources; and where containers have no limits, there is
                // nothing to change.
                Ok(())
                | Err(Error::NotFound { .. } | Error::WrongState { .. } | Error::Unsupported { .. }) => {}
                Err(source) => {
                    let name = container.name.clone();
                    return Err(ResizeError::Container { name, source });
                }
            }
            lives.push(container.life);
        }
        if job.is_last {
            self.resize_pod(job, true).await?;
        }
        Ok(())
    }

    /// The kernel would make room by killing; that is not what a resize asks for.
    async fn check_usage(&self, container: &ContainerResize, pod: &Pod) -> Result<(), ResizeError> {
        let Some(limit) = container_resources(pod, &container.name).memory_limit else {
            return Ok(());
        };
        let stats = self.runtime.container_stats(&container.id);
        match bounded(Operation::ContainerStats, stats).await {
            Ok(stats) if stats.memory_usage >= limit => Err(ResizeError::BelowUsage {
                name: container.name.clone(),
                limit,
                usage: stats.memory_usage,
            }),
            // One that has ended, or that nobody can measure: the kernel has the last word.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// More comes before the containers, all the rest after them.
    async fn resize_pod(&self, job: &ResizeJob, is_last: bool) -> Result<(), ResizeError> {
        let (uid, claim) = (Arc::clone(&job.pod.uid), pod_claim(&job.pod.spec));
        let limits = pod_resources(&job.pod.spec);
        let (cgroups, wanted) = (self.cgroups.clone(), limits.clone());
        let changed = tokio::task::spawn_blocking(move || match cgroups {
            Some(cgroups) if is_last => cgroups.change(&uid, claim, &wanted),
            Some(cgroups) => cgroups.raise(&uid, claim, &wanted),
            None => Ok(false),
        });
        if changed.await.expect("work on cgroups does not panic")? {
            return Ok(());
        }
        self.resize_sandbox(job, &limits, is_last).await
    }

    /// Pods of older versions are limited by their sandbox, and those of other runtimes not at all.
    async fn resize_sandbox(
        &self,
        job: &ResizeJob,
        limits: &Resources,
        is_last: bool,
    ) -> Result<(), ResizeError> {
        let Some(location) = &job.pod.location else {
            return Ok(());
        };
        let changed = self.runtime.update_sandbox(&location.sandbox, limits);
        match bounded(Operation::UpdateSandbox, changed).await {
            Ok(()) | Err(Error::NotFound { .. } | Error::Unsupported { .. }) => Ok(()),
            // Less than its containers have can come last only.
            Err(_) if !is_last => Ok(()),
            Err(error) => Err(ResizeError::Sandbox(error)),
        }
    }
}
