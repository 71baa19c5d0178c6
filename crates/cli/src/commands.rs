//! One module per command. Each has one entry, `run`, that takes its parsed arguments.

mod check;
mod completion;
mod demo;
mod explain;
mod simulate;
mod version;

use crate::cli::{Cli, Command};
use crate::exit::{Exit, Failure};

pub(crate) use demo::parse_age;
pub(crate) use simulate::parse_span;

pub(crate) fn run(cli: Cli) -> Result<Exit, Failure> {
    match cli.command {
        Command::Check(args) => check::run(&args, cli.global.verbose),
        Command::Completion(args) => completion::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Version(args) => version::run(&args),
    }
}
