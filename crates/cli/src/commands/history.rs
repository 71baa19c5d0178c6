//! `pulselet history`: how containers ended and why, as a report or as event lines; the report ends with how containers are
//! probed and stopped now, because that is what the next end will go by.

mod report;

use std::io::{self, Write};

use pulselet_agent::control::ControlClientError;
use pulselet_agent::{Layout, PodView};

use super::probing;
use crate::agent;
use crate::cli::HistoryArgs;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};

pub(crate) fn run(args: &HistoryArgs) -> Result<Exit, Failure> {
    let executor = agent::small_executor()?;
    let lines = executor.block_on(fetch(args))?;
    let mut out = output::stdout();
    output::written(match args.output.output {
        Format::Json => out.write_all(lines.as_bytes()),
        Format::Text => {
            let pods = executor.block_on(present(args))?;
            print_text(&mut out, &lines, &pods, args.container.as_deref())
        }
    })?;
    output::written(out.flush())?;
    Ok(Exit::Done)
}

fn print_text(
    out: &mut impl Write,
    lines: &str,
    pods: &[PodView],
    container: Option<&str>,
) -> io::Result<()> {
    if lines.is_empty() {
        writeln!(out, "no container has ended")?;
    } else {
        report::print(out, lines)?;
    }
    probing::print(out, pods, container)
}

/// The chosen pods as they are now; none where no agent runs.
async fn present(args: &HistoryArgs) -> Result<Vec<PodView>, Failure> {
    let mut pods = match args.data.client()?.pods().await {
        Err(ControlClientError::Connect { .. }) => Vec::new(),
        answer => answer?,
    };
    let chosen = |pod: &PodView| args.pod.as_ref().is_none_or(|name| *name == pod.pod_name());
    pods.retain(chosen);
    Ok(pods)
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
