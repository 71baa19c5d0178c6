//! A node on a scripted runtime, joined to a real API server in this process.

mod away;
mod binding;
mod certificates;
mod harness;
mod mirrors;
mod objects;
mod pods;
