//! `pulselet version`.

use std::io::Write;

use serde_json::json;

use crate::cli::VersionArgs;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};

/// The Kubernetes release whose API and kubelet we answer like.
const KUBERNETES_VERSION: &str = "v1.36";

pub(crate) fn run(args: &VersionArgs) -> Result<Exit, Failure> {
    let version = env!("CARGO_PKG_VERSION");
    let line = match args.output.output {
        Format::Text => format!("pulselet {version} (Kubernetes {KUBERNETES_VERSION})"),
        Format::Json => json!({"version": version, "kubernetes": KUBERNETES_VERSION}).to_string(),
    };
    let mut stdout = output::stdout();
    output::written(writeln!(stdout, "{line}").and_then(|()| stdout.flush()))?;
    Ok(Exit::Done)
}
