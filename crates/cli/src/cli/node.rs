//! The flags of the commands that run pods as a service: `node` and `serve`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;

use super::shared::{AgentArgs, ProfileArg, parse_gates};
use crate::paths;

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("source").args(["manifests", "kubeconfig", "bootstrap_kubeconfig"]).required(true).multiple(true))]
pub(crate) struct NodeCommandArgs {
    /// A directory of manifests: files that appear, change or go are followed
    #[arg(long, value_name = "DIR", value_parser = paths::parser())]
    pub(crate) manifests: Option<PathBuf>,
    /// Join the API server that this file names, ours or another
    #[arg(long, value_name = "FILE", value_parser = paths::parser())]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Join by asking the API server that this file names for certificates, which are kept and renewed
    #[arg(long, value_name = "FILE", value_parser = paths::parser(), conflicts_with = "kubeconfig")]
    pub(crate) bootstrap_kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) member: MemberArgs,
    /// Where to serve /healthz, /readyz and /metrics
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:10255")]
    pub(crate) metrics: String,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

/// Flags of every node that is joined to an API.
#[derive(Debug, Args)]
pub(crate) struct MemberArgs {
    /// What the node is called at the API; by default the name of this machine
    #[arg(long, value_name = "NAME", value_parser = parse_node_name)]
    pub(crate) node_name: Option<String>,
    /// Where the API reaches the node for logs and commands; port 0 is one that is free
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:10250")]
    pub(crate) node_listen: SocketAddr,
    /// A name server of the cluster, for pods whose `dnsPolicy` asks for it; up to three, or separated by commas. Wins over
    /// `clusterDNS` of the settings
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    pub(crate) cluster_dns: Vec<IpAddr>,
    /// Under which domain the names of services are; wins over `clusterDomain` of the settings, and is cluster.local if
    /// nobody says otherwise
    #[arg(long, value_name = "DOMAIN", value_parser = pulselet_plan::parse_cluster_domain)]
    pub(crate) cluster_domain: Option<String>,
}

/// A node's name is part of its credentials and of object names.
pub(crate) fn parse_node_name(name: &str) -> Result<String, &'static str> {
    let is_plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let fits = name.len() <= 253 && name.bytes().all(is_plain);
    if fits && edge(name.bytes().next()) && edge(name.bytes().last()) {
        Ok(name.to_owned())
    } else {
        Err("a node's name consists of lower case letters, digits, '-' and '.'")
    }
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Where the API listens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6443")]
    pub(crate) listen: SocketAddr,
    /// Whose rules apply to Pods
    #[arg(long, value_name = "PROFILE", default_value = "pulselet")]
    pub(crate) profile: ProfileArg,
    /// Record who changed what and who was refused in this file, as lines of JSON; it is put aside when it is full
    #[arg(long, value_name = "FILE", value_parser = paths::parser())]
    pub(crate) audit_log: Option<PathBuf>,
    /// What is recorded there, as a Policy of audit.k8s.io/v1; without it changes and refusals are, without what was sent
    #[arg(long, value_name = "FILE", value_parser = paths::parser(), requires = "audit_log")]
    pub(crate) audit_policy_file: Option<PathBuf>,
    /// A directory of manifests: static pods, which the API shows
    #[arg(long, value_name = "DIR", value_parser = paths::parser())]
    pub(crate) manifests: Option<PathBuf>,
    /// Begin with an empty store although one was there, which is put aside; every pod that it knew is ended
    #[arg(long)]
    pub(crate) new_store: bool,
    #[command(flatten)]
    pub(crate) member: MemberArgs,
    /// Where to serve the node's /healthz, /readyz and /metrics
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:10255")]
    pub(crate) metrics: String,
    /// Feature gates of the API alone, over those of --feature-gates
    #[arg(long, value_name = "A=true,B=false", value_parser = parse_gates)]
    pub(crate) api_feature_gates: Option<String>,
    /// Feature gates of the node alone, over those of --feature-gates
    #[arg(long, value_name = "A=true,B=false", value_parser = parse_gates)]
    pub(crate) node_feature_gates: Option<String>,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}
