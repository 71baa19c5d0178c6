//! The first moments of an agent: it reads what the last one left and looks at what became of it.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use pulselet_engine::status::ReportedState;
use pulselet_engine::{Input, LifeKey, PodKey};
use pulselet_model::Pod;
use pulselet_runtime::{ContainerFilter, ContainerId, ContainerStatus, Runtime, SandboxState, SandboxStatus};
use pulselet_vocabulary::PodName;
use pulselet_volume::discard;
use thiserror::Error;

use super::Agent;
use super::entry::{LifeStage, Manifest, PodEntry, Record};
use super::observe::Known;
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
        for sandbox in listing
            .sandboxes
            .iter()
            .filter(|sandbox| !uids.contains(&sandbox.pod.uid))
        {
            let pod = PodName::new(&*sandbox.pod.namespace, &*sandbox.pod.name);
            spans::pod(&pod).in_scope(|| {
                tracing::warn!(
                    sandbox = %sandbox.id,
                    "the runtime has a sandbox of a pod that this node does not know; it is left alone"
                );
            });
        }
        self.remove_stale_directories(uids);
        Ok(())
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
        let engine = record.engine;
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
        learn_lives(&mut entry, &engine);
        for (life, generation) in record.older_lives {
            let (older, pod) = spec(generation)?;
            if let Some(life) = entry.life_mut(life) {
                life.spec = older;
                life.blueprint = Arc::new(pulselet_plan::convert(&pod, self.config.gates)?);
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
        let key = self.insert(engine, entry);
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

    /// Gives a restored pod what has happened meanwhile, then that the agent is back.
    fn resume(&mut self, key: PodKey, listing: &Listing) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        let uid = Arc::clone(&entry.identity.uid);
        let plan = Arc::clone(entry.plan());
        let running = Arc::clone(&entry.blueprint.running);
        let settings = self.config.settings;
        let ready =
            |sandbox: &&SandboxStatus| *sandbox.pod.uid == *uid && sandbox.state == SandboxState::Ready;
        let sandbox = listing.sandboxes.iter().filter(ready).max_by_key(|it| it.attempt);
        if let Some(sandbox) = sandbox {
            entry.set_location(SandboxLocation::from(sandbox));
        }
        let expected: Vec<_> = entry
            .lives
            .iter()
            .map(|life| (life.id.clone(), life.key))
            .collect();
        let mut found: Vec<_> = listing
            .containers
            .iter()
            .filter(|status| *status.pod.uid == *uid)
            .collect();
        found.sort_by_key(|status| status.attempt);
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
        // Last: what was begun under the old plan goes on under it.
        self.feed(
            key,
            Input::Replan {
                plan,
                running,
                settings,
            },
        );
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

    /// Removes the directories of pods that were forgotten while their removal was under way.
    fn remove_stale_directories(&mut self, known: HashSet<String>) {
        let pods = self.jobs.layout.pods();
        self.tasks.spawn_blocking(move || {
            let Ok(entries) = std::fs::read_dir(&pods) else { return };
            for entry in entries.flatten() {
                let is_known = entry.file_name().to_str().is_none_or(|name| known.contains(name));
                if !is_known && let Err(error) = discard(&entry.path()) {
                    tracing::warn!(path = %entry.path().display(), %error, "cannot remove what is left of a pod");
                }
            }
        });
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
