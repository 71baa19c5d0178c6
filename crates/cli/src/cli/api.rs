//! The flags of `pulselet api` and its subcommands.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use pulselet_store::EtcdConfig;

use super::node::parse_node_name;
use super::shared::{DataDirArgs, GateArgs, ProfileArg};
use crate::commands::parse_span;
use crate::paths;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ApiArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ApiCommand>,
    #[command(flatten)]
    pub(crate) serve: ApiServeArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ApiCommand {
    /// Print a kubeconfig with which a node can join
    #[command(
        after_help = "Example:\n  pulselet api kubeconfig --node worker-1 --server https://10.0.0.1:6443 > \
                            worker-1.kubeconfig\n\nIt holds a key: whoever has the file is that node."
    )]
    Kubeconfig(ApiKubeconfigArgs),
    /// Print a kubeconfig with which nodes ask for certificates of their own
    #[command(
        after_help = "Example:\n  pulselet api bootstrap-kubeconfig --server https://10.0.0.1:6443 > join.kubeconfig\n  \
                            pulselet node --bootstrap-kubeconfig join.kubeconfig\n\nIt holds a key: whoever has the \
                            file can join as any node while it lasts."
    )]
    BootstrapKubeconfig(ApiBootstrapKubeconfigArgs),
    /// Copy the store into a file, also while a server uses it
    #[command(
        after_help = "Example:\n  pulselet api backup api-backup.db\n\nIt holds every secret of the API. A file \
                            that is there is never overwritten."
    )]
    Backup(ApiBackupArgs),
    /// Put a backup in the place of the store
    #[command(
        after_help = "Example:\n  pulselet api restore api-backup.db\n\nThe server must be stopped. The store that \
                            was there is kept beside it. Pods that the backup does not have are ended by their nodes."
    )]
    Restore(ApiRestoreArgs),
    /// Look whether the store is whole, also while a server uses it
    #[command(
        after_help = "Exit code 1 if something is damaged: restore a backup, or delete the objects that are named."
    )]
    Check(ApiCheckArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ApiBackupArgs {
    /// The file to make
    #[arg(value_name = "FILE", value_parser = paths::parser())]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) data_dir: DataDirArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ApiRestoreArgs {
    /// The backup
    #[arg(value_name = "FILE", value_parser = paths::parser())]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) data_dir: DataDirArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ApiCheckArgs {
    #[command(flatten)]
    pub(crate) data_dir: DataDirArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ApiKubeconfigArgs {
    /// The name of the node
    #[arg(long, value_name = "NAME", value_parser = parse_node_name)]
    pub(crate) node: String,
    /// Where the node reaches the API; by default where the server's own machine does
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
    #[command(flatten)]
    pub(crate) data_dir: DataDirArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ApiBootstrapKubeconfigArgs {
    /// Where nodes reach the API; by default where the server's own machine does
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// For how many days it can be used
    #[arg(long, value_name = "DAYS", default_value = "1", value_parser = clap::value_parser!(i16).range(1..=365))]
    pub(crate) days: i16,
    #[command(flatten)]
    pub(crate) data_dir: DataDirArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ApiServeArgs {
    /// Where to listen
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6443")]
    pub(crate) listen: SocketAddr,
    /// Whose rules apply to Pods
    #[arg(long, value_name = "PROFILE", default_value = "pulselet")]
    pub(crate) profile: ProfileArg,
    /// Bind pods that name no node to one; without it that is left to a scheduler
    #[arg(long)]
    pub(crate) bind_pods: bool,
    /// Record who changed what and who was refused in this file, as lines of JSON; it is put aside when it is full
    #[arg(long, value_name = "FILE", value_parser = paths::parser())]
    pub(crate) audit_log: Option<PathBuf>,
    /// What is recorded there, as a Policy of audit.k8s.io/v1; without it changes and refusals are, without what was sent
    #[arg(long, value_name = "FILE", value_parser = paths::parser(), requires = "audit_log")]
    pub(crate) audit_policy_file: Option<PathBuf>,
    /// Begin with an empty store although one was there, which is put aside; every pod that it knew is ended
    #[arg(long)]
    pub(crate) new_store: bool,
    /// Keep the objects in this etcd cluster instead of a file, for API servers in more than one copy
    #[arg(long, value_name = "etcd://HOST:PORT,...")]
    pub(crate) store: Option<EtcdConfig>,
    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,
    #[command(flatten)]
    pub(crate) data_dir: DataDirArgs,
    #[command(flatten)]
    pub(crate) gates: GateArgs,
}

/// How etcd is spoken to, in the words of kube-apiserver.
#[derive(Debug, Args)]
pub(crate) struct EtcdArgs {
    /// The authority of etcd's certificates, in PEM; without it etcd is spoken to in plain text
    #[arg(long = "etcd-cafile", value_name = "FILE", value_parser = paths::parser(), requires = "store")]
    pub(crate) cafile: Option<PathBuf>,
    /// The certificate with which the server comes to etcd, in PEM
    #[arg(long = "etcd-certfile", value_name = "FILE", value_parser = paths::parser(), requires = "cafile", requires = "keyfile")]
    pub(crate) certfile: Option<PathBuf>,
    /// Its key, in PEM
    #[arg(long = "etcd-keyfile", value_name = "FILE", value_parser = paths::parser(), requires = "certfile")]
    pub(crate) keyfile: Option<PathBuf>,
    /// What the keys in etcd begin with
    #[arg(long = "etcd-prefix", value_name = "PREFIX", default_value = EtcdConfig::PREFIX, value_parser = parse_prefix, requires = "store")]
    pub(crate) prefix: String,
    /// For how long etcd keeps the past at least; 0 leaves forgetting to others
    #[arg(long = "etcd-compaction-interval", value_name = "DURATION", default_value = "5m", value_parser = parse_interval, requires = "store")]
    pub(crate) compaction_interval: Duration,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    parse_span(text).map(Duration::from)
}

fn parse_prefix(text: &str) -> Result<String, String> {
    let is_path = text.starts_with('/') && text.len() > 1 && !text.ends_with('/') && !text.contains("//");
    if is_path {
        Ok(text.to_owned())
    } else {
        Err("a prefix begins with a slash and does not end with one, for example /pulselet".to_owned())
    }
}
