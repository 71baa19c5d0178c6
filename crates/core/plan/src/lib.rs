//! What a Pod asks for, worked out once.
//!
//! - [`convert`] turns an admitted Pod into the engine's plan, with the node's gates applied;
//! - [`timing`] computes how long things take under that plan: what `explain` prints and the simulator checks;
//! - [`advice`] says where a manifest works against itself, and [`explain`](mod@explain) brings both together;
//! - [`config`] is the node's settings as a file.
//!
//! Nothing here reads a file, a clock or the environment.

pub mod advice;
pub mod config;
pub mod convert;
pub mod duration;
pub mod explain;
pub mod timing;

pub use config::{ConfigError, NodeConfig};
pub use convert::{PlanError, plan};
pub use explain::{Explanation, explain};
