//! Probes, container lives and pods as pure state machines.
//!
//! A [`PodMachine`] is a value. [`PodMachine::handle`] takes an observation and the time, [`PodMachine::advance`] takes the time alone; both
//! write actions, transitions, event lines and Kubernetes events into an [`Outbox`], and [`PodMachine::next_deadline`] says when
//! to come back. Nothing here awaits, locks, spawns, reads a clock or does IO, so the code that the simulator proves is the
//! code that runs. The same inputs give the same outputs, and the whole state can be written down and read back.
//!
//! Left to others: what a manifest means (`plan`), how an action is carried out (`node`), what a runtime is.

mod backoff;
mod container;
pub mod event;
mod hook;
pub mod io;
pub mod line;
pub mod plan;
mod pod;
mod pods;
pub mod pressure;
pub mod probe_runner;
pub mod schedule;
mod scope;
pub mod status;
mod summary;
pub mod termination;
pub mod time;
pub mod transition;
pub mod worker;

pub use io::{Action, AfterShutdown, Input, LifeKey, Outbox};
pub use line::{Line, LineBody, LineRecord};
pub use plan::{PodPlan, Settings};
pub use pod::{Identity, PodMachine};
pub use pods::{PodKey, Pods};
pub use pressure::{PressureChange, ProbePressure};
pub use status::PodReport;
pub use time::{Span, Time};
pub use transition::Transition;
