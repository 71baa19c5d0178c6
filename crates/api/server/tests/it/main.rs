//! What the server promises, up to real clients.

mod access;
mod audit;
mod client;
mod copies;
mod crowding;
mod faults;
mod first_format;
mod harness;
mod hostile_node;
mod kinds;
mod kube_rs;
mod kubectl;
mod modes;
mod nodes;
mod proxy;
mod rbac;
mod restriction;
mod revocation;
mod service_ports;
mod signing;
mod templates;
mod wire;
