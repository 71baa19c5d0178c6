//! Containers that have a shim, as the agent sees them: what the built-in runtimes have in common.
//!
//! Where to start: [`Shims`] keeps the sandboxes and containers below one root directory. It starts a
//! [shim](pulselet_shim) for each container, talks to it, watches for its end and publishes events. What is known is in
//! memory and follows what the shims report; files are read at the start and when a shim is silent.
//!
//! What always holds:
//! - Everything is in a file before it is reported, and the shims live on without the agent: a new [`Shims`] on the same
//!   root finds all that was there. After a power cut nothing of it runs: what is whole is found stopped, what is not
//!   is removed.
//! - A container's state goes forward only: created, running, exited. Its end is reported when it was observed.
//!
//! What is left to others: what a container is made of, and what it leaves outside of its directory, is its
//! [`ContainerKind`]'s business; so is what a sandbox means.

mod adopt;
mod client;
mod container;
mod container_kind;
mod elsewhere;
#[doc(hidden)]
pub mod fuzzing;
mod lifecycle;
mod sandboxes;
mod shims;
mod starter;
mod store;
mod streams;
mod stuck_shim;
mod validate;

pub use container_kind::ContainerKind;
pub use elsewhere::{LiveShims, live_original};
pub use lifecycle::detached;
pub use shims::{OpenShimsError, ShimCommand, Shims};
pub use store::{
    Assignment, CONTAINER_FILE, ContainerRecord, SANDBOX_FILE, SandboxRecord, container_records, sync_sandbox,
};
