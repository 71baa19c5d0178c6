//! `pulselet node`: an agent as a service. It leaves its containers running when it ends.

use std::path::Path;

use pulselet_agent::{LineHub, Shutdown};

use crate::agent::{self, Setting, Started};
use crate::cli::NodeCommandArgs;
use crate::exit::{Exit, Failure};
use crate::interrupt::Interrupts;
use crate::local_network::ServiceSource;
use crate::logging::{self, Quietness};
use crate::membership::Application;
use crate::output;

pub(crate) fn run(args: &NodeCommandArgs, verbose: u8) -> Result<Exit, Failure> {
    let mut config = args.agent.node.resolve()?;
    args.member.apply(&mut config)?;
    let setting = Setting {
        config,
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
    agent::executor()?.block_on(serve(args, setting))
}

async fn serve(args: &NodeCommandArgs, mut setting: Setting) -> Result<Exit, Failure> {
    let mut interrupts = Interrupts::listen()?;
    if let Some(kubeconfig) = &args.kubeconfig {
        setting.application = Some(Application::new(kubeconfig, &args.member).await?);
    }
    if let Some(kubeconfig) = &args.bootstrap_kubeconfig {
        let data_dir = args.agent.data.resolve()?;
        let applying = Application::bootstrap(kubeconfig, &args.member, &data_dir);
        setting.application = tokio::select! {
            application = applying => Some(application?),
            () = interrupts.next() => return Ok(Exit::Interrupted),
        };
    }
    let started = agent::start(&args.agent, setting).await?;
    announce(&started, args.manifests.as_deref());
    tokio::select! {
        () = interrupts.next() => started.node.shutdown(Shutdown::Leave).await,
        () = started.node.ended() => {}
    }
    Ok(Exit::Done)
}

/// Says what the node is made of.
pub(super) fn announce(started: &Started, manifests: Option<&Path>) {
    let manifests = manifests.map(|path| format!("manifests from {}", path.display()));
    let metrics = started
        .metrics
        .map(|address| format!("health and metrics at http://{address}"));
    let endpoint = started
        .membership
        .as_ref()
        .map(|membership| format!("for the API at https://{}", membership.endpoint()));
    let parts = [
        Some(format!("runtime {}", started.runtime)),
        Some(format!("data in {}", started.data_dir.display())),
        manifests,
        metrics,
        endpoint,
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let text = format!("node is up: {}", parts.join(", "));
    output::note(&text);
    if let Some(warning) = started.warning {
        output::note(warning);
    }
}
