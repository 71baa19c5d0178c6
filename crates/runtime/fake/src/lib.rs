//! A runtime that runs nothing: containers live and die by a script, and every verb can be made to fail.
//!
//! For tests of whoever drives a runtime. It keeps the promises of [`Runtime`](pulselet_runtime::Runtime) as the real
//! ones do: objects outlive their callers (clones of a [`FakeRuntime`] are the same runtime, so a driver can be dropped
//! and made anew), stops can be shortened, what is gone can be removed.
//!
//! Time is tokio's, so a test with a paused clock takes none. All chance comes from the seed of [`Faults`]; with the same
//! seed and the same order of calls the same ones fail.

mod faults;
mod life;
mod runtime;
mod script;
mod state;
mod streams;

pub use faults::Faults;
pub use runtime::FakeRuntime;
pub use script::{ExecAnswer, ImageScript, LifeScript, StartScript};
