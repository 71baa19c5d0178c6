//! The Kubernetes REST server.
//!
//! What must always hold: a write is durable before it is answered; revisions never go back; a watch neither misses
//! nor repeats a change, or says that it no longer can (410).

pub mod store;
