//! What a kubelet counts of pods and containers, under its names.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use pulselet_engine::plan::Role;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ContainerTypeLabels {
    container_type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TerminationLabels {
    container_type: &'static str,
    exit_code: i32,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RejectionLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ContainerStateLabels {
    container_state: &'static str,
}

/// How many there are at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunningCounts {
    /// Pods that have a sandbox.
    pub(crate) pods: i64,
    pub(crate) created: i64,
    pub(crate) running: i64,
    pub(crate) exited: i64,
}

#[derive(Debug, Default)]
pub(crate) struct KubeletMetrics {
    running_pods: Gauge,
    running_containers: Family<ContainerStateLabels, Gauge>,
    started_pods: Counter,
    started_containers: Family<ContainerTypeLabels, Counter>,
    terminated_containers: Family<TerminationLabels, Counter>,
    rejections: Family<RejectionLabels, Counter>,
}

impl KubeletMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "kubelet_running_pods",
            "Number of pods that have a running pod sandbox",
            self.running_pods.clone(),
        );
        registry.register(
            "kubelet_running_containers",
            "Number of containers by state",
            self.running_containers.clone(),
        );
        registry.register(
            "kubelet_started_pods",
            "Cumulative number of pods started",
            self.started_pods.clone(),
        );
        registry.register(
            "kubelet_started_containers",
            "Cumulative number of containers started",
            self.started_containers.clone(),
        );
        registry.register(
            "kubelet_terminated_containers",
            "Cumulative number of container terminations",
            self.terminated_containers.clone(),
        );
        registry.register(
            "kubelet_admission_rejections",
            "Cumulative number of pods that the node refused, by reason",
            self.rejections.clone(),
        );
    }

    pub(crate) fn pod_started(&self) {
        self.started_pods.inc();
    }

    pub(crate) fn container_started(&self, role: Role) {
        let container_type = type_of(role);
        self.started_containers
            .get_or_create(&ContainerTypeLabels { container_type })
            .inc();
    }

    pub(crate) fn container_terminated(&self, role: Role, exit_code: i32, reason: &'static str) {
        let labels = TerminationLabels {
            container_type: type_of(role),
            exit_code,
            reason,
        };
        self.terminated_containers.get_or_create(&labels).inc();
    }

    pub(crate) fn pod_rejected(&self, reason: &'static str) {
        self.rejections.get_or_create(&RejectionLabels { reason }).inc();
    }

    pub(crate) fn count(&self, counts: RunningCounts) {
        self.running_pods.set(counts.pods);
        for (container_state, number) in [
            ("created", counts.created),
            ("running", counts.running),
            ("exited", counts.exited),
        ] {
            let labels = ContainerStateLabels { container_state };
            self.running_containers.get_or_create(&labels).set(number);
        }
    }
}

/// As a kubelet sorts them.
const fn type_of(role: Role) -> &'static str {
    match role {
        Role::Init | Role::Sidecar => "init_container",
        Role::Main => "container",
        Role::Ephemeral => "ephemeral_container",
    }
}
