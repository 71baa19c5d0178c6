//! `TokenRequest`: a token for a service account, for as long as is asked for, bound to what is asked for.

use jiff::{Timestamp, ToSpan as _};
use pulselet_model::openapi::api::authentication::v1::{BoundObjectReference, TokenRequest};
use serde_json::{Value, json};

use super::{BoundClaims, ClaimedObject, Claims, ISSUER, ServiceAccountTokens, own_audiences};
use crate::access::rbac::ACCOUNT_PREFIX;
use crate::registry::object::{self, Object};
use crate::registry::resource::{ObjectPath, ResourceKind};
use crate::rest::status::ApiError;

/// Seconds, unless the request says otherwise.
const DEFAULT_SECONDS: i64 = 3600;
/// The shortest and the longest time for which a token is made, as upstream has it.
const MIN_SECONDS: i64 = 600;
const MAX_SECONDS: i64 = 1 << 32;

impl ServiceAccountTokens {
    /// Makes the token that a request asks for, and answers with the request and the token. `node` is the node that
    /// asks; it gets tokens for its own pods only.
    pub(crate) async fn request(
        &self,
        path: &ObjectPath,
        body: Value,
        node: Option<&str>,
    ) -> Result<Value, ApiError> {
        let account = self
            .registry
            .get(&ObjectPath {
                subresource: None,
                ..path.clone()
            })
            .await?;
        let request: TokenRequest = serde_json::from_value(body).map_err(|error| {
            ApiError::bad_request(format!(
                "TokenRequest in version \"v1\" cannot be handled: {error}"
            ))
        })?;
        let spec = request.spec.unwrap_or_default();
        let seconds = spec.expiration_seconds.unwrap_or(DEFAULT_SECONDS);
        check_seconds(seconds)?;
        let audiences = match spec.audiences.unwrap_or_default() {
            audiences if audiences.is_empty() => own_audiences(),
            audiences => audiences,
        };
        let bound = self.bind(path, &account, spec.bound_object_ref.as_ref()).await?;
        if let Some(node) = node {
            check_node(path, node, bound.pod.as_ref(), &audiences)?;
        }
        let now = Timestamp::now();
        let ends = now.checked_add(seconds.seconds()).map_err(ApiError::internal)?;
        let claims = Claims {
            aud: audiences.clone(),
            exp: ends.as_second(),
            iat: now.as_second(),
            nbf: now.as_second(),
            iss: ISSUER.to_owned(),
            jti: object::new_uid(),
            bound: bound.claims,
            sub: format!("{ACCOUNT_PREFIX}{}:{}", account.namespace(), account.name()),
        };
        let token = self
            .key
            .sign(&claims)
            .ok_or_else(|| ApiError::internal("a token cannot be signed"))?;
        let mut answer = json!({
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {
                "name": account.name(),
                "namespace": account.namespace(),
                "creationTimestamp": object::now(),
            },
            "spec": {"audiences": audiences, "expirationSeconds": seconds},
            "status": {"token": token, "expirationTimestamp": object::timestamp(ends)},
        });
        if let Some(reference) = spec.bound_object_ref {
            answer["spec"]["boundObjectRef"] = json!(reference);
        }
        Ok(answer)
    }

    /// Looks up what a token is to be bound to.
    async fn bind(
        &self,
        path: &ObjectPath,
        account: &Object,
        reference: Option<&BoundObjectReference>,
    ) -> Result<Bound, ApiError> {
        let mut bound = Bound {
            claims: BoundClaims {
                namespace: account.namespace().to_owned(),
                serviceaccount: claimed(account),
                ..BoundClaims::default()
            },
            pod: None,
        };
        let Some(reference) = reference else {
            return Ok(bound);
        };
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let (version, kind) = (text(&reference.api_version), text(&reference.kind));
        let kind = match (version.as_str(), kind.as_str()) {
            ("v1", "Pod") => ResourceKind::Pod,
            ("v1", "Secret") => ResourceKind::Secret,
            ("v1", "Node") => ResourceKind::Node,
            (version, kind) => {
                return Err(ApiError::bad_request(format!(
                    "cannot bind token to object of type {version}, Kind={kind}"
                )));
            }
        };
        let namespace = (kind != ResourceKind::Node).then(|| account.namespace());
        let found = self
            .registry
            .get(&ObjectPath::stored(kind, namespace, &text(&reference.name)))
            .await?;
        let uid = text(&reference.uid);
        if !uid.is_empty() && uid != found.uid() {
            let why = format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have \
                 been deleted and then recreated"
            );
            return Err(ApiError::conflict(path.endpoint, account.name(), &why));
        }
        if kind == ResourceKind::Pod {
            self.bind_pod(account, found, &mut bound).await?;
        } else if kind == ResourceKind::Secret {
            bound.claims.secret = Some(claimed(&found));
        } else {
            bound.claims.node = Some(claimed(&found));
        }
        Ok(bound)
    }

    async fn bind_pod(&self, account: &Object, pod: Object, bound: &mut Bound) -> Result<(), ApiError> {
        if pod.text("/spec/serviceAccountName") != account.name() {
            return Err(ApiError::bad_request(format!(
                "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
                account.name()
            )));
        }
        let node = pod.text("/spec/nodeName");
        if !node.is_empty() {
            // A node that has not registered has no uid yet; its name is known all the same.
            let found = self
                .registry
                .get(&ObjectPath::stored(ResourceKind::Node, None, node))
                .await;
            bound.claims.node = Some(ClaimedObject {
                name: node.to_owned(),
                uid: found.map(|node| node.uid().to_owned()).unwrap_or_default(),
            });
        }
        bound.claims.pod = Some(claimed(&pod));
        bound.pod = Some(pod);
        Ok(())
    }
}

/// What a token is bound to.
struct Bound {
    claims: BoundClaims,
    pod: Option<Object>,
}

fn claimed(object: &Object) -> ClaimedObject {
    ClaimedObject {
        name: object.name().to_owned(),
        uid: object.uid().to_owned(),
    }
}

fn check_seconds(seconds: i64) -> Result<(), ApiError> {
    let why = if seconds < MIN_SECONDS {
        "may not specify a duration less than 10 minutes"
    } else if seconds > MAX_SECONDS {
        "may not specify a duration larger than 2^32 seconds"
    } else {
        return Ok(());
    };
    let message = format!(
        "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: {seconds}: {why}"
    );
    Err(ApiError::new(crate::rest::status::StatusReason::Invalid, message))
}

/// Whether a node may have a token that is bound to this pod, for these audiences.
fn check_node(
    path: &ObjectPath,
    node: &str,
    pod: Option<&Object>,
    audiences: &[String],
) -> Result<(), ApiError> {
    let name = path.name.as_deref().unwrap_or_default();
    let refused = |why: String| Err(ApiError::forbidden(path.endpoint, name, &why));
    let Some(pod) = pod else {
        return refused(format!(
            "node {node:?} may only request tokens that are bound to a pod"
        ));
    };
    // A node makes mirrors itself: one that names an account must not give it that account's token.
    if pod.text("/spec/nodeName") != node || pod.is_mirror_pod() {
        return refused(format!(
            "node requested token bound to a pod scheduled on a different node than {node:?}"
        ));
    }
    let volumes = pod.value().pointer("/spec/volumes").and_then(Value::as_array);
    let sources = volumes.into_iter().flatten();
    let sources = sources.flat_map(|volume| volume["projected"]["sources"].as_array().into_iter().flatten());
    let wanted: Vec<&str> = sources
        .filter_map(|source| source["serviceAccountToken"]["audience"].as_str())
        .collect();
    let unknown = audiences
        .iter()
        .find(|audience| *audience != ISSUER && !wanted.contains(&audience.as_str()));
    match unknown {
        None => Ok(()),
        Some(audience) => refused(format!("audience {audience:?} not found in pod spec volume")),
    }
}
