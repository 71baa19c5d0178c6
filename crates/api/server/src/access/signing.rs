//! Certificates for those who ask: nodes that join and renew, and users whom an administrator approves of.
//!
//! A request names a signer. Ours has three of upstream's: client certificates of nodes, server certificates of nodes, and
//! client certificates of anybody. What is asked for must fit the signer, and somebody must have approved it. Requests of
//! nodes for their client certificates are approved here if roles allow it (`nodeclient` for whoever bootstraps nodes,
//! `selfnodeclient` for a node that renews its own); all others wait for `kubectl certificate approve`.

use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateSigningRequestParams, ExtendedKeyUsagePurpose, SanType};
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use x509_parser::prelude::FromDer as _;

use super::attributes::{Attributes, ResourceAttributes};
use super::authn::Identity;
use super::authz::{Authorizer, Decision};
use super::pki::Authority;
use super::{ADMIN_GROUP, NODE_GROUP, NODE_USER_PREFIX};
use crate::registry::Registry;
use crate::registry::object::{self, Object};
use crate::registry::resource::{ObjectPath, ResourceKind};
use crate::rest::status::{ApiError, StatusReason};

/// The longest time for which a certificate is issued, and the time where none is asked for: a year.
const MAX_SECONDS: i64 = 365 * 24 * 3600;
/// How long requests are kept: those that were answered, and those that nobody looked at.
const ANSWERED_KEPT: SignedDuration = SignedDuration::from_hours(1);
const PENDING_KEPT: SignedDuration = SignedDuration::from_hours(24);

/// A signer that we have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signer {
    NodeClient,
    NodeServing,
    Client,
}

impl Signer {
    fn find(name: &str) -> Option<Self> {
        match name {
            "kubernetes.io/kube-apiserver-client-kubelet" => Some(Self::NodeClient),
            "kubernetes.io/kubelet-serving" => Some(Self::NodeServing),
            "kubernetes.io/kube-apiserver-client" => Some(Self::Client),
            _ => None,
        }
    }

    /// The usages that must be asked for, and those that may be.
    const fn usages(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::NodeClient | Self::Client => ("client auth", &["digital signature", "key encipherment"]),
            Self::NodeServing => ("server auth", &["digital signature", "key encipherment"]),
        }
    }
}

/// A request that was read and whose signature is good.
struct Asked {
    user: String,
    groups: Vec<String>,
    params: CertificateSigningRequestParams,
}

impl Asked {
    fn parse(request: &str) -> Result<Self, String> {
        let pem = STANDARD
            .decode(request)
            .map_err(|error| format!("it is not base64: {error}"))?;
        let der = CertificateSigningRequestDer::from_pem_slice(&pem)
            .map_err(|error| format!("it is no certificate request in PEM: {error}"))?;
        let params = CertificateSigningRequestParams::from_der(&der).map_err(|error| error.to_string())?;
        let parsed = x509_parser::certification_request::X509CertificationRequest::from_der(&der);
        let (_, parsed) = parsed.map_err(|error| error.to_string())?;
        let subject = &parsed.certification_request_info.subject;
        let name = subject
            .iter_common_name()
            .next()
            .and_then(|name| name.as_str().ok());
        let groups = subject
            .iter_organization()
            .filter_map(|group| group.as_str().ok());
        Ok(Self {
            user: name.unwrap_or_default().to_owned(),
            groups: groups.map(str::to_owned).collect(),
            params,
        })
    }

    fn names(&self) -> &[SanType] {
        &self.params.params.subject_alt_names
    }

    fn is_of_node(&self) -> bool {
        let name = self.user.strip_prefix(NODE_USER_PREFIX);
        name.is_some_and(|name| !name.is_empty()) && self.groups == [NODE_GROUP]
    }

    /// Why the signer does not sign this; `None` if it does.
    fn misfit(&self, signer: Signer, usages: &[&str], requester: &Identity) -> Option<String> {
        let (needed, allowed) = signer.usages();
        if !usages.contains(&needed) {
            return Some(format!("usages did not match: {needed:?} is missing"));
        }
        if let Some(other) = usages
            .iter()
            .find(|usage| **usage != needed && !allowed.contains(usage))
        {
            return Some(format!("usages did not match: {other:?} is not allowed"));
        }
        match signer {
            Signer::Client if self.user.is_empty() => Some("the subject has no common name".to_owned()),
            Signer::Client if self.groups.iter().any(|group| group == ADMIN_GROUP) => Some(format!(
                "use of {ADMIN_GROUP} is not allowed; `admin.kubeconfig` of the data directory has it"
            )),
            Signer::NodeClient | Signer::NodeServing if !self.is_of_node() => Some(format!(
                "the subject must be the common name {NODE_USER_PREFIX}NAME and the organization {NODE_GROUP} alone"
            )),
            Signer::NodeClient if !self.names().is_empty() => {
                Some("a client certificate of a node has no alternative names".to_owned())
            }
            Signer::Client | Signer::NodeClient => None,
            Signer::NodeServing => self.serving_misfit(requester),
        }
    }

    fn serving_misfit(&self, requester: &Identity) -> Option<String> {
        if requester.user != self.user || requester.node().is_none() {
            return Some("only the node itself may ask for its server certificate".to_owned());
        }
        let is_good = |name: &SanType| match name {
            SanType::DnsName(_) => true,
            SanType::IpAddress(address) => !matches!(address, IpAddr::V4(v4) if v4.is_broadcast()),
            _ => false,
        };
        if self.names().is_empty() || !self.names().iter().all(is_good) {
            return Some(
                "a server certificate of a node needs names or addresses, and nothing else".to_owned(),
            );
        }
        None
    }
}

/// Why a request in a body cannot be signed by anybody; `None` if it can be read and its signature is good.
pub(crate) fn signing_request_error(request: &str) -> Option<String> {
    Asked::parse(request).err()
}

/// Approves and signs requests.
#[derive(Debug)]
pub(crate) struct CertificateSigner {
    authority: Arc<Authority>,
    registry: Registry,
}

impl CertificateSigner {
    pub(crate) fn new(authority: Arc<Authority>, registry: Registry) -> Self {
        Self { authority, registry }
    }

    /// Does what can be done about the request of this name.
    pub(crate) async fn process(&self, name: &str, authorizer: &Authorizer) -> Result<(), ApiError> {
        let path = ObjectPath::stored(ResourceKind::CERTIFICATE_SIGNING_REQUEST, None, name);
        let request = match self.registry.get(&path).await {
            Ok(request) => request,
            Err(error) if error.reason == StatusReason::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let Some(signer) = Signer::find(request.text("/spec/signerName")) else {
            return Ok(());
        };
        if is_answered(&request) {
            return Ok(());
        }
        let requester = requester(&request);
        let asked = Asked::parse(request.text("/spec/request"));
        let misfit = match &asked {
            Ok(asked) => asked.misfit(signer, &usages(&request), &requester),
            Err(why) => Some(why.clone()),
        };
        let mut status = request
            .value()
            .get("status")
            .cloned()
            .unwrap_or_else(|| json!({}));
        let is_approved = has_condition(&request, "Approved");
        if !is_approved {
            let may = match (&asked, &misfit) {
                (Ok(asked), None) => self.may_approve(signer, asked, &requester, authorizer).await?,
                (Ok(_) | Err(_), _) => false,
            };
            if !may {
                return Ok(());
            }
            let message = "Auto approving kubelet client certificate after SubjectAccessReview.";
            add_condition(&mut status, "Approved", "AutoApproved", message);
        }
        match (asked, misfit) {
            (Ok(asked), None) => {
                let pem = self.sign(&asked, signer, seconds(&request))?;
                status["certificate"] = json!(STANDARD.encode(pem));
            }
            (_, Some(why)) | (Err(why), None) => {
                add_condition(&mut status, "Failed", "SignerValidationFailure", &why);
            }
        }
        self.registry.set_status(&path, &request, status).await
    }

    /// Whether a request is approved without anybody's looking at it.
    async fn may_approve(
        &self,
        signer: Signer,
        asked: &Asked,
        requester: &Identity,
        authorizer: &Authorizer,
    ) -> Result<bool, ApiError> {
        if signer != Signer::NodeClient {
            return Ok(false);
        }
        let may = async |part: &str| {
            let attributes = Attributes::Resource(ResourceAttributes {
                verb: "create".to_owned(),
                group: "certificates.k8s.io".to_owned(),
                version: "v1".to_owned(),
                resource: "certificatesigningrequests".to_owned(),
                subresource: part.to_owned(),
                ..ResourceAttributes::default()
            });
            let decision = authorizer.decide(requester, &attributes).await?;
            Ok::<_, ApiError>(matches!(decision, Decision::Allowed { .. }))
        };
        if asked.user == requester.user && may("selfnodeclient").await? {
            return Ok(true);
        }
        may("nodeclient").await
    }

    fn sign(&self, asked: &Asked, signer: Signer, seconds: i64) -> Result<String, ApiError> {
        let usage = match signer {
            Signer::NodeClient | Signer::Client => ExtendedKeyUsagePurpose::ClientAuth,
            Signer::NodeServing => ExtendedKeyUsagePurpose::ServerAuth,
        };
        let groups: Vec<&str> = asked.groups.iter().map(String::as_str).collect();
        self.authority
            .sign_request(&asked.user, &groups, usage, &asked.params, seconds)
            .map_err(ApiError::internal)
    }

    /// Removes requests that were answered an hour ago, or that nobody looked at for a day.
    pub(crate) async fn clean(&self) -> Result<(), ApiError> {
        let (requests, _) = self
            .registry
            .all(ResourceKind::CERTIFICATE_SIGNING_REQUEST, None)
            .await?;
        let now = Timestamp::now();
        for request in requests {
            let is_done = is_answered(&request);
            let kept = if is_done { ANSWERED_KEPT } else { PENDING_KEPT };
            let Ok(created) = request.text("/metadata/creationTimestamp").parse::<Timestamp>() else {
                continue;
            };
            if now.duration_since(created) > kept {
                let path =
                    ObjectPath::stored(ResourceKind::CERTIFICATE_SIGNING_REQUEST, None, request.name());
                let options = crate::rest::query::DeleteOptions::default();
                match self.registry.delete(&path, &options).await {
                    Err(error) if error.reason != StatusReason::NotFound => return Err(error),
                    Ok(_) | Err(_) => {}
                }
            }
        }
        Ok(())
    }
}

fn has_condition(request: &Object, kind: &str) -> bool {
    let conditions = request
        .value()
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == kind)
}

/// Whether nothing more happens to a request.
fn is_answered(request: &Object) -> bool {
    !request.text("/status/certificate").is_empty()
        || has_condition(request, "Denied")
        || has_condition(request, "Failed")
}

fn requester(request: &Object) -> Identity {
    let list = |pointer: &str| -> Vec<String> {
        let items = request
            .value()
            .pointer(pointer)
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        items.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    Identity {
        user: request.text("/spec/username").to_owned(),
        uid: request.text("/spec/uid").to_owned(),
        groups: list("/spec/groups"),
        ..Identity::default()
    }
}

fn usages(request: &Object) -> Vec<&str> {
    let usages = request.value().pointer("/spec/usages").and_then(Value::as_array);
    usages.into_iter().flatten().filter_map(Value::as_str).collect()
}

fn seconds(request: &Object) -> i64 {
    let asked = request
        .value()
        .pointer("/spec/expirationSeconds")
        .and_then(Value::as_i64);
    asked.unwrap_or(MAX_SECONDS).min(MAX_SECONDS)
}

fn add_condition(status: &mut Value, kind: &str, reason: &str, message: &str) {
    let condition = json!({
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastUpdateTime": object::now(),
        "lastTransitionTime": object::now(),
    });
    match status["conditions"].as_array_mut() {
        Some(conditions) => conditions.push(condition),
        None => status["conditions"] = json!([condition]),
    }
}
