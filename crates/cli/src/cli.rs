//! The command line: every flag, once, with its help.
//!
//! Help texts, completions and the reference are generated from these types. Each command has an example.

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::output::{ColorArg, Format};

/// Runs Kubernetes Pod manifests on this machine and keeps them healthy.
#[derive(Debug, Parser)]
#[command(name = "pulselet", version, propagate_version = false, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done, 1 the answer is no, 2 usage or unreadable input, 3 the environment is \
                        missing something, 130 interrupted."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Args)]
pub(crate) struct GlobalArgs {
    /// When to use colour; `NO_COLOR` is honoured
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        display_order = 900
    )]
    pub(crate) color: ColorArg,
    /// Say more on stderr; repeat for even more
    #[arg(short, long, global = true, action = clap::ArgAction::Count, display_order = 901)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  pulselet completion bash > /etc/bash_completion.d/pulselet")]
    Completion(CompletionArgs),
    /// Print the version
    #[command(after_help = "Example:\n  pulselet version -o json")]
    Version(VersionArgs),
}

#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: Format,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionArgs {
    /// The shell to complete for
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct VersionArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        for command in Cli::command()
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
        {
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(help.contains("Example"), "{} has no example", command.get_name());
        }
    }
}
