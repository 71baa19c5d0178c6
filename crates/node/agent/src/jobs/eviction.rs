//! Reclaiming what the node runs out of: images that nobody uses first, then a pod.

use std::sync::Arc;
use std::time::Duration;

use pulselet_engine::PodKey;
use pulselet_engine::io::Input;
use pulselet_engine::time::Span;
use pulselet_plan::duties::PressureSignal;
use pulselet_runtime::{ContainerFilter, ContainerState, Operation};

use super::storage::StorageMeasurement;
use super::volumes::EVICTION_GRACE;
use super::{JobContext, bounded};
use crate::eviction::pressure::Reclaim;
use crate::eviction::rank::{ContainerShare, Contender, first_to_go, message};

/// How long the containers of a pod that was evicted may take to be gone before another pod is looked for.
const GONE_PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks whether they are.
const GONE_INTERVAL: Duration = Duration::from_millis(250);

/// A pod that may be evicted.
#[derive(Debug)]
pub(crate) struct EvictionCandidate {
    pub(crate) uid: Arc<str>,
    pub(crate) priority: i32,
    /// What it requests of the resource that is short, and by container in the order of `files`.
    pub(crate) requested: u64,
    pub(crate) requested_by_container: Vec<u64>,
    /// Its own grace period.
    pub(crate) grace: Option<Span>,
    pub(crate) files: StorageMeasurement,
}

impl JobContext {
    /// Makes room, unless that is under way.
    pub(crate) async fn reclaim(self: Arc<Self>, reclaim: Reclaim, candidates: Vec<EvictionCandidate>) {
        let Ok(_permit) = self.limits.evictions.try_acquire() else {
            return;
        };
        if is_of_disk(reclaim.signal) && self.reclaim_images(reclaim).await {
            return;
        }
        let mut contenders = Vec::new();
        for candidate in candidates {
            contenders.push(self.measure_candidate(reclaim.signal, candidate).await);
        }
        let Some(contender) = first_to_go(contenders, reclaim.signal) else {
            tracing::warn!(
                signal = reclaim.signal.as_str(),
                "the node runs out of a resource, and it has no pod that may be evicted"
            );
            return;
        };
        let message = message(&reclaim, &contender);
        let (pod, uid, own) = contender.pod;
        let grace = match reclaim.grace {
            None => EVICTION_GRACE,
            Some(longest) => own.map_or(longest, |own| own.min(longest)),
        };
        tracing::warn!(signal = reclaim.signal.as_str(), uid = &*uid, "a pod is evicted");
        self.send_input(
            pod,
            Input::Evict {
                grace: Some(grace),
                message,
            },
        )
        .await;
        self.wait_until_gone(&uid).await;
    }

    /// Whether enough is left once unused images are gone.
    async fn reclaim_images(&self, reclaim: Reclaim) -> bool {
        self.remove_unused_images(u64::MAX).await;
        let level = self.signals.read().level(reclaim.signal);
        level.is_some_and(|level| level.available >= reclaim.floor)
    }

    async fn measure_candidate(
        &self,
        signal: PressureSignal,
        candidate: EvictionCandidate,
    ) -> Contender<(PodKey, Arc<str>, Option<Span>)> {
        let mut containers = Vec::new();
        for (container, requested) in candidate
            .files
            .containers
            .iter()
            .zip(candidate.requested_by_container)
        {
            let used = match signal {
                PressureSignal::MemoryAvailable => self.memory_of(&container.ids).await,
                PressureSignal::NodeFsAvailable | PressureSignal::NodeFsInodesFree => {
                    self.measure_container(container).await
                }
                PressureSignal::PidAvailable => 0,
            };
            containers.push(ContainerShare {
                name: container.name.to_string(),
                used,
                requested,
            });
        }
        let in_containers: u64 = containers.iter().map(|container| container.used).sum();
        let in_volumes = if is_of_disk(signal) {
            measure_directories(candidate.files.volumes).await
        } else {
            0
        };
        Contender {
            pod: (candidate.files.pod, candidate.uid, candidate.grace),
            priority: candidate.priority,
            used: in_containers.saturating_add(in_volumes),
            requested: candidate.requested,
            containers,
        }
    }

    async fn memory_of(&self, lives: &[pulselet_runtime::ContainerId]) -> u64 {
        let mut used = 0_u64;
        for id in lives {
            // A container that is gone uses nothing.
            let stats = bounded(Operation::ContainerStats, self.runtime.container_stats(id)).await;
            used = used.saturating_add(stats.map_or(0, |stats| stats.memory_working_set));
        }
        used
    }

    /// What a pod used is free only when its containers are gone.
    async fn wait_until_gone(&self, uid: &str) {
        let filter = ContainerFilter {
            pod_uid: Some(uid.to_owned()),
            ..ContainerFilter::default()
        };
        let gone = async {
            loop {
                tokio::time::sleep(GONE_INTERVAL).await;
                let there = bounded(Operation::List, self.runtime.list_containers(&filter)).await;
                let runs = |state: &ContainerState| matches!(state, ContainerState::Running { .. });
                if there.is_ok_and(|there| !there.iter().any(|container| runs(&container.state))) {
                    return;
                }
            }
        };
        // One that takes longer does not keep the node from helping itself.
        let _ = tokio::time::timeout(GONE_PATIENCE, gone).await;
    }
}

fn is_of_disk(signal: PressureSignal) -> bool {
    match signal {
        PressureSignal::NodeFsAvailable | PressureSignal::NodeFsInodesFree => true,
        PressureSignal::MemoryAvailable | PressureSignal::PidAvailable => false,
    }
}

async fn measure_directories(directories: Vec<std::path::PathBuf>) -> u64 {
    let measured = tokio::task::spawn_blocking(move || {
        directories
            .iter()
            .map(|path| pulselet_durable::disk_usage(path))
            .sum()
    });
    measured.await.unwrap_or(0)
}
