//! The cgroup of a pod as a whole, which is made before its sandbox and removed after it.

use std::path::PathBuf;
use std::sync::Arc;

use pulselet_cgroup::{CgroupError, PodCgroups};
use pulselet_model::Pod;
use pulselet_runtime::{Error, Operation, Result};

use super::{JobContext, PodRef};
use crate::container_config::{pod_claim, pod_resources};

impl JobContext {
    /// Returns where it is; `None` if the runtime decides where its pods are.
    pub(super) async fn make_cgroup(&self, pod: &PodRef) -> Result<Option<PathBuf>> {
        let Some(cgroups) = self.cgroups.clone() else {
            return Ok(None);
        };
        let (uid, claim) = (Arc::clone(&pod.uid), pod_claim(&pod.spec));
        let limits = pod_resources(&pod.spec);
        let made = tokio::task::spawn_blocking(move || cgroups.make(&uid, claim, &limits)).await;
        let made = made.expect("making a cgroup does not panic");
        made.map(Some)
            .map_err(|error| Error::failed(Operation::RunSandbox, error))
    }

    /// Removes it, if there is one.
    pub(super) async fn remove_cgroup(&self, uid: &str) {
        let uid = uid.to_owned();
        self.with_cgroups(move |cgroups| cgroups.remove(&uid)).await;
    }

    /// Takes note of a pod that an earlier agent has made.
    pub(crate) fn adopt_cgroup(&self, uid: &str, pod: &Pod) {
        if let Some(cgroups) = &self.cgroups {
            cgroups.adopt(uid, pod_claim(pod));
        }
    }

    /// Removes what an earlier agent has left of pods that nobody knows any more.
    pub(crate) async fn sweep_cgroups(&self, is_known: impl Fn(&str) -> bool + Send + 'static) {
        self.with_cgroups(move |cgroups| cgroups.sweep(is_known)).await;
    }

    /// What goes wrong here is in nobody's way: it is tried again with the next pod.
    async fn with_cgroups(
        &self,
        work: impl FnOnce(&PodCgroups) -> std::result::Result<(), CgroupError> + Send + 'static,
    ) {
        let Some(cgroups) = self.cgroups.clone() else {
            return;
        };
        let done = tokio::task::spawn_blocking(move || work(&cgroups)).await;
        if let Err(error) = done.expect("work on cgroups does not panic") {
            tracing::warn!(%error, "the cgroups of pods are not as they should be");
        }
    }
}
