//! What the runtime says, turned into the engine's inputs.
//!
//! The same observation may come several times, from an event, an answer and a listing: the engine drops what it knows.

use std::collections::HashSet;
use std::sync::Arc;

use pulselet_engine::io::{Exit, ProbeReport, StopRecord};
use pulselet_engine::plan::{ContainerPlan, ProbeKind};
use pulselet_engine::{Input, LifeKey, PodKey, Time};
use pulselet_plan::{MessagePolicy, VolumeKind};
use pulselet_runtime::{
    ContainerEvent, ContainerId, ContainerState, ContainerStatus, EventKind, ExitCause, RuntimeEvent,
    SandboxId, SandboxState, SandboxStatus,
};
use pulselet_vocabulary::{Signal, exit_code};
use tracing::Instrument as _;

use super::Agent;
use super::adopt::{Findings, Listing};
use super::entry::{Life, LifeStage, PodEntry};
use super::transitions::probe_name;
use crate::jobs::{ContainerStorage, JobAnswer, JobResult, Measurement, SandboxLocation, StorageMeasurement};
use crate::pod::status::KnownImage;
use crate::pod::termination;
use crate::spans;
use crate::state::layout::Layout;

impl Agent {
    pub(super) fn answer(&mut self, answer: JobAnswer) {
        let key = answer.pod;
        match answer.result {
            JobResult::Engine(input) => self.feed(key, input),
            JobResult::Sandbox(location) => {
                self.metrics.kubelet.pod_started();
                self.sandbox_is(key, location);
            }
            JobResult::Image {
                container,
                image,
                pulled,
                bad_signal,
            } if self.is_wanted(key, container, &image.name) => {
                self.image_is(key, container, image, bad_signal);
                self.feed(key, Input::ImageReady { container, pulled });
            }
            JobResult::ImageFailed {
                container,
                image,
                error,
                message,
            } if self.is_wanted(key, container, &image) => {
                let failed = Input::ImageFailed {
                    container,
                    error,
                    message,
                };
                self.feed(key, failed);
            }
            // The manifest has named another image since; that one was asked for, too.
            JobResult::Image { .. } | JobResult::ImageFailed { .. } => {}
            JobResult::Container(status) => {
                self.observe(key, &status);
                // One that was restarted for other resources may be the last that was waited for.
                self.work_on_resize(key);
            }
            JobResult::Resized(resized) => self.resized(key, resized),
            JobResult::ProbeDone {
                life,
                kind,
                look,
                report,
                began,
                late,
            } => {
                self.probe_was_late(late);
                if look {
                    self.metrics.look(&report);
                }
                // A look that failed says nothing that a dashboard of failing probes should show.
                if !look || report.outcome.is_success() {
                    self.count_probe(key, life, kind, &report);
                }
                self.probe_done(key, life, kind, report, began);
            }
            JobResult::Signalled { life, signal, at } => {
                let entry = self.entries.get_mut(&key);
                if let Some(life) = entry.and_then(|entry| entry.life_mut(life)) {
                    life.signalled.get_or_insert((signal, at));
                }
                self.feed(key, Input::Signalled { life, signal, at });
            }
            JobResult::Warning {
                container,
                reason,
                message,
            } => self.warn(key, container, reason, message),
            JobResult::FailedMount { messages, is_new } => self.failed_mount(key, messages, is_new),
            JobResult::SuccessorReady { uid } => self.successor_is_ready(key, &uid),
            JobResult::SuccessorWaits { uid, message } => self.successor_waits(key, &uid, &message),
            JobResult::CleanedUp => self.forget(key),
        }
    }

    fn sandbox_is(&mut self, key: PodKey, location: SandboxLocation) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.set_location(location);
        }
        self.feed(key, Input::SandboxReady);
    }

    fn is_wanted(&self, key: PodKey, container: usize, image: &Arc<str>) -> bool {
        let entry = self.entries.get(&key);
        entry.and_then(|entry| entry.wanted_image(container)) == Some(image)
    }

    fn image_is(&mut self, key: PodKey, container: usize, image: KnownImage, bad_signal: Option<String>) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        if let Some(slot) = entry.images.get_mut(container) {
            *slot = image;
        }
        let plan = entry.plan().containers.get(container);
        if let (Some(why), Some(plan)) = (bad_signal, plan.filter(|plan| plan.stop_signal.is_none())) {
            let message = format!("The image's STOPSIGNAL cannot be understood, SIGTERM is used: {why}");
            let name = Arc::clone(&plan.name);
            self.warn(key, name, "InvalidStopSignal", message);
        }
    }

    /// The plan of a probe whose worker is there.
    fn probed(&self, key: PodKey, life: LifeKey, kind: ProbeKind) -> Option<(&PodEntry, &ContainerPlan)> {
        let entry = self.entries.get(&key)?;
        let plan = entry.plan().containers.get(life.container)?;
        let is_worked_on = self.pods.get(key)?.has_worker(life, kind);
        is_worked_on.then_some((entry, plan))
    }

    fn count_probe(&self, key: PodKey, life: LifeKey, kind: ProbeKind, report: &ProbeReport) {
        if let Some((entry, plan)) = self.probed(key, life, kind) {
            let name = probe_name(entry, &plan.name, kind);
            self.metrics.probe(&name, report.outcome, report.latency.into());
        }
    }

    fn probe_done(
        &mut self,
        key: PodKey,
        life: LifeKey,
        kind: ProbeKind,
        mut report: ProbeReport,
        began: Time,
    ) {
        if let Some(starvation) = &self.starvation
            && let Some((_, plan)) = self.probed(key, life, kind)
            && let Some(probe) = plan.probe(kind)
        {
            report.starved = starvation.was_late(began, probe.period);
        }
        self.feed(key, Input::ProbeDone { life, kind, report });
    }

    pub(super) fn runtime_event(&mut self, event: RuntimeEvent) {
        let event = match event {
            RuntimeEvent::Container(event) => event,
            RuntimeEvent::Resync => return self.look(),
            RuntimeEvent::NetworkRestored(part) => return self.network_restored(part),
        };
        let Some(&(key, life)) = self.containers.get(&event.container) else {
            // Not known yet: the job that made it will report it.
            return;
        };
        match event {
            ContainerEvent {
                status: Some(status), ..
            } => self.observe(key, &status),
            ContainerEvent {
                kind: EventKind::Deleted,
                ..
            } => self.vanished(key, life),
            ContainerEvent {
                kind: EventKind::Created | EventKind::Started | EventKind::Stopped,
                container,
                ..
            } => {
                let Some(entry) = self.entries.get(&key) else {
                    return;
                };
                let jobs = Arc::clone(&self.jobs);
                let work = async move { jobs.describe(key, container).await };
                self.tasks.spawn(work.instrument(entry.life_span(life)));
            }
        }
    }

    /// A container as it is now.
    pub(super) fn observe(&mut self, key: PodKey, status: &ContainerStatus) {
        let Some(life) = self.recognise(key, status) else {
            return;
        };
        let Some(known) = self.entries.get(&key).and_then(|entry| entry.life(life)) else {
            return;
        };
        // Every input is written down, so what the engine knows is not given to it again by every listing.
        let known_stage = known.stage;
        if known_stage == LifeStage::Found {
            let id = status.id.as_str().into();
            let stop_signal = known.stop_signal;
            self.feed(
                key,
                Input::Created {
                    life,
                    id,
                    stop_signal,
                },
            );
        }
        match &status.state {
            ContainerState::Running { started_at }
                if matches!(known_stage, LifeStage::Found | LifeStage::Created) =>
            {
                let at = self.jobs.clock.engine(*started_at);
                self.feed(key, Input::Running { life, at });
            }
            ContainerState::Exited(exit) if known_stage != LifeStage::Ended => {
                self.exited(key, life, status, exit);
            }
            ContainerState::Created
            | ContainerState::Unknown
            | ContainerState::Running { .. }
            | ContainerState::Exited(_) => {}
        }
    }

    /// Takes note of a container. None if it is not one of the pod's, or not the newest life of its container.
    fn recognise(&mut self, key: PodKey, status: &ContainerStatus) -> Option<LifeKey> {
        let entry = self.entries.get_mut(&key)?;
        let container = entry.index_of(&status.name)?;
        let life = LifeKey {
            container,
            attempt: status.attempt,
        };
        if entry.learn(life, &status.id, status.stop_signal) {
            self.containers.insert(status.id.clone(), (key, life));
        }
        entry.learn_user(life, status.user.as_ref());
        let newer = |other: &Life| other.key.container == container && other.key.attempt > life.attempt;
        if entry.lives.iter().any(newer) {
            return None;
        }
        if !status.image_id.is_empty() {
            let of_life = entry.life(life).and_then(Life::image).cloned();
            entry.images[container] = KnownImage {
                name: of_life.unwrap_or_default(),
                id: status.image_id.clone(),
            };
        }
        Some(life)
    }

    fn exited(
        &mut self,
        key: PodKey,
        life: LifeKey,
        status: &ContainerStatus,
        exit: &pulselet_runtime::ContainerExit,
    ) {
        let clock = self.jobs.clock;
        let at = clock.engine(exit.finished_at);
        match exit.started_at {
            Some(started) => {
                let at = clock.engine(started).min(at);
                self.feed(key, Input::Running { life, at });
            }
            None if exit.reason == ExitCause::StartError => {
                let message = exit.message.clone();
                return self.feed(key, Input::StartFailed { life, message });
            }
            None => {}
        }
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        let forced = exit.killed_after_grace;
        let uid = Arc::clone(&entry.identity.uid);
        let pod_name = entry.pod_name.clone();
        let Some(known) = entry.life_mut(life) else { return };
        let policy = known
            .container()
            .map_or(MessagePolicy::File, |it| it.message_policy);
        spans::container(&pod_name, &status.name, Some(&status.id))
            .in_scope(|| tracing::debug!(code = exit.code, "the runtime reports the exit"));
        let message = termination::message(&self.jobs.layout, &uid, policy, status, exit);
        known.unseen_end = exit.reason == ExitCause::Unknown;
        let signalled = known.signalled.or_else(|| {
            // The agent that stopped it is gone; the runtime remembers that there was a stop.
            let signal = status.stop_signal.unwrap_or(Signal::TERM);
            forced.map(|_| (signal, at))
        });
        let stop = signalled.map(|(signal, at)| StopRecord {
            signal,
            at,
            forced: forced == Some(true),
        });
        let exit = Exit {
            code: exit.code,
            at,
            oom_killed: exit.reason == ExitCause::OomKilled,
            message,
            stop,
        };
        self.feed(key, Input::Exited { life, exit });
    }

    /// The runtime has no record of this life any more. One that had ended is not missed.
    pub(super) fn vanished(&mut self, key: PodKey, life: LifeKey) {
        let at = self.jobs.clock.now();
        if let Some(known) = self.entries.get_mut(&key).and_then(|entry| entry.life_mut(life)) {
            known.unseen_end = true;
        }
        let exit = Exit {
            code: exit_code::UNKNOWN,
            at,
            oom_killed: false,
            message: Some("The container could not be located when the pod was looked at".to_owned()),
            stop: None,
        };
        self.feed(key, Input::Exited { life, exit });
    }

    /// Asks the runtime what there is, unless that is under way.
    pub(super) fn look(&mut self) {
        if self.listing {
            return;
        }
        self.listing = true;
        let known = Known {
            containers: self.containers.keys().cloned().collect(),
            sandboxes: self.sandboxes(),
        };
        let jobs = Arc::clone(&self.jobs);
        let found = self.found.clone();
        self.tasks.spawn(async move {
            let listing = Listing::take(&*jobs.runtime).await;
            // The agent is gone only when the node shuts down.
            let _ = found.send(Findings { known, listing }).await;
        });
    }

    /// Looks how much room volumes and containers take that may not take all.
    pub(super) fn measure_volumes(&mut self) {
        let mut volumes = Vec::new();
        for (&pod, entry) in self.entries.iter().filter(|(_, entry)| entry.location.is_some()) {
            volumes.extend(entry.blueprint.size_limits().map(|limit| Measurement {
                pod,
                uid: Arc::clone(&entry.identity.uid),
                limit: limit.clone(),
            }));
        }
        if !volumes.is_empty() {
            self.tasks.spawn(Arc::clone(&self.jobs).measure(volumes));
        }
        let is_short = self.jobs.is_disk_short();
        let pods = self.entries.iter().filter(|(_, entry)| entry.location.is_some());
        let pods = pods.map(|(key, entry)| storage_of(*key, entry, &self.jobs.layout));
        let pods: Vec<_> = pods.filter(|pod| is_short || pod.has_limit()).collect();
        if !pods.is_empty() {
            let jobs = Arc::clone(&self.jobs);
            self.tasks.spawn(jobs.measure_storage(pods, is_short));
        }
    }

    fn sandboxes(&self) -> Vec<(PodKey, SandboxId)> {
        let sandbox =
            |(key, entry): (&PodKey, &PodEntry)| Some((*key, entry.location.as_ref()?.sandbox.clone()));
        self.entries.iter().filter_map(sandbox).collect()
    }

    /// Compares a listing with what was known when it was begun.
    pub(super) fn reconcile(&mut self, findings: &Findings) {
        self.listing = false;
        let listing = match &findings.listing {
            Ok(listing) => listing,
            Err(error) => {
                tracing::warn!(%error, "cannot list the runtime's containers");
                return;
            }
        };
        let mut there = HashSet::with_capacity(listing.containers.len());
        for status in &listing.containers {
            there.insert(&status.id);
            if let Some(&(key, _)) = self.containers.get(&status.id) {
                self.observe(key, status);
            }
        }
        for id in findings.known.containers.iter().filter(|id| !there.contains(id)) {
            if let Some(&(key, life)) = self.containers.get(id) {
                self.vanished(key, life);
            }
        }
        let ready = |status: &&SandboxStatus| status.state == SandboxState::Ready;
        let ready = listing.sandboxes.iter().filter(ready).map(|status| &status.id);
        let ready: HashSet<_> = ready.collect();
        for (key, sandbox) in &findings.known.sandboxes {
            if !ready.contains(sandbox) {
                self.lost_sandbox(*key, sandbox);
            }
        }
    }

    fn lost_sandbox(&mut self, key: PodKey, sandbox: &SandboxId) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        // Another one may have taken its place since.
        if entry
            .location
            .take_if(|location| location.sandbox == *sandbox)
            .is_some()
        {
            self.feed(key, Input::SandboxLost);
        }
    }
}

/// Where a pod's files on the disk are.
pub(super) fn storage_of(pod: PodKey, entry: &PodEntry, layout: &Layout) -> StorageMeasurement {
    let uid = &entry.identity.uid;
    let logs = layout.pod_logs(&entry.identity.namespace, &entry.identity.name, uid);
    let on_disk = entry.blueprint.volumes.iter();
    let on_disk = on_disk.filter(|volume| matches!(volume.kind, VolumeKind::Disk { .. }));
    let containers = entry.plan().containers.iter().zip(&entry.blueprint.containers);
    let containers = containers.enumerate().map(|(index, (plan, blueprint))| {
        let lives = entry.lives.iter().filter(|life| life.key.container == index);
        ContainerStorage {
            name: Arc::clone(&plan.name),
            ids: lives.map(|life| life.id.clone()).collect(),
            logs: logs.join(&*plan.name),
            limit: blueprint.storage_limit.as_deref().cloned(),
        }
    });
    StorageMeasurement {
        pod,
        volumes: on_disk
            .map(|volume| layout.volumes(uid).empty_dir(&volume.name))
            .collect(),
        containers: containers.collect(),
    }
}

/// What the agent knew when it began to list: only that can be missing.
#[derive(Debug)]
pub(crate) struct Known {
    containers: Vec<ContainerId>,
    sandboxes: Vec<(PodKey, SandboxId)>,
}
