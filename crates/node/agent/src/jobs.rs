//! Jobs: the engine's actions carried out, each in a task of its own.
//!
//! A job holds no policy. It gets everything it needs as values, bounds every wait, and reports to the agent what came of it
//! through one queue, exactly once for every action that wants an answer. How many run at once is bounded per class;
//! stopping is not, because a full node must still be able to stop: there are at most two stops per life.

mod cgroup;
mod check;
mod eviction;
mod full_logs;
mod hook;
mod image;
mod life;
mod resize;
mod sandbox;
mod storage;
mod unused_images;
mod volumes;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pulselet_cgroup::PodCgroups;
use pulselet_engine::io::Input;
use pulselet_engine::{LifeKey, PodKey};
use pulselet_model::Pod;
use pulselet_plan::NodeDuties;
use pulselet_probe::Prober;
use pulselet_runtime::{ContainerStatus, LogLimits, Runtime, SandboxId, SandboxStatus, Version};
use pulselet_volume::{Downward, NodeFacts, ObjectSource, VolumeKeeper};
use tokio::sync::{Semaphore, mpsc};

pub(crate) use check::ProbeJob;
pub(crate) use eviction::EvictionCandidate;
pub(crate) use full_logs::GrowingLog;
pub(crate) use hook::HookJob;
pub(crate) use image::ImageJob;
pub(crate) use life::{CreateJob, RemoveJob, SignalsJob, StopJob, Target};
pub(crate) use resize::{ContainerResize, ResizeJob, Resized};
pub(crate) use storage::{ContainerStorage, StorageMeasurement};
pub(crate) use volumes::Measurement;

use self::unused_images::ImageUse;
use self::volumes::MountReports;
use crate::container_config::Context;
use crate::eviction::PressureSignals;
use crate::pod::status::KnownImage;
use crate::state::clock::Clock;
use crate::state::health::StateHealth;
use crate::state::layout::Layout;

/// How long a runtime may take to make, start or remove something, as a kubelet waits.
const OPERATION_TIMEOUT: Duration = Duration::from_mins(2);
/// How long an image may take; registries are slow and layers are large.
const PULL_TIMEOUT: Duration = Duration::from_mins(30);
/// First wait before an operation that must succeed in the end is tried again; it doubles up to [`MAX_RETRY`].
const MIN_RETRY: Duration = Duration::from_millis(200);
const MAX_RETRY: Duration = Duration::from_secs(10);

/// Sandboxes and containers made, started or removed at once: more only makes each slower.
const OPERATIONS_AT_ONCE: usize = 64;
/// Images pulled at once, so that one slow registry does not hold up all others.
const PULLS_AT_ONCE: usize = 5;
/// Probes over the network at once; each holds a socket and a few KiB, for its timeout at the longest.
const NETWORK_PROBES_AT_ONCE: usize = 8_192;
/// Commands of probes at once; each is a process.
const EXEC_PROBES_AT_ONCE: usize = 128;
/// Rounds through the volumes that have a limit: a second one would only get in the first one's way.
const MEASUREMENTS_AT_ONCE: usize = 1;
/// Answers on their way to the agent; a job waits when it is full.
pub(crate) const ANSWERS: usize = 4_096;

/// What every job may use.
#[derive(Debug)]
pub(crate) struct JobContext {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) version: Version,
    pub(crate) prober: Prober,
    pub(crate) layout: Layout,
    pub(crate) facts: NodeFacts,
    pub(crate) duties: NodeDuties,
    pub(crate) objects: Arc<dyn ObjectSource>,
    /// The volumes that are made from them.
    pub(crate) volumes: VolumeKeeper<PodKey>,
    pub(crate) clock: Clock,
    pub(crate) state_health: StateHealth,
    pub(crate) signals: Arc<dyn PressureSignals>,
    pub(crate) images: ImageUse,
    /// `None` if the runtime decides where its pods are.
    cgroups: Option<Arc<PodCgroups>>,
    /// Whether the runtime keeps logs within their bounds.
    pub(crate) logs_are_bounded: bool,
    answers: mpsc::Sender<JobAnswer>,
    limits: Limits,
}

/// What a [`JobContext`] is made of.
#[derive(Debug)]
pub(crate) struct JobParts {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) version: Version,
    pub(crate) layout: Layout,
    pub(crate) facts: NodeFacts,
    pub(crate) duties: NodeDuties,
    pub(crate) objects: Arc<dyn ObjectSource>,
    pub(crate) object_pause: Option<Duration>,
    pub(crate) signals: Arc<dyn PressureSignals>,
    pub(crate) clock: Clock,
    pub(crate) cgroups: Option<Arc<PodCgroups>>,
}

#[derive(Debug)]
struct Limits {
    operations: Arc<Semaphore>,
    pulls: Semaphore,
    network_probes: Semaphore,
    exec_probes: Semaphore,
    measurements: Semaphore,
    storage: Semaphore,
    evictions: Semaphore,
    images: Semaphore,
    logs: Semaphore,
}

/// What a job found out about a pod.
#[derive(Debug)]
pub(crate) struct JobAnswer {
    pub(crate) pod: PodKey,
    pub(crate) result: JobResult,
}

#[derive(Debug)]
pub(crate) enum JobResult {
    /// For the engine as it is.
    Engine(Input),
    Sandbox(SandboxLocation),
    Image {
        container: usize,
        image: KnownImage,
        pulled: pulselet_engine::io::Pulled,
        /// A `STOPSIGNAL` that makes no sense.
        bad_signal: Option<String>,
    },
    /// There is no image of that name.
    ImageFailed {
        container: usize,
        image: Arc<str>,
        error: pulselet_engine::io::ImageFailure,
        message: String,
    },
    /// A container as the runtime describes it.
    Container(Box<ContainerStatus>),
    ProbeDone {
        life: LifeKey,
        kind: pulselet_engine::plan::ProbeKind,
        look: bool,
        report: pulselet_engine::io::ProbeReport,
        began: pulselet_engine::Time,
        late: Duration,
    },
    Signalled {
        life: LifeKey,
        signal: pulselet_vocabulary::Signal,
        at: pulselet_engine::Time,
    },
    /// Something its owner should know, as a reason and a message.
    Warning {
        container: Arc<str>,
        reason: &'static str,
        message: String,
    },
    /// Volumes that cannot be written; `is_new` if others than when it was reported last.
    FailedMount {
        messages: Vec<String>,
        is_new: bool,
    },
    /// The images of the pod of that uid are there, which waits for this one's name.
    SuccessorReady {
        uid: String,
    },
    /// They are not yet, and why.
    SuccessorWaits {
        uid: String,
        message: String,
    },
    Resized(Resized),
    /// Nothing of the pod is left on disk.
    CleanedUp,
}

/// Where a pod's sandbox is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SandboxLocation {
    pub(crate) sandbox: SandboxId,
    /// The pod's, the primary one first.
    pub(crate) addresses: Vec<IpAddr>,
}

impl SandboxLocation {
    /// Where the runtime says it is. `host` is the machine's address where the pod uses the machine's network, which
    /// runtimes need not know.
    pub(crate) fn new(status: &SandboxStatus, host: Option<IpAddr>) -> Self {
        let mut addresses = status.addresses.clone();
        if addresses.is_empty() {
            addresses.extend(host);
        }
        Self {
            sandbox: status.id.clone(),
            addresses,
        }
    }

    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.addresses.first().copied()
    }
}

impl JobContext {
    pub(crate) fn new(parts: JobParts) -> (Self, mpsc::Receiver<JobAnswer>) {
        let JobParts {
            runtime,
            version,
            layout,
            facts,
            duties,
            objects,
            object_pause,
            signals,
            clock,
            cgroups,
        } = parts;
        let (answers, receiver) = mpsc::channel(ANSWERS);
        let operations = Arc::new(Semaphore::new(OPERATIONS_AT_ONCE));
        let mut volumes = VolumeKeeper::new(
            Arc::clone(&objects),
            facts.clone(),
            Arc::new(MountReports(answers.clone())),
            Arc::clone(&operations),
        );
        if let Some(pause) = object_pause {
            volumes = volumes.with_pause(pause);
        }
        let logs_are_bounded = runtime.limit_logs(LogLimits {
            file_size: duties.logs.max_size,
            files: duties.logs.max_files,
        });
        let jobs = Self {
            runtime,
            version,
            prober: Prober::new(),
            layout,
            facts,
            duties,
            objects,
            volumes,
            clock,
            state_health: StateHealth::default(),
            signals,
            images: ImageUse::default(),
            cgroups,
            logs_are_bounded,
            answers,
            limits: Limits {
                operations,
                pulls: Semaphore::new(PULLS_AT_ONCE),
                network_probes: Semaphore::new(NETWORK_PROBES_AT_ONCE),
                exec_probes: Semaphore::new(EXEC_PROBES_AT_ONCE),
                measurements: Semaphore::new(MEASUREMENTS_AT_ONCE),
                storage: Semaphore::new(MEASUREMENTS_AT_ONCE),
                evictions: Semaphore::new(MEASUREMENTS_AT_ONCE),
                images: Semaphore::new(MEASUREMENTS_AT_ONCE),
                logs: Semaphore::new(MEASUREMENTS_AT_ONCE),
            },
        };
        (jobs, receiver)
    }

    /// The address of a pod that has none of its own.
    pub(crate) fn host_address(&self, pod: &Pod) -> Option<IpAddr> {
        pod.spec.host_network.then_some(self.facts.address)
    }

    async fn answer(&self, pod: PodKey, result: JobResult) {
        // The agent is gone only when the node shuts down; nobody waits for the answer then.
        let _ = self.answers.send(JobAnswer { pod, result }).await;
    }

    /// Sends an input for the engine, from a job or where no work was needed.
    pub(crate) async fn send_input(&self, pod: PodKey, input: Input) {
        self.answer(pod, JobResult::Engine(input)).await;
    }
}

/// What a job knows about its pod.
#[derive(Clone, Debug)]
pub(crate) struct PodRef {
    pub(crate) key: PodKey,
    pub(crate) uid: Arc<str>,
    pub(crate) spec: Arc<Pod>,
    pub(crate) location: Option<SandboxLocation>,
}

impl PodRef {
    /// Calls `f` with what configurations are made from.
    fn with_context<R>(&self, jobs: &JobContext, f: impl FnOnce(Context<'_>) -> R) -> R {
        let location = self.location.as_ref();
        f(Context {
            layout: &jobs.layout,
            downward: Downward {
                pod: &self.spec,
                uid: &self.uid,
                pod_ips: location.map(|location| &*location.addresses).unwrap_or_default(),
                node: &jobs.facts,
            },
            security: jobs.version.features.security,
            dns: &jobs.duties.dns,
        })
    }
}

/// A wait that doubles.
#[derive(Debug)]
struct Retry(Duration);

impl Retry {
    const fn new() -> Self {
        Self(MIN_RETRY)
    }

    async fn wait(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(MAX_RETRY);
    }
}

/// Bounds an operation of the runtime.
async fn bounded<T>(
    operation: pulselet_runtime::Operation,
    future: impl Future<Output = pulselet_runtime::Result<T>>,
) -> pulselet_runtime::Result<T> {
    let after = OPERATION_TIMEOUT;
    tokio::time::timeout(after, future)
        .await
        .unwrap_or(Err(pulselet_runtime::Error::Timeout { operation, after }))
}
