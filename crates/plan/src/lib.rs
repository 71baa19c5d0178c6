//! What a Pod asks for, worked out once.
//!
//! - [`convert`] turns an admitted Pod into the engine's plan, with the node's gates applied;
//! - [`timing`] computes how long things take under that plan: what `explain` prints and the simulator checks;
//! - [`config`] is the node's settings as a file.
//!
//! Nothing here reads a file, a clock or the environment.

pub mod config;
pub mod convert;
pub mod duration;
pub mod timing;

pub use config::{ConfigError, NodeConfig};
pub use convert::{PlanError, plan};
