//! `pulselet api`: the Kubernetes API alone, without a node; and what a node elsewhere needs to join it.

use std::io::Write;
use std::path::Path;

use pulselet_apiserver::{
    Config, PkiError, ServeError, Server, backup_store, check_store, node_kubeconfig, restore_store,
};
use pulselet_controllers::{ControllerOptions, Controllers};
use pulselet_store::{EtcdConfig, EtcdTls, StoreError};

use crate::agent;
use crate::cli::{
    ApiArgs, ApiBackupArgs, ApiBootstrapKubeconfigArgs, ApiCheckArgs, ApiCommand, ApiKubeconfigArgs,
    ApiRestoreArgs, ApiServeArgs, EtcdArgs,
};
use crate::exit::{Exit, Failure};
use crate::interrupt::Interrupts;
use crate::logging::{self, Quietness};
use crate::output;

pub(crate) fn run(args: &ApiArgs, verbose: u8) -> Result<Exit, Failure> {
    match &args.command {
        Some(ApiCommand::Kubeconfig(args)) => return kubeconfig(args),
        Some(ApiCommand::BootstrapKubeconfig(args)) => return bootstrap_kubeconfig(args),
        Some(ApiCommand::Backup(args)) => return backup(args),
        Some(ApiCommand::Restore(args)) => return restore(args),
        Some(ApiCommand::Check(args)) => return check(args),
        None => {}
    }
    let args = &args.serve;
    let mut config = Config::new(args.listen, args.data_dir.resolve()?);
    config.profile = args.profile.into();
    config.gates = args.gates.feature_gates;
    config.audit_log.clone_from(&args.audit_log);
    config.audit_policy.clone_from(&args.audit_policy_file);
    config.new_store = args.new_store;
    config.etcd = etcd(args);
    let options = ControllerOptions {
        bind_pods: args.bind_pods,
        // A cluster's own controllers write them.
        write_endpoints: false,
    };
    logging::start(Quietness::Daemon, verbose)?;
    agent::executor()?.block_on(serve(config, options))
}

/// The cluster that keeps the objects; `None` if that is a file's task.
fn etcd(args: &ApiServeArgs) -> Option<EtcdConfig> {
    let EtcdArgs {
        cafile,
        certfile,
        keyfile,
        prefix,
        compaction_interval,
    } = &args.etcd;
    let mut config = args.store.clone()?;
    config.prefix.clone_from(prefix);
    config.compaction_interval = Some(*compaction_interval).filter(|interval| !interval.is_zero());
    config.tls = cafile.clone().map(|authority| EtcdTls {
        authority,
        client: certfile.clone().zip(keyfile.clone()),
    });
    Some(config)
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
    output::announce(format!(
        "API at https://{}, kubeconfig: {}",
        server.address(),
        server.kubeconfig().display()
    ));
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
        ServeError::AuditPolicy(_) => {
            failure.with_hint("name a Policy of audit.k8s.io/v1 with --audit-policy-file; docs/api.md has one")
        }
        ServeError::Listen { .. } => failure.with_hint("name another address with --listen"),
        ServeError::Store(StoreError::Forgetful { path, .. }) if path.starts_with("etcd") => failure.with_hint(
            "restore a snapshot of etcd, or name the cluster that was used before, or remove etcd.identity from the data \
             directory to accept what etcd has now, which ends every pod that it does not know",
        ),
        ServeError::Store(StoreError::Forgetful { .. }) => failure.with_hint(
            "put the files back that belong to it, or restore a backup with `pulselet api restore FILE`, or begin anew \
             with --new-store, which ends every pod",
        ),
        ServeError::Store(StoreError::Unreachable { .. }) => {
            failure.with_hint("see that etcd runs where --store says, and that the --etcd-*file flags fit it")
        }
        ServeError::Store(StoreError::ReadCredential { .. }) => {
            failure.with_hint("name files that you can read with --etcd-cafile, --etcd-certfile and --etcd-keyfile")
        }
        ServeError::OtherAuthority => failure.with_hint(
            "copy the directory `pki` of the data directory of a server that runs to this one, before its first start",
        ),
        ServeError::NewEtcd => failure.with_hint(
            "name another --etcd-prefix, or remove etcd.identity from the data directory to accept what etcd has now",
        ),
        ServeError::PutAside { .. } | ServeError::Tls { .. }
        | ServeError::Bootstrap { .. }
        | ServeError::Store(_)
        | ServeError::Pki(_)
        | ServeError::TokenKey(_)
        | ServeError::Access(_) => failure,
    }
}

/// Copies the store. The server may run.
fn backup(args: &ApiBackupArgs) -> Result<Exit, Failure> {
    let data_dir = args.data_dir.resolve()?;
    backup_store(&data_dir, &args.file).map_err(|error| not_started(&error))?;
    say(format_args!("copied to {}", args.file.display()))?;
    Ok(Exit::Done)
}

/// Puts a backup in the place of the store. The server must not run.
fn restore(args: &ApiRestoreArgs) -> Result<Exit, Failure> {
    let data_dir = args.data_dir.resolve()?;
    let aside = restore_store(&data_dir, &args.file).map_err(|error| not_started(&error))?;
    say(format_args!("restored {}", args.file.display()))?;
    if let Some(aside) = aside {
        say(format_args!(
            "the store that was there is kept as {}",
            aside.display()
        ))?;
    }
    Ok(Exit::Done)
}

/// Looks whether the store is whole. The server may run.
fn check(args: &ApiCheckArgs) -> Result<Exit, Failure> {
    let data_dir = args.data_dir.resolve()?;
    let report = check_store(&data_dir).map_err(|error| not_started(&error))?;
    for problem in &report.file {
        say(format_args!("the file: {problem}"))?;
    }
    for key in &report.damaged {
        say(format_args!("damaged: {key}"))?;
    }
    if report.is_whole() {
        let (objects, revision) = (report.objects, report.revision);
        say(format_args!(
            "{objects} objects at revision {revision}, all whole"
        ))?;
        return Ok(Exit::Done);
    }
    Ok(Exit::No)
}

fn say(line: std::fmt::Arguments<'_>) -> Result<(), Failure> {
    let mut stdout = output::stdout();
    output::written(writeln!(stdout, "{line}").and_then(|()| stdout.flush()))
}

/// Prints a kubeconfig for a node. The server need not run.
fn kubeconfig(args: &ApiKubeconfigArgs) -> Result<Exit, Failure> {
    let data_dir = args.data_dir.resolve()?;
    let server = server_url(args.server.as_deref(), &data_dir)?;
    print(&node_kubeconfig(&data_dir, &server, &args.node).map_err(|error| no_server(&error))?)
}

/// Prints a kubeconfig with which nodes ask for certificates. The server need not run.
fn bootstrap_kubeconfig(args: &ApiBootstrapKubeconfigArgs) -> Result<Exit, Failure> {
    let data_dir = args.data_dir.resolve()?;
    let server = server_url(args.server.as_deref(), &data_dir)?;
    let text = pulselet_apiserver::bootstrap_kubeconfig(&data_dir, &server, args.days);
    print(&text.map_err(|error| no_server(&error))?)
}

/// Where a node reaches the server.
fn server_url(asked: Option<&str>, data_dir: &Path) -> Result<String, Failure> {
    match asked {
        Some(server) if server.starts_with("https://") => Ok(server.to_owned()),
        Some(server) => Err(Failure::usage(format_args!(
            "--server {server:?} is not an https address"
        ))),
        None => own_server(data_dir),
    }
}

fn print(text: &str) -> Result<Exit, Failure> {
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
