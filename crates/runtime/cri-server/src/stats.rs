//! What containers and pods use.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pulselet_cri_wire::v1;
use pulselet_runtime::{
    ContainerFilter, ContainerId, ContainerState, ContainerStats, SandboxId, SandboxState, WritableLayer,
};
use tonic::Status;

use crate::answer;
use crate::refusal::refused;
use crate::service::Service;
use crate::stored::{Container, Sandbox};

/// A rate is computed over at least so long: over less, one tick of the clock is a lot.
const RATE_SPAN: Duration = Duration::from_secs(1);
/// How long the size of a writable layer is remembered, which has to be walked.
const LAYER_SPAN: Duration = Duration::from_secs(10);

/// What was measured of containers before.
#[derive(Debug, Default)]
pub(crate) struct Samples(Mutex<HashMap<ContainerId, Sample>>);

#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Instant,
    cpu_nanos: u64,
    /// Nanoseconds of CPU in a second; `None` until there were two measurements.
    rate: Option<u64>,
    layer: Option<(Instant, WritableLayer)>,
}

impl Samples {
    pub(crate) fn forget(&self, id: &ContainerId) {
        self.all().remove(id);
    }

    /// Takes a measurement in and returns the rate.
    fn rate(&self, id: &ContainerId, cpu_nanos: u64, now: Instant) -> Option<u64> {
        let mut all = self.all();
        let sample = all.entry(id.clone()).or_insert(Sample {
            at: now,
            cpu_nanos,
            rate: None,
            layer: None,
        });
        let span = now.saturating_duration_since(sample.at);
        if span >= RATE_SPAN {
            let used = u128::from(cpu_nanos.saturating_sub(sample.cpu_nanos));
            let rate = used * 1_000_000_000 / span.as_nanos().max(1);
            sample.rate = u64::try_from(rate).ok();
            (sample.at, sample.cpu_nanos) = (now, cpu_nanos);
        }
        sample.rate
    }

    fn layer(&self, id: &ContainerId, now: Instant) -> Option<WritableLayer> {
        let (at, layer) = self.all().get(id)?.layer?;
        (now.saturating_duration_since(at) < LAYER_SPAN).then_some(layer)
    }

    fn set_layer(&self, id: &ContainerId, layer: WritableLayer, now: Instant) {
        if let Some(sample) = self.all().get_mut(id) {
            sample.layer = Some((now, layer));
        }
    }

    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<ContainerId, Sample>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A container with what it uses.
pub(crate) struct Measured {
    pub(crate) container: Container,
    pub(crate) stats: ContainerStats,
    pub(crate) rate: Option<u64>,
    pub(crate) layer: Option<WritableLayer>,
}

impl Service {
    pub(crate) async fn stats_of(&self, id: &str) -> Result<v1::ContainerStats, Status> {
        let container = self.container(id).await?;
        let id = container.status.id.clone();
        let measured = self.measure(container).await?;
        let measured =
            measured.ok_or_else(|| Status::failed_precondition(format!("container {id} does not run")))?;
        Ok(self.container_stats_of(&measured).await)
    }

    pub(crate) async fn list_stats(
        &self,
        filter: Option<v1::ContainerStatsFilter>,
    ) -> Result<Vec<v1::ContainerStats>, Status> {
        let filter = filter.unwrap_or_default();
        let of_sandbox = Some(filter.pod_sandbox_id.as_str()).filter(|id| !id.is_empty());
        let wanted = ContainerFilter {
            sandbox: of_sandbox.map(SandboxId::new),
            pod_uid: None,
        };
        let mut stats = Vec::new();
        for container in self.containers(&wanted).await? {
            let matches = container.status.id.as_str().starts_with(&filter.id)
                && answer::selects(&filter.label_selector, &container.config.labels);
            if matches && let Some(measured) = self.measure(container).await? {
                stats.push(self.container_stats_of(&measured).await);
            }
        }
        Ok(stats)
    }

    pub(crate) async fn sandbox_stats_of(&self, id: &str) -> Result<v1::PodSandboxStats, Status> {
        let sandbox = self.sandbox(id).await?;
        self.measure_sandbox(&sandbox).await
    }

    pub(crate) async fn list_sandbox_stats(
        &self,
        filter: Option<v1::PodSandboxStatsFilter>,
    ) -> Result<Vec<v1::PodSandboxStats>, Status> {
        let filter = filter.unwrap_or_default();
        let mut stats = Vec::new();
        for sandbox in self.sandboxes().await? {
            let matches = sandbox.status.id.as_str().starts_with(&filter.id)
                && sandbox.status.state == SandboxState::Ready
                && answer::selects(&filter.label_selector, &sandbox.config.labels);
            if matches {
                stats.push(self.measure_sandbox(&sandbox).await?);
            }
        }
        Ok(stats)
    }

    /// Returns `None` if the container does not run.
    async fn measure(&self, container: Container) -> Result<Option<Measured>, Status> {
        match container.status.state {
            ContainerState::Running { .. } => {}
            ContainerState::Created | ContainerState::Exited(_) | ContainerState::Unknown => return Ok(None),
        }
        let id = &container.status.id;
        let stats = match self.runtime().container_stats(id).await {
            Ok(stats) => stats,
            // It has ended meanwhile.
            Err(pulselet_runtime::Error::WrongState { .. } | pulselet_runtime::Error::NotFound { .. }) => {
                return Ok(None);
            }
            Err(error) => return Err(refused(error)),
        };
        let rate = self.0.samples.rate(id, stats.cpu_nanos, Instant::now());
        let layer = self.layer(id).await;
        Ok(Some(Measured {
            container,
            stats,
            rate,
            layer,
        }))
    }

    /// What a container's own layer takes; `None` if nobody knows.
    async fn layer(&self, id: &ContainerId) -> Option<WritableLayer> {
        let now = Instant::now();
        if let Some(known) = self.0.samples.layer(id, now) {
            return Some(known);
        }
        let layer = self.runtime().writable_layer(id).await.ok().flatten()?;
        self.0.samples.set_layer(id, layer, now);
        Some(layer)
    }

    pub(crate) async fn measure_containers(&self, sandbox: &Sandbox) -> Result<Vec<Measured>, Status> {
        let filter = ContainerFilter {
            sandbox: Some(sandbox.status.id.clone()),
            pod_uid: None,
        };
        let mut all = Vec::new();
        for container in self.containers(&filter).await? {
            all.extend(self.measure(container).await?);
        }
        Ok(all)
    }

    async fn measure_sandbox(&self, sandbox: &Sandbox) -> Result<v1::PodSandboxStats, Status> {
        let measured = self.measure_containers(sandbox).await?;
        let mut containers = Vec::new();
        for one in &measured {
            containers.push(self.container_stats_of(one).await);
        }
        let interfaces = self.runtime().sandbox_interfaces(&sandbox.status.id).await;
        let interfaces = interfaces.map_err(refused)?;
        let sum = |number: fn(&Measured) -> u64| measured.iter().map(number).sum();
        let total = ContainerStats {
            cpu_nanos: sum(|one| one.stats.cpu_nanos),
            memory_working_set: sum(|one| one.stats.memory_working_set),
            memory_usage: sum(|one| one.stats.memory_usage),
            memory_anonymous: sum(|one| one.stats.memory_anonymous),
            page_faults: sum(|one| one.stats.page_faults),
            major_page_faults: sum(|one| one.stats.major_page_faults),
            swap_usage: None,
            processes: sum(|one| one.stats.processes),
        };
        let rates: Option<Vec<u64>> = measured.iter().map(|one| one.rate).collect();
        let timestamp = answer::now();
        Ok(v1::PodSandboxStats {
            attributes: Some(v1::PodSandboxAttributes {
                id: sandbox.status.id.to_string(),
                metadata: sandbox.config.metadata.clone(),
                labels: sandbox.config.labels.clone(),
                annotations: sandbox.config.annotations.clone(),
            }),
            linux: Some(v1::LinuxPodSandboxStats {
                cpu: Some(cpu(&total, rates.map(|rates| rates.iter().sum()), timestamp)),
                memory: Some(memory(&total, None, timestamp)),
                network: Some(network(&interfaces, timestamp)),
                process: Some(v1::ProcessUsage {
                    timestamp,
                    process_count: value(total.processes),
                }),
                containers,
            }),
        })
    }

    async fn container_stats_of(&self, measured: &Measured) -> v1::ContainerStats {
        let Measured {
            container,
            stats,
            rate,
            layer,
        } = measured;
        let timestamp = answer::now();
        let resources = self.runtime().container_resources(&container.status.id).await;
        let limit = resources
            .ok()
            .flatten()
            .and_then(|resources| resources.memory_limit);
        let storage = self.runtime().image_storage().await.ok().flatten();
        v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes {
                id: container.status.id.to_string(),
                metadata: container.config.metadata.clone(),
                labels: container.config.labels.clone(),
                annotations: container.config.annotations.clone(),
            }),
            cpu: Some(cpu(stats, *rate, timestamp)),
            memory: Some(memory(stats, limit, timestamp)),
            writable_layer: layer.map(|layer| v1::FilesystemUsage {
                timestamp,
                fs_id: storage.map(|storage| v1::FilesystemIdentifier {
                    mountpoint: storage.path.display().to_string(),
                }),
                used_bytes: value(layer.bytes),
                inodes_used: value(layer.inodes),
            }),
            swap: stats.swap_usage.map(|bytes| v1::SwapUsage {
                timestamp,
                swap_available_bytes: None,
                swap_usage_bytes: value(bytes),
            }),
        }
    }
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "CRI has its numbers as messages that may be missing"
)]
fn value(value: u64) -> Option<v1::UInt64Value> {
    Some(v1::UInt64Value { value })
}

fn cpu(stats: &ContainerStats, rate: Option<u64>, timestamp: i64) -> v1::CpuUsage {
    v1::CpuUsage {
        timestamp,
        usage_core_nano_seconds: value(stats.cpu_nanos),
        usage_nano_cores: rate.and_then(value),
        psi: None,
    }
}

fn memory(stats: &ContainerStats, limit: Option<u64>, timestamp: i64) -> v1::MemoryUsage {
    v1::MemoryUsage {
        timestamp,
        working_set_bytes: value(stats.memory_working_set),
        available_bytes: limit.and_then(|limit| value(limit.saturating_sub(stats.memory_working_set))),
        usage_bytes: value(stats.memory_usage),
        rss_bytes: value(stats.memory_anonymous),
        page_faults: value(stats.page_faults),
        major_page_faults: value(stats.major_page_faults),
        psi: None,
    }
}

/// The first interface is the one that leads out.
fn network(interfaces: &[pulselet_runtime::InterfaceStats], timestamp: i64) -> v1::NetworkUsage {
    let all: Vec<v1::NetworkInterfaceUsage> = interfaces
        .iter()
        .map(|interface| v1::NetworkInterfaceUsage {
            name: interface.name.clone(),
            rx_bytes: value(interface.received_bytes),
            rx_errors: value(interface.receive_errors),
            tx_bytes: value(interface.sent_bytes),
            tx_errors: value(interface.send_errors),
        })
        .collect();
    v1::NetworkUsage {
        timestamp,
        default_interface: all.first().cloned(),
        interfaces: all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_needs_two_measurements_and_some_time_between() {
        let samples = Samples::default();
        let id = ContainerId::new("c");
        let start = Instant::now();
        assert_eq!(samples.rate(&id, 1_000, start), None);
        assert_eq!(samples.rate(&id, 2_000, start + Duration::from_millis(10)), None);
        let later = start + Duration::from_secs(2);
        assert_eq!(samples.rate(&id, 1_000_001_000, later), Some(500_000_000));
        let written = WritableLayer { bytes: 7, inodes: 1 };
        samples.set_layer(&id, written, later);
        assert_eq!(samples.layer(&id, later), Some(written));
        assert_eq!(samples.layer(&id, later + LAYER_SPAN), None);
        samples.forget(&id);
        assert_eq!(samples.layer(&id, later), None);
    }
}
