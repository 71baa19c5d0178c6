//! Where the node can be asked: the control socket of the command line, and pages for monitoring.

pub mod control;
pub(crate) mod health;
pub(crate) mod http;
pub(crate) mod metrics;
pub(crate) mod usage;
