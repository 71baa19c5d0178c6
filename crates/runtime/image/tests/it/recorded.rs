//! A server that remembers what it was asked.

use std::sync::{Arc, Mutex};

use crate::registry::Script;

/// A server that writes down the head of every request.
pub(crate) struct Recorded {
    pub(crate) script: Script,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Recorded {
    pub(crate) async fn start(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let heads = Arc::new(Mutex::new(Vec::new()));
        let list = Arc::clone(&heads);
        let script = Script::start(move |head| {
            list.lock().unwrap().push(head.to_ascii_lowercase());
            answer(head)
        })
        .await;
        Self { script, heads }
    }

    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }

    pub(crate) fn saw_credentials(&self) -> bool {
        self.heads().iter().any(|head| head.contains("authorization"))
    }
}
