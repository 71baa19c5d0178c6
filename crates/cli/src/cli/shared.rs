//! Flags that several commands have.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pulselet_model::gates::GateError;
use pulselet_model::{GateSet, Profile};

use crate::output::Format;
use crate::paths;
use crate::runtime::RuntimeChoice;

#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: Format,
}

/// Flags of every command that takes feature gates.
#[derive(Debug, Args)]
pub(crate) struct GateArgs {
    /// Turn feature gates on or off, such as SubSecondProbes=false; all are on by default
    #[arg(
        long,
        value_name = "A=true,B=false",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) feature_gates: GateSet,
}

/// Flags of every command that acts as a node.
#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// The node's settings, as YAML; flags win over it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<String>,
    /// Turn the node's feature gates on or off, such as SubSecondProbes=false; all are on by default
    #[arg(long, value_name = "A=true,B=false", value_parser = parse_gates)]
    pub(crate) feature_gates: Option<String>,
}

/// Flags of every command that needs the agent's directory.
#[derive(Debug, Args)]
pub(crate) struct DataDirArgs {
    /// Where the agent keeps its state, logs and socket; by default /var/lib/pulselet, and pulselet in
    /// `$XDG_STATE_HOME` for other users than root
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

/// Who makes the networks of pods.
#[derive(Debug, Args)]
pub(crate) struct CniArgs {
    /// A directory of CNI configurations: their plugins connect the pods of `--runtime oci`, instead of the built-in
    /// bridge
    #[arg(long, value_name = "DIR", value_parser = paths::parser())]
    pub(crate) cni_conf_dir: Option<PathBuf>,
    /// Where CNI plugins are, separated by colons
    #[arg(
        long,
        value_name = "DIRS",
        value_delimiter = ':',
        value_parser = paths::parser(),
        default_value = "/opt/cni/bin:/usr/lib/cni",
        requires = "cni_conf_dir"
    )]
    pub(crate) cni_bin_dir: Vec<PathBuf>,
}

/// Flags of every command that runs containers.
#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    /// What containers are: `oci` (containers of images), `process` (plain host processes, no isolation),
    /// `unix:///PATH` (those of a CRI server, containerd or CRI-O, that listens there), or `auto` (those of a CRI server
    /// where one answers at a usual place, else `oci`)
    #[arg(long, value_name = "RUNTIME", default_value = "oci")]
    pub(crate) runtime: RuntimeChoice,
    #[command(flatten)]
    pub(crate) cni: CniArgs,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}

/// Checks gate settings without applying them: what they are applied to is known later.
pub(super) fn parse_gates(settings: &str) -> Result<String, GateError> {
    GateSet::default().apply(settings)?;
    Ok(settings.to_owned())
}

/// Whose rules a manifest is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileArg {
    /// Upstream's rules and the fields that only Pulselet has
    Pulselet,
    /// Exactly what a Kubernetes v1.36 API server answers
    Kubernetes,
}

impl From<ProfileArg> for Profile {
    fn from(profile: ProfileArg) -> Self {
        match profile {
            ProfileArg::Pulselet => Self::Pulselet,
            ProfileArg::Kubernetes => Self::Kubernetes,
        }
    }
}
