//! Probe fields that a pod has in its annotation, because the API that it came through does not know them.
//!
//! What must always hold: what was there when the node accepted the pod is in force for the whole life of the pod.

use std::borrow::Cow;

use pulselet_model::{PROBES_ANNOTATION, Pod, apply_probes_annotation, probes_annotation};
use serde::{Deserialize, Serialize};

/// The annotation of a pod over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AcceptedAnnotation {
    /// As it was when the node accepted the pod.
    accepted: Option<String>,
    /// The last other one that was seen.
    seen: Option<String>,
}

impl AcceptedAnnotation {
    pub(crate) fn new(pod: &Pod) -> Self {
        let accepted = probes_annotation(pod).map(str::to_owned);
        Self {
            seen: accepted.clone(),
            accepted,
        }
    }

    /// Whether a later manifest has another annotation that was not seen before.
    pub(crate) fn is_news(&mut self, pod: &Pod) -> bool {
        let now = probes_annotation(pod).map(str::to_owned);
        let is_news = now != self.seen && now != self.accepted;
        self.seen = now;
        is_news
    }

    /// A later manifest with the fields that the first one had.
    pub(crate) fn apply_accepted(&self, pod: &Pod) -> Pod {
        let mut pod = pod.clone();
        if let Some(text) = &self.accepted {
            // A bad one was reported when the pod was accepted, and has no effect.
            let _ = apply_probes_annotation(&mut pod, text);
        }
        pod
    }
}

/// A pod with the fields of its annotation; and if they are no good, why.
pub(crate) fn annotated(pod: &Pod) -> (Cow<'_, Pod>, Option<String>) {
    let Some(text) = probes_annotation(pod) else {
        return (Cow::Borrowed(pod), None);
    };
    let mut with_fields = pod.clone();
    match apply_probes_annotation(&mut with_fields, text) {
        Ok(()) => (Cow::Owned(with_fields), None),
        Err(why) => {
            let why = format!("The annotation {PROBES_ANNOTATION} has no effect: {why}");
            (Cow::Borrowed(pod), Some(why))
        }
    }
}
