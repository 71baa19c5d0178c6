//! The command line: every flag, once, with its help.
//!
//! Help texts, completions and the reference are generated from these types. Each command has an example.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use pulselet_api::gates::GateError;
use pulselet_api::{GateSet, Profile};
use pulselet_engine::time::Span;

use crate::output::{ColorArg, Format};

/// Runs Kubernetes Pod manifests on this machine and keeps them healthy.
#[derive(Debug, Parser)]
#[command(name = "pulselet", version, propagate_version = false, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done, 1 the answer is no, 2 usage or unreadable input, 3 the environment is \
                        missing something, 130 interrupted."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Args)]
pub(crate) struct GlobalArgs {
    /// When to use colour; `NO_COLOR` is honoured
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        display_order = 900
    )]
    pub(crate) color: ColorArg,
    /// Say more on stderr; repeat for even more
    #[arg(short, long, global = true, action = clap::ArgAction::Count, display_order = 901)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Say whether manifests would be admitted, and what is wrong with those that would not
    #[command(
        after_help = "Examples:\n  pulselet check pod.yaml\n  pulselet check --profile kubernetes -o json - < pods.json"
    )]
    Check(CheckArgs),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  pulselet completion bash > /etc/bash_completion.d/pulselet")]
    Completion(CompletionArgs),
    /// Run a small server that starts slowly, hangs, fails or leaves when told to
    #[command(after_help = "Examples:\n  pulselet demo --port 8080 --start-after 20s\n  \
                            pulselet demo --port 8080 --deadlock-at 1m --ignore SIGTERM")]
    Demo(DemoArgs),
    /// Say what timing a manifest implies: start-up budget, detection, time to kill, and what to improve
    #[command(
        after_help = "Examples:\n  pulselet explain pod.yaml\n  pulselet explain pod.yaml --config node.yaml -o json"
    )]
    Explain(ExplainArgs),
    /// Run a manifest on a virtual clock and tell what happens
    #[command(
        after_help = "Examples:\n  pulselet simulate pod.yaml --scenario deadlock.yaml --for 1h\n  \
                            pulselet simulate pod.yaml --scenario deadlock.yaml -o html > timeline.html"
    )]
    Simulate(SimulateArgs),
    /// Print the version
    #[command(after_help = "Example:\n  pulselet version -o json")]
    Version(VersionArgs),
}

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

/// Checks gate settings without applying them: what they are applied to is known later.
fn parse_gates(settings: &str) -> Result<String, GateError> {
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

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Manifests: YAML, JSON or a stream of JSON objects; `-` is stdin
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<String>,
    /// Whose rules apply
    #[arg(long, value_name = "PROFILE", default_value = "pulselet")]
    pub(crate) profile: ProfileArg,
    #[command(flatten)]
    pub(crate) gates: GateArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionArgs {
    /// The shell to complete for
    pub(crate) shell: Shell,
}

/// All ages count from the start of the process.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Where to answer http, gRPC health checks and plain connections; without it nothing listens
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// Speak TLS, with a certificate made for this run
    #[arg(long)]
    pub(crate) tls: bool,
    /// Answer every http request with a redirect to this address
    #[arg(long, value_name = "URL")]
    pub(crate) redirect_to: Option<String>,
    /// A file that is there while the demo is healthy, for exec probes
    #[arg(long, value_name = "PATH")]
    pub(crate) health_file: Option<PathBuf>,
    /// Listen only from this age on
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = crate::commands::parse_age)]
    pub(crate) start_after: Duration,
    /// From this age on answer that it is not well
    #[arg(long, value_name = "DURATION", value_parser = crate::commands::parse_age)]
    pub(crate) fail_at: Option<Duration>,
    /// From this age on take connections and never answer
    #[arg(long, value_name = "DURATION", value_parser = crate::commands::parse_age)]
    pub(crate) deadlock_at: Option<Duration>,
    /// From this age on be well again
    #[arg(long, value_name = "DURATION", value_parser = crate::commands::parse_age)]
    pub(crate) recover_at: Option<Duration>,
    /// Leave at this age
    #[arg(long, value_name = "DURATION", value_parser = crate::commands::parse_age)]
    pub(crate) exit_at: Option<Duration>,
    /// The exit code when leaving at an age
    #[arg(long, value_name = "CODE", default_value_t = 0)]
    pub(crate) exit_code: u8,
    /// How long it takes from a signal to the exit
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = crate::commands::parse_age)]
    pub(crate) stop_in: Duration,
    /// Do not leave on this signal; may be repeated
    #[arg(long, value_name = "SIGNAL")]
    pub(crate) ignore: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Manifests: YAML, JSON or a stream of JSON objects; `-` is stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: String,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// A manifest with exactly one Pod: YAML or JSON; `-` is stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: String,
    /// How the containers behave, as YAML; without it all are healthy from their start
    #[arg(long, value_name = "FILE")]
    pub(crate) scenario: Option<String>,
    /// How long to simulate, such as 90s or 1h; without it until nothing more happens, 24h at most
    #[arg(long = "for", value_name = "DURATION", value_parser = crate::commands::parse_span)]
    pub(crate) duration: Option<Span>,
    /// What every random choice is made from
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: SimulateFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SimulateFormat {
    /// A timeline to read, with runs of equal probes folded
    Text,
    /// Event lines, one JSON object each
    Json,
    /// A drawing
    Svg,
    /// A page with the drawing, to hover over and to zoom
    Html,
}

#[derive(Debug, Args)]
pub(crate) struct VersionArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        for command in Cli::command()
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
        {
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(help.contains("Example"), "{} has no example", command.get_name());
        }
    }
}
