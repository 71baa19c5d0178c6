//! What is known of the volumes that the node writes and keeps up to date.
//!
//! One record per pod that has such volumes, from before its sandbox is made until its files are removed. Whoever
//! writes holds the record's lock, so versions do not overtake each other and nothing is written after the end.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};

use super::Token;
use crate::container::{Contents, TokenWish};
use crate::jobs::PodRef;

/// A token is renewed when this part of its life is over, in percent.
const RENEW_AFTER_PERCENT: i32 = 80;
/// And when it is this old, however long it would be good for.
const RENEW_AFTER: SignedDuration = SignedDuration::from_hours(24);

/// The pods whose volumes are kept up to date.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    /// By uid.
    pods: Mutex<HashMap<Arc<str>, Arc<Kept>>>,
}

/// One pod's record. It is locked while volumes are written, network and disk included.
pub(crate) type Kept = tokio::sync::Mutex<Record>;

#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) pod: PodRef,
    /// Per volume, the versions that its files were made from.
    pub(crate) versions: BTreeMap<String, Vec<String>>,
    pub(crate) tokens: BTreeMap<TokenWish, GivenToken>,
    /// What was told last about volumes that cannot be written.
    pub(crate) told: Vec<String>,
    /// The pod's files are being removed.
    pub(crate) over: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct GivenToken {
    pub(crate) token: Token,
    pub(crate) given_at: Timestamp,
}

impl GivenToken {
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        let life = self.token.expires_at.duration_since(self.given_at);
        let age = now.duration_since(self.given_at);
        age > RENEW_AFTER || age.saturating_mul(100) > life.saturating_mul(RENEW_AFTER_PERCENT)
    }

    pub(crate) fn is_good(&self, now: Timestamp) -> bool {
        now < self.token.expires_at
    }
}

impl Record {
    /// Goes on with a manifest that may have changed.
    pub(crate) fn renew(&mut self, pod: PodRef) {
        self.pod = pod;
        self.versions.clear();
    }
}

impl Keeper {
    /// The record of a pod, made if there is none. None if the pod has no such volumes.
    pub(crate) fn keep(&self, pod: &PodRef) -> Option<Arc<Kept>> {
        if !pod
            .spec
            .spec
            .volumes
            .iter()
            .any(|volume| Contents::of(volume).is_some())
        {
            return None;
        }
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = pods.entry(Arc::clone(&pod.uid)).or_insert_with(|| {
            Arc::new(Kept::new(Record {
                pod: pod.clone(),
                versions: BTreeMap::new(),
                tokens: BTreeMap::new(),
                told: Vec::new(),
                over: false,
            }))
        });
        Some(Arc::clone(kept))
    }

    pub(crate) fn get(&self, uid: &str) -> Option<Arc<Kept>> {
        let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        pods.get(uid).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Kept>> {
        let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        pods.values().cloned().collect()
    }

    /// Nothing is written for this pod any more once this has returned.
    pub(crate) async fn forget(&self, uid: &str) {
        let kept = {
            let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
            pods.remove(uid)
        };
        if let Some(kept) = kept {
            kept.lock().await.over = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_renewed_long_before_they_end() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let given = |seconds| GivenToken {
            token: Token {
                text: String::new(),
                expires_at: at(seconds),
            },
            given_at: at(0),
        };
        let hour = given(3600);
        assert!(!hour.is_due(at(2879)) && hour.is_due(at(2881)));
        assert!(hour.is_good(at(3599)) && !hour.is_good(at(3600)));
        let year = given(365 * 86_400);
        assert!(!year.is_due(at(86_399)) && year.is_due(at(86_401)));
    }
}
