//! What the server promises, from its store up to real clients.

mod audit;
mod client;
mod crowding;
mod harness;
mod hostile_node;
mod kubectl;
mod modes;
mod nodes;
mod restriction;
mod revocation;
mod store;
mod wire;
