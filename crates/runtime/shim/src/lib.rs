//! The shim: the small process that is the parent of one container's init process and outlives the agent.
//!
//! It has one thread, a poll loop and no async runtime. It writes the container's log, carries out stops with their
//! deadlines, runs exec processes in the container, and records how the init process ended.
//!
//! Where to start: [`run`] turns a process into a shim. How a container's processes are made is given to it as a
//! [`Launcher`]. The agent talks to a shim over a socket in the container's directory ([`protocol`]) and reads what it
//! wrote there ([`record`]); the agent's side of both is the crate `pulselet-shim-client`.
//!
//! What always holds:
//! - The exit is on disk before it is reported, and it is reported only when nothing of the container runs any more.
//!   (A disk that refuses is tried again, and a process the kernel cannot kill is waited for; neither keeps the agent
//!   waiting for long.)
//! - Nothing outlives the init process. All its descendants are descendants of the shim, a subreaper, and are killed
//!   until none is left.
//! - A stop goes on without the agent, and can be shortened, never lengthened.
//! - The shim ends when its container has ended, not before: it cannot be asked to leave. If it is killed all the
//!   same, the kernel kills the init process, and the missing record means [`exit_code::UNKNOWN`] to the agent.
//!
//! What is left to others: how the init process is made and how an exec process enters its surroundings are the
//! launcher's business; when to start, stop and restart is the node's.
//!
//! [`exit_code::UNKNOWN`]: pulselet_runtime::exit_code::UNKNOWN

mod connection;
mod daemon;
mod exec_streams;
mod exec_supervisor;
mod exit_status;
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod init_streams;
mod launcher;
mod log_file;
mod poll_wait;
mod process_streams;
mod process_tree;
pub mod protocol;
pub mod record;
mod shim;
mod starter;
mod stdin_queue;
mod terminal;

pub use daemon::{ShimConfig, detach, run};
pub use exit_status::exit_code_of;
pub use handshake::{Handshake, refuse, report};
pub use launcher::{ChildStreams, LaunchError, Launcher, reason};
pub use log_file::{LOG_FILE_SIZE, LOG_FILES};
pub use process_tree::processes_with_variable;
pub use starter::{SHIM_NAME, STARTER_VARIABLE, StartRequest, is_starter, serve_starts};
