//! The `pulselet` command: the composition root of the project.
//!
//! `cli` defines every flag, `paths` makes those that are paths absolute, `commands` holds one module per command, `input`
//! reads and judges manifests, `diagnostics` explains what is wrong with them, `agent` starts a node and `runtime` what
//! it runs containers with, `copied` keeps both from the pods of another data directory, `output` writes, `completing` answers a shell, `exit` knows the exit codes. Commands never print errors themselves and never leave the process:
//! they return, and `main` reports once.

mod agent;
mod cli;
mod commands;
mod completing;
mod copied;
mod data_dir;
mod diagnostics;
mod exit;
mod input;
mod interrupt;
mod local_network;
mod logging;
mod membership;
mod node_config;
mod output;
mod paths;
mod runtime;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    if let Some(ended) = runtime::shim(std::env::args_os().skip(1)) {
        return ended;
    }
    completing::answer();
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::report_usage(&error).into(),
    };
    cli.global.color.apply();
    let _flush = logging::FlushAtExit;
    // Every TLS connection of this process uses the one provider.
    rustls::crypto::ring::default_provider()
        .install_default()
        .expect("nobody has installed another provider");
    match commands::run(cli) {
        Ok(exit) => exit.into(),
        Err(failure) => failure.report().into(),
    }
}
