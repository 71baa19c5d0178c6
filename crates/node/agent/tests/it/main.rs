//! A node on a scripted runtime: what the agent does around the engine.

mod adoption;
mod annotation;
mod faults;
mod harness;
mod lateness;
mod lifecycle;
mod looks;
mod machine_shutdown;
mod manifests;
mod network_repairs;
mod objects;
mod observed;
mod owned;
mod power_cut;
mod pressure;
mod refusals;
mod resize;
mod security_fields;
mod socket;
mod trouble;
