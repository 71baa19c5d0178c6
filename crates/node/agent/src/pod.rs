//! One pod outside the engine: who it is, and what is said about it.

pub(crate) mod annotation;
pub(crate) mod identity;
pub(crate) mod status;
pub(crate) mod termination;
