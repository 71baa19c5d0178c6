//! What a Pod asks for, worked out once.
//!
//! - [`convert`](mod@convert) turns an admitted Pod into a [`blueprint`]: the engine's plan with the node's gates applied,
//!   what probes and hooks ask (`target`), its volumes ([`volume`]), and whether a node refuses it
//!   ([`refusal`](mod@refusal)), also for what it asks of a runtime's confinement ([`security`]);
//! - [`timing`] computes how long things take under that plan: what `explain` prints and the simulator checks;
//! - [`advice`] says where a manifest works against itself, and [`explain`](mod@explain) brings both together;
//! - [`config`] is the node's settings as a file, and [`duties`] those that are about a node's duties.
//!
//! Nothing here reads a file, a clock or the environment.

pub mod advice;
pub mod blueprint;
pub mod config;
pub mod convert;
pub mod duration;
pub mod duties;
pub mod explain;
pub mod refusal;
pub mod security;
pub mod storage;
mod target;
pub mod timing;
mod unserved;
pub mod volume;

pub use blueprint::{
    ContainerBlueprint, DeclaredResources, MessagePolicy, MountBlueprint, PodBlueprint, PullPolicy,
};
pub use config::{ConfigError, NodeConfig, parse_cluster_domain};
pub use convert::{PlanError, convert};
pub use duties::NodeDuties;
pub use explain::{Explanation, explain};
pub use refusal::{PodRefusal, RefusalReason, out_of, refusal};
pub use security::{
    Ability, AppArmorProfile, RecursiveReadOnly, app_armor_profile, container_refusal, refusal_without,
};
pub use storage::StorageLimit;
pub use target::{HookTarget, HostPort, HttpScheme, HttpTarget, ProbeTarget};
pub use volume::{ImageVolume, SizeLimit, VolumeBlueprint, VolumeKind, limit_bytes};
