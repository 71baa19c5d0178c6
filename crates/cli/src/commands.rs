//! One module per command. Each has one entry, `run`, that takes its parsed arguments.

mod api;
mod check;
mod completion;
mod cri;
mod dashboard;
mod demo;
mod exec;
mod explain;
mod history;
mod image;
mod logs;
mod man;
mod node;
mod probing;
mod ps;
mod reset;
mod restart;
mod run;
mod serve;
mod simulate;
mod start;
mod stop;
mod table;
mod top;
mod version;

use crate::cli::{Cli, Command};
use crate::exit::{Exit, Failure};

pub(crate) use demo::parse_age;
pub(crate) use image::open_store;
pub(crate) use simulate::parse_span;

pub(crate) fn run(cli: Cli) -> Result<Exit, Failure> {
    match cli.command {
        Command::Api(args) => api::run(&args, cli.global.verbose),
        Command::Check(args) => check::run(&args, cli.global.verbose),
        Command::Completion(args) => completion::run(&args),
        Command::Cri(args) => cri::run(&args, cli.global.verbose),
        Command::Dashboard(args) => dashboard::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Exec(args) => exec::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::History(args) => history::run(&args),
        Command::Image(args) => image::run(&args),
        Command::Logs(args) => logs::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Node(args) => node::run(&args, cli.global.verbose),
        Command::Ps(args) => ps::run(&args),
        Command::Reset(args) => reset::run(&args),
        Command::Restart(args) => restart::run(&args),
        Command::Run(args) => run::run(&args, cli.global.verbose),
        Command::Serve(args) => serve::run(&args, cli.global.verbose),
        Command::Simulate(args) => simulate::run(&args),
        Command::Start(args) => start::run(&args),
        Command::Stop(args) => stop::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Version(args) => version::run(&args),
    }
}
