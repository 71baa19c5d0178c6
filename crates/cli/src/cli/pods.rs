//! The flags of the commands that look at and act on the pods of the local agent.

use std::time::Duration;

use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use pulselet_vocabulary::PodName;

use super::shared::{DataDirArgs, OutputArgs};
use crate::completing;
use crate::runtime::RuntimeChoice;

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// The pod: NAME or NAMESPACE/NAME
    #[arg(value_name = "POD", add = ArgValueCompleter::new(completing::pods))]
    pub(crate) pod: PodName,
    /// The container; not needed where the pod has only one
    #[arg(short, long, value_name = "NAME", add = ArgValueCompleter::new(completing::containers))]
    pub(crate) container: Option<String>,
    /// Pass stdin on
    #[arg(short = 'i', long)]
    pub(crate) stdin: bool,
    /// Give the command a terminal, with the size of this one
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", required = true, last = true)]
    pub(crate) command: Vec<String>,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
}

#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// Only this pod: NAME or NAMESPACE/NAME
    #[arg(value_name = "POD", add = ArgValueCompleter::new(completing::pods))]
    pub(crate) pod: Option<PodName>,
    /// Only this container
    #[arg(short, long, value_name = "NAME", add = ArgValueCompleter::new(completing::containers))]
    pub(crate) container: Option<String>,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "independent flags")]
pub(crate) struct LogsArgs {
    /// The pod: NAME or NAMESPACE/NAME
    #[arg(value_name = "POD", add = ArgValueCompleter::new(completing::pods))]
    pub(crate) pod: PodName,
    /// The container; not needed where the pod has only one
    #[arg(short, long, value_name = "NAME", add = ArgValueCompleter::new(completing::containers))]
    pub(crate) container: Option<String>,
    /// Those of all containers, each line with the name of its own
    #[arg(long, conflicts_with = "container")]
    pub(crate) all_containers: bool,
    /// Go on printing, through restarts, until the container does not run again
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// The life before the last restart
    #[arg(short, long)]
    pub(crate) previous: bool,
    /// Only the last N lines
    #[arg(long, value_name = "N")]
    pub(crate) tail: Option<usize>,
    /// Only what was written in the time before now, such as 10m
    #[arg(long, value_name = "DURATION", value_parser = crate::commands::parse_age)]
    pub(crate) since: Option<Duration>,
    /// Begin each line with its time
    #[arg(long)]
    pub(crate) timestamps: bool,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: PsFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PsFormat {
    Text,
    /// With address, ports, image, stop signal, period/timeout of every probe, and message
    Wide,
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct ResetArgs {
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
    /// The CRI server that has pods of the directory, where it is not at a usual place: `unix:///PATH`
    #[arg(long, value_name = "RUNTIME", default_value = "auto")]
    pub(crate) runtime: RuntimeChoice,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RestartArgs {
    /// The pod: NAME or NAMESPACE/NAME
    #[arg(value_name = "POD", add = ArgValueCompleter::new(completing::pods))]
    pub(crate) pod: PodName,
    /// Only this container
    #[arg(short, long, value_name = "NAME", add = ArgValueCompleter::new(completing::containers))]
    pub(crate) container: Option<String>,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
}

#[derive(Debug, Args)]
pub(crate) struct StartArgs {
    /// The pods: NAME or NAMESPACE/NAME
    #[arg(value_name = "POD", required = true, add = ArgValueCompleter::new(completing::pods))]
    pub(crate) pods: Vec<PodName>,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// The pods: NAME or NAMESPACE/NAME
    #[arg(value_name = "POD", required_unless_present = "all", conflicts_with = "all", add = ArgValueCompleter::new(completing::pods))]
    pub(crate) pods: Vec<PodName>,
    /// All pods
    #[arg(long)]
    pub(crate) all: bool,
    /// Forget them too; one whose file is still in the agent's --manifests directory comes back with it
    #[arg(long)]
    pub(crate) remove: bool,
    /// Seconds until they are killed; without it each pod's own
    #[arg(long, value_name = "SECONDS")]
    pub(crate) grace_period: Option<u64>,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Only this pod: NAME or NAMESPACE/NAME
    #[arg(value_name = "POD", add = ArgValueCompleter::new(completing::pods))]
    pub(crate) pod: Option<PodName>,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
