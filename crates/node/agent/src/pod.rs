//! One pod outside the engine: who it is, whether this node can run it, and what is said about it.

pub(crate) mod admission;
pub(crate) mod identity;
pub(crate) mod status;
pub(crate) mod termination;
