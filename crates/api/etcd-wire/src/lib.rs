//! The messages and services of etcd's v3 API, as they are on the wire, as far as a store of objects needs them.
//!
//! The client is tonic's. Which member is asked, what is asked again and what a failure means is left to the store.

#![allow(
    clippy::all,
    clippy::pedantic,
    missing_debug_implementations,
    unreachable_pub,
    unused_qualifications,
    reason = "generated code"
)]

tonic::include_proto!("etcdserverpb");
