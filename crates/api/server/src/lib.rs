//! The Kubernetes REST server.
//!
//! A request comes in through `server` (TLS, connections) and `handler` (who, what, may they), is found in the
//! catalogue of `resource` by `route`, and reaches the `registry`, which applies the rules of `kinds` and `managed` and
//! keeps objects in the `store`. Answers take the form `accept` found: JSON, a `table`, or the stream of a `watch`.
//!
//! What must always hold: a write is durable before it is answered; an object passes its kind's rules before it is
//! stored; revisions never go back; a watch neither misses nor repeats a change, or says that it no longer can (410);
//! a request that fails changes nothing.
//!
//! What it leaves to others: the rules for Pods (`pulselet-model`), running them (a node, which is a client like any
//! other), and answering for logs and exec, which are passed on to the Pod's node.

mod accept;
mod access;
mod body;
mod discovery;
#[doc(hidden)]
pub mod fuzzing;
mod handler;
mod kinds;
mod managed;
mod node;
mod object;
mod openapi;
mod patch;
mod pki;
mod placement;
mod protobuf;
mod query;
mod registry;
mod render;
mod resource;
mod route;
mod schema;
mod selector;
mod server;
mod status;
pub mod store;
mod table;
mod usage;
mod watch;

pub use access::{ADMIN_GROUP, AccessError, NODE_GROUP, NODE_USER_PREFIX};
pub use pki::{PkiError, node_kubeconfig};
pub use server::{Config, NodeCertificate, ServeError, Server};
pub use status::{ApiError, StatusReason};
