//! `pulselet history`: how containers ended and why, as a report or as event lines.

mod report;

use std::io::Write;

use pulselet_agent::Layout;
use pulselet_agent::control::ControlClientError;

use crate::agent;
use crate::cli::HistoryArgs;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};

pub(crate) fn run(args: &HistoryArgs) -> Result<Exit, Failure> {
    let lines = agent::small_executor()?.block_on(fetch(args))?;
    let mut out = output::stdout();
    output::written(match args.output.output {
        Format::Json => out.write_all(lines.as_bytes()),
        Format::Text if lines.is_empty() => writeln!(out, "no container has ended"),
        Format::Text => report::print(&mut out, &lines),
    })?;
    output::written(out.flush())?;
    Ok(Exit::Done)
}

/// The ends from the agent, or from its directory where no agent runs: what ended stays known.
async fn fetch(args: &HistoryArgs) -> Result<String, Failure> {
    let pod = args.pod.as_ref();
    let container = args.container.as_deref();
    match args.data.client()?.history(pod, container).await {
        Err(refused @ ControlClientError::Connect { .. }) => {
            let layout = Layout::new(args.data.resolve()?);
            let kept = pulselet_agent::kept_history(&layout, pod, container);
            kept.map_err(Failure::environment)?.ok_or_else(|| refused.into())
        }
        answer => Ok(answer?),
    }
}
