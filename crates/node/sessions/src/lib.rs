//! Exec, attach and port-forward, from a client's streams to a runtime's containers, whatever protocol the streams come by.
//!
//! Who has agreed on a protocol with a client (`streaming::negotiate`) and has the connection gives both to [`run_command`]
//! or [`forward_ports`]. These return when the client or the command has ended.
//!
//! What must always hold: a client that leaves takes its command with it; what waits for a slow reader is bounded.
//!
//! Left to others: the request, who may ask, and how many sessions there may be (the endpoints); how bytes become streams
//! (`streaming`); how a command is run (a runtime).

mod command;
mod forward;
mod status;

pub use command::{SessionStart, WantedStreams, run_command};
pub use forward::{ForwardTarget, forward_ports};
