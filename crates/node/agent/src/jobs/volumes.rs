//! Volumes of pods: filled before the sandbox is made, kept current, measured, and taken away. How is `volume`'s.

use std::sync::Arc;

use async_trait::async_trait;
use pulselet_engine::PodKey;
use pulselet_engine::io::Input;
use pulselet_engine::time::Span;
use pulselet_plan::SizeLimit;
use pulselet_volume::{FillReport, FillReports, PodVolumes, exceeded};
use tokio::sync::mpsc;

use super::{JobAnswer, JobContext, JobResult, PodRef};

/// What is left to a pod that is evicted because it takes too much room, as a kubelet has it.
pub(super) const EVICTION_GRACE: Span = Span::from_secs(1);

/// A volume to be measured.
#[derive(Debug)]
pub(crate) struct Measurement {
    pub(crate) pod: PodKey,
    pub(crate) uid: Arc<str>,
    pub(crate) limit: SizeLimit,
}

/// Takes what could not be filled to the agent.
#[derive(Debug)]
pub(super) struct MountReports(pub(super) mpsc::Sender<JobAnswer>);

#[async_trait]
impl FillReports<PodKey> for MountReports {
    async fn report(&self, pod: PodKey, report: FillReport) {
        let result = JobResult::FailedMount {
            messages: report.failures,
            is_new: report.is_new,
        };
        // The agent is gone only when the node shuts down; nobody waits for the answer then.
        let _ = self.0.send(JobAnswer { pod, result }).await;
    }
}

impl JobContext {
    /// Fills every volume of a pod whose sandbox is about to be made. False if one is missing, which is reported.
    pub(super) async fn set_up_volumes(&self, pod: &PodRef) -> bool {
        self.volumes.fill(self.pod_volumes(pod.clone())).await
    }

    /// Keeps the volumes of a pod current that an earlier agent has filled.
    pub(crate) fn adopt_volumes(&self, pod: PodRef) {
        self.volumes.adopt(&self.pod_volumes(pod));
    }

    /// The manifest of a running pod has changed.
    pub(crate) async fn update_volumes(&self, pod: PodRef) {
        self.volumes.update(self.pod_volumes(pod)).await;
    }

    /// Keeps the volumes of all pods current, for as long as it is polled.
    pub(crate) async fn keep_volumes(self: Arc<Self>) {
        self.volumes.keep_current().await;
    }

    /// The pod has ended: nothing is written for it any more, and what it had in memory goes.
    pub(super) async fn end_volumes(&self, uid: &str) {
        self.volumes.end(uid, &self.layout.volumes(uid)).await;
    }

    /// Measures volumes one by one, unless that is under way. A pod whose volume is too large is evicted.
    pub(crate) async fn measure(self: Arc<Self>, volumes: Vec<Measurement>) {
        let Ok(_permit) = self.limits.measurements.try_acquire() else {
            return;
        };
        for Measurement { pod, uid, limit } in volumes {
            let directory = self.layout.volumes(&uid);
            let measured = tokio::task::spawn_blocking(move || exceeded(&limit, &directory));
            if let Some(message) = measured.await.expect("measuring does not panic") {
                let grace = Some(EVICTION_GRACE);
                self.send_input(pod, Input::Evict { grace, message }).await;
            }
        }
    }

    fn pod_volumes(&self, pod: PodRef) -> PodVolumes<PodKey> {
        PodVolumes {
            key: pod.key,
            directory: self.layout.volumes(&pod.uid),
            uid: pod.uid,
            pod: pod.spec,
            addresses: pod
                .location
                .map(|location| location.addresses)
                .unwrap_or_default(),
        }
    }
}
