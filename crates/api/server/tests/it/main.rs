//! What the server promises, from its store up to real clients.

mod audit;
mod client;
mod crowding;
mod faults;
mod harness;
mod hostile_node;
mod kinds;
mod kubectl;
mod modes;
mod nodes;
mod power_cut;
mod restriction;
mod revocation;
mod store;
mod wire;
