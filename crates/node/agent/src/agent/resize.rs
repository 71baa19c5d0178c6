//! Other CPU and memory for containers that run.
//!
//! The manifest that an entry has is what the node has allocated. Another one asks for a resize: if the node has no room for
//! it, the entry keeps the resources it had and the pod waits (`PodResizePending`). Otherwise a job changes what runs
//! (`PodResizeInProgress`), and goes on trying until all of it is changed. Containers whose policy wants that are restarted.
//!
//! Nothing of it is stored: which lives have other resources than their manifest follows from what they were created
//! from, and an API that wants a resize still wants it after a restart.

use std::collections::BTreeSet;
use std::sync::Arc;

use pulselet_engine::event::Event;
use pulselet_engine::{Input, LifeKey, PodKey, Time};
use pulselet_model::openapi::api::core::v1 as core;
use pulselet_model::{Pod, ResourceTotals, Shortage, keep_resources, pod_requests, same_resources};
use pulselet_plan::{DeclaredResources, PodBlueprint};
use pulselet_vocabulary::Severity;
use tracing::Instrument as _;

use super::Agent;
use super::entry::{Life, Manifest, PodEntry};
use crate::jobs::{ContainerResize, ResizeJob, Resized};
use crate::pod::status::wire;
use crate::state::clock::Clock;

/// How far a resize is. One may be under way while the next one waits.
#[derive(Debug, Default)]
pub(super) struct Resize {
    pending: Option<PendingResize>,
    progress: Option<ResizeProgress>,
}

/// What the node has no room for.
#[derive(Debug)]
struct PendingResize {
    reason: PendingReason,
    message: String,
    since: Time,
    /// The manifest with the resources that were asked for.
    desired: Manifest,
}

/// What was allocated and is not in force everywhere.
#[derive(Debug)]
struct ResizeProgress {
    since: Time,
    /// Why it is not done; `None` if it is under way.
    error: Option<String>,
    /// A job is at it.
    at_work: bool,
    /// Lives that end because their successors are to have other resources.
    restarting: BTreeSet<LifeKey>,
}

/// Why a resize waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingReason {
    /// The node would be too small even if it were empty.
    Infeasible,
    /// Others have what it needs.
    Deferred,
}

impl PendingReason {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Infeasible => "Infeasible",
            Self::Deferred => "Deferred",
        }
    }

    const fn event(self) -> &'static str {
        match self {
            Self::Infeasible => "ResizeInfeasible",
            Self::Deferred => "ResizeDeferred",
        }
    }
}

impl Resize {
    /// As the pod's status shows it.
    pub(super) fn conditions(&self, clock: Clock) -> impl Iterator<Item = core::PodCondition> {
        let condition =
            move |type_: &str, reason: Option<&str>, message: Option<&str>, since: Time| core::PodCondition {
                type_: type_.to_owned(),
                status: "True".to_owned(),
                reason: reason.map(str::to_owned),
                message: message.map(str::to_owned),
                last_transition_time: Some(wire(since, clock)),
                ..core::PodCondition::default()
            };
        let pending = self.pending.as_ref().map(|it| {
            let reason = Some(it.reason.as_str());
            condition("PodResizePending", reason, Some(&it.message), it.since)
        });
        let progress = self.progress.as_ref().map(|it| {
            let reason = it.error.as_ref().map(|_| "Error");
            condition("PodResizeInProgress", reason, it.error.as_deref(), it.since)
        });
        pending.into_iter().chain(progress)
    }

    fn begin(&mut self, since: Time) {
        self.progress.get_or_insert(ResizeProgress {
            since,
            error: None,
            at_work: false,
            restarting: BTreeSet::new(),
        });
    }
}

impl Agent {
    /// Looks at what a new manifest changes of CPU and memory. What the node has no room for is put back in it.
    pub(super) fn judge_resize(&mut self, key: PodKey, pod: &mut Pod) {
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        let accepted = entry.spec.read();
        let waited = entry.resize.pending.as_ref().map(|pending| pending.reason);
        if same_resources(pod, &accepted) {
            if waited.is_some() {
                self.change_resize(key, |resize| resize.pending = None);
            }
            return;
        }
        let since = self.jobs.clock.now();
        let Some((reason, message)) = self.lack_of_room_for_resize(key, pod) else {
            self.change_resize(key, |resize| {
                resize.pending = None;
                resize.begin(since);
            });
            let message = "The pod's resize has begun".to_owned();
            return self.resize_event(key, Severity::Normal, "ResizeStarted", message);
        };
        let desired = Manifest::new(pod);
        keep_resources(pod, &accepted);
        if waited != Some(reason) {
            self.resize_event(key, Severity::Warning, reason.event(), message.clone());
        }
        self.change_resize(key, |resize| {
            let before = resize.pending.take().filter(|before| before.reason == reason);
            resize.pending = Some(PendingResize {
                reason,
                message,
                since: before.map_or(since, |before| before.since),
                desired,
            });
        });
    }

    fn lack_of_room_for_resize(&self, key: PodKey, pod: &Pod) -> Option<(PendingReason, String)> {
        let wanted = pod_requests(&pod.spec);
        let allocatable = &self.jobs.facts.allocatable;
        if let Some(shortage) = wanted.shortage(&ResourceTotals::default(), allocatable) {
            let Shortage {
                resource,
                requested,
                capacity,
                ..
            } = shortage;
            let message = format!(
                "Node didn't have enough capacity: {resource}, requested: {requested}, capacity: {capacity}"
            );
            return Some((PendingReason::Infeasible, message));
        }
        let mut others = self.taken().1;
        if let Some(entry) = self.entries.get(&key) {
            others.subtract(&entry.blueprint.requests);
        }
        let shortage = wanted.shortage(&others, allocatable)?;
        let refusal = pulselet_plan::out_of(&shortage);
        Some((PendingReason::Deferred, refusal.message))
    }

    fn change_resize(&mut self, key: PodKey, change: impl FnOnce(&mut Resize)) {
        if let Some(entry) = self.entries.get_mut(&key) {
            change(&mut entry.resize);
            entry.changed_visibly = true;
            self.journal.mark(key);
        }
    }

    fn resize_event(&mut self, key: PodKey, severity: Severity, reason: &'static str, message: String) {
        let event = Event {
            container: None,
            severity,
            reason,
            message,
        };
        self.record(key, &[], &[event]);
    }

    /// Goes on with what waits or has failed.
    pub(super) fn retry_resizes(&mut self) {
        let deferred = |entry: &PodEntry| {
            let pending = entry.resize.pending.as_ref()?;
            (pending.reason == PendingReason::Deferred).then(|| pending.desired.clone())
        };
        let is_resized = |entry: &PodEntry| entry.resize.pending.is_some() || entry.resize.progress.is_some();
        let waiting: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, entry)| is_resized(entry))
            .map(|(key, entry)| (*key, deferred(entry)))
            .collect();
        for (key, desired) in waiting {
            if let Some(desired) = desired
                && self.lack_of_room_for_resize(key, &desired.read()).is_none()
            {
                let pod = Arc::unwrap_or_clone(desired.read());
                if let Err(error) = self.take_manifest(key, pod) {
                    tracing::warn!(%error, "a resize that has room now cannot begin");
                }
            }
            self.work_on_resize(key);
        }
    }

    /// An agent before this one may have been ended in the middle of a resize.
    pub(super) fn resume_resize(&mut self, key: PodKey) {
        let now = self.jobs.clock.now();
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        if entry.lives.iter().any(|life| differs(life, &entry.blueprint)) {
            entry.resize.begin(now);
            self.work_on_resize(key);
        }
    }

    /// Changes what runs and has other resources than it is to have, unless a job is at it.
    pub(super) fn work_on_resize(&mut self, key: PodKey) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        if entry.resize.progress.as_ref().is_none_or(|it| it.at_work) {
            return;
        }
        let (in_place, restarts) = sorted(entry);
        let Some(progress) = &mut entry.resize.progress else {
            return;
        };
        progress.at_work = true;
        let is_new = |life: &&LifeKey| !progress.restarting.contains(life);
        let new: Vec<LifeKey> = restarts.iter().filter(is_new).copied().collect();
        progress.restarting.extend(&new);
        let job = ResizeJob {
            pod: entry.reference(key),
            blueprint: Arc::clone(&entry.blueprint),
            containers: in_place,
            restarts: new,
            // What ends with what it has cannot be given less than that.
            is_last: restarts.is_empty(),
        };
        let jobs = Arc::clone(&self.jobs);
        let work = async move { jobs.resize(job).await };
        self.tasks.spawn(work.instrument(entry.span()));
    }

    /// What came of it.
    pub(super) fn resized(&mut self, key: PodKey, resized: Resized) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        for life in &resized.lives {
            if let Some(life) = entry.life_mut(*life) {
                life.resources = Arc::clone(&resized.blueprint);
            }
        }
        let is_current = Arc::ptr_eq(&resized.blueprint, &entry.blueprint);
        let is_left = entry.lives.iter().any(|life| differs(life, &entry.blueprint));
        let Some(progress) = &mut entry.resize.progress else {
            return;
        };
        progress.at_work = false;
        let is_news = resized.error.is_some() && progress.error != resized.error;
        progress.error.clone_from(&resized.error);
        entry.changed_visibly = true;
        self.journal.mark(key);
        if let Some(message) = resized.error {
            if is_news {
                self.resize_event(key, Severity::Warning, "ResizeError", message);
            }
            return;
        }
        for life in resized.restarts {
            let container = life.container;
            self.feed(key, Input::Restart { container });
        }
        if !is_current {
            return self.work_on_resize(key);
        }
        if resized.is_last && !is_left {
            self.change_resize(key, |resize| resize.progress = None);
            let message = "The pod's resize is completed".to_owned();
            self.resize_event(key, Severity::Normal, "ResizeCompleted", message);
        }
    }
}

/// The lives to be changed as they run, and those to be ended for it.
fn sorted(entry: &PodEntry) -> (Vec<ContainerResize>, Vec<LifeKey>) {
    let (mut in_place, mut restarts) = (Vec::new(), Vec::new());
    for life in entry.lives.iter().filter(|life| differs(life, &entry.blueprint)) {
        let (Some(now), Some(wanted)) = (declared(&life.resources, life), declared(&entry.blueprint, life))
        else {
            continue;
        };
        if now.change_restarts(wanted) {
            restarts.push(life.key);
        } else {
            in_place.push(ContainerResize {
                life: life.key,
                id: life.id.clone(),
                name: entry.container_name(life.key.container).to_owned(),
            });
        }
    }
    (in_place, restarts)
}

/// Whether a life that runs has other resources than its container is to have.
fn differs(life: &Life, wanted: &PodBlueprint) -> bool {
    life.is_running()
        && match (declared(&life.resources, life), declared(wanted, life)) {
            (Some(now), Some(wanted)) => now.differs(wanted),
            (Some(_) | None, _) => false,
        }
}

fn declared<'a>(blueprint: &'a PodBlueprint, life: &Life) -> Option<&'a DeclaredResources> {
    blueprint.containers.get(life.key.container)?.resources.as_deref()
}
