//! `pulselet man`: the manual pages, one per command, from the same definitions as the help. Packages are made with it.

use clap::CommandFactory as _;

use crate::cli::{Cli, ManArgs};
use crate::exit::{Exit, Failure};

pub(crate) fn run(args: &ManArgs) -> Result<Exit, Failure> {
    let directory = &args.directory;
    clap_mangen::generate_to(Cli::command(), directory).map_err(|error| {
        Failure::usage(format_args!(
            "cannot write manual pages to {}: {error}",
            directory.display()
        ))
    })?;
    Ok(Exit::Done)
}
