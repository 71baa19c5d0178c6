//! `pulselet completion`: generated from the same definitions as the help.

use std::io::Write;

use clap::CommandFactory;

use crate::cli::{Cli, CompletionArgs};
use crate::exit::{Exit, Failure};
use crate::output;

pub(crate) fn run(args: &CompletionArgs) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "pulselet", &mut script);
    let mut stdout = output::stdout();
    output::written(stdout.write_all(&script).and_then(|()| stdout.flush()))?;
    Ok(Exit::Done)
}
