//! The Kubernetes REST server.
//!
//! Start at `rest::handler`, which takes one request through its steps, and at `registry`, which every read and write
//! goes through. Each folder is one subject:
//!
//! - `server` listens, speaks TLS, and hands each request to the handler.
//! - `rest` is the protocol: paths, queries, bodies, the forms of answers, errors.
//! - `access` says who is asking and what they may do, and keeps the certificate authority.
//! - `audit` records who changed what, and who was refused, or what a policy says.
//! - `registry` holds the catalogue of kinds and the rules for reading and changing objects.
//! - `schema` is the table of the fields that the kinds have.
//! - `patch` computes what a patch or an apply makes of an object, and who owns which field.
//! - `watch` turns the changes of the store into the stream that a client reads.
//! - `discovery` says which kinds there are and what their fields are.
//! - `metrics` is what monitoring sees of the server.
//! - `node_proxy` passes logs, exec and usage on to the node that can answer.
//! - `client` is the way in for controllers of the same process.
//!
//! What must always hold: a write is durable before it is answered; an object passes its kind's rules before it is
//! stored; revisions never go back; a watch neither misses nor repeats a change, or says that it no longer can (410);
//! a request that fails changes nothing.
//!
//! What it leaves to others: keeping values and their changes (`pulselet-store`), the rules for Pods (`pulselet-model`),
//! running them (a node, which is a client like any other), and everything that happens without a request
//! (`pulselet-controllers`).

mod access;
mod audit;
mod client;
mod discovery;
#[doc(hidden)]
pub mod fuzzing;
mod metrics;
mod node_proxy;
mod patch;
mod registry;
mod rest;
mod server;
mod watch;

pub use access::pki::{PkiError, bootstrap_kubeconfig, node_kubeconfig};
pub use access::{ADMIN_GROUP, AccessError, KeyError, NODE_GROUP, NODE_USER_PREFIX, RevocationError};
pub use audit::AuditPolicyError;
pub use client::{Deletion, LocalClient, ObjectChange, ObjectWatch};
pub use registry::attendance::ServiceForwarder;
pub use registry::object::{Object, timestamp};
pub use registry::plain::PlainKind;
pub use registry::resource::ResourceKind;
pub use registry::{ParseServiceRangeError, ServiceRange};
pub use rest::status::{ApiError, StatusReason};
pub use server::{
    Config, NodeCertificate, NodeCertifier, ServeError, Server, backup_store, check_store, restore_store,
};
