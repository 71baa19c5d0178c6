//! The runtime against a real kernel. All of it needs root.

mod addresses;
mod adoption;
mod app_armor;
mod bridge_guard;
mod cni;
mod crash;
mod escapes;
mod exec;
mod faults;
mod host_image;
mod image_volumes;
mod images;
mod isolation;
mod lifecycle;
mod limits;
mod network;
mod pod_cgroups;
mod restored;
mod security_fields;
mod services;
mod spoofing;
mod world;
mod wounds;
