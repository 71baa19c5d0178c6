//! Objects that may be others than before, each once, in the order in which that became known.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::SourceKind;

/// A config map or a secret, by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceObject {
    pub kind: SourceKind,
    pub namespace: String,
    pub name: String,
}

/// Objects whose readers have to look again. An object waits once however often it changes, so there are never more than
/// objects that are followed.
#[derive(Debug, Default)]
pub struct ChangedObjects {
    waiting: Mutex<VecDeque<SourceObject>>,
    added: Notify,
}

impl ChangedObjects {
    pub fn add(&self, object: SourceObject) {
        let mut waiting = self.lock();
        if !waiting.contains(&object) {
            waiting.push_back(object);
        }
        drop(waiting);
        self.added.notify_one();
    }

    /// The next one, for one reader at a time.
    pub async fn next(&self) -> SourceObject {
        loop {
            let next = self.lock().pop_front();
            if let Some(object) = next {
                return object;
            }
            self.added.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<SourceObject>> {
        // Every change is made whole before the lock is let go of.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_object_that_changes_often_waits_once_and_holds_up_nobody() {
        let object = |name: &str| SourceObject {
            kind: SourceKind::Secret,
            namespace: "shop".to_owned(),
            name: name.to_owned(),
        };
        let changed = ChangedObjects::default();
        for name in ["often", "other", "often"] {
            changed.add(object(name));
        }
        assert_eq!(changed.next().await, object("often"));
        changed.add(object("often"));
        assert_eq!(changed.next().await, object("other"));
        assert_eq!(changed.next().await, object("often"));
        let (later, ()) = tokio::join!(changed.next(), async { changed.add(object("later")) });
        assert_eq!(later, object("later"));
    }
}
