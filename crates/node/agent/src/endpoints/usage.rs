//! What the containers and the machine use, measured when somebody asks.
//!
//! Answers are snapshots: all pages of one moment agree. Asked more often than [`FRESH`], the last one is given again,
//! so that many scrapers cost as much as one.

mod machine;
mod pages;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use pulselet_runtime::{
    ContainerFilter, ContainerId, ContainerState, ContainerStats, ContainerStatus, PodIdentity, Runtime,
};
use pulselet_volume::NodeFacts;
use tokio::sync::Mutex;

pub(crate) use pages::{cadvisor, resource, summary};

/// How old an answer may be.
const FRESH: Duration = Duration::from_secs(1);
/// Over at least this the use of CPU per second is computed, once there is that much to look back to.
const WINDOW: Duration = Duration::from_secs(10);
/// Containers that are asked about at once.
const CONCURRENT: usize = 16;
/// How long the runtime may take for one container, and for the list of them.
const PATIENCE: Duration = Duration::from_secs(2);

/// What was used at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    node: NodeUsage,
    /// In order of namespace and name.
    pods: Vec<PodUsage>,
    /// Whether everything could be measured.
    complete: bool,
}

#[derive(Debug)]
struct NodeUsage {
    facts: NodeFacts,
    at: Timestamp,
    cpu: Cpu,
    memory: machine::Memory,
}

#[derive(Debug)]
struct PodUsage {
    pod: PodIdentity,
    containers: Vec<ContainerUsage>,
}

#[derive(Debug)]
struct ContainerUsage {
    id: ContainerId,
    name: String,
    image: String,
    started_at: Timestamp,
    at: Timestamp,
    cpu: Cpu,
    stats: ContainerStats,
}

/// Nanoseconds of CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Cpu {
    /// Since the start.
    total: u64,
    /// Per second, of late.
    per_second: u64,
}

/// The counter at one moment.
#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Instant,
    total: u64,
}

impl Reading {
    /// Per second since an earlier reading.
    fn since(self, earlier: Self) -> u64 {
        let nanos = self.at.duration_since(earlier.at).as_nanos().max(1);
        let used = u128::from(self.total.saturating_sub(earlier.total));
        u64::try_from(used * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
    }
}

/// What is looked back to. Moves on so that it is neither too near nor far behind.
#[derive(Debug, Clone, Copy)]
struct Window {
    begin: Reading,
    end: Reading,
}

impl Window {
    fn new(begin: Reading) -> Self {
        Self { begin, end: begin }
    }

    fn observe(&mut self, now: Reading) -> Cpu {
        if now.at.duration_since(self.end.at) >= WINDOW {
            (self.begin, self.end) = (self.end, now);
        }
        Cpu {
            total: now.total,
            per_second: now.since(self.begin),
        }
    }
}

/// Measures, and remembers as much as rates need.
#[derive(Debug)]
pub(crate) struct Usage {
    runtime: Arc<dyn Runtime>,
    facts: NodeFacts,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    snapshot: Option<(Instant, Arc<Snapshot>)>,
    containers: HashMap<ContainerId, Window>,
    node: Option<Window>,
}

impl Usage {
    pub(crate) fn new(runtime: Arc<dyn Runtime>, facts: NodeFacts) -> Self {
        Self {
            runtime,
            facts,
            last: Mutex::default(),
        }
    }

    pub(crate) async fn snapshot(&self) -> Arc<Snapshot> {
        // Whoever comes meanwhile waits for the same answer.
        let mut last = self.last.lock().await;
        if let Some((at, snapshot)) = &last.snapshot
            && at.elapsed() < FRESH
        {
            return Arc::clone(snapshot);
        }
        let snapshot = Arc::new(self.measure(&mut last).await);
        last.snapshot = Some((Instant::now(), Arc::clone(&snapshot)));
        snapshot
    }

    async fn measure(&self, last: &mut Last) -> Snapshot {
        let filter = ContainerFilter::default();
        let listed = tokio::time::timeout(PATIENCE, self.runtime.list_containers(&filter)).await;
        let (statuses, mut complete) = match listed {
            Ok(Ok(statuses)) => (statuses, true),
            Ok(Err(_)) | Err(_) => (Vec::new(), false),
        };
        let measured: Vec<_> = stream::iter(statuses.into_iter().filter_map(running))
            .map(|(status, started_at)| self.ask(status, started_at))
            .buffer_unordered(CONCURRENT)
            .collect()
            .await;
        let mut windows = HashMap::new();
        let mut pods: HashMap<PodIdentity, Vec<ContainerUsage>> = HashMap::new();
        for (status, started_at, stats) in measured {
            let Some(stats) = stats else {
                complete = false;
                continue;
            };
            let window = last.containers.remove(&status.id);
            let (usage, window) = container(&status, started_at, stats, window);
            windows.insert(status.id, window);
            pods.entry(status.pod).or_default().push(usage);
        }
        last.containers = windows;
        Snapshot {
            node: self.node(last),
            pods: sorted(pods),
            complete,
        }
    }

    async fn ask(
        &self,
        status: ContainerStatus,
        started_at: Timestamp,
    ) -> (ContainerStatus, Timestamp, Option<ContainerStats>) {
        let asked = tokio::time::timeout(PATIENCE, self.runtime.container_stats(&status.id)).await;
        (status, started_at, asked.ok().and_then(Result::ok))
    }

    fn node(&self, last: &mut Last) -> NodeUsage {
        let now = Reading {
            at: Instant::now(),
            total: machine::cpu_nanos(),
        };
        // Where there is nothing to look back to yet, that is the machine's start.
        let start = Reading {
            at: now.at.checked_sub(machine::uptime()).unwrap_or(now.at),
            total: 0,
        };
        let window = last.node.get_or_insert(Window::new(start));
        NodeUsage {
            facts: self.facts.clone(),
            at: Timestamp::now(),
            cpu: window.observe(now),
            memory: machine::memory(),
        }
    }
}

fn running(status: ContainerStatus) -> Option<(ContainerStatus, Timestamp)> {
    match status.state {
        ContainerState::Running { started_at } => Some((status, started_at)),
        ContainerState::Created | ContainerState::Exited(_) | ContainerState::Unknown => None,
    }
}

/// Where there is nothing to look back to yet, that is the container's start, when it had used nothing.
fn container(
    container: &ContainerStatus,
    started_at: Timestamp,
    stats: ContainerStats,
    window: Option<Window>,
) -> (ContainerUsage, Window) {
    let at = Timestamp::now();
    let now = Reading {
        at: Instant::now(),
        total: stats.cpu_nanos,
    };
    let age = Duration::try_from(at.duration_since(started_at)).unwrap_or_default();
    let start = Reading {
        at: now.at.checked_sub(age).unwrap_or(now.at),
        total: 0,
    };
    let mut window = window.unwrap_or_else(|| Window::new(start));
    let usage = ContainerUsage {
        id: container.id.clone(),
        name: container.name.clone(),
        image: container.image.clone(),
        started_at,
        at,
        cpu: window.observe(now),
        stats,
    };
    (usage, window)
}

fn sorted(pods: HashMap<PodIdentity, Vec<ContainerUsage>>) -> Vec<PodUsage> {
    let mut pods: Vec<PodUsage> = pods
        .into_iter()
        .map(|(pod, mut containers)| {
            containers.sort_by(|a, b| a.name.cmp(&b.name));
            PodUsage { pod, containers }
        })
        .collect();
    pods.sort_by(|a, b| (&a.pod.namespace, &a.pod.name).cmp(&(&b.pod.namespace, &b.pod.name)));
    pods
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_window() {
        let start = Instant::now();
        let reading = |seconds: u64, total: u64| Reading {
            at: start + Duration::from_secs(seconds),
            total,
        };
        let mut window = Window::new(reading(0, 0));
        // Ten seconds at half a core, then idle: what is long ago does not count for ever.
        assert_eq!(window.observe(reading(2, 1_000_000_000)).per_second, 500_000_000);
        assert_eq!(window.observe(reading(10, 5_000_000_000)).per_second, 500_000_000);
        assert_eq!(window.observe(reading(20, 5_000_000_000)).per_second, 0);
        assert_eq!(window.observe(reading(21, 5_100_000_000)).total, 5_100_000_000);
    }

    #[test]
    fn a_counter_that_went_back_is_no_use_at_all() {
        let now = Instant::now();
        let earlier = Reading { at: now, total: 10 };
        let later = Reading { at: now, total: 3 };
        assert_eq!(later.since(earlier), 0);
    }
}
