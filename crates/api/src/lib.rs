//! Pods as Kubernetes serves them.
//!
//! This crate owns what a Pod *is* and which Pods are acceptable: the wire types, the feature gates that
//! hide or drop fields, defaulting, validation, update rules and warnings. It does no IO, starts no task
//! and reads no clock; everything is a function from values to values.
//!
//! What it leaves to others: what a Pod *does* (`pulselet-engine`, through `pulselet-plan`), storing and
//! serving Pods, and reading files.

pub mod gates;
pub mod pod;
pub mod probe;
pub mod status;

/// The Kubernetes types that we use as they are: volumes, security contexts, affinity, metadata.
pub use k8s_openapi as openapi;

pub use gates::{Gate, GateSet};
pub use pod::{Container, ContainerPort, EphemeralContainer, Pod, PodOs, PodSpec};
pub use probe::{
    ExecAction, GrpcAction, HttpGetAction, HttpHeader, IntOrString, Lifecycle, LifecycleHandler, Probe,
    SleepAction, TcpSocketAction,
};
pub use status::{ContainerStatus, PodStatus};
