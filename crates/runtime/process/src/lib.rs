//! Containers as plain host processes, for machines without containers and for tests.
//!
//! Where to start: [`ProcessRuntime`] in the agent, [`shim_main`] in a container's shim.
//!
//! A container is the child of a [shim](pulselet_shim) of its own and sees the host as it is: its files, its
//! network, its users. From the pod come the command, arguments, variables, working directory, user, groups and
//! `no_new_privs`; the image, resource limits and the rest of the security context are not used. The pod's address is
//! 127.0.0.1.
//!
//! Volumes cannot be mounted where the pod says. Instead each is a symbolic link, named as the volume, in the `volumes`
//! directory of the pod's sandbox, and the container finds the path behind it in `PULSELET_VOLUME_<NAME>`: the
//! volume's name in capitals, what is neither letter nor digit replaced by `_`. If a container mounts a volume several
//! times with different sub-paths, the further ones are `PULSELET_VOLUME_<NAME>_2` and so on.
//! `PULSELET_CONTAINER_ID` is set too; by it the processes of a lost shim are found.
//!
//! Everything is kept in directories below one root, and the shims live on without the agent: a new
//! [`ProcessRuntime`] on the same root finds all that was there (see [`pulselet_shim_client`]).
//!
//! What is left to others: isolation of any kind is not attempted here; records, events and adoption are
//! [`pulselet_shim_client`]'s, logs and stops the shim's.

mod cgroup;
mod host_launcher;
mod runtime;
mod validate;

pub use host_launcher::{CONTAINER_ID_VARIABLE, shim_main};
pub use pulselet_shim_client::{OpenShimsError, ShimCommand};
pub use runtime::ProcessRuntime;
