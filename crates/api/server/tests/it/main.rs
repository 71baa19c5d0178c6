//! What the server promises, from its store up to real clients.

mod audit;
mod client;
mod crowding;
mod harness;
mod kubectl;
mod modes;
mod nodes;
mod restriction;
mod store;
mod wire;
