//! Starting a node: the data directory, the store, adoption, then the tasks that make it up.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use pulselet_cgroup::PodCgroups;
use pulselet_model::Gate;
use pulselet_plan::{NodeConfig, NodeDuties};
use pulselet_runtime::Runtime;
use pulselet_volume::{LocalObjects, NodeFacts, ObjectSource};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::agent::{AdoptError, Agent, Inlets, MachineShutdown, MachineWatch, PressureWatch, REQUESTS};
use crate::endpoints::control::{self, Control, NodeView};
use crate::endpoints::health::Health;
use crate::endpoints::http::serve;
use crate::endpoints::metrics::Metrics;
use crate::endpoints::usage::Usage;
use crate::eviction::pressure::Pressure;
use crate::eviction::{MachineSignals, PressureConditions, PressureSignals};
use crate::handle::NodeHandle;
use crate::jobs::{JobContext, JobParts};
use crate::manifests;
use crate::publish::feed::Feed;
use crate::publish::lines::LineHub;
use crate::publish::notify::ServiceManager;
use crate::state::clock::Continuity;
use crate::state::handed_objects::HandedObjects;
use crate::state::layout::{DataDir, Layout};
use crate::state::stopped::StoppedPods;
use crate::state::store::{self, NodeStoreError, Opened, Reader};

/// What a node is made of.
#[derive(Debug)]
pub struct NodeOptions {
    pub data_dir: DataDir,
    pub runtime: Arc<dyn Runtime>,
    pub config: NodeConfig,
    pub facts: NodeFacts,
    /// Where `/metrics`, `/healthz` and `/readyz` are served.
    pub metrics: Option<TcpListener>,
    /// A directory of static pods.
    pub manifests: Option<PathBuf>,
    /// What is put behind the names of static pods, so that those of different nodes differ at an API.
    pub static_suffix: String,
    /// Where whoever follows the node's pods reads what has changed.
    pub feed: Option<Feed>,
    /// The node belongs to an API, which alone decides over its pods: the socket takes none.
    pub joined: bool,
    /// Where config maps, secrets and tokens come from.
    pub objects: Arc<dyn ObjectSource>,
    /// The config maps and secrets of files; `None` if an API has them all.
    pub local_objects: Option<Arc<LocalObjects>>,
    /// How long objects that cannot be followed are not asked for again; `None` for the usual ten seconds or so.
    pub object_pause: Option<Duration>,
    /// The API is on this machine and goes down with it: its pods begin anew afterwards, as those of files do.
    pub keeps_api_pods: bool,
    /// Subscribe before starting to see every line.
    pub lines: LineHub,
    pub service_manager: ServiceManager,
    /// Who knows what the machine has left; `None` if the machine itself is asked.
    pub signals: Option<Arc<dyn PressureSignals>>,
    /// How many lines the process could not log, for `/metrics`.
    pub dropped_log_lines: Arc<AtomicU64>,
}

impl NodeOptions {
    /// A node with default settings that serves nothing but its socket.
    pub fn new(data_dir: DataDir, runtime: Arc<dyn Runtime>) -> Self {
        let local_objects = Arc::new(LocalObjects::default());
        Self {
            data_dir,
            runtime,
            config: NodeConfig::default(),
            facts: NodeFacts::detect(),
            metrics: None,
            manifests: None,
            static_suffix: String::new(),
            feed: None,
            joined: false,
            objects: Arc::clone(&local_objects) as Arc<dyn ObjectSource>,
            local_objects: Some(local_objects),
            object_pause: None,
            keeps_api_pods: false,
            lines: LineHub::default(),
            service_manager: ServiceManager::new(None, None),
            signals: None,
            dropped_log_lines: Arc::default(),
        }
    }
}

#[derive(Debug, Error)]
pub enum NodeStartError {
    #[error(transparent)]
    Store(#[from] NodeStoreError),
    #[error("the container runtime does not answer: {0}")]
    Version(pulselet_runtime::Error),
    #[error(transparent)]
    Adopt(#[from] AdoptError),
    #[error("cannot listen on {path}: {source}", path = path.display())]
    Listen { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Manifests(#[from] manifests::WatchError),
}

/// The node. Its methods make one; a [`NodeHandle`] is what is left of it.
#[derive(Debug)]
pub struct Node;

impl Node {
    /// Starts a node: when this returns, the pods of the last agent are adopted and requests are answered.
    pub async fn start(options: NodeOptions) -> Result<NodeHandle, NodeStartError> {
        let (layout, lock) = options.data_dir.into_parts();
        raise_descriptor_limit();
        let version = options.runtime.version().await.map_err(NodeStartError::Version)?;
        let opened = open_store(&layout).await?;
        let gates = options.config.gates;
        let metrics = Arc::new(Metrics::new(gates).with_dropped_log_lines(options.dropped_log_lines));
        // Subscribed before listing, so that nothing falls between the two.
        let events = options.runtime.events();
        let runtime = Arc::clone(&options.runtime);
        let mut facts = options.facts;
        facts.allocatable = options.config.duties.allocatable(&facts.capacity(layout.root()));
        let usage = Usage::new(Arc::clone(&options.runtime), facts.clone());
        let duties = options.config.duties.clone();
        let signals = options
            .signals
            .unwrap_or_else(|| Arc::new(MachineSignals::new(layout.root())));
        let (under_pressure, pressure) = watch::channel(PressureConditions::default());
        let (going_down, machine_goes_down) = watch::channel(false);
        let machine = MachineWatch {
            pressure: pressure_watch(&duties, options.joined, under_pressure),
            shutdown: MachineShutdown::new(going_down, options.keeps_api_pods),
        };
        let (jobs, answers) = JobContext::new(JobParts {
            runtime,
            version,
            layout: layout.clone(),
            facts,
            duties,
            objects: options.objects,
            object_pause: options.object_pause,
            signals,
            clock: opened.clock,
            cgroups: pod_cgroups(&*options.runtime).await,
        });
        let jobs = Arc::new(jobs);
        let mut agent = Agent::new(
            Arc::clone(&jobs),
            options.config.clone(),
            Arc::clone(&metrics),
            options.lines.clone(),
            options.feed,
            opened.writer,
            machine,
        );
        agent.adopt(opened.pods).await?;
        if let Some(path) = &opened.kept_aside {
            agent.state_was_lost(path);
        }
        let (requests, receiver) = mpsc::channel(REQUESTS);
        let (over, ended) = watch::channel(false);
        let mut services = Services::default();
        let health = Arc::new(Health {
            metrics,
            runtime: options.runtime,
            usage,
            state: jobs.state_health.clone(),
        });
        let handle = NodeHandle {
            requests,
            lines: options.lines,
            reader: Arc::new(Reader::new(&layout)),
            health: Arc::clone(&health),
            stopped: Arc::new(StoppedPods::load(layout.stopped())),
            pressure,
            machine_goes_down,
            ended,
        };
        services.spawn(handle.clone().end_stopped());
        let about = describe(&jobs, &options.config, options.joined);
        let objects = HandedObjects::load(layout.objects(), options.local_objects.clone());
        let control = Control::new(handle.clone(), Arc::clone(&jobs.runtime), objects, about);
        services.control(&layout, control)?;
        services.spawn(jobs.keep_volumes());
        if let Some(listener) = options.metrics {
            services.spawn(serve(listener, health));
        }
        if let Some(directory) = options.manifests {
            let rules = manifests::Rules {
                gates,
                suffix: options.static_suffix,
                objects: options.local_objects,
            };
            services.spawn(manifests::watch(directory, rules, handle.clone())?);
        }
        let inlets = Inlets {
            answers,
            requests: receiver,
            events,
        };
        let manager = options.service_manager;
        tokio::spawn(async move {
            manager.ready();
            run_watched(agent.run(inlets), &manager).await;
            manager.stopping();
            drop(services);
            // The lock outlives everything that touches the directory.
            drop(lock);
            over.send_replace(true);
        });
        Ok(handle)
    }
}

/// Pods of a runtime that takes them from the node have cgroups of their own. Where the node cannot make any, pods run
/// without: their containers have limits of their own.
async fn pod_cgroups(runtime: &dyn Runtime) -> Option<Arc<PodCgroups>> {
    let root = runtime.cgroup_root()?;
    let opened = tokio::task::spawn_blocking(move || PodCgroups::open(root)).await;
    match opened.expect("looking at cgroups does not panic") {
        Ok(cgroups) => Some(Arc::new(cgroups)),
        Err(error) => {
            tracing::warn!(%error, "pods have no cgroups of their own, so no limits as a whole");
            None
        }
    }
}

/// The tasks around the agent; they end with it.
#[derive(Debug, Default)]
struct Services(JoinSet<()>);

impl Services {
    fn spawn(&mut self, service: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(service);
    }

    /// Opens the socket.
    fn control(&mut self, layout: &Layout, control: Control) -> Result<(), NodeStartError> {
        let path = layout.socket();
        let listener = control::bind(&path).map_err(|source| NodeStartError::Listen { path, source })?;
        self.spawn(serve(listener, Arc::new(control)));
        Ok(())
    }
}

/// A kubelet's thresholds are for the nodes of a cluster; others get only what somebody wrote.
fn pressure_watch(
    duties: &NodeDuties,
    joined: bool,
    conditions: watch::Sender<PressureConditions>,
) -> Option<PressureWatch> {
    (joined || duties.eviction.is_explicit).then(|| PressureWatch {
        pressure: Pressure::new(duties.eviction.clone()),
        conditions,
        spares_static: joined,
    })
}

/// What does not change while the node runs.
fn describe(jobs: &JobContext, config: &NodeConfig, joined: bool) -> NodeView {
    let gates = Gate::ALL.map(|gate| (gate.name().to_owned(), config.gates.enabled(gate)));
    NodeView {
        name: jobs.facts.name.clone(),
        address: jobs.facts.address.to_string(),
        runtime: format!("{} {}", jobs.version.name, jobs.version.version),
        cpus: jobs.facts.cpus,
        memory_bytes: jobs.facts.memory_bytes,
        joined,
        gates: gates.into_iter().collect(),
        settings: config.settings,
        trouble: None,
    }
}

/// Opening may have to check a large file, so it does not hold up the other tasks.
async fn open_store(layout: &Layout) -> Result<Opened, NodeStartError> {
    let layout = layout.clone();
    let opened = tokio::task::spawn_blocking(move || store::open(&layout))
        .await
        .expect("opening the store does not panic")?;
    match opened.continuity {
        Continuity::New => {}
        Continuity::SameBoot => tracing::info!(pods = opened.pods.len(), "going on where the last agent was"),
        Continuity::Rebooted => tracing::info!(pods = opened.pods.len(), "the machine was restarted"),
    }
    Ok(opened)
}

/// Every probe and every container needs descriptors; the soft limit is often 1024.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

/// Runs the agent and notifies the service manager that it runs. The two share a task, so a stuck agent goes quiet.
async fn run_watched(agent: impl Future<Output = ()>, manager: &ServiceManager) {
    let mut agent = std::pin::pin!(agent);
    let Some(every) = manager.watchdog() else {
        return agent.await;
    };
    let mut beat = tokio::time::interval(every);
    loop {
        tokio::select! {
            () = &mut agent => return,
            _ = beat.tick() => manager.alive(),
        }
    }
}
