//! Who asks a node's endpoint, and what they may ask: the API is asked by `TokenReview` and `SubjectAccessReview`.
//!
//! Answers are kept for a while, so that a client that asks often costs the API little. What must always hold: no more than a
//! few questions are under way and no more than a known number of answers is kept, whatever strangers send; what the API
//! does not say is a no, and is not kept.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::client::{ApiClient, ApiClientError, Call};

const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// Questions to the API at a time.
const MAX_QUESTIONS: usize = 8;
/// Answers that are kept of each kind.
const MAX_ANSWERS: usize = 1024;
/// How long a yes and a no are kept, as a kubelet does.
const YES_KEPT: Duration = Duration::from_mins(2);
const NO_KEPT: Duration = Duration::from_secs(30);
/// Bytes of a token that is worth asking about.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// Somebody whom the API knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct ReviewedUser {
    pub username: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Asks the API about the callers of a node.
#[derive(Debug)]
pub struct CallerReviews {
    client: ApiClient,
    node: String,
    questions: Semaphore,
    tokens: Answers<String, Option<ReviewedUser>>,
    accesses: Answers<(ReviewedUser, String, String), bool>,
}

impl CallerReviews {
    pub fn new(client: ApiClient, node: String) -> Self {
        Self {
            client,
            node,
            questions: Semaphore::new(MAX_QUESTIONS),
            tokens: Answers::default(),
            accesses: Answers::default(),
        }
    }

    /// Who shows a bearer token; `None` if it does not count, or if the API does not say.
    pub async fn identify(&self, token: &str) -> Option<ReviewedUser> {
        if token.is_empty() || token.len() > MAX_TOKEN_BYTES {
            return None;
        }
        let key = token.to_owned();
        if let Some(known) = self.tokens.get(&key, Instant::now()) {
            return known;
        }
        let question = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        });
        let answer = self.ask(TOKEN_REVIEWS, &question).await?;
        let is_known = answer["status"]["authenticated"] == true;
        let user = ReviewedUser::deserialize(&answer["status"]["user"])
            .ok()
            .filter(|_| is_known);
        let kept = if user.is_some() { YES_KEPT } else { NO_KEPT };
        self.tokens.keep(key, user.clone(), Instant::now() + kept);
        user
    }

    /// Whether somebody may do something with a part of the node.
    pub async fn allows(&self, user: &ReviewedUser, verb: &str, part: &str) -> bool {
        let key = (user.clone(), verb.to_owned(), part.to_owned());
        if let Some(known) = self.accesses.get(&key, Instant::now()) {
            return known;
        }
        let question = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user.username,
                "uid": user.uid,
                "groups": user.groups,
                "extra": user.extra,
                "resourceAttributes": {
                    "verb": verb,
                    "version": "v1",
                    "resource": "nodes",
                    "subresource": part,
                    "name": self.node,
                },
            },
        });
        let Some(answer) = self.ask(ACCESS_REVIEWS, &question).await else {
            return false;
        };
        let is_allowed = answer["status"]["allowed"] == true;
        let kept = if is_allowed { YES_KEPT } else { NO_KEPT };
        self.accesses.keep(key, is_allowed, Instant::now() + kept);
        is_allowed
    }

    async fn ask(&self, path: &str, question: &Value) -> Option<Value> {
        let _permit = self.questions.acquire().await.ok()?;
        let asked = self.client.ask(Call::create(path, question)).await;
        let complain =
            |error: &ApiClientError| tracing::warn!(error = %error, "the API does not say who asks the node");
        asked.inspect_err(complain).ok()
    }
}

/// Answers and until when they are kept.
#[derive(Debug)]
struct Answers<K, V>(Mutex<HashMap<K, (V, Instant)>>);

impl<K, V> Default for Answers<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Answers<K, V> {
    fn get(&self, key: &K, now: Instant) -> Option<V> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(key)
            .filter(|(_, until)| *until > now)
            .map(|(value, _)| value.clone())
    }

    fn keep(&self, key: K, value: V, until: Instant) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MAX_ANSWERS {
            let now = Instant::now();
            kept.retain(|_, (_, until)| *until > now);
        }
        if kept.len() >= MAX_ANSWERS {
            kept.clear();
        }
        kept.insert(key, (value, until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_kept_for_their_time_and_not_without_end() {
        let answers = Answers::<usize, bool>::default();
        let now = Instant::now();
        answers.keep(1, true, now + Duration::from_secs(1));
        assert_eq!(answers.get(&1, now), Some(true));
        assert_eq!(answers.get(&1, now + Duration::from_secs(2)), None);
        for key in 0..3 * MAX_ANSWERS {
            answers.keep(key, false, now + Duration::from_hours(1));
        }
        assert!(answers.0.lock().unwrap().len() <= MAX_ANSWERS);
    }
}
