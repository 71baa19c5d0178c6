//! Pods run for real, through the command, judged by the event lines it prints.
//!
//! A test waits for lines, never for time to pass. What it says about time are bounds that hold on a loaded machine:
//! lower ones, which the agent's own clock guarantees, and generous upper ones.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod acting;
mod bad_input;
pub(crate) mod browser;
mod cgroups;
mod commands;
mod copied;
mod cri;
mod dashboard;
mod durability;
mod everyday;
mod exec;
mod handlers;
pub(crate) mod harness;
mod hooks;
mod killing;
mod live;
mod log;
mod names;
mod node;
mod paths;
mod pod_fields;
mod probing;
mod proposals;
mod reset;
mod restarting;
mod shutdown;
mod signals;
mod simulated;
mod survival;
mod ticks;
mod trouble;
pub(crate) mod world;
