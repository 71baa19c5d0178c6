//! Tokens of service accounts: who signs them, what they say, and whether they still count.
//!
//! A token is a JSON Web Token of the server's own key. It counts until its time is over, for the audiences it names, and
//! only as long as the service account, and the pod, secret or node it is bound to, are the ones for which it was made: that
//! is looked up whenever it is shown. `request` makes them, for `kubectl create token` and for nodes. `bootstrap` knows the tokens
//! with which nodes join.

mod bootstrap;
mod jwt;
mod request;

use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(crate) use bootstrap::BootstrapToken;
pub use jwt::KeyError;
use jwt::TokenKey;

use super::authn::Identity;
use super::rbac::ACCOUNT_PREFIX;
use crate::registry::Registry;
use crate::registry::object::Object;
use crate::registry::resource::{ObjectPath, ResourceKind};
use crate::rest::status::{ApiError, StatusReason};

/// Who issues tokens, as they say themselves. It is the default audience, too.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// The key, beside the authority's.
const KEY_FILE: &str = "sa.key";
/// How long a token bound to a pod counts after the pod's end has begun and its grace period is over.
const POD_END_SECONDS: i64 = 60;

/// What a token says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claims {
    aud: Vec<String>,
    exp: i64,
    iat: i64,
    nbf: i64,
    iss: String,
    jti: String,
    #[serde(rename = "kubernetes.io")]
    bound: BoundClaims,
    sub: String,
}

/// Whose token it is, and what it ends with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct BoundClaims {
    namespace: String,
    serviceaccount: ClaimedObject,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<ClaimedObject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<ClaimedObject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<ClaimedObject>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ClaimedObject {
    name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    uid: String,
}

/// Makes and checks the tokens of service accounts. Clones share the key.
#[derive(Debug, Clone)]
pub(crate) struct ServiceAccountTokens {
    key: Arc<TokenKey>,
    registry: Registry,
}

/// Why a token does not count.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    /// It is none of ours: somebody else may know it.
    #[error("invalid bearer token")]
    Unknown,
    #[error("invalid bearer token, {0}")]
    Refused(String),
    #[error("invalid bearer token, token audiences {token:?} is invalid for the target audiences {wanted:?}")]
    Audience { token: Vec<String>, wanted: Vec<String> },
    #[error(transparent)]
    Look(#[from] ApiError),
}

/// Somebody, and the audiences for which they proved it.
#[derive(Debug)]
pub(crate) struct Proved {
    pub(crate) identity: Identity,
    pub(crate) audiences: Vec<String>,
}

impl Proved {
    /// By a token that is for this server, and for those of the audiences that this server is.
    pub(super) fn for_this_server(identity: Identity, audiences: &[String]) -> Result<Self, TokenError> {
        let own = own_audiences();
        let is_own = |wanted: &&String| own.contains(wanted);
        let both: Vec<String> = audiences.iter().filter(is_own).cloned().collect();
        if both.is_empty() {
            let wanted = audiences.to_vec();
            return Err(TokenError::Audience { token: own, wanted });
        }
        Ok(Self {
            identity,
            audiences: both,
        })
    }
}

impl ServiceAccountTokens {
    /// Loads the key from the directory of the authority, or makes it there.
    pub(crate) fn open(directory: &Path, registry: Registry) -> Result<Self, KeyError> {
        let key = Arc::new(TokenKey::load_or_create(&directory.join(KEY_FILE))?);
        Ok(Self { key, registry })
    }

    /// Who shows a token, if it counts for one of these audiences.
    pub(crate) async fn verify(&self, token: &str, audiences: &[String]) -> Result<Proved, TokenError> {
        let claims: Claims = self.key.open_token(token).ok_or(TokenError::Unknown)?;
        if claims.iss != ISSUER {
            return Err(TokenError::Unknown);
        }
        let now = Timestamp::now().as_second();
        if now >= claims.exp {
            return Err(TokenError::Refused("token has expired".to_owned()));
        }
        if now < claims.nbf {
            return Err(TokenError::Refused("token is not valid yet".to_owned()));
        }
        let both: Vec<String> = audiences
            .iter()
            .filter(|wanted| claims.aud.contains(wanted))
            .cloned()
            .collect();
        if both.is_empty() {
            let (token, wanted) = (claims.aud, audiences.to_vec());
            return Err(TokenError::Audience { token, wanted });
        }
        self.check_objects(&claims.bound).await?;
        Ok(Proved {
            identity: identity(&claims),
            audiences: both,
        })
    }

    /// Whether what a token is bound to is still there.
    async fn check_objects(&self, bound: &BoundClaims) -> Result<(), TokenError> {
        let namespace = Some(bound.namespace.as_str());
        self.check_object(ResourceKind::ServiceAccount, namespace, &bound.serviceaccount)
            .await?;
        if let Some(secret) = &bound.secret {
            self.check_object(ResourceKind::Secret, namespace, secret).await?;
        }
        match (&bound.pod, &bound.node) {
            // The node is a fact about the pod, not what the token is bound to.
            (Some(pod), _) => self.check_object(ResourceKind::Pod, namespace, pod).await,
            (None, Some(node)) => self.check_object(ResourceKind::Node, None, node).await,
            (None, None) => Ok(()),
        }
    }

    async fn check_object(
        &self,
        kind: ResourceKind,
        namespace: Option<&str>,
        claimed: &ClaimedObject,
    ) -> Result<(), TokenError> {
        let gone = |why: &str| {
            let kind = kind.info().singular;
            TokenError::Refused(format!("{kind} {:?} {why}", claimed.name))
        };
        let found = match self
            .registry
            .get(&ObjectPath::stored(kind, namespace, &claimed.name))
            .await
        {
            Ok(found) => found,
            Err(error) if error.reason == StatusReason::NotFound => return Err(gone("has been deleted")),
            Err(error) => return Err(error.into()),
        };
        if !claimed.uid.is_empty() && found.uid() != claimed.uid {
            return Err(gone("has been replaced by another"));
        }
        if has_ended(&found) {
            return Err(gone("has been deleted"));
        }
        Ok(())
    }

    /// `/openid/v1/jwks`
    pub(crate) fn key_set(&self) -> Value {
        json!({"keys": [self.key.public_jwk()]})
    }
}

/// `/.well-known/openid-configuration`, for a server at this address.
pub(crate) fn discovery_document(server: &str) -> Value {
    json!({
        "issuer": ISSUER,
        "jwks_uri": format!("{server}/openid/v1/jwks"),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": [jwt::ALGORITHM],
    })
}

/// The audiences of the server itself.
pub(crate) fn own_audiences() -> Vec<String> {
    vec![ISSUER.to_owned()]
}

/// Whether an object's end began long enough ago.
fn has_ended(object: &Object) -> bool {
    let Ok(end) = object.text("/metadata/deletionTimestamp").parse::<Timestamp>() else {
        return false;
    };
    Timestamp::now().as_second() > end.as_second() + POD_END_SECONDS
}

fn identity(claims: &Claims) -> Identity {
    let BoundClaims {
        namespace,
        serviceaccount,
        pod,
        node,
        ..
    } = &claims.bound;
    let mut identity = Identity {
        user: format!("{ACCOUNT_PREFIX}{namespace}:{}", serviceaccount.name),
        uid: serviceaccount.uid.clone(),
        groups: vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
            "system:authenticated".to_owned(),
        ],
        ..Identity::default()
    };
    let mut add = |key: &str, value: &str| {
        if !value.is_empty() {
            let key = format!("authentication.kubernetes.io/{key}");
            identity.extra.insert(key, vec![value.to_owned()]);
        }
    };
    add("credential-id", &format!("JTI={}", claims.jti));
    if let Some(pod) = pod {
        add("pod-name", &pod.name);
        add("pod-uid", &pod.uid);
    }
    if let Some(node) = node {
        add("node-name", &node.name);
        add("node-uid", &node.uid);
    }
    identity
}
