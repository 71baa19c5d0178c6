//! What others ask of the agent.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pulselet_engine::Span;
use pulselet_engine::plan::ProbeKind;
use pulselet_engine::status::EffectiveProbe;
use pulselet_model::{Pod, PodStatus};
use pulselet_plan::PlanError;
use pulselet_runtime::{ContainerId, SandboxId};
use pulselet_vocabulary::PodName;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::oneshot;

use super::{PodGroup, ports};
use crate::pod::identity::Origin;

/// Requests that wait for the agent.
pub(crate) const REQUESTS: usize = 256;
/// Pods a node takes; each may have several probes, and tens of thousands of those are what it is built for.
pub(crate) const MAX_PODS: usize = 20_000;

type Reply<T> = oneshot::Sender<T>;

#[derive(Debug)]
pub(crate) enum Request {
    Add {
        pod: Box<Pod>,
        origin: Origin,
        reply: Reply<Result<Added, AddError>>,
    },
    Update {
        pod: Box<Pod>,
        reply: Reply<Result<(), UpdateError>>,
    },
    Delete {
        pod: PodName,
        /// Only if it is this one; none means whichever has the name.
        uid: Option<String>,
        grace: Option<Duration>,
        reply: Reply<Result<(), NoSuchPod>>,
    },
    /// A deletion by a user of this node.
    Stop {
        pod: PodName,
        grace: Option<Duration>,
        reply: Reply<Result<(), NoSuchPod>>,
    },
    Restart {
        pod: PodName,
        container: Option<String>,
        reply: Reply<Result<usize, StreamError>>,
    },
    List {
        reply: Reply<Vec<PodView>>,
    },
    View {
        pod: PodName,
        reply: Reply<Option<PodView>>,
    },
    Spec {
        pod: PodName,
        reply: Reply<Option<Arc<Pod>>>,
    },
    Log {
        pod: PodName,
        container: Option<String>,
        previous: bool,
        reply: Reply<Result<LogPlace, LogError>>,
    },
    Objects {
        reply: Reply<Vec<Pod>>,
    },
    Container {
        pod: PodName,
        container: String,
        reply: Reply<Result<Located, StreamError>>,
    },
    Sandbox {
        pod: PodName,
        reply: Reply<Result<SandboxId, StreamError>>,
    },
    /// The machine goes down.
    MachineGoesDown,
    /// The machine stays up after all.
    MachineStays,
    /// Stops pods because the machine goes down; answered when they are gone.
    StopGroup {
        group: PodGroup,
        left: Duration,
        reply: Reply<()>,
    },
    Shutdown {
        mode: Shutdown,
    },
}

/// How a node ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shutdown {
    /// Containers run on; the next agent adopts them.
    Leave,
    /// Every pod is deleted with its own grace period first.
    StopPods,
    /// Every pod is killed first.
    KillPods,
}

/// A pod that was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Added {
    pub uid: String,
    pub pod: PodName,
    pub how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum How {
    /// It is new here.
    Created,
    /// It was here already, and stays as it is.
    Adopted,
    /// Another pod has its name: that one is stopped first.
    Replacing,
}

#[derive(Debug, Error)]
pub enum AddError {
    #[error("this node cannot run the pod: {0}")]
    Plan(#[from] PlanError),
    #[error("the node has {MAX_PODS} pods already")]
    Full,
    #[error("the node is shutting down")]
    ShuttingDown,
    #[error("pod {pod} is there already, and it does not belong to {whose}")]
    NameTaken { pod: PodName, whose: &'static str },
}

#[derive(Debug, Error)]
pub enum UpdateError {
    #[error("this node cannot run the changed pod: {0}")]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Pod(#[from] NoSuchPod),
    #[error("the containers of a running pod cannot be others")]
    Containers,
}

#[derive(Debug, Error, PartialEq, Eq)]
#[error("there is no pod {pod} on this node")]
pub struct NoSuchPod {
    pub pod: PodName,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum LogError {
    #[error(transparent)]
    Pod(#[from] NoSuchPod),
    #[error("pod {pod} has no container {container:?}; it has {}", choices.join(", "))]
    NoSuchContainer {
        pod: PodName,
        container: String,
        choices: Vec<String>,
    },
    #[error("pod {pod} has several containers, choose one of {}", choices.join(", "))]
    Ambiguous { pod: PodName, choices: Vec<String> },
    #[error("container {container} of pod {pod} has not run yet")]
    NotYet { pod: PodName, container: String },
    #[error("container {container} of pod {pod} has not been restarted, there is no previous log")]
    NoPrevious { pod: PodName, container: String },
}

/// Where a container's log is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogPlace {
    /// The file of this life; `<attempt>.log` beside it are those of others.
    pub path: PathBuf,
    pub container: String,
    pub attempt: u32,
    /// More may come: this life has not ended.
    pub running: bool,
    /// No life follows this one.
    #[serde(default)]
    pub last: bool,
}

/// A running container, as its runtime knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    pub id: ContainerId,
    /// Its init process has a terminal.
    pub tty: bool,
    /// Its init process reads what is sent to it.
    pub stdin: bool,
}

/// Why no stream can be opened to a container or a pod.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum StreamError {
    #[error(transparent)]
    Pod(#[from] NoSuchPod),
    #[error("pod {pod} has no container {container:?}")]
    NoSuchContainer { pod: PodName, container: String },
    #[error("container {container} of pod {pod} does not run")]
    NotRunning { pod: PodName, container: String },
    #[error("pod {pod} does not run")]
    NoSandbox { pod: PodName },
}

/// A pod as others see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodView {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub origin: Origin,
    pub accepted_at: Timestamp,
    /// It is being deleted.
    pub deleting: bool,
    /// Somebody has stopped it; it has no containers until it is started.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
    /// Per container, its ports as `80/TCP` or `8080->80/TCP`.
    #[serde(default)]
    pub ports: BTreeMap<String, Vec<String>>,
    pub status: PodStatus,
    /// How its probes work now.
    #[serde(default)]
    pub probes: Vec<ProbeView>,
    /// Per container, the signal that stops it or stopped it last, whether or not a gate shows it in the status.
    #[serde(default)]
    pub stop_signals: BTreeMap<String, String>,
}

/// A probe as it works now: offsets, the first success and the node's policies are accounted for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeView {
    pub container: String,
    pub kind: ProbeKind,
    pub period_ms: u64,
    pub timeout_ms: u64,
}

impl From<EffectiveProbe> for ProbeView {
    fn from(probe: EffectiveProbe) -> Self {
        let millis = |span: Span| span.as_micros() / 1_000;
        Self {
            container: probe.container.to_string(),
            kind: probe.kind,
            period_ms: millis(probe.period),
            timeout_ms: millis(probe.timeout),
        }
    }
}

impl PodView {
    /// A pod at an API, as its object says it is.
    pub fn of_object(pod: &Pod) -> Self {
        let accepted = pod.metadata.creation_timestamp.as_ref();
        Self {
            namespace: pod.namespace().to_owned(),
            name: pod.name().to_owned(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            origin: Origin::Api,
            accepted_at: accepted.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            deleting: pod.metadata.deletion_timestamp.is_some(),
            stopped: false,
            ports: ports(pod),
            status: pod.status.clone(),
            probes: Vec::new(),
            stop_signals: BTreeMap::new(),
        }
    }

    pub fn pod_name(&self) -> PodName {
        PodName::new(&*self.namespace, &*self.name)
    }
}
