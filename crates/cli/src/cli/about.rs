//! The flags of the commands that are about the program itself.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

use super::shared::OutputArgs;
use crate::paths;

#[derive(Debug, Args)]
pub(crate) struct CompletionArgs {
    /// The shell to complete for
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Where to, a directory that is there
    #[arg(value_name = "DIR", value_parser = paths::parser())]
    pub(crate) directory: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct VersionArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
