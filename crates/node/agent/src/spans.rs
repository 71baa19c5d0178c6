//! Spans: whose work a line of the log is about.
//!
//! A log event inside of one does not name its subject again. The fields have the same names everywhere: `pod` is
//! `namespace/name`, `container` the container's name, `id` one instance of it in the runtime.
//!
//! The spans of pods and containers have the level of errors: a filter that lets any event through shows its subject,
//! too. They are made for work that happens a few times in a life. A probe happens many times a second on a large node,
//! so its span exists only where someone looks at debug messages.

use pulselet_engine::plan::ProbeKind;
use pulselet_runtime::ContainerId;
use pulselet_vocabulary::PodName;
use tracing::Span;

/// Work for a pod as a whole.
pub fn pod(pod: &PodName) -> Span {
    tracing::error_span!("pod", %pod)
}

/// Work for one container; without an instance where none has been made yet.
pub fn container(pod: &PodName, container: &str, id: Option<&ContainerId>) -> Span {
    tracing::error_span!("container", %pod, container, id = id.map(display))
}

/// One run of a probe.
pub(crate) fn probe(pod: &PodName, container: &str, id: &ContainerId, kind: ProbeKind) -> Span {
    tracing::debug_span!("probe", %pod, container, %id, kind = kind.as_str())
}
