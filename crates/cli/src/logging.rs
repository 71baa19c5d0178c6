//! The agent's log: diagnostics for operators, on stderr or wherever a live view puts them.

use std::io;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Says what is logged, in the words of `tracing-subscriber`'s filters; wins over `-v`.
const VARIABLE: &str = "PULSELET_LOG";

/// Libraries that tell every frame and every wakeup of a connection. Whoever looks for their mistakes names them in
/// [`VARIABLE`].
const TALKATIVE: [&str; 6] = ["h2", "hyper", "hyper_util", "rustls", "tonic", "tower"];

/// How much a command logs without `-v`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Quietness {
    /// The command itself prints what happens; the log has what nobody could expect.
    Foreground,
    /// The log is all there is.
    Daemon,
}

impl Quietness {
    fn level(self, verbose: u8) -> &'static str {
        match (self, verbose) {
            (Self::Foreground, 0) => "error",
            (Self::Foreground, 1) => "warn",
            (Self::Foreground, 2) | (Self::Daemon, 0) => "info",
            (Self::Foreground, 3) | (Self::Daemon, 1) => "debug",
            (Self::Foreground | Self::Daemon, _) => "trace",
        }
    }
}

/// Begins to log. A process does that once.
pub(crate) fn start<W>(quietness: Quietness, verbose: u8, writer: W)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_from_env(VARIABLE)
        .unwrap_or_else(|_| EnvFilter::new(directives(quietness.level(verbose))));
    let colour = anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(colour)
        .with_target(false)
        .init();
}

/// Our own code at this level, libraries of the wire at info at most.
fn directives(level: &str) -> String {
    if !matches!(level, "debug" | "trace") {
        return level.to_owned();
    }
    let quiet = TALKATIVE.map(|library| format!("{library}=info"));
    format!("{level},{}", quiet.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_the_wire_stay_quiet() {
        assert_eq!(directives("info"), "info");
        let debug = directives(Quietness::Daemon.level(1));
        assert!(debug.starts_with("debug,h2=info,"), "{debug}");
        assert!(EnvFilter::try_new(directives(Quietness::Daemon.level(2))).is_ok());
    }
}
