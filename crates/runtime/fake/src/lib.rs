//! A runtime that runs nothing: containers live and die by a script, and every verb can be made to fail.
//!
//! It is for tests of whoever drives a runtime. Start with [`FakeRuntime`]; a [`LifeScript`] says what a container does,
//! an [`ImageScript`] what a pull does, and [`RuntimeFaults`] how often a verb fails.
//!
//! What always holds:
//! - It keeps the promises of [`Runtime`](pulselet_runtime::Runtime) as the real runtimes do: objects outlive their
//!   callers (clones of a [`FakeRuntime`] are the same runtime, so a driver can be dropped and made anew), stops can be
//!   shortened, and what is gone can be removed.
//! - Time is tokio's, so a test with a paused clock takes none.
//! - All chance comes from the seed of [`RuntimeFaults`]: with the same seed and the same order of calls the same ones
//!   fail.
//!
//! The crate leaves processes, files and networks to the real runtimes: nothing here touches the machine.

mod faults;
mod life;
mod runtime;
mod script;
mod state;
mod streams;

pub use faults::RuntimeFaults;
pub use runtime::FakeRuntime;
pub use script::{ExecAnswer, ImageScript, LifeScript, StartScript};
