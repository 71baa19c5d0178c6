//! Built-in containers: images, root file systems, namespaces, cgroups and networks, with nothing but the kernel.
//!
//! The agent's part ([`OciRuntime`]) decides and keeps records; the container itself is made by its
//! [shim](pulselet_shim), a process with one thread, by plain system calls. There is no runtime program in
//! between: a command beside the main process costs two forks, not a new program that reads its configuration again.
//!
//! What always holds:
//! - Nothing of a container is mounted on the host. Its files are in its directory and in a mount namespace that goes
//!   with its last process.
//! - A container without a shim does not run: the kernel kills its first process with the shim, and all others
//!   with the first.
//! - What a sandbox has on the host (pins of namespaces, a link, cgroups, an address) is named after it, and its record
//!   is written first: the next agent finds all of it, whenever the last one was killed.
//! - Programs of a container never run with more rights than its configuration gives, from their first instruction on.
//!
//! It needs root and Linux 5.12 or newer.

mod birth;
mod capability;
mod cgroup;
mod cni;
mod identity;
mod image;
mod launch;
mod launcher;
mod network;
mod pod_process;
mod program;
mod resolve;
mod rootfs;
mod runtime;
mod sandbox;
mod seal;
mod seccomp;
mod user;

pub use cni::CniOptions;
pub use image::{HOST_IMAGE, images_in_use};
pub use launcher::shim_main;
pub use network::{InvalidSubnet, NetworkOptions, Subnet};
pub use pulselet_shim_client::ShimCommand;
pub use runtime::{OciOpenError, OciOptions, OciRuntime};
