//! The runtime against a real kernel. All of it needs root.

mod addresses;
mod adoption;
mod cni;
mod crash;
mod exec;
mod images;
mod isolation;
mod lifecycle;
mod limits;
mod network;
mod security_fields;
mod world;
