//! `pulselet api`: the Kubernetes API alone, without a node.

use std::io::Write;

use pulselet_apiserver::{Config, Server, StartError};

use crate::agent;
use crate::cli::ApiArgs;
use crate::exit::{Exit, Failure};
use crate::interrupt::Interrupts;
use crate::logging::{self, Quietness};
use crate::output;

pub(crate) fn run(args: &ApiArgs, verbose: u8) -> Result<Exit, Failure> {
    let mut config = Config::new(args.listen, args.data_dir.resolve()?);
    config.profile = args.profile.into();
    config.gates = args.gates.feature_gates;
    logging::start(Quietness::Daemon, verbose, std::io::stderr);
    agent::executor()?.block_on(serve(config))
}

async fn serve(config: Config) -> Result<Exit, Failure> {
    let mut interrupts = Interrupts::listen()?;
    let server = Server::bind(config).await.map_err(|error| not_started(&error))?;
    let mut stdout = output::stdout();
    let line = writeln!(
        stdout,
        "API at https://{}, kubeconfig: {}",
        server.address(),
        server.kubeconfig().display()
    );
    output::written(line.and_then(|()| stdout.flush()))?;
    drop(stdout);
    server.run(interrupts.next()).await;
    Ok(Exit::Done)
}

fn not_started(error: &StartError) -> Failure {
    let failure = Failure::environment(error);
    match error {
        StartError::Locked { .. } => {
            failure.with_hint("stop that server, or name another directory with --data-dir")
        }
        StartError::CreateDataDir { .. } | StartError::Lock { .. } => {
            failure.with_hint("name a directory that you can write to with --data-dir")
        }
        StartError::Listen { .. } => failure.with_hint("name another address with --listen"),
        StartError::Tls { .. }
        | StartError::Bootstrap { .. }
        | StartError::Store(_)
        | StartError::Pki(_)
        | StartError::Access(_) => failure,
    }
}
