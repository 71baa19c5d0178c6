//! What the node owes its machine: looked at every few seconds, done by jobs.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use pulselet_engine::line::Phase;
use pulselet_engine::{PodKey, PodMachine};
use pulselet_model::{Pod, ResourceTotals};
use pulselet_plan::duties::{PressureSignal, SYSTEM_CRITICAL_PRIORITY};
use tokio::sync::watch;
use tokio::time::Instant;

use super::Agent;
use super::entry::{Life, PodEntry};
use super::observe::storage_of;
use crate::container_config::log_path;
use crate::eviction::PressureConditions;
use crate::eviction::pressure::Pressure;
use crate::jobs::{EvictionCandidate, GrowingLog};
use crate::pod::identity::Origin;

/// How often images are looked at, as a kubelet does.
const IMAGES_INTERVAL: Duration = Duration::from_mins(5);

/// Who watches what the machine has left.
#[derive(Debug)]
pub(crate) struct PressureWatch {
    pub(crate) pressure: Pressure,
    pub(crate) conditions: watch::Sender<PressureConditions>,
    /// Pods of files keep the node of a cluster going, and stay. On a node of its own they are pods like others.
    pub(crate) spares_static: bool,
}

impl Agent {
    pub(super) fn attend_to_duties(&mut self) {
        self.relieve_pressure();
        self.bound_logs();
        let is_due = self
            .images_looked_at
            .is_none_or(|at| at.elapsed() >= IMAGES_INTERVAL);
        if is_due && self.jobs.version.features.images {
            self.images_looked_at = Some(Instant::now());
            self.note_images();
            self.tasks.spawn(Arc::clone(&self.jobs).look_after_images());
        }
    }

    /// Conditions follow what is left, and if it is too little, somebody goes.
    fn relieve_pressure(&mut self) {
        let now = self.jobs.clock.now();
        let Some(watch) = &mut self.pressure else {
            return;
        };
        let (conditions, reclaim) = watch.pressure.observe(now, &self.jobs.signals.read());
        let before = watch.conditions.send_replace(conditions);
        if before != conditions {
            tracing::warn!(?conditions, "what the node runs out of has changed");
        }
        let Some(reclaim) = reclaim else {
            return;
        };
        self.note_images();
        let candidates = self
            .entries
            .iter()
            .filter(|(key, entry)| self.may_be_evicted(**key, entry));
        let candidates: Vec<_> = candidates
            .map(|(key, entry)| self.candidate(*key, entry, reclaim.signal))
            .collect();
        self.tasks
            .spawn(Arc::clone(&self.jobs).reclaim(reclaim, candidates));
    }

    fn may_be_evicted(&self, key: PodKey, entry: &PodEntry) -> bool {
        let pod = self.pods.get(key);
        let runs = pod.is_some_and(|pod| match pod.phase() {
            Phase::Pending | Phase::Running => !pod.is_deleting(),
            Phase::Succeeded | Phase::Failed => false,
        });
        let spares_static = self.pressure.as_ref().is_some_and(|watch| watch.spares_static);
        runs && entry.location.is_some() && !is_critical(entry.priority, &entry.origin, spares_static)
    }

    fn candidate(&self, key: PodKey, entry: &PodEntry, signal: PressureSignal) -> EvictionCandidate {
        let pod = entry.spec.read();
        let of = |totals: &ResourceTotals| match signal {
            PressureSignal::MemoryAvailable => totals.memory,
            PressureSignal::NodeFsAvailable => totals.ephemeral_storage,
            PressureSignal::NodeFsInodesFree | PressureSignal::PidAvailable => 0,
        };
        let files = storage_of(key, entry, &self.jobs.layout);
        let by_container = files.containers.iter();
        EvictionCandidate {
            uid: Arc::clone(&entry.identity.uid),
            priority: entry.priority,
            requested: of(&entry.blueprint.requests),
            requested_by_container: by_container.map(|it| of(&requests_of(&pod, &it.name))).collect(),
            grace: entry.plan().grace,
            files,
        }
    }

    /// Where the runtime leaves full logs to the node.
    fn bound_logs(&mut self) {
        if self.jobs.logs_are_bounded {
            return;
        }
        let logs: Vec<_> = self
            .entries
            .values()
            .flat_map(|entry| self.growing_logs(entry))
            .collect();
        if !logs.is_empty() {
            self.tasks.spawn(Arc::clone(&self.jobs).bound_logs(logs));
        }
    }

    fn growing_logs(&self, entry: &PodEntry) -> Vec<GrowingLog> {
        let identity = &entry.identity;
        let directory = self
            .jobs
            .layout
            .pod_logs(&identity.namespace, &identity.name, &identity.uid);
        let running = entry.lives.iter().filter(|life| Life::is_running(life));
        let log = |life: &Life| {
            let container = entry.plan().containers.get(life.key.container)?;
            Some(GrowingLog {
                container: life.id.clone(),
                path: log_path(&directory, &container.name, life.key.attempt),
            })
        };
        running.filter_map(log).collect()
    }

    /// What pods name stays, also while none of their containers is there.
    fn note_images(&self) {
        let ended = |key: &PodKey| self.pods.get(*key).is_none_or(PodMachine::is_over);
        let pods = self.entries.iter().filter(|(key, _)| !ended(key));
        let images: HashSet<_> = pods
            .flat_map(|(_, entry)| {
                let containers = entry.plan().containers.iter();
                let own = containers.map(|container| Arc::clone(&container.image));
                let volumes = entry.blueprint.volumes.iter();
                let mounted = volumes.filter_map(|volume| Some(Arc::clone(&volume.image()?.reference)));
                own.chain(mounted)
            })
            .collect();
        self.jobs.images.want(images);
    }

    /// What the node runs out of.
    pub(super) fn conditions(&self) -> PressureConditions {
        let watch = self.pressure.as_ref();
        watch.map_or_else(PressureConditions::default, |watch| *watch.conditions.borrow())
    }
}

/// Whether a pod keeps the node or the cluster going.
pub(super) fn is_critical(priority: i32, origin: &Origin, spares_static: bool) -> bool {
    let is_static = match origin {
        Origin::Manifest { .. } => spares_static,
        Origin::Api | Origin::Run | Origin::Detached => false,
    };
    is_static || priority >= SYSTEM_CRITICAL_PRIORITY
}

fn requests_of(pod: &Pod, container: &str) -> ResourceTotals {
    let container = pod.find_container(container);
    let requests = container
        .as_ref()
        .and_then(|container| container.resources.requests.as_ref());
    requests.map(ResourceTotals::read).unwrap_or_default()
}
