//! The `pulselet` command: the composition root of the project.
//!
//! `cli` defines every flag, `commands` holds one module per command, `input` reads and judges manifests,
//! `diagnostics` explains what is wrong with them, `output` writes, `exit` knows the exit codes. Commands never print errors themselves and never leave
//! the process: they return, and `main` reports once.

mod cli;
mod commands;
mod diagnostics;
mod exit;
mod input;
mod node_config;
mod output;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::report_usage(&error).into(),
    };
    cli.global.color.apply();
    match commands::run(cli) {
        Ok(exit) => exit.into(),
        Err(failure) => failure.report().into(),
    }
}
