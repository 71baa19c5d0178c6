//! `pulselet restart`: gives containers another life, in the pod they are in.

use std::io::Write as _;

use crate::agent;
use crate::cli::RestartArgs;
use crate::exit::{Exit, Failure};
use crate::output;

pub(crate) fn run(args: &RestartArgs) -> Result<Exit, Failure> {
    let client = args.data.client()?;
    let pod = &args.pod;
    let restarted = agent::small_executor()?.block_on(client.restart(pod, args.container.as_deref()))?;
    let containers = if restarted == 1 { "container" } else { "containers" };
    let mut out = output::stdout();
    let text = writeln!(out, "pod {pod}: {restarted} {containers} restarting");
    output::written(text.and_then(|()| out.flush()))?;
    Ok(Exit::Done)
}
