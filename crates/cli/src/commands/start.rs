//! `pulselet start`: runs pods again that were stopped.

use std::io::Write as _;

use crate::agent;
use crate::cli::StartArgs;
use crate::exit::{Exit, Failure};
use crate::output;

pub(crate) fn run(args: &StartArgs) -> Result<Exit, Failure> {
    let client = args.data.client()?;
    agent::small_executor()?.block_on(async {
        let mut out = output::stdout();
        for pod in &args.pods {
            client.start(pod).await?;
            output::written(writeln!(out, "pod {pod} started").and_then(|()| out.flush()))?;
        }
        Ok(Exit::Done)
    })
}
