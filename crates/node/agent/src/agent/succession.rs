//! A pod that waits for the name of another: its images are fetched first, so that nothing is stopped for what cannot run.
//!
//! A pod of an API does not wait for images: the API has deleted the other already. Neither does one whose predecessor is
//! over or leaving anyway.

use std::sync::Arc;

use pulselet_engine::plan::Role;
use pulselet_engine::{Input, PodKey};
use pulselet_plan::PodBlueprint;
use tokio::task::AbortHandle;
use tracing::Instrument as _;

use super::Agent;
use super::actions::mounted_images;
use super::entry::{PodEntry, Successor};
use crate::jobs::ImageJob;
use crate::pod::annotation::annotated;
use crate::pod::identity::uid_of;

/// The fetching of a successor's images; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Preparation(AbortHandle);

impl Drop for Preparation {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Agent {
    /// Has the pod make way for the one that waits for its name, once that one's images are there.
    pub(super) fn prepare_successor(&mut self, key: PodKey) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        entry.preparation = None;
        let Some(Successor { pod, origin }) = &entry.successor else {
            return;
        };
        let may_wait = !origin.is_api() && self.jobs.version.features.images;
        let serves = |pod: &pulselet_engine::PodMachine| !pod.is_deleting() && !pod.phase().is_terminal();
        let blueprint = pulselet_plan::convert(&annotated(pod).0, self.config.gates);
        let (true, true, Ok(blueprint)) = (may_wait, self.pods.get(key).is_some_and(serves), blueprint)
        else {
            return self.feed(key, Input::Delete { grace: None });
        };
        let (uid, images) = (uid_of(pod), image_jobs(entry, key, &blueprint));
        let jobs = Arc::clone(&self.jobs);
        let work = async move { jobs.fetch_images_of_successor(key, uid, images).await };
        let task = self.tasks.spawn(work.instrument(entry.span()));
        entry.preparation = Some(Preparation(task));
    }

    /// The images of the pod that waits are there: nothing keeps the other any more.
    pub(super) fn successor_is_ready(&mut self, key: PodKey, uid: &str) {
        if self.awaits_successor(key, uid) {
            self.feed(key, Input::Delete { grace: None });
        }
    }

    /// They are not: the pod runs on, and its owner learns why.
    pub(super) fn successor_waits(&mut self, key: PodKey, uid: &str, why: &str) {
        if self.awaits_successor(key, uid) {
            let message = format!("The changed manifest is not in force, this pod runs on: {why}");
            self.warn_of_pod(key, "ReplacementWaits", message);
        }
    }

    fn awaits_successor(&self, key: PodKey, uid: &str) -> bool {
        let entry = self.entries.get(&key);
        let successor = entry.and_then(|entry| entry.successor.as_ref());
        successor.is_some_and(|successor| uid_of(&successor.pod) == uid)
    }
}

/// The images of the pod that waits. Ephemeral containers come later, if at all.
fn image_jobs(entry: &PodEntry, key: PodKey, blueprint: &PodBlueprint) -> Vec<ImageJob> {
    let plans = blueprint.plan.containers.iter().zip(&blueprint.containers);
    let lasting = plans
        .enumerate()
        .filter(|(_, (plan, _))| plan.role != Role::Ephemeral);
    lasting
        .map(|(container, (plan, own))| ImageJob {
            pod: key,
            container,
            image: Arc::clone(&plan.image),
            policy: own.pull_policy,
            volumes: mounted_images(blueprint, container),
            namespace: Arc::clone(&entry.identity.namespace),
            pull_secrets: blueprint.pull_secrets.clone(),
            name: Arc::clone(&plan.name),
        })
        .collect()
}
