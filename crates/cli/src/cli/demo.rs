//! The flags of `pulselet demo`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// All ages count from the start of the process.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Where to answer http, gRPC health checks and plain connections; without it nothing listens
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// Speak TLS, with a certificate made for this run
    #[arg(long)]
    pub(crate) tls: bool,
    /// Answer every http request with a redirect to this address
    #[arg(long, value_name = "URL")]
    pub(crate) redirect_to: Option<String>,
    /// A file that is there while the demo is healthy, for exec probes
    #[arg(long, value_name = "PATH")]
    pub(crate) health_file: Option<PathBuf>,
    /// Listen only from this age on
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = crate::commands::parse_age)]
    pub(crate) start_after: Duration,
    /// From this age on answer that it is not well
    #[arg(long, value_name = "DURATION", value_parser = crate::commands::parse_age)]
    pub(crate) fail_at: Option<Duration>,
    /// From this age on take connections and never answer
    #[arg(long, value_name = "DURATION", value_parser = crate::commands::parse_age)]
    pub(crate) deadlock_at: Option<Duration>,
    /// From this age on be well again
    #[arg(long, value_name = "DURATION", value_parser = crate::commands::parse_age)]
    pub(crate) recover_at: Option<Duration>,
    /// Leave at this age
    #[arg(long, value_name = "DURATION", value_parser = crate::commands::parse_age)]
    pub(crate) exit_at: Option<Duration>,
    /// The exit code when leaving at an age
    #[arg(long, value_name = "CODE", default_value_t = 0)]
    pub(crate) exit_code: u8,
    /// How long it takes from a signal to the exit
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = crate::commands::parse_age)]
    pub(crate) stop_in: Duration,
    /// Do not leave on this signal; may be repeated
    #[arg(long, value_name = "SIGNAL")]
    pub(crate) ignore: Vec<String>,
}
