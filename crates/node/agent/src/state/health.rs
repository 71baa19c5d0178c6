//! Whether the node's state can be written, for whoever asks how the node is.

use std::sync::{Arc, Mutex, PoisonError};

/// Clones share one answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateHealth(Arc<Mutex<Option<String>>>);

impl StateHealth {
    pub(crate) fn refused(&self, message: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
    }

    pub(crate) fn written(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Why it cannot be written; `None` if it can.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
