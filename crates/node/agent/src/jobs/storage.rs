//! How much of the disk pods take, and which of them have to go for it.
//!
//! Whoever takes more than its limit is evicted, as a kubelet does it. When the disk is all but full, the pod that takes
//! most is evicted, limit or not: otherwise it would take the room that the node needs to keep the others healthy.

use std::path::PathBuf;
use std::sync::Arc;

use pulselet_durable::disk_usage;
use pulselet_engine::PodKey;
use pulselet_engine::io::Input;
use pulselet_plan::StorageLimit;
use pulselet_runtime::{ContainerId, Operation};

use super::volumes::EVICTION_GRACE;
use super::{JobContext, bounded};

/// With less than this part of the disk, or than [`FLOOR`] if that is less, the disk is all but full.
const FLOOR_PART: u64 = 50;
const FLOOR: u64 = 100 << 20;
/// A pod that takes less, in bytes, is not what fills the disk.
const WORTHWHILE: u64 = 1 << 20;

/// A pod whose files are to be measured.
#[derive(Debug)]
pub(crate) struct StorageMeasurement {
    pub(crate) pod: PodKey,
    /// Directories of its volumes on the disk.
    pub(crate) volumes: Vec<PathBuf>,
    pub(crate) containers: Vec<ContainerStorage>,
}

/// What is measured of a container.
#[derive(Debug)]
pub(crate) struct ContainerStorage {
    pub(crate) name: Arc<str>,
    /// Its lives.
    pub(crate) ids: Vec<ContainerId>,
    pub(crate) logs: PathBuf,
    pub(crate) limit: Option<StorageLimit>,
}

impl StorageMeasurement {
    pub(crate) fn has_limit(&self) -> bool {
        self.containers.iter().any(|container| container.limit.is_some())
    }
}

impl JobContext {
    /// Whether the disk with the node's data is all but full.
    pub(crate) fn is_disk_short(&self) -> bool {
        rustix::fs::statvfs(self.layout.root()).is_ok_and(|disk| {
            let size = disk.f_blocks.saturating_mul(disk.f_frsize);
            let available = disk.f_bavail.saturating_mul(disk.f_frsize);
            available < (size / FLOOR_PART).min(FLOOR)
        })
    }

    /// Measures pods one by one, unless that is under way, and evicts those that take too much.
    pub(crate) async fn measure_storage(self: Arc<Self>, pods: Vec<StorageMeasurement>, is_short: bool) {
        let Ok(_permit) = self.limits.storage.try_acquire() else {
            return;
        };
        let mut largest: Option<(u64, PodKey)> = None;
        for measurement in pods {
            let pod = measurement.pod;
            let (used, exceeded) = self.measure_pod(measurement).await;
            if let Some(message) = exceeded {
                self.evict(pod, message).await;
            } else if used >= WORTHWHILE && largest.is_none_or(|(most, _)| used > most) {
                largest = Some((used, pod));
            }
        }
        if let Some((used, pod)) = largest.filter(|_| is_short && self.is_disk_short()) {
            let message = format!(
                "The node was low on resource: ephemeral-storage. The pod takes {used} bytes, more than any other. "
            );
            self.evict(pod, message).await;
        }
    }

    async fn evict(&self, pod: PodKey, message: String) {
        let grace = Some(EVICTION_GRACE);
        self.send_input(pod, Input::Evict { grace, message }).await;
    }

    /// Bytes that a pod takes, and the reason for its eviction if that is too much.
    async fn measure_pod(&self, pod: StorageMeasurement) -> (u64, Option<String>) {
        let (mut in_all, mut limit_in_all) = (0_u64, None);
        let mut exceeded = None;
        for container in pod.containers {
            let used = self.measure_container(&container).await;
            in_all = in_all.saturating_add(used);
            let Some(StorageLimit { text, bytes }) = container.limit else {
                continue;
            };
            limit_in_all = Some(limit_in_all.unwrap_or(0_u64).saturating_add(bytes));
            if used > bytes {
                let name = &container.name;
                exceeded = Some(format!(
                    "Container {name} exceeded its local ephemeral storage limit \"{text}\". "
                ));
            }
        }
        let volumes = pod.volumes;
        let measured = tokio::task::spawn_blocking(move || volumes.iter().map(|path| disk_usage(path)).sum());
        in_all = in_all.saturating_add(measured.await.unwrap_or(0));
        if let Some(limit) = limit_in_all.filter(|limit| in_all > *limit) {
            let pod_exceeded =
                format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ");
            exceeded = exceeded.or(Some(pod_exceeded));
        }
        (in_all, exceeded)
    }

    pub(super) async fn measure_container(&self, container: &ContainerStorage) -> u64 {
        let logs = container.logs.clone();
        let measured = tokio::task::spawn_blocking(move || disk_usage(&logs)).await;
        let mut used = measured.unwrap_or(0);
        for id in &container.ids {
            // A container that is gone takes no room.
            let layer = bounded(Operation::ContainerStats, self.runtime.writable_layer(id)).await;
            used = used.saturating_add(layer.ok().flatten().map_or(0, |layer| layer.bytes));
        }
        used
    }
}
