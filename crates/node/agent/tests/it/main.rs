//! A node on a scripted runtime: what the agent does around the engine.

mod adoption;
mod faults;
mod harness;
mod lifecycle;
mod manifests;
mod objects;
mod owned;
mod power_cut;
mod refusals;
mod security_fields;
mod socket;
mod trouble;
