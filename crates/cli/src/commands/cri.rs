//! `pulselet cri`: the built-in containers for a kubelet. They run on when the server ends.

use std::sync::Arc;

use pulselet_agent::DataDir;
use pulselet_cri_server::{CriServer, CriServerOptions};
use pulselet_runtime::Runtime;

use crate::agent;
use crate::cli::CriArgs;
use crate::copied;
use crate::exit::{Exit, Failure};
use crate::interrupt::Interrupts;
use crate::logging::{self, Quietness};
use crate::output;
use crate::paths;
use crate::runtime;

/// Logs of containers whose kubelet wants none, below the data directory.
const OWN_LOGS: &str = "logs";

pub(crate) fn run(args: &CriArgs, verbose: u8) -> Result<Exit, Failure> {
    logging::start(Quietness::Daemon, verbose)?;
    agent::executor()?.block_on(serve(args))
}

async fn serve(args: &CriArgs) -> Result<Exit, Failure> {
    let mut interrupts = Interrupts::listen()?;
    let path = paths::real(&args.data_dir).map_err(Failure::environment)?;
    // Held to the end: no agent and no other server touches what this one runs.
    let data_dir = DataDir::claim(path).map_err(Failure::environment)?;
    copied::check(&data_dir)?;
    let runtime: Arc<dyn Runtime> = runtime::open_for_kubelet(data_dir.path(), args).await?;
    let server = CriServer::start(CriServerOptions {
        runtime,
        socket: args.listen.0.clone(),
        stream_address: args.stream_listen,
        log_root: data_dir.path().join(OWN_LOGS),
        pinned_images: args.pinned_image.clone(),
    });
    let server = server.await.map_err(Failure::environment)?;
    output::note(&format!(
        "CRI is served at unix://{}, streams at http://{}, data in {}",
        args.listen.0.display(),
        server.stream_address(),
        data_dir.path().display()
    ));
    interrupts.next().await;
    server.stop().await;
    Ok(Exit::Done)
}
