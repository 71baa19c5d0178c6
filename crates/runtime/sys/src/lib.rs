//! What the kernel offers and no safe library does: the only crate with unsafe code.
//!
//! Where to start: [`fork`] and [`Spawn`] make processes, [`become_user`], [`install_filter`] and
//! [`unshare_namespaces`] change what a process may do and see, [`send_signal`] and [`ChildSignals`] are about signals.
//!
//! What always holds: every function here is safe to call, and each unsafe block says why. Whatever rustix already does
//! safely is used directly by the crates that need it, not wrapped here.
//!
//! What is left to others: in which order a process gives up its rights is decided by the runtimes.

mod arguments;
mod bpf;
mod descriptors;
mod exec;
mod fork;
mod keyring;
mod memory;
mod mount;
mod namespace;
mod seccomp;
mod signal;
mod spawn;
mod user_namespace;

pub use arguments::{erase_arguments, find_arguments, replace_last_argument};
pub use bpf::{BpfInstruction, attach_device_filter};
pub use descriptors::{close_on_exec_from, work_with_one_descriptor, work_without_descriptors};
pub use exec::{exit_at_once, replace_process, reset_signals};
pub use fork::{Fork, SoleThread, fork, process_id};
pub use keyring::join_session_keyring;
pub use memory::{release_free_memory, release_unused_stack, share_memory_pools};
pub use mount::{MountAttributes, map_owners, set_mount_attributes};
pub use namespace::unshare_namespaces;
pub use rustix::process::Pid;
pub use seccomp::{FilterInstruction, install_filter};
pub use signal::{
    ChildSignals, block_termination, heed_children, ignore_children, send_signal, termination_is_pending,
};
pub use spawn::{ProcessCredentials, Spawn, become_user, own_files_as};
pub use user_namespace::NamespaceHolder;
