//! A running node, seen by whoever started it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use pulselet_model::Pod;
use pulselet_plan::duties::ShutdownPeriods;
use pulselet_runtime::SandboxId;
use pulselet_vocabulary::PodName;
use serde::Deserialize;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};

use crate::agent::{
    AddError, Added, Located, LogError, LogPlace, NoSuchPod, PodGroup, PodView, Request, Shutdown,
    StreamError, UpdateError,
};
use crate::endpoints::health::{Health, MonitoringPage};
use crate::eviction::PressureConditions;
use crate::pod::identity::{Origin, pod_name_of};
use crate::publish::lines::LineHub;
use crate::state::layout::Layout;
use crate::state::stopped::{SaveStoppedError, StoppedPod, StoppedPods};
use crate::state::store::{EventRow, NodeStoreError, Reader};

/// The node has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the node has shut down")]
pub struct Gone;

/// Why a pod was not stopped.
#[derive(Debug, Error)]
pub enum StopError {
    #[error(transparent)]
    Pod(#[from] NoSuchPod),
    #[error("pod {0} is stopped already; `pulselet start` starts it")]
    Stopped(PodName),
    #[error(transparent)]
    Save(#[from] SaveStoppedError),
}

/// Why a pod was not started.
#[derive(Debug, Error)]
pub enum StartError {
    #[error(transparent)]
    Pod(#[from] NoSuchPod),
    #[error("pod {0} is not stopped; `pulselet restart` gives its containers another life")]
    NotStopped(PodName),
    #[error(transparent)]
    Add(#[from] AddError),
    #[error(transparent)]
    Save(#[from] SaveStoppedError),
}

/// Why a pod of a manifest neither runs nor waits to be started.
#[derive(Debug, Error)]
pub(crate) enum RunManifestError {
    #[error(transparent)]
    Add(#[from] AddError),
    #[error("it is stopped, and stays so with its old manifest: {0}")]
    Save(#[from] SaveStoppedError),
}

/// Asks things of a node. Clones ask the same node, which runs until it is shut down.
#[derive(Clone, Debug)]
pub struct NodeHandle {
    pub(crate) requests: mpsc::Sender<Request>,
    pub(crate) lines: LineHub,
    pub(crate) reader: Arc<Reader>,
    pub(crate) health: Arc<Health>,
    pub(crate) stopped: Arc<StoppedPods>,
    /// What the node runs out of.
    pub(crate) pressure: watch::Receiver<PressureConditions>,
    /// The machine goes down.
    pub(crate) machine_goes_down: watch::Receiver<bool>,
    pub(crate) ended: watch::Receiver<bool>,
}

impl NodeHandle {
    /// What the node runs out of, as its conditions say it.
    pub fn pressure(&self) -> PressureConditions {
        *self.pressure.borrow()
    }

    /// Whether the machine goes down; each receiver sees every change.
    pub fn machine_goes_down(&self) -> watch::Receiver<bool> {
        self.machine_goes_down.clone()
    }

    /// The machine goes down: stops all pods, critical ones last, and takes no other. Returns when they are gone or their
    /// time is over.
    pub async fn stop_for_shutdown(&self, periods: ShutdownPeriods) -> Result<(), Gone> {
        let begun = self.requests.send(Request::MachineGoesDown).await;
        begun.map_err(|_| Gone)?;
        let groups = [
            (PodGroup::Ordinary, periods.ordinary()),
            (PodGroup::Critical, periods.critical),
        ];
        for (group, left) in groups {
            let left = Duration::from(left);
            let stopped = self.ask(|reply| Request::StopGroup { group, left, reply });
            match tokio::time::timeout(left, stopped).await {
                Ok(Ok(())) => {}
                Ok(Err(gone)) => return Err(gone),
                Err(_) => tracing::warn!(
                    ?group,
                    ?left,
                    "not all pods have ended in the time that they have"
                ),
            }
        }
        Ok(())
    }

    /// The machine stays up after all.
    pub async fn cancel_shutdown(&self) -> Result<(), Gone> {
        self.requests.send(Request::MachineStays).await.map_err(|_| Gone)
    }

    /// Takes an admitted pod. One with the same name and content is adopted, one with the same name only is replaced.
    pub async fn add_pod(&self, pod: Pod, origin: Origin) -> Result<Result<Added, AddError>, Gone> {
        let pod = Box::new(pod);
        self.ask(|reply| Request::Add { pod, origin, reply }).await
    }

    /// Deletes a pod; without a grace period its own counts. A second call can only shorten the first.
    pub async fn delete_pod(
        &self,
        pod: &PodName,
        grace: Option<Duration>,
    ) -> Result<Result<(), NoSuchPod>, Gone> {
        let (pod, uid) = (pod.clone(), None);
        self.ask(|reply| Request::Delete {
            pod,
            uid,
            grace,
            reply,
        })
        .await
    }

    /// Stops a pod until [`NodeHandle::start_pod`]: it stays known. One of a run is deleted, which ends the run.
    pub async fn stop_pod(
        &self,
        pod: &PodName,
        grace: Option<Duration>,
    ) -> Result<Result<(), StopError>, Gone> {
        let _turn = self.stopped.turn().await;
        let view = self.pod(pod).await?;
        let origin = match view.map(|view| view.origin) {
            None if self.stopped.has(pod) => return Ok(Err(StopError::Stopped(pod.clone()))),
            None => return Ok(Err(NoSuchPod { pod: pod.clone() }.into())),
            Some(origin) => origin,
        };
        if let (Origin::Manifest { .. } | Origin::Detached, Some(spec)) = (&origin, self.manifest(pod).await?)
        {
            let pod = Arc::unwrap_or_clone(spec);
            if let Err(error) = self
                .with_stopped(|all| all.keep(StoppedPod { pod, origin }))
                .await
            {
                return Ok(Err(error.into()));
            }
        }
        Ok(self.end_as_stopped(pod, grace).await?.map_err(StopError::from))
    }

    /// Deletes a pod because a user of the node wants it stopped.
    async fn end_as_stopped(
        &self,
        pod: &PodName,
        grace: Option<Duration>,
    ) -> Result<Result<(), NoSuchPod>, Gone> {
        let pod = pod.clone();
        self.ask(|reply| Request::Stop { pod, grace, reply }).await
    }

    /// Runs a pod again that was stopped.
    pub async fn start_pod(&self, pod: &PodName) -> Result<Result<Added, StartError>, Gone> {
        let _turn = self.stopped.turn().await;
        let name = pod.clone();
        let taken = match self.with_stopped(move |all| all.take(&name)).await {
            Ok(Some(taken)) => taken,
            Ok(None) => {
                let pod = pod.clone();
                return Ok(Err(match self.pod(&pod).await? {
                    Some(_) => StartError::NotStopped(pod),
                    None => NoSuchPod { pod }.into(),
                }));
            }
            Err(error) => return Ok(Err(error.into())),
        };
        Ok(self
            .add_pod(taken.pod, taken.origin)
            .await?
            .map_err(StartError::from))
    }

    /// Forgets that a pod is stopped; it is not started by that.
    pub(crate) async fn forget_stopped(&self, pod: &PodName) -> Result<(), SaveStoppedError> {
        let pod = pod.clone();
        self.with_stopped(move |all| all.take(&pod)).await.map(drop)
    }

    /// Runs a pod of a manifest. One that is stopped stays so until somebody starts it, with this manifest then.
    pub(crate) async fn run_manifest(
        &self,
        pod: Pod,
        origin: Origin,
    ) -> Result<Result<(), RunManifestError>, Gone> {
        let _turn = self.stopped.turn().await;
        if self.stopped.has(&pod_name_of(&pod)) {
            let kept = self
                .with_stopped(|all| all.keep(StoppedPod { pod, origin }))
                .await;
            return Ok(kept.map_err(RunManifestError::from));
        }
        let added = self.add_pod(pod, origin).await?;
        Ok(added.map(drop).map_err(RunManifestError::from))
    }

    async fn with_stopped<T: Send + 'static>(
        &self,
        work: impl FnOnce(&StoppedPods) -> T + Send + 'static,
    ) -> T {
        let stopped = Arc::clone(&self.stopped);
        tokio::task::spawn_blocking(move || work(&stopped))
            .await
            .expect("writing does not panic")
    }

    /// Deletes what an agent that died after writing it down had no time to stop.
    pub(crate) async fn end_stopped(self) {
        for stopped in self.stopped.all() {
            // One that is gone already is as it should be.
            let _ = self.end_as_stopped(&pod_name_of(&stopped.pod), None).await;
        }
    }

    /// Gives a container another life, or every container of the pod that runs or waits for one; their number.
    pub async fn restart(
        &self,
        pod: &PodName,
        container: Option<String>,
    ) -> Result<Result<usize, StreamError>, Gone> {
        let pod = pod.clone();
        self.ask(|reply| Request::Restart {
            pod,
            container,
            reply,
        })
        .await
    }

    /// Deletes this very pod: not another that has its name, nor one that waits for it.
    pub async fn delete_exactly(
        &self,
        view: &PodView,
        grace: Option<Duration>,
    ) -> Result<Result<(), NoSuchPod>, Gone> {
        let (pod, uid) = (view.pod_name(), Some(view.uid.clone()));
        self.ask(|reply| Request::Delete {
            pod,
            uid,
            grace,
            reply,
        })
        .await
    }

    /// Gives a pod of the same uid another manifest. What runs is left as it is, the next life is made from it.
    pub async fn update_pod(&self, pod: Pod) -> Result<Result<(), UpdateError>, Gone> {
        let pod = Box::new(pod);
        self.ask(|reply| Request::Update { pod, reply }).await
    }

    /// One pod; `None` if there is none of this name.
    pub async fn pod(&self, pod: &PodName) -> Result<Option<PodView>, Gone> {
        let pod = pod.clone();
        self.ask(|reply| Request::View { pod, reply }).await
    }

    /// The manifest of a pod; `None` if there is none of this name.
    pub async fn manifest(&self, pod: &PodName) -> Result<Option<Arc<Pod>>, Gone> {
        let pod = pod.clone();
        self.ask(|reply| Request::Spec { pod, reply }).await
    }

    /// All pods, in the order in which they were taken.
    pub async fn pods(&self) -> Result<Vec<PodView>, Gone> {
        self.ask(|reply| Request::List { reply }).await
    }

    /// All pods as objects: their manifests with the status of this moment.
    pub async fn objects(&self) -> Result<Vec<Pod>, Gone> {
        self.ask(|reply| Request::Objects { reply }).await
    }

    /// Where the runtime has a running container, for commands and streams.
    pub async fn container(
        &self,
        pod: &PodName,
        container: &str,
    ) -> Result<Result<Located, StreamError>, Gone> {
        let (pod, container) = (pod.clone(), container.to_owned());
        self.ask(|reply| Request::Container {
            pod,
            container,
            reply,
        })
        .await
    }

    /// Where the runtime has a pod, for connections to its ports.
    pub async fn sandbox(&self, pod: &PodName) -> Result<Result<SandboxId, StreamError>, Gone> {
        let pod = pod.clone();
        self.ask(|reply| Request::Sandbox { pod, reply }).await
    }

    /// What monitoring finds at a path such as `/metrics`.
    pub async fn page(&self, path: &str) -> MonitoringPage {
        self.health.page(path).await
    }

    /// Where the log of a container is, or that of the life before; without a name the pod's only container is meant.
    pub async fn log(
        &self,
        pod: &PodName,
        container: Option<String>,
        previous: bool,
    ) -> Result<Result<LogPlace, LogError>, Gone> {
        let pod = pod.clone();
        self.ask(|reply| Request::Log {
            pod,
            container,
            previous,
            reply,
        })
        .await
    }

    /// The events of a pod, aggregated, oldest first.
    pub async fn events(&self, uid: &str) -> Result<Vec<EventRow>, NodeStoreError> {
        let uid = uid.to_owned();
        self.read(move |reader| reader.events(&uid)).await
    }

    /// Kills and what led to them, as event lines in JSON, in order of time.
    pub async fn history(
        &self,
        pod: Option<PodName>,
        container: Option<String>,
    ) -> Result<String, NodeStoreError> {
        self.read(move |reader| {
            let kills = reader.kills(pod.as_ref(), container.as_deref())?;
            Ok(in_order_of_time(&kills))
        })
        .await
    }

    /// Where event lines can be subscribed to.
    pub fn lines(&self) -> &LineHub {
        &self.lines
    }

    /// Ends the node. Asked again, the harsher way counts. Returns when it has ended.
    pub async fn shutdown(&self, mode: Shutdown) {
        // A node that is gone has ended.
        let _ = self.requests.send(Request::Shutdown { mode }).await;
        self.ended().await;
    }

    /// Waits for the end of the node.
    pub async fn ended(&self) {
        // An error means that the node's task is gone, which is an end too.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Result<T, Gone> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(request(reply)).await.map_err(|_| Gone)?;
        answer.await.map_err(|_| Gone)
    }

    async fn read<T: Send + 'static>(&self, read: impl FnOnce(&Reader) -> T + Send + 'static) -> T {
        let reader = Arc::clone(&self.reader);
        tokio::task::spawn_blocking(move || read(&reader))
            .await
            .expect("reading does not panic")
    }
}

/// What [`NodeHandle::history`] gives, read from a data directory that no agent uses; none if it has no state.
pub fn kept_history(
    layout: &Layout,
    pod: Option<&PodName>,
    container: Option<&str>,
) -> Result<Option<String>, NodeStoreError> {
    if !layout.database().exists() {
        return Ok(None);
    }
    let kills = Reader::new(layout).kills(pod, container)?;
    Ok(Some(in_order_of_time(&kills)))
}

/// Kills of different containers may overlap. Within a pod its own clock decides, which is exact: a moment of it may be
/// written down as two wall-clock times a microsecond apart.
fn in_order_of_time(lines: &str) -> String {
    #[derive(Deserialize)]
    struct Stamped<'a> {
        t: f64,
        time: &'a str,
        pod: &'a str,
    }
    let mut pods: BTreeMap<&str, Vec<(f64, &str, &str)>> = BTreeMap::new();
    for line in lines.lines() {
        if let Ok(Stamped { t, time, pod }) = serde_json::from_str(line) {
            pods.entry(pod).or_default().push((t, time, line));
        }
    }
    let mut queues: Vec<_> = pods
        .into_values()
        .map(|mut lines| {
            lines.sort_by(|a, b| a.0.total_cmp(&b.0));
            VecDeque::from(lines)
        })
        .collect();
    let mut sorted = String::with_capacity(lines.len());
    // Wall-clock times are all of one length and in UTC, so their order is that of their texts.
    while let Some(queue) = queues
        .iter_mut()
        .filter(|queue| !queue.is_empty())
        .min_by_key(|queue| queue.front().map(|(_, time, _)| *time))
    {
        if let Some((_, _, line)) = queue.pop_front() {
            sorted.push_str(line);
            sorted.push('\n');
        }
    }
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_kills_are_given_in_order_of_time() {
        let line = |pod: &str, t: f64, micros: u32, name: &str| {
            format!(r#"{{"t":{t},"time":"2026-01-02T03:04:05.{micros:06}Z","pod":"{pod}","x":"{name}"}}"#)
        };
        let lines = [
            line("two", 7.0, 9, "first"),
            line("one", 1.0, 10, "second"),
            line("one", 1.0, 9, "third"),
            line("two", 8.0, 11, "fourth"),
            line("one", 2.0, 12, "fifth"),
        ];
        let kept = [1, 4, 2, 3, 0].map(|place| lines[place].as_str()).join("\n");
        assert_eq!(in_order_of_time(&kept), lines.join("\n") + "\n");
        assert_eq!(in_order_of_time(""), "");
    }
}
