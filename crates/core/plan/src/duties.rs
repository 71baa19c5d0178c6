//! What a node owes its machine, its cluster and its pods beside running them, as values: what it keeps back for the
//! machine, how it resolves names, how long logs and images stay, and when it has too little of something.
//!
//! The names and the defaults are a kubelet's. Nothing here measures or does anything.

use std::net::IpAddr;

use pulselet_engine::time::Span;
use pulselet_model::ResourceTotals;

/// Pods that a node takes from an API unless it is told otherwise.
const MAX_PODS: u32 = 110;
const MIB: u64 = 1 << 20;

/// Pods of this priority and above keep the cluster or the node going.
pub const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeDuties {
    /// What pods cannot have because the machine and the agent need it: `kubeReserved` and `systemReserved`.
    pub reserved: ResourceTotals,
    /// How many pods the node takes from an API.
    pub max_pods: u32,
    pub dns: ClusterDns,
    pub logs: LogBounds,
    pub images: ImageBounds,
    pub eviction: EvictionSettings,
    pub shutdown: ShutdownPeriods,
}

impl Default for NodeDuties {
    fn default() -> Self {
        Self {
            reserved: ResourceTotals::default(),
            max_pods: MAX_PODS,
            dns: ClusterDns::default(),
            logs: LogBounds::default(),
            images: ImageBounds::default(),
            eviction: EvictionSettings::default(),
            shutdown: ShutdownPeriods::default(),
        }
    }
}

/// How long the machine's shutdown is held up for its pods. By default it is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShutdownPeriods {
    /// In all; zero if nobody waits.
    pub total: Span,
    /// The last part of it, which critical pods have for themselves.
    pub critical: Span,
}

impl ShutdownPeriods {
    /// What pods that are not critical have.
    pub fn ordinary(self) -> Span {
        self.total.saturating_sub(self.critical)
    }

    /// What a pod of a priority has.
    pub fn of(self, priority: i32) -> Span {
        if priority >= SYSTEM_CRITICAL_PRIORITY {
            self.critical
        } else {
            self.ordinary()
        }
    }

    pub fn is_off(self) -> bool {
        self.total == Span::ZERO
    }
}

/// How pods find the names of their cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterDns {
    /// Empty if the cluster has no resolver that the node knows.
    pub servers: Vec<IpAddr>,
    /// Under which names of services and pods are.
    pub domain: String,
}

impl Default for ClusterDns {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            domain: "cluster.local".to_owned(),
        }
    }
}

/// How much of a container's output is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogBounds {
    /// A log that is larger, in bytes, is put aside.
    pub max_size: u64,
    /// Files of one container, the current one included; at least two.
    pub max_files: u32,
}

impl Default for LogBounds {
    fn default() -> Self {
        Self {
            max_size: 10 * MIB,
            max_files: 5,
        }
    }
}

/// When images that nobody uses go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageBounds {
    /// With more of the disk in use, in percent, images are removed; 100 means never.
    pub high_percent: u8,
    /// Until no more than this is.
    pub low_percent: u8,
    /// A younger image stays.
    pub minimum_age: Span,
}

impl Default for ImageBounds {
    fn default() -> Self {
        Self {
            high_percent: 85,
            low_percent: 80,
            minimum_age: Span::from_secs(2 * 60),
        }
    }
}

/// Something a node can run out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PressureSignal {
    MemoryAvailable,
    NodeFsAvailable,
    NodeFsInodesFree,
    PidAvailable,
}

impl PressureSignal {
    pub const ALL: [Self; 4] = [
        Self::MemoryAvailable,
        Self::NodeFsAvailable,
        Self::NodeFsInodesFree,
        Self::PidAvailable,
    ];

    /// As settings name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::NodeFsAvailable => "nodefs.available",
            Self::NodeFsInodesFree => "nodefs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    /// The resource that is short, as messages name it.
    pub const fn resource(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory",
            Self::NodeFsAvailable => "ephemeral-storage",
            Self::NodeFsInodesFree => "inodes",
            Self::PidAvailable => "pids",
        }
    }
}

/// How much of something there must be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Floor {
    /// Bytes or pieces.
    Amount(u64),
    /// Hundredths of a percent of all there is.
    Part(u32),
}

impl Floor {
    /// The amount it means where there is `capacity` in all.
    pub fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Amount(amount) => amount,
            Self::Part(part) => {
                let amount = u128::from(capacity) * u128::from(part) / 10_000;
                u64::try_from(amount).unwrap_or(u64::MAX)
            }
        }
    }
}

/// With less than this the node is under pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictionThreshold {
    pub signal: PressureSignal,
    pub floor: Floor,
    /// How long it may last before pods are evicted for it; `None` if they are at once, with hardly a grace period.
    pub soft: Option<Span>,
}

/// When pods have to go so that the node keeps going.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionSettings {
    pub thresholds: Vec<EvictionThreshold>,
    /// The longest grace period of a pod that is evicted for a soft threshold.
    pub max_pod_grace: Span,
    /// How long a condition stays after the pressure has gone.
    pub transition_period: Span,
    /// Whether the thresholds were written by somebody. Those of a kubelet apply only to the nodes of an API.
    pub is_explicit: bool,
}

impl Default for EvictionSettings {
    fn default() -> Self {
        let hard = |signal, floor| EvictionThreshold {
            signal,
            floor,
            soft: None,
        };
        Self {
            thresholds: vec![
                hard(PressureSignal::MemoryAvailable, Floor::Amount(100 * MIB)),
                hard(PressureSignal::NodeFsAvailable, Floor::Part(1_000)),
                hard(PressureSignal::NodeFsInodesFree, Floor::Part(500)),
            ],
            max_pod_grace: Span::ZERO,
            transition_period: Span::from_secs(5 * 60),
            is_explicit: false,
        }
    }
}

impl EvictionSettings {
    fn hard_floor(&self, signal: PressureSignal, capacity: u64) -> u64 {
        let of_signal =
            |threshold: &&EvictionThreshold| threshold.signal == signal && threshold.soft.is_none();
        let found = self.thresholds.iter().find(of_signal);
        found.map_or(0, |threshold| threshold.floor.of(capacity))
    }
}

impl NodeDuties {
    /// What is left for pods of what a machine has: neither what is reserved nor what must stay free.
    pub fn allocatable(&self, capacity: &ResourceTotals) -> ResourceTotals {
        let mut left = capacity.clone();
        left.subtract(&self.reserved);
        let floor = |signal, capacity| self.eviction.hard_floor(signal, capacity);
        left.subtract(&ResourceTotals {
            memory: floor(PressureSignal::MemoryAvailable, capacity.memory),
            ephemeral_storage: floor(PressureSignal::NodeFsAvailable, capacity.ephemeral_storage),
            ..ResourceTotals::default()
        });
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_get_what_is_neither_reserved_nor_must_stay_free() {
        let duties = NodeDuties {
            reserved: ResourceTotals {
                cpu_millis: 500,
                memory: 24 * MIB,
                ..ResourceTotals::default()
            },
            ..NodeDuties::default()
        };
        let capacity = ResourceTotals {
            cpu_millis: 2000,
            memory: 1024 * MIB,
            ephemeral_storage: 1000,
            ..ResourceTotals::default()
        };
        let left = duties.allocatable(&capacity);
        assert_eq!(
            (left.cpu_millis, left.memory, left.ephemeral_storage),
            (1500, 900 * MIB, 900)
        );
        let tiny = duties.allocatable(&ResourceTotals::default());
        assert_eq!(tiny, ResourceTotals::default());
    }
}
