//! What the server promises, from its store up to real clients.

mod access;
mod audit;
mod client;
mod copies;
mod crowding;
mod etcd;
mod faults;
mod harness;
mod hostile_node;
mod kinds;
mod kube_rs;
mod kubectl;
mod modes;
mod nodes;
mod power_cut;
mod proxy;
mod rbac;
mod restriction;
mod revocation;
mod service_ports;
mod signing;
mod store;
mod templates;
mod wire;
