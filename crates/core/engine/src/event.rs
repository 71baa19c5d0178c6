//! Kubernetes events: what `kubectl describe` shows under "Events".
//!
//! Reasons and texts are those a Kubernetes user knows; aggregation by count is the driver's.

use std::sync::Arc;

use pulselet_vocabulary::Severity;

/// An event about the pod or about one of its containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub container: Option<Arc<str>>,
    pub severity: Severity,
    pub reason: &'static str,
    pub message: String,
}
