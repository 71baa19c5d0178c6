//! The messages and services of the protocol files, as they are on the wire.
//!
//! Both ends are here: clients for the runtime that drives a CRI server, servers for the CRI server over a runtime and for
//! tests.

#![allow(
    clippy::all,
    clippy::pedantic,
    missing_debug_implementations,
    unreachable_pub,
    unused_qualifications,
    reason = "generated code"
)]

/// CRI.
pub mod v1 {
    tonic::include_proto!("runtime.v1");
}

/// CRI before v1, as far as it takes to recognise it.
pub mod v1alpha2 {
    tonic::include_proto!("runtime.v1alpha2");
}

/// containerd's own events.
pub mod containerd {
    tonic::include_proto!("containerd.services.events.v1");
}

/// containerd's own tasks.
pub mod containerd_tasks {
    tonic::include_proto!("containerd.services.tasks.v1");
}
