//! The kernel's control groups, both versions of them.
//!
//! - [`Cgroup`]: one of them, in all hierarchies: limits, members, killing, accounts, removal;
//! - [`PodCgroups`]: the pods of a node, each below its class, with what they may use together;
//! - [`DeviceRule`]: which devices the processes of a container may open.
//!
//! Who makes what: a runtime makes the cgroups of its containers, the node those of its pods and tells the runtime where they
//! are. Everything that a node makes is below one cgroup, so that it stays within what was delegated to it.

mod apart;
mod cgroup;
mod device_access;
mod mounts;
mod pods;
mod settings;

pub use cgroup::{Cgroup, CgroupError, Hierarchies};
pub use device_access::{DeviceRule, rules as device_rules};
pub use pods::{PodCgroups, PodClaim, QosClass, is_of_node};
pub use settings::{MIN_SHARES, cpu_shares};
