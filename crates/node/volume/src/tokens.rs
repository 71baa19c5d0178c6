//! The tokens of one pod: asked for when a volume wants one, and renewed long before they end.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pulselet_model::Pod;

use crate::contents::{Contents, TokenWish, Tokens};
use crate::objects::{ObjectSource, SourceError, Token, TokenRequest};

/// A token is renewed when this part of its life is over, in percent.
const RENEW_AFTER_PERCENT: i32 = 80;
/// And when it is this old, however long it would be good for.
const RENEW_AFTER: SignedDuration = SignedDuration::from_hours(24);
/// How long a token may take.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(10);

/// The tokens that a pod has been given.
#[derive(Debug, Default)]
pub(crate) struct GivenTokens(BTreeMap<TokenWish, GivenToken>);

#[derive(Clone, Debug)]
struct GivenToken {
    token: Token,
    given_at: Timestamp,
}

impl GivenToken {
    fn is_due(&self, now: Timestamp) -> bool {
        let life = self.token.expires_at.duration_since(self.given_at);
        let age = now.duration_since(self.given_at);
        age > RENEW_AFTER || age.saturating_mul(100) > life.saturating_mul(RENEW_AFTER_PERCENT)
    }

    fn is_good(&self, now: Timestamp) -> bool {
        now < self.token.expires_at
    }
}

impl GivenTokens {
    /// Whether one of them has to be renewed.
    pub(crate) fn are_due(&self, now: Timestamp) -> bool {
        self.0.values().any(|given| given.is_due(now))
    }

    /// The tokens that a pod's volumes want. One that is due is renewed; while that fails, the old one is used.
    pub(crate) async fn current(&mut self, source: &dyn ObjectSource, pod: &Pod, uid: &str) -> Tokens {
        let contents = pod.spec.volumes.iter().filter_map(Contents::of);
        let wishes: Vec<_> = contents.flat_map(|it| it.tokens().collect::<Vec<_>>()).collect();
        let mut tokens = Tokens::new();
        for wish in wishes {
            let token = self.current_one(source, pod, uid, &wish).await;
            tokens.insert(wish, token);
        }
        tokens
    }

    async fn current_one(
        &mut self,
        source: &dyn ObjectSource,
        pod: &Pod,
        uid: &str,
        wish: &TokenWish,
    ) -> Result<Token, SourceError> {
        let now = Timestamp::now();
        let known = self.0.get(wish);
        if let Some(given) = known.filter(|given| !given.is_due(now)) {
            return Ok(given.token.clone());
        }
        let result = request(source, pod, uid, wish).await;
        match (result, known.filter(|given| given.is_good(now))) {
            (Ok(token), _) => {
                let given = GivenToken {
                    token: token.clone(),
                    given_at: now,
                };
                self.0.insert(wish.clone(), given);
                Ok(token)
            }
            (Err(error), Some(given)) => {
                tracing::debug!(%uid, %error, "cannot renew a token");
                Ok(given.token.clone())
            }
            (Err(error), None) => Err(error),
        }
    }
}

async fn request(
    source: &dyn ObjectSource,
    pod: &Pod,
    uid: &str,
    wish: &TokenWish,
) -> Result<Token, SourceError> {
    let account = Some(pod.spec.service_account_name.clone()).filter(|name| !name.is_empty());
    let request = TokenRequest {
        namespace: pod.namespace().to_owned(),
        service_account: account.unwrap_or_else(|| "default".to_owned()),
        pod_name: pod.name().to_owned(),
        pod_uid: uid.to_owned(),
        audiences: wish.audience.iter().cloned().collect(),
        expiration_seconds: wish.seconds,
    };
    match tokio::time::timeout(TOKEN_TIMEOUT, source.token(&request)).await {
        Ok(answer) => answer,
        Err(elapsed) => Err(SourceError::Fetch {
            message: format!("the API did not answer: {elapsed}"),
        }),
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
