//! `pulselet api`: the Kubernetes API alone, without a node; and what a node elsewhere needs to join it.

use std::io::Write;
use std::path::Path;

use pulselet_apiserver::{Config, PkiError, ServeError, Server, node_kubeconfig};
use pulselet_controllers::{ControllerOptions, Controllers};

use crate::agent;
use crate::cli::{ApiArgs, ApiCommand, ApiKubeconfigArgs};
use crate::exit::{Exit, Failure};
use crate::interrupt::Interrupts;
use crate::logging::{self, Quietness};
use crate::output;

pub(crate) fn run(args: &ApiArgs, verbose: u8) -> Result<Exit, Failure> {
    if let Some(ApiCommand::Kubeconfig(args)) = &args.command {
        return kubeconfig(args);
    }
    let args = &args.serve;
    let mut config = Config::new(args.listen, args.data_dir.resolve()?);
    config.profile = args.profile.into();
    config.gates = args.gates.feature_gates;
    config.audit_log.clone_from(&args.audit_log);
    let options = ControllerOptions {
        bind_pods: args.bind_pods,
    };
    logging::start(Quietness::Daemon, verbose, std::io::stderr);
    agent::executor()?.block_on(serve(config, options))
}

async fn serve(config: Config, options: ControllerOptions) -> Result<Exit, Failure> {
    let mut interrupts = Interrupts::listen()?;
    let server = bind(config).await?;
    let controllers = Controllers::start(&server.client(), options);
    server.run(interrupts.next()).await;
    controllers.stop().await;
    Ok(Exit::Done)
}

/// A server that listens, having said so.
pub(super) async fn bind(config: Config) -> Result<Server, Failure> {
    let server = Server::bind(config).await.map_err(|error| not_started(&error))?;
    let mut stdout = output::stdout();
    let line = writeln!(
        stdout,
        "API at https://{}, kubeconfig: {}",
        server.address(),
        server.kubeconfig().display()
    );
    output::written(line.and_then(|()| stdout.flush()))?;
    Ok(server)
}

fn not_started(error: &ServeError) -> Failure {
    let failure = Failure::environment(error);
    match error {
        ServeError::Locked { .. } => {
            failure.with_hint("stop that server, or name another directory with --data-dir")
        }
        ServeError::CreateDataDir { .. } | ServeError::MakePrivate { .. } | ServeError::Lock { .. } => {
            failure.with_hint("name a directory that you can write to with --data-dir")
        }
        ServeError::OpenAuditLog { .. } => {
            failure.with_hint("name a file that you can write to with --audit-log")
        }
        ServeError::Listen { .. } => failure.with_hint("name another address with --listen"),
        ServeError::Tls { .. }
        | ServeError::Bootstrap { .. }
        | ServeError::Store(_)
        | ServeError::Pki(_)
        | ServeError::Access(_) => failure,
    }
}

/// Prints a kubeconfig for a node. The server need not run.
fn kubeconfig(args: &ApiKubeconfigArgs) -> Result<Exit, Failure> {
    let data_dir = args.data_dir.resolve()?;
    let server = match &args.server {
        Some(server) if server.starts_with("https://") => server.clone(),
        Some(server) => {
            return Err(Failure::usage(format_args!(
                "--server {server:?} is not an https address"
            )));
        }
        None => own_server(&data_dir)?,
    };
    let text = node_kubeconfig(&data_dir, &server, &args.node).map_err(|error| no_server(&error))?;
    let mut stdout = output::stdout();
    output::written(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))?;
    Ok(Exit::Done)
}

/// Where the administrator's kubeconfig says the server is.
fn own_server(data_dir: &Path) -> Result<String, Failure> {
    let path = data_dir.join("admin.kubeconfig");
    let text =
        std::fs::read_to_string(&path).map_err(|source| no_server(&PkiError::Read { path, source }))?;
    let mut lines = text.lines();
    let server = lines.find_map(|line| line.trim().strip_prefix("server: "));
    server.map(str::to_owned).ok_or_else(|| {
        Failure::environment("the administrator's kubeconfig names no server")
            .with_hint("say where the node reaches the API with --server")
    })
}

fn no_server(error: &PkiError) -> Failure {
    Failure::environment(error).with_hint("name the directory of an API server with --data-dir")
}
