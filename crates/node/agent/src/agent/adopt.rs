//! The first moments of an agent: it reads what the last one left and looks at what became of it.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;

use pulselet_engine::status::ReportedState;
use pulselet_engine::{Input, LifeKey, PodKey};
use pulselet_model::Pod;
use pulselet_runtime::{
    ContainerFilter, ContainerId, ContainerState, ContainerStatus, Runtime, SandboxState, SandboxStatus,
};
use pulselet_vocabulary::PodName;
use pulselet_volume::discard;
use thiserror::Error;
use tracing::Instrument as _;

use super::Agent;
use super::entry::{LifeStage, Manifest, PodEntry, Record};
use super::observe::Known;
use super::transitions::SIGNALS_READ_AFTER;
use crate::jobs::{PodRef, SandboxLocation};
use crate::spans;
use crate::state::store::{self, StoredPod};

/// Everything a runtime has of ours.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(super) sandboxes: Vec<SandboxStatus>,
    pub(super) containers: Vec<ContainerStatus>,
}

impl Listing {
    pub(super) async fn take(runtime: &dyn Runtime) -> pulselet_runtime::Result<Self> {
        let containers = runtime.list_containers(&ContainerFilter::default()).await?;
        // Sandboxes second: a sandbox that is missing has been missing after its containers were listed.
        let sandboxes = runtime.list_sandboxes().await?;
        Ok(Self {
            sandboxes,
            containers,
        })
    }

    /// The pods of which there is a sandbox that is ready, or a container that has not exited.
    fn running_uids(&self) -> BTreeSet<&str> {
        let is_ready = |it: &&SandboxStatus| it.state == SandboxState::Ready;
        let has_not_exited = |it: &&ContainerStatus| !matches!(it.state, ContainerState::Exited(_));
        let sandboxes = self.sandboxes.iter().filter(is_ready);
        let containers = self.containers.iter().filter(has_not_exited);
        let uids = sandboxes.map(|it| &*it.pod.uid);
        uids.chain(containers.map(|it| &*it.pod.uid)).collect()
    }
}

/// A listing beside what was known when it was begun.
#[derive(Debug)]
pub(crate) struct Findings {
    pub(super) known: Known,
    pub(super) listing: pulselet_runtime::Result<Listing>,
}

#[derive(Debug, Error)]
pub enum AdoptError {
    #[error("cannot see what the runtime has: {0}")]
    List(#[from] pulselet_runtime::Error),
}

/// Why a stored pod cannot be gone on with.
#[derive(Debug, Error)]
enum RestoreError {
    #[error("its state cannot be read: {0}")]
    Record(serde_json::Error),
    #[error("its manifest cannot be read: {0}")]
    Spec(serde_json::Error),
    #[error("its manifest is missing")]
    NoSpec,
    #[error(transparent)]
    Plan(#[from] pulselet_plan::PlanError),
}

impl Agent {
    /// Restores every stored pod and gives it what the runtime has. Containers are left as they are.
    pub(crate) async fn adopt(&mut self, stored: Vec<StoredPod>) -> Result<(), AdoptError> {
        let listing = Listing::take(&*self.jobs.runtime).await?;
        let mut uids = HashSet::new();
        for pod in stored {
            uids.insert(pod.uid.clone());
            if let Some(key) = self.restore_or_spare(&pod) {
                self.resume(key, &listing);
            }
        }
        for uid in listing.running_uids() {
            // The database does not know what runs. A spare copy of a pod of which nothing runs is the remains of one that
            // was deleted.
            if uids.contains(uid) {
                continue;
            }
            if let Some(pod) = store::load_spare(&self.jobs.layout, uid) {
                tracing::warn!(
                    uid,
                    "the database does not know a pod that runs, going on from its spare copy"
                );
                uids.insert(uid.to_owned());
                if let Some(key) = self.restore_or_spare(&pod) {
                    self.resume(key, &listing);
                }
            }
        }
        let keys: Vec<PodKey> = self.entries.keys().copied().collect();
        for key in keys {
            let leaves = self
                .pods
                .get(key)
                .is_none_or(pulselet_engine::PodMachine::is_deleting);
            if !leaves {
                self.prepare_successor(key);
            }
        }
        for sandbox in &listing.sandboxes {
            if !uids.contains(&sandbox.pod.uid) {
                self.found_stranger(sandbox);
            }
        }
        // What the runtime still has keeps its files, whether or not anybody knows why it is there.
        uids.extend(listing.running_uids().into_iter().map(str::to_owned));
        let known = uids.clone();
        self.jobs.sweep_cgroups(move |uid| known.contains(uid)).await;
        self.remove_stale_directories(uids).await;
        Ok(())
    }

    /// A sandbox of a pod that this node does not know. One that was stopped is all that an agent left which was killed
    /// before it could remove it; one that is ready may still be asked for.
    fn found_stranger(&mut self, sandbox: &SandboxStatus) {
        let pod = PodName::new(&*sandbox.pod.namespace, &*sandbox.pod.name);
        let span = spans::pod(&pod);
        match sandbox.state {
            SandboxState::Ready => span.in_scope(|| {
                tracing::warn!(
                    sandbox = %sandbox.id,
                    "the runtime has a sandbox of a pod that this node does not know; it is left alone"
                );
            }),
            SandboxState::NotReady => {
                let (jobs, id) = (Arc::clone(&self.jobs), sandbox.id.clone());
                let uid = sandbox.pod.uid.clone();
                let work = async move { jobs.remove_stopped_sandbox(&id, &uid).await };
                self.tasks.spawn(work.instrument(span));
            }
        }
    }

    fn restore_or_spare(&mut self, pod: &StoredPod) -> Option<PodKey> {
        let error = match self.restore(pod) {
            Ok(key) => return Some(key),
            Err(error) => error,
        };
        tracing::error!(uid = pod.uid, %error, "cannot go on with a stored pod, trying its spare copy");
        let spare = store::load_spare(&self.jobs.layout, &pod.uid)?;
        self.restore(&spare)
            .inspect_err(
                |error| tracing::error!(uid = pod.uid, %error, "cannot go on with the spare copy either"),
            )
            .ok()
    }

    fn restore(&mut self, stored: &StoredPod) -> Result<PodKey, RestoreError> {
        let record: Record<pulselet_engine::PodMachine> =
            serde_json::from_slice(&stored.record).map_err(RestoreError::Record)?;
        let spec = |generation: u32| -> Result<(Manifest, Pod), RestoreError> {
            let found = stored.specs.iter().find(|(number, _)| *number == generation);
            let (_, body) = found.ok_or(RestoreError::NoSpec)?;
            Manifest::parse(body).map_err(RestoreError::Spec)
        };
        let (current, pod) = spec(record.generation)?;
        let blueprint = Arc::new(pulselet_plan::convert(&pod, self.config.gates)?);
        let mut engine = record.engine;
        if stored.is_spare {
            engine.forget_probe_runs();
        }
        let mut entry = PodEntry::new(
            engine.identity().clone(),
            record.origin,
            &pod,
            current,
            Arc::clone(&blueprint),
            engine.accepted_at(),
        );
        entry.generation = record.generation;
        entry.history = record.history;
        entry.successor = record.successor;
        entry.grace_exceeded = record.grace_exceeded;
        entry.annotation = record.annotation;
        learn_lives(&mut entry, &engine);
        for (life, generation) in record.older_lives {
            let (older, pod) = spec(generation)?;
            if let Some(life) = entry.life_mut(life) {
                life.spec = older;
                life.blueprint = Arc::new(pulselet_plan::convert(&pod, self.config.gates)?);
                life.resources = Arc::clone(&life.blueprint);
                life.generation = generation;
            }
        }
        let lives: Vec<_> = entry
            .lives
            .iter()
            .map(|life| (life.id.clone(), life.key))
            .collect();
        let uid = Arc::clone(&entry.identity.uid);
        let has_ended = engine.status().phase.is_terminal();
        self.resume_pressure(&engine);
        if stored.is_spare {
            self.store_specs(&entry);
        }
        let key = self.insert(engine, entry);
        if !has_ended {
            self.jobs.adopt_cgroup(&uid, &pod);
        }
        if !has_ended && blueprint.has_written_volumes() {
            self.jobs.adopt_volumes(PodRef {
                key,
                uid,
                spec: Arc::new(pod),
                location: None,
            });
        }
        self.containers
            .extend(lives.into_iter().map(|(id, life)| (id, (key, life))));
        Ok(key)
    }

    /// The database gets the manifests of a pod that came from its spare copy, or the next agent could not go on from what this
    /// one stores.
    fn store_specs(&mut self, entry: &PodEntry) {
        let uid = &entry.identity.uid;
        self.journal.spec(uid, entry.generation, &entry.spec);
        for life in &entry.lives {
            if life.generation != entry.generation {
                self.journal.spec(uid, life.generation, &life.spec);
            }
        }
    }

    /// Gives a restored pod what has happened meanwhile, then that the agent is back.
    fn resume(&mut self, key: PodKey, listing: &Listing) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        let uid = Arc::clone(&entry.identity.uid);
        let plan = Arc::clone(entry.plan());
        let running = Arc::clone(&entry.blueprint.running);
        let ready =
            |sandbox: &&SandboxStatus| *sandbox.pod.uid == *uid && sandbox.state == SandboxState::Ready;
        let sandbox = listing.sandboxes.iter().filter(ready).max_by_key(|it| it.attempt);
        if let Some(sandbox) = sandbox {
            let host = self.jobs.host_address(&entry.spec.read());
            entry.set_location(SandboxLocation::new(sandbox, host));
        }
        let expected: Vec<_> = entry
            .lives
            .iter()
            .map(|life| (life.id.clone(), life.key))
            .collect();
        let alive: Vec<_> = entry
            .lives
            .iter()
            .filter(|life| life.is_running())
            .map(|life| life.key)
            .collect();
        let mut found: Vec<_> = listing
            .containers
            .iter()
            .filter(|status| *status.pod.uid == *uid)
            .collect();
        found.sort_by_key(|status| status.attempt);
        // What never began and was followed by another life comes last: taken for the newest, it would be started.
        let followed: HashSet<_> = found
            .iter()
            .filter(|status| status.state == ContainerState::Created)
            .filter(|status| {
                found
                    .iter()
                    .any(|it| it.name == status.name && it.attempt > status.attempt)
            })
            .map(|status| status.id.clone())
            .collect();
        found.sort_by_key(|status| followed.contains(&status.id));
        for status in &found {
            self.observe(key, status);
        }
        for (id, life) in expected {
            if found.iter().all(|status| status.id != id) {
                self.vanished(key, life);
            }
        }
        if sandbox.is_none() {
            self.feed(key, Input::SandboxLost);
        }
        self.feed(key, Input::AgentRestarted);
        for life in alive {
            self.read_signals(key, life, SIGNALS_READ_AFTER);
        }
        // Last: what was begun under the old plan goes on under it.
        let settings = self.settings();
        self.feed(
            key,
            Input::Replan {
                plan,
                running,
                settings,
            },
        );
        self.resume_resize(key);
    }

    /// The database could not be read; the pods come from their spare copies.
    pub(crate) fn state_was_lost(&self, kept_aside: &Path) {
        let message = format!(
            "the node's state could not be read and was kept aside as {}; pods go on from their spare copies and from \
             what the runtime has, so counts of failures may start anew",
            kept_aside.display()
        );
        tracing::error!("{message}");
        self.warn_all(&message);
    }

    /// Removes the directories and logs of pods that were forgotten while their removal was under way, and the logs that
    /// an earlier run has kept. Done before any pod is taken: the same manifest has the same uid, and its directory again.
    async fn remove_stale_directories(&self, known: HashSet<String>) {
        let layout = self.jobs.layout.clone();
        let removed = tokio::task::spawn_blocking(move || {
            let is_stale = |uid: &str| !known.contains(uid);
            remove_below(&layout.pods(), |name| is_stale(name));
            // Namespace, name and uid; neither of them has an underscore. What is named otherwise is not ours.
            remove_below(&layout.logs(), |name| {
                match *name.split('_').collect::<Vec<_>>() {
                    [_, _, uid] => is_stale(uid),
                    _ => false,
                }
            });
        });
        removed.await.expect("removing does not panic");
    }
}

/// Removes the directories whose names fit.
fn remove_below(parent: &Path, fits: impl Fn(&str) -> bool) {
    let Ok(entries) = std::fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let is_stale = entry.file_name().to_str().is_some_and(&fits);
        if is_stale && let Err(error) = discard(&entry.path()) {
            tracing::warn!(path = %entry.path().display(), %error, "cannot remove what is left of a pod");
        }
    }
}

/// The lives the engine counts on, whether or not the runtime still has them.
fn learn_lives(entry: &mut PodEntry, engine: &pulselet_engine::PodMachine) {
    for (container, status) in engine.status().containers.iter().enumerate() {
        let attempt = status.restart_count;
        let Some(id) = &status.id else { continue };
        let key = LifeKey { container, attempt };
        let id = ContainerId::new(id.to_string());
        entry.learn(key, &id, status.stop_signal);
        if let Some(life) = entry.life_mut(key) {
            let is_last = status
                .last
                .as_ref()
                .is_some_and(|last| *last.id == *life.id.as_str());
            life.stage = match status.state {
                ReportedState::Running { .. } => LifeStage::Running,
                ReportedState::Terminated(_) => LifeStage::Ended,
                ReportedState::Waiting { .. } if is_last => LifeStage::Ended,
                ReportedState::Waiting { .. } => LifeStage::Created,
            };
        }
    }
}
