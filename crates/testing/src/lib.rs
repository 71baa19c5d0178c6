//! What tests of several crates share. Nothing of it is in the program.
//!
//! - [`requirement`]: what a test needs of the machine, and how it is reported when that is missing;
//! - [`busy_cpu`]: a processor that is busy for chosen processes alone;
//! - [`containers`]: small ways to look at containers that have a shim;
//! - [`containerd`]: a containerd of a test's own;
//! - [`etcd`]: an etcd cluster of a test's own;
//! - [`file_trace`]: what a process has written, and what of it a power cut would leave;
//! - [`image_archive`]: an image to run offline, made of Debian's static busybox;
//! - [`image_registry`]: a registry that has one image and writes down who asks;
//! - [`message_bus`]: a D-Bus daemon of a test's own.

pub mod busy_cpu;
pub mod containerd;
pub mod containers;
pub mod etcd;
pub mod file_trace;
pub mod image_archive;
pub mod image_registry;
pub mod message_bus;
pub mod requirement;

pub use requirement::{is_root, requires};
