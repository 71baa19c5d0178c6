//! `pulselet node`: an agent as a service. It leaves its containers running when it ends.

use pulselet_node::{LineHub, Shutdown};

use crate::agent::{self, Setting};
use crate::cli::NodeCommandArgs;
use crate::exit::{Exit, Failure};
use crate::interrupt::Interrupts;
use crate::logging::{self, Quietness};
use crate::output;

pub(crate) fn run(args: &NodeCommandArgs, verbose: u8) -> Result<Exit, Failure> {
    let setting = Setting {
        config: args.agent.node.resolve()?,
        lines: LineHub::default(),
        metrics: Some(args.metrics.clone()),
        manifests: Some(args.manifests.clone()),
    };
    logging::start(Quietness::Daemon, verbose, std::io::stderr);
    agent::executor()?.block_on(serve(args, setting))
}

async fn serve(args: &NodeCommandArgs, setting: Setting) -> Result<Exit, Failure> {
    let mut interrupts = Interrupts::listen()?;
    let started = agent::start(&args.agent, setting).await?;
    output::note(&format!(
        "node is up: runtime {}, data in {}, manifests from {}, health and metrics at http://{}",
        started.runtime,
        started.data_dir.display(),
        args.manifests.display(),
        args.metrics,
    ));
    if let Some(warning) = started.warning {
        output::note(warning);
    }
    tokio::select! {
        () = interrupts.next() => started.node.shutdown(Shutdown::Leave).await,
        () = started.node.ended() => {}
    }
    Ok(Exit::Done)
}
