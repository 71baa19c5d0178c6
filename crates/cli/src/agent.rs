//! Starting an agent from the command line: its directory, its runtime, its endpoints, its settings, its API.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pulselet_agent::{DataDir, Feed, LineHub, LocalObject, Node, NodeHandle, NodeOptions, ServiceManager};
use pulselet_logind::ShutdownWatch;
use pulselet_plan::NodeConfig;
use pulselet_runtime::Version;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use crate::cli::AgentArgs;
use crate::copied;
use crate::exit::Failure;
use crate::local_network::{LocalNetwork, ServiceSource};
use crate::logging;
use crate::membership::{Application, Membership};
use crate::runtime::{ImageSettings, OpenRuntime};

/// Threads that run the agent: one for its loop, one for what its jobs do meanwhile.
const AGENT_THREADS: usize = 2;
/// How long a thread for work that blocks stays when it has none. After a burst each of many gets a little work now and then: with
/// longer times none of them ever ends.
const BLOCKING_THREAD_IDLE: Duration = Duration::from_millis(500);
/// How often memory that is free goes back to the kernel.
const RELEASE_INTERVAL: Duration = Duration::from_secs(30);

/// What an agent has beside its flags.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) config: NodeConfig,
    pub(crate) lines: LineHub,
    /// Where the caller reads which pods have changed. An API that is joined has its own.
    pub(crate) feed: Option<Feed>,
    /// Where health and metrics are served.
    pub(crate) metrics: Option<String>,
    pub(crate) manifests: Option<PathBuf>,
    /// Config maps and secrets for the pods.
    pub(crate) objects: Vec<LocalObject>,
    /// What to do where another agent has the directory.
    pub(crate) beside_another: Option<&'static str>,
    /// The API to join.
    pub(crate) application: Option<Application>,
    /// Where the services and names come from that this agent makes true.
    pub(crate) services: ServiceSource,
}

/// An agent that runs.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) node: NodeHandle,
    /// The runtime's name, version and abilities.
    pub(crate) runtime: String,
    pub(crate) data_dir: PathBuf,
    /// Where health and metrics are served.
    pub(crate) metrics: Option<SocketAddr>,
    /// What the runtime does not do that a user may count on.
    pub(crate) warning: Option<&'static str>,
    /// With the API that it joined.
    pub(crate) membership: Option<Membership>,
    /// Services and names last as long as this.
    pub(crate) network: LocalNetwork,
}

pub(crate) async fn start(args: &AgentArgs, mut setting: Setting) -> Result<Started, Failure> {
    let data_dir = DataDir::claim(args.data.resolve()?).map_err(|error| {
        let hint = setting.beside_another.filter(|_| error.is_held());
        let failure = Failure::environment(error);
        hint.into_iter().fold(failure, Failure::with_hint)
    })?;
    copied::check(&data_dir)?;
    let path = data_dir.path().to_owned();
    let metrics = match &setting.metrics {
        Some(address) => Some(listen(address).await?),
        None => None,
    };
    let address = metrics.as_ref().and_then(|listener| listener.local_addr().ok());
    // After the claim: a runtime touches what it finds.
    let images = ImageSettings::new(&setting.config)?;
    let OpenRuntime { runtime, network } = args.runtime.open(&path, &args.cni, images).await?;
    let version = runtime.version().await.map_err(Failure::environment)?;
    let warning = (!version.features.images).then_some(
        "warning: containers are plain host processes: images are not used, and nothing is isolated",
    );
    let mut options = NodeOptions::new(data_dir, Arc::clone(&runtime));
    options.feed = setting.feed;
    if let Some(objects) = &options.local_objects {
        objects.replace("", setting.objects);
    }
    if let Some(application) = &mut setting.application {
        application.prepare(&mut options);
    }
    let facts = options.facts.clone();
    let dns = &mut setting.config.duties.dns;
    let mut network = LocalNetwork::start(setting.services, network, &facts.name, dns).await;
    let duties = setting.config.duties.clone();
    options.config = setting.config;
    options.lines = setting.lines;
    options.metrics = metrics;
    options.manifests = setting.manifests;
    options.service_manager = service_manager();
    options.dropped_log_lines = logging::dropped_lines();
    let node = Node::start(options).await.map_err(Failure::environment)?;
    network.follow_pods(&node);
    if !duties.shutdown.is_off() {
        tokio::spawn(ShutdownWatch::new(duties.shutdown).run(node.clone()));
    }
    let membership = match setting.application {
        Some(application) => Some(application.join(node.clone(), runtime, facts, duties, &path)?),
        None => None,
    };
    Ok(Started {
        node,
        runtime: describe(&version),
        data_dir: path,
        metrics: address,
        warning,
        membership,
        network,
    })
}

/// A runtime in a few words: who it is, and what it can do.
fn describe(version: &Version) -> String {
    let features = version.features;
    let all = [
        (features.images, "images"),
        (features.events, "events"),
        (features.stop_signal, "stop signals"),
        (features.kill_reporting, "reports of kills"),
    ];
    let has: Vec<_> = all
        .iter()
        .filter(|(has, _)| *has)
        .map(|(_, name)| *name)
        .collect();
    format!("{} {} ({})", version.name, version.version, has.join(", "))
}

async fn listen(address: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        Failure::environment(format_args!("cannot listen on {address}: {error}"))
            .with_hint("choose another address with --metrics")
    })
}

fn service_manager() -> ServiceManager {
    let variable = |name| std::env::var(name).ok();
    ServiceManager::new(
        variable("NOTIFY_SOCKET").as_deref(),
        variable("WATCHDOG_USEC").as_deref(),
    )
}

/// What an agent runs on.
pub(crate) fn executor() -> Result<Runtime, Failure> {
    pulselet_sys::share_memory_pools();
    let mut builder = Builder::new_multi_thread();
    builder
        .worker_threads(AGENT_THREADS)
        .thread_keep_alive(BLOCKING_THREAD_IDLE);
    let executor = build(&mut builder)?;
    executor.spawn(release_memory());
    Ok(executor)
}

/// Gives back what a burst of work has left free, for as long as the process runs.
async fn release_memory() {
    let mut pause = tokio::time::interval(RELEASE_INTERVAL);
    pause.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        pause.tick().await;
        // It may take milliseconds. That it failed would mean that the process ends.
        let _ = tokio::task::spawn_blocking(pulselet_sys::release_free_memory).await;
    }
}

/// What a command runs on that only asks an agent.
pub(crate) fn small_executor() -> Result<Runtime, Failure> {
    build(&mut Builder::new_current_thread())
}

fn build(builder: &mut Builder) -> Result<Runtime, Failure> {
    builder
        .enable_all()
        .build()
        .map_err(|error| Failure::environment(format_args!("cannot start: {error}")))
}
