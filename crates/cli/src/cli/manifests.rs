//! The flags of the commands that only read manifests: `check`, `explain` and `simulate`.

use clap::{Args, ValueEnum};
use pulselet_engine::time::Span;

use super::shared::{GateArgs, NodeArgs, OutputArgs, ProfileArg, parse_gates};

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Manifests: YAML, JSON or a stream of JSON objects; `-` is stdin
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<String>,
    /// Whose rules apply
    #[arg(long, value_name = "PROFILE", default_value = "pulselet")]
    pub(crate) profile: ProfileArg,
    /// Reject kinds that are otherwise skipped with a warning
    #[arg(long)]
    pub(crate) strict: bool,
    #[command(flatten)]
    pub(crate) gates: GateArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
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
    /// A manifest with exactly one Pod or workload: YAML or JSON; `-` is stdin
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
    /// Feature gates of the API alone, over those of --feature-gates
    #[arg(long, value_name = "A=true,B=false", value_parser = parse_gates)]
    pub(crate) api_feature_gates: Option<String>,
    /// Feature gates of the node alone, over those of --feature-gates
    #[arg(long, value_name = "A=true,B=false", value_parser = parse_gates)]
    pub(crate) node_feature_gates: Option<String>,
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
