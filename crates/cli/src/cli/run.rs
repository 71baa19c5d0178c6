//! The flags of `pulselet run`.

use std::str::FromStr;
use std::time::Duration;

use clap::Args;

use super::shared::{AgentArgs, OutputArgs};

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Manifests: YAML, JSON or a stream of JSON objects; `-` is stdin
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<String>,
    /// Stop as soon as this holds, or can no longer hold, and say which: `ready` (all pods are ready at once, none has
    /// ended with an error), `stable=5s` (they stay so for that long, without a restart), `completed` (all have succeeded)
    #[arg(long, value_name = "WHAT")]
    pub(crate) wait: Option<WaitArg>,
    /// How long --wait waits
    #[arg(long, value_name = "DURATION", default_value = "60s", requires = "wait", value_parser = crate::commands::parse_age)]
    pub(crate) timeout: Duration,
    /// Hand the pods to the local agent and return
    #[arg(long, conflicts_with_all = ["wait", "metrics", "no_logs"])]
    pub(crate) detach: bool,
    /// Do not show what containers print; `pulselet logs` has it, also after the run
    #[arg(long)]
    pub(crate) no_logs: bool,
    /// Where to serve /healthz, /readyz and /metrics; without it nowhere
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// What `--wait` waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitArg {
    Ready,
    /// Ready for this long.
    Stable(Duration),
    Completed,
}

impl FromStr for WaitArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "ready" => Ok(Self::Ready),
            None if text == "completed" => Ok(Self::Completed),
            Some(("stable", lasting)) => crate::commands::parse_age(lasting).map(Self::Stable),
            None | Some(_) => Err("expected ready, stable=DURATION or completed".to_owned()),
        }
    }
}
