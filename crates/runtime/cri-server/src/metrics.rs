//! Metrics under the names that cAdvisor made known, for kubelets that take them from the runtime
//! (`PodAndContainerStatsFromCRI`).

use pulselet_cri_wire::v1;
use pulselet_runtime::{ContainerState, InterfaceStats, SandboxState};
use tonic::Status;

use crate::answer;
use crate::refusal::refused;
use crate::request::container::image_name;
use crate::service::Service;
use crate::stats::Measured;
use crate::stored::Sandbox;

/// Labels of everything; those of networks have the interface too.
const LABELS: [&str; 6] = ["container", "id", "image", "name", "namespace", "pod"];
const INTERFACE: &str = "interface";
const NANOS: u64 = 1_000_000_000;

/// A metric of containers.
struct Kind {
    name: &'static str,
    help: &'static str,
    metric_type: v1::MetricType,
    value: fn(&Measured) -> u64,
}

const OF_CONTAINERS: [Kind; 7] = [
    Kind {
        name: "container_cpu_usage_seconds_total",
        help: "CPU time used, in seconds.",
        metric_type: v1::MetricType::Counter,
        value: |one| one.stats.cpu_nanos / NANOS,
    },
    Kind {
        name: "container_memory_usage_bytes",
        help: "Memory used, caches included, in bytes.",
        metric_type: v1::MetricType::Gauge,
        value: |one| one.stats.memory_usage,
    },
    Kind {
        name: "container_memory_working_set_bytes",
        help: "Memory that cannot be reclaimed easily, in bytes.",
        metric_type: v1::MetricType::Gauge,
        value: |one| one.stats.memory_working_set,
    },
    Kind {
        name: "container_memory_rss",
        help: "Memory that belongs to processes and to no file, in bytes.",
        metric_type: v1::MetricType::Gauge,
        value: |one| one.stats.memory_anonymous,
    },
    Kind {
        name: "container_fs_usage_bytes",
        help: "What the container has written to its own layer, in bytes.",
        metric_type: v1::MetricType::Gauge,
        value: |one| one.layer.map_or(0, |layer| layer.bytes),
    },
    Kind {
        name: "container_processes",
        help: "Processes that run in the container.",
        metric_type: v1::MetricType::Gauge,
        value: |one| one.stats.processes,
    },
    Kind {
        name: "container_start_time_seconds",
        help: "When the container was started, in seconds since 1970.",
        metric_type: v1::MetricType::Gauge,
        value: started_at,
    },
];

/// A metric of a pod's interfaces.
type OfInterface = (&'static str, &'static str, fn(&InterfaceStats) -> u64);

const OF_INTERFACES: [OfInterface; 4] = [
    (
        "container_network_receive_bytes_total",
        "Bytes that the pod has received.",
        |interface| interface.received_bytes,
    ),
    (
        "container_network_receive_errors_total",
        "Errors while the pod received.",
        |interface| interface.receive_errors,
    ),
    (
        "container_network_transmit_bytes_total",
        "Bytes that the pod has sent.",
        |interface| interface.sent_bytes,
    ),
    (
        "container_network_transmit_errors_total",
        "Errors while the pod sent.",
        |interface| interface.send_errors,
    ),
];

fn started_at(measured: &Measured) -> u64 {
    match &measured.container.status.state {
        ContainerState::Running { started_at } => u64::try_from(started_at.as_second()).unwrap_or(0),
        ContainerState::Created | ContainerState::Exited(_) | ContainerState::Unknown => 0,
    }
}

pub(crate) fn descriptors() -> Vec<v1::MetricDescriptor> {
    let keys = |more: Option<&str>| LABELS.into_iter().chain(more).map(str::to_owned).collect();
    let of_containers = OF_CONTAINERS.iter().map(|kind| v1::MetricDescriptor {
        name: kind.name.to_owned(),
        help: kind.help.to_owned(),
        label_keys: keys(None),
    });
    let of_interfaces = OF_INTERFACES.iter().map(|(name, help, _)| v1::MetricDescriptor {
        name: (*name).to_owned(),
        help: (*help).to_owned(),
        label_keys: keys(Some(INTERFACE)),
    });
    of_containers.chain(of_interfaces).collect()
}

impl Service {
    pub(crate) async fn sandbox_metrics(&self) -> Result<Vec<v1::PodSandboxMetrics>, Status> {
        let mut all = Vec::new();
        for sandbox in self.sandboxes().await? {
            if sandbox.status.state != SandboxState::Ready {
                continue;
            }
            let interfaces = self.runtime().sandbox_interfaces(&sandbox.status.id).await;
            let interfaces = interfaces.map_err(refused)?;
            let measured = self.measure_containers(&sandbox).await?;
            all.push(v1::PodSandboxMetrics {
                pod_sandbox_id: sandbox.status.id.to_string(),
                metrics: interfaces
                    .iter()
                    .flat_map(|one| of_interface(&sandbox, one))
                    .collect(),
                container_metrics: measured.iter().map(|one| of_container(&sandbox, one)).collect(),
            });
        }
        Ok(all)
    }
}

fn of_container(sandbox: &Sandbox, measured: &Measured) -> v1::ContainerMetrics {
    let pod = sandbox.metadata();
    let id = measured.container.status.id.to_string();
    let name = measured.container.metadata().name;
    let labels = vec![
        name.clone(),
        id.clone(),
        image_name(&measured.container.config),
        name,
        pod.namespace,
        pod.name,
    ];
    let metric = |kind: &Kind| v1::Metric {
        name: kind.name.to_owned(),
        timestamp: answer::now(),
        metric_type: kind.metric_type.into(),
        label_values: labels.clone(),
        value: Some(v1::UInt64Value {
            value: (kind.value)(measured),
        }),
    };
    v1::ContainerMetrics {
        metrics: OF_CONTAINERS.iter().map(metric).collect(),
        container_id: id,
    }
}

fn of_interface(sandbox: &Sandbox, interface: &InterfaceStats) -> Vec<v1::Metric> {
    let pod = sandbox.metadata();
    let labels = vec![
        String::new(),
        sandbox.status.id.to_string(),
        String::new(),
        String::new(),
        pod.namespace,
        pod.name,
        interface.name.clone(),
    ];
    let metric = |(name, _, value): &OfInterface| v1::Metric {
        name: (*name).to_owned(),
        timestamp: answer::now(),
        metric_type: v1::MetricType::Counter.into(),
        label_values: labels.clone(),
        value: Some(v1::UInt64Value {
            value: value(interface),
        }),
    };
    OF_INTERFACES.iter().map(metric).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_described_once() {
        let all = descriptors();
        let mut names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), OF_CONTAINERS.len() + OF_INTERFACES.len());
        let network = all
            .iter()
            .find(|one| one.name.contains("receive_bytes"))
            .expect("is there");
        assert_eq!(network.label_keys.len(), LABELS.len() + 1);
    }
}
