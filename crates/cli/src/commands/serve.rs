//! `pulselet serve`: the API and a node in one process. The node is a client of the API like any other.

use std::path::Path;

use pulselet_agent::{LineHub, Shutdown};
use pulselet_apiserver::{Config, Server};
use pulselet_cluster::STORE_MEMORY;
use pulselet_controllers::{ControllerOptions, Controllers};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::api;
use super::node::announce;
use crate::agent::{self, Setting};
use crate::cli::ServeArgs;
use crate::copied;
use crate::exit::{Exit, Failure};
use crate::interrupt::Interrupts;
use crate::local_network::ServiceSource;
use crate::logging::{self, Quietness};
use crate::membership::{Application, node_name};

pub(crate) fn run(args: &ServeArgs, verbose: u8) -> Result<Exit, Failure> {
    let mut node = args.agent.node.resolve()?;
    if let Some(gates) = &args.node_feature_gates {
        node.gates = node.gates.apply(gates).map_err(Failure::usage)?;
    }
    args.member.apply(&mut node)?;
    let mut config = Config::new(args.listen, args.agent.data.resolve()?);
    // Before the API changes anything in the directory.
    copied::reject(&config.data_dir)?;
    config.profile = args.profile.into();
    config.audit_log.clone_from(&args.audit_log);
    config.audit_policy.clone_from(&args.audit_policy_file);
    config.new_store = args.new_store;
    if args.new_store {
        // The node of this directory follows it too.
        forget_store(&config.data_dir)?;
    }
    for gates in [&args.agent.node.feature_gates, &args.api_feature_gates]
        .into_iter()
        .flatten()
    {
        config.gates = config.gates.apply(gates).map_err(Failure::usage)?;
    }
    let setting = Setting {
        config: node,
        lines: LineHub::default(),
        metrics: Some(args.metrics.clone()),
        feed: None,
        manifests: args.manifests.clone(),
        objects: Vec::new(),
        beside_another: None,
        application: None,
        services: ServiceSource::Others,
    };
    logging::start(Quietness::Daemon, verbose)?;
    agent::executor()?.block_on(serve(args, config, setting))
}

async fn serve(args: &ServeArgs, config: Config, mut setting: Setting) -> Result<Exit, Failure> {
    let mut interrupts = Interrupts::listen()?;
    let name = node_name(&args.member)?;
    let server = api::bind(config).await?;
    let kubeconfig = server
        .write_node_kubeconfig(&name)
        .map_err(Failure::environment)?;
    let mut application = Application::new(&kubeconfig, &args.member).await?;
    let addresses = [application.endpoint()?.ip()];
    let certifier = server.node_certifier(application.name(), &addresses);
    application.certify(certifier);
    setting.application = Some(application);
    setting.services = ServiceSource::Api(server.client());
    let (stop, api) = spawn(server);
    let started = match agent::start(&args.agent, setting).await {
        Ok(started) => started,
        Err(failure) => {
            end(stop, api).await;
            return Err(failure);
        }
    };
    announce(&started, args.manifests.as_deref());
    tokio::select! {
        () = interrupts.next() => started.node.shutdown(Shutdown::Leave).await,
        () = started.node.ended() => {}
    }
    // The node goes first, so that it does not complain about the API.
    drop((started.network, started.membership));
    end(stop, api).await;
    Ok(Exit::Done)
}

/// Lets the node follow whatever store the API has.
fn forget_store(data_dir: &Path) -> Result<(), Failure> {
    match std::fs::remove_file(data_dir.join(STORE_MEMORY)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Failure::environment(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Runs the server and its controllers until the sender is used or dropped.
fn spawn(server: Server) -> (oneshot::Sender<()>, JoinHandle<()>) {
    let (stop, stopped) = oneshot::channel();
    let api = tokio::spawn(async {
        let options = ControllerOptions {
            bind_pods: true,
            write_endpoints: true,
        };
        let controllers = Controllers::start(&server.client(), options);
        server
            .run(async {
                // A sender that is gone means the same.
                let _ = stopped.await;
            })
            .await;
        controllers.stop().await;
    });
    (stop, api)
}

async fn end(stop: oneshot::Sender<()>, api: JoinHandle<()>) {
    let _ = stop.send(());
    // Whether it ended well makes no difference any more.
    let _ = api.await;
}
