//! Being asked to end: Ctrl-C, a service manager's SIGTERM, a terminal that went away.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Failure;

/// The signals that ask a command to end.
#[derive(Debug)]
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Interrupts {
    /// From now on these signals no longer kill the process.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let listen = || -> io::Result<Self> {
            Ok(Self {
                interrupt: signal(SignalKind::interrupt())?,
                terminate: signal(SignalKind::terminate())?,
                hangup: signal(SignalKind::hangup())?,
            })
        };
        listen().map_err(|error| Failure::environment(format_args!("cannot listen for signals: {error}")))
    }

    /// The next request to end. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}
