//! Built-in containers: images, root file systems, namespaces, cgroups and networks, with nothing but the kernel.
//!
//! There are two halves, in two processes. The agent's half decides and keeps records; the container itself is made by
//! its [shim](pulselet_shim), a process with one thread, by plain system calls. There is no runtime program in between:
//! an exec process costs three forks, not a new program that reads its configuration again.
//!
//! Where to start:
//! - in the agent, [`OciRuntime`]; `spec_builder` turns a pod's container and its image into a `spec`, and `sandbox`,
//!   `network` and `cni` make what a pod's containers share;
//! - in the shim, [`shim_main`]; `init_process` and `exec_process` fork a container's processes, and both send them
//!   through the same `confinement`, of which `rootfs`, `user`, `capability` and `seccomp` are the parts.
//!
//! What always holds:
//! - Nothing of a container is mounted on the host. Its files are in its directory and in a mount namespace that goes
//!   with its last process.
//! - A container without a shim does not run: the kernel kills its init process with the shim, and all others with the
//!   init process.
//! - What a sandbox has on the host (pins of namespaces, a link, cgroups, an address) is named after it, and its record
//!   is written first: the next agent finds all of it, whenever the last one was killed.
//! - Programs of a container never run with more rights than its configuration gives, from their first instruction on,
//!   and no process with more rights than a container's is visible from inside it.
//!
//! What is left to others: storing and pulling images (`pulselet-image`), logs, stops and supervision (`pulselet-shim`),
//! records and adoption (`pulselet-shim-client`), and every policy (the node).
//!
//! It needs root and Linux 5.12 or newer, which `kernel_floor` checks.

mod app_armor;
mod bare_mounts;
mod capability;
mod cni;
mod confinement;
mod exec_process;
#[doc(hidden)]
pub mod fuzzing;
mod host_image;
mod image;
mod init_process;
mod kernel_floor;
mod mount_table;
mod network;
mod oom_score;
mod pause_process;
mod place;
mod program;
mod rootfs;
mod runtime;
mod sandbox;
mod seccomp;
mod shim;
mod shim_program;
mod spec;
mod spec_builder;
mod start_report;
mod terminal;
mod user;
mod user_ids;

pub use cni::CniOptions;
pub use host_image::{HOST_IMAGE, announce_data_dir, forget_data_dir};
pub use image::images_in_use;
pub use network::{InvalidSubnet, NetworkOptions, PodNetwork, ServiceRulesError, Subnet};
pub use pulselet_shim_client::{ShimCommand, live_original};
pub use runtime::{OciOpenError, OciOptions, OciRuntime};
pub use shim::shim_main;
