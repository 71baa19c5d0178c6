//! The flags of `pulselet dashboard`.

use std::path::PathBuf;

use clap::Args;

use super::shared::DataDirArgs;
use crate::paths;

#[derive(Debug, Args)]
pub(crate) struct DashboardArgs {
    /// The port on 127.0.0.1; 0 is one that is free
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub(crate) port: u16,
    /// Open it in this machine's browser
    #[arg(long)]
    pub(crate) open: bool,
    /// Show the pods of the API server that this file names, ours or any other, as far as their status and events tell
    #[arg(long, value_name = "FILE", value_parser = paths::parser(), conflicts_with = "data_dir")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Which pods of the API: those of this namespace; by default that of the kubeconfig's context, else `default`
    #[arg(short, long, value_name = "NAME", requires = "kubeconfig", value_parser = parse_namespace)]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
}

/// The name of a namespace is part of addresses.
fn parse_namespace(name: &str) -> Result<String, &'static str> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (1..=63).contains(&name.len()) && name.bytes().all(is_plain) {
        Ok(name.to_owned())
    } else {
        Err("a namespace's name consists of lower case letters, digits and '-'")
    }
}
