//! Pods that somebody has stopped: they are known, and stay stopped until somebody starts them, also across agents.
//!
//! The agent itself does not have them. What always holds: a pod is written down before it is stopped, so that none is
//! forgotten; the file is replaced as a whole.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pulselet_model::Pod;
use pulselet_vocabulary::PodName;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::pod::identity::{Origin, pod_name_of};

#[derive(Debug, Error)]
#[error("cannot write down which pods are stopped in {path}: {source}; is the disk full?", path = path.display())]
pub struct SaveStoppedError {
    path: PathBuf,
    source: io::Error,
}

/// A pod that is to run again when somebody says so.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoppedPod {
    pub(crate) pod: Pod,
    pub(crate) origin: Origin,
}

#[derive(Debug)]
pub(crate) struct StoppedPods {
    path: PathBuf,
    pods: Mutex<BTreeMap<PodName, StoppedPod>>,
    turn: tokio::sync::Mutex<()>,
}

impl StoppedPods {
    /// Reads what an earlier agent has written down. A file that cannot be read is none: its pods run again.
    pub(crate) fn load(path: PathBuf) -> Self {
        let pods = read(&path).unwrap_or_else(|error| {
            tracing::error!(path = %path.display(), %error, "cannot read which pods are stopped; they run again");
            BTreeMap::new()
        });
        Self {
            path,
            pods: Mutex::new(pods),
            turn: tokio::sync::Mutex::new(()),
        }
    }

    /// Held by whoever stops, starts or replaces a pod, from its look at what is stopped until the node was asked: what
    /// is listed here and what runs would else part, as when a manifest changes just before its pod is started.
    pub(crate) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    pub(crate) fn has(&self, pod: &PodName) -> bool {
        self.lock().contains_key(pod)
    }

    pub(crate) fn all(&self) -> Vec<StoppedPod> {
        self.lock().values().cloned().collect()
    }

    /// Keeps a pod, in the place of one that has its name.
    pub(crate) fn keep(&self, pod: StoppedPod) -> Result<(), SaveStoppedError> {
        let mut pods = self.lock();
        pods.insert(pod_name_of(&pod.pod), pod);
        self.save(&pods)
    }

    /// Forgets a pod; `None` if it was not stopped.
    pub(crate) fn take(&self, pod: &PodName) -> Result<Option<StoppedPod>, SaveStoppedError> {
        let mut pods = self.lock();
        let Some(taken) = pods.remove(pod) else {
            return Ok(None);
        };
        self.save(&pods)?;
        Ok(Some(taken))
    }

    fn save(&self, pods: &BTreeMap<PodName, StoppedPod>) -> Result<(), SaveStoppedError> {
        let pods: Vec<&StoppedPod> = pods.values().collect();
        let text = serde_json::to_vec(&pods).expect("pods are plain data");
        pulselet_durable::replace(&self.path, &text, 0o600).map_err(|source| SaveStoppedError {
            path: self.path.clone(),
            source,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PodName, StoppedPod>> {
        // Every change is made whole before the lock is let go of.
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(path: &Path) -> io::Result<BTreeMap<PodName, StoppedPod>> {
    let text = match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        other => other?,
    };
    let pods: Vec<StoppedPod> = serde_json::from_slice(&text)?;
    Ok(pods.into_iter().map(|pod| (pod_name_of(&pod.pod), pod)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_stopped_pod_outlives_the_agent_until_it_is_taken() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stopped.json");
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web"}, "spec": {"containers": [{"name": "app", "image": "i"}]},
        }))
        .unwrap();
        let name = pod_name_of(&pod);
        let origin = Origin::Detached;
        StoppedPods::load(path.clone())
            .keep(StoppedPod { pod, origin })
            .unwrap();
        let stopped = StoppedPods::load(path.clone());
        assert!(stopped.has(&name) && stopped.all().len() == 1);
        assert!(stopped.take(&name).unwrap().is_some());
        assert!(stopped.take(&name).unwrap().is_none());
        assert!(!StoppedPods::load(path.clone()).has(&name));
        std::fs::write(&path, "nonsense").unwrap();
        assert!(StoppedPods::load(path).all().is_empty());
    }
}
