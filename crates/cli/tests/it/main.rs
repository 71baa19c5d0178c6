//! Tests of the command as users run it, and of the project as a whole.

mod api;
mod architecture;
mod check;
mod command;
mod corpora;
mod cri;
mod docs;
mod e2e;
mod explain;
mod floors;
mod image;
mod package;
mod recorded;
mod registry_mirrors;
mod serve;
mod simulate;
mod workloads;
