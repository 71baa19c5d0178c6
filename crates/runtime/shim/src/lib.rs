//! The shim: the small process that is the parent of one container's main process and outlives the agent.
//!
//! It has one thread, a poll loop and no async runtime. It writes the container's log, carries out stops with their
//! deadlines, runs commands in the container, and records how the main process ended. The agent talks to it over a
//! socket in the container's directory ([`protocol`]) and reads what it wrote there ([`record`]).
//!
//! What always holds:
//! - The exit is on disk before anybody is told of it, and told only when nothing of the container runs any more. (A
//!   disk that refuses is tried again, and a process the kernel cannot kill is waited for; neither keeps the agent
//!   waiting for long.)
//! - Nothing outlives the main process. All its descendants are descendants of the shim, a subreaper, and are killed
//!   until none is left.
//! - A stop goes on without the agent, and can be shortened, never lengthened.
//! - The shim ends when its container has ended, not before: it cannot be asked to leave. If it is killed all the
//!   same, the kernel kills the main process, and the missing record tells the agent: exit code 255.
//!
//! How the main process comes to be, and how a command enters its surroundings, is a [`Launcher`]'s business.

mod connection;
mod launch;
mod log_file;
mod output;
pub mod protocol;
pub mod record;
mod shim;
mod startup;
mod supervise;
mod terminal;
mod tree;

pub use launch::{ChildStreams, ExecCommand, LaunchError, Launcher};
pub use log_file::{LOG_FILE_SIZE, LOG_FILES};
pub use startup::{Handshake, ShimConfig, report, run};
pub use tree::processes_with_variable;
