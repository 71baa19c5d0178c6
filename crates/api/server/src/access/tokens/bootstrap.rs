//! Bootstrap tokens: Secrets in `kube-system` with which nodes join, as kubeadm makes them.
//!
//! A token `ID.SECRET` belongs to the Secret `bootstrap-token-ID`. Who shows it is `system:bootstrap:ID` in the group
//! `system:bootstrappers`, and in further groups below that name if the Secret says so. What must always hold: only a Secret of
//! the right type that is meant for this, has not expired and is in order in every field counts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::{Proved, ServiceAccountTokens, TokenError};
use crate::access::authn::Identity;
use crate::registry::object::Object;
use crate::registry::resource::{ObjectPath, ResourceKind};
use crate::rest::status::StatusReason;

const NAMESPACE: &str = "kube-system";
const TYPE: &str = "bootstrap.kubernetes.io/token";
const GROUP: &str = "system:bootstrappers";
const ID_LENGTH: usize = 6;
const SECRET_LENGTH: usize = 16;
/// How long the rest of a further group's name may be, as upstream has it.
const MAX_GROUP_BYTES: usize = 256;

/// A token of this form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BootstrapToken<'a> {
    id: &'a str,
    secret: &'a str,
}

impl<'a> BootstrapToken<'a> {
    /// Reads `ID.SECRET`; `None` if the token is of another form.
    pub(crate) fn parse(token: &'a str) -> Option<Self> {
        let (id, secret) = token.split_once('.')?;
        let is_plain = |text: &str| {
            text.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        let fits = id.len() == ID_LENGTH && secret.len() == SECRET_LENGTH && is_plain(id) && is_plain(secret);
        fits.then_some(Self { id, secret })
    }

    /// Who shows the token, by the Secret that it belongs to.
    fn identity(self, secret: &Object, now: Timestamp) -> Result<Identity, &'static str> {
        if secret.is_deleting() {
            return Err("its secret is being deleted");
        }
        if secret.text("/type") != TYPE {
            return Err("its secret is of another type");
        }
        let field = |name: &str| decoded(secret, name).unwrap_or_default();
        // The time that this takes says nothing about how much of a guess was right.
        if Sha256::digest(field("token-secret")) != Sha256::digest(self.secret) {
            return Err("it is not the one of its secret");
        }
        if field("token-id") != self.id {
            return Err("the token-id of its secret is another");
        }
        let expiration = field("expiration");
        let lasts = |end: Timestamp| now < end;
        if !expiration.is_empty() && !expiration.parse().is_ok_and(lasts) {
            return Err("it has expired, or does not say in RFC 3339 when it does");
        }
        if field("usage-bootstrap-authentication") != "true" {
            return Err("its secret does not have usage-bootstrap-authentication: true");
        }
        let mut groups = vec![GROUP.to_owned()];
        let further = field("auth-extra-groups");
        for group in further.split(',').filter(|group| !group.is_empty()) {
            if !is_further_group(group) {
                return Err("its secret has auth-extra-groups that do not begin with system:bootstrappers:");
            }
            groups.push(group.to_owned());
        }
        groups.push("system:authenticated".to_owned());
        Ok(Identity {
            user: format!("system:bootstrap:{}", self.id),
            groups,
            ..Identity::default()
        })
    }
}

/// A field of a Secret; `None` if it is not there or is not text.
fn decoded(secret: &Object, name: &str) -> Option<String> {
    let encoded = secret.value().get("data")?.get(name)?.as_str()?;
    String::from_utf8(STANDARD.decode(encoded).ok()?).ok()
}

fn is_further_group(group: &str) -> bool {
    let Some(name) = group.strip_prefix("system:bootstrappers:") else {
        return false;
    };
    let is_allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b':' | b'-');
    let ends_well = name.ends_with(|end: char| end.is_ascii_lowercase() || end.is_ascii_digit());
    name.len() <= MAX_GROUP_BYTES && ends_well && name.bytes().all(is_allowed)
}

impl ServiceAccountTokens {
    /// Who shows a bootstrap token, if it is meant for one of these audiences.
    pub(crate) async fn verify_bootstrap(
        &self,
        token: BootstrapToken<'_>,
        audiences: &[String],
    ) -> Result<Proved, TokenError> {
        let name = format!("bootstrap-token-{}", token.id);
        let path = ObjectPath::stored(ResourceKind::Secret, Some(NAMESPACE), &name);
        let secret = match self.registry.get(&path).await {
            Ok(secret) => secret,
            Err(error) if error.reason == StatusReason::NotFound => return Err(TokenError::Unknown),
            Err(error) => return Err(error.into()),
        };
        let identity = token
            .identity(&secret, Timestamp::now())
            .map_err(|why| TokenError::Refused(format!("bootstrap token {:?}: {why}", token.id)))?;
        Proved::for_this_server(identity, audiences)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const TOKEN: &str = "abcdef.0123456789abcdef";

    /// A Secret in order, but for these fields.
    fn secret(changes: &[(&str, &str)]) -> Object {
        let mut data = json!({});
        let fields = [
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-authentication", "true"),
        ];
        for (name, value) in fields.iter().chain(changes) {
            data[*name] = json!(STANDARD.encode(value));
        }
        Object::new(json!({"metadata": {"name": "bootstrap-token-abcdef"}, "type": TYPE, "data": data}))
            .expect("an object")
    }

    fn shows(secret: &Object) -> Result<Identity, &'static str> {
        let token = BootstrapToken::parse(TOKEN).expect("a token");
        token.identity(secret, "2026-01-01T00:00:00Z".parse().expect("a time"))
    }

    #[test]
    fn only_tokens_of_the_form_are_looked_up() {
        assert!(BootstrapToken::parse(TOKEN).is_some());
        for token in [
            "abcdef",
            "abcdef.",
            "abcde.0123456789abcdef",
            "abcdef.0123456789abcde",
            "ABCDEF.0123456789abcdef",
            "abcdef.0123456789abcdef.x",
            "../../.0123456789abcdef",
        ] {
            assert_eq!(BootstrapToken::parse(token), None, "{token}");
        }
    }

    #[test]
    fn a_secret_in_order_proves_its_groups() {
        let further = (
            "auth-extra-groups",
            "system:bootstrappers:kubeadm:default-node-token",
        );
        let lasting = ("expiration", "2026-01-01T00:00:01Z");
        let identity = shows(&secret(&[further, lasting])).expect("it counts");
        assert_eq!(identity.user, "system:bootstrap:abcdef");
        let groups = ["system:bootstrappers", further.1, "system:authenticated"];
        assert_eq!(identity.groups, groups);
    }

    #[test]
    fn a_secret_that_is_not_in_order_proves_nothing() {
        for change in [
            ("token-secret", "0123456789abcdee"),
            ("token-secret", ""),
            ("token-id", "abcdeg"),
            ("usage-bootstrap-authentication", "false"),
            ("usage-bootstrap-authentication", "yes"),
            ("expiration", "2025-12-31T23:59:59Z"),
            ("expiration", "2026-01-01T00:00:00Z"),
            ("expiration", "tomorrow"),
            ("auth-extra-groups", "system:masters"),
            ("auth-extra-groups", "system:bootstrappers:a,system:masters"),
            ("auth-extra-groups", "system:bootstrappers:"),
            ("auth-extra-groups", "system:bootstrappers:A"),
        ] {
            assert!(shows(&secret(&[change])).is_err(), "{change:?}");
        }
        let mut other = secret(&[]).value().clone();
        other["type"] = json!("Opaque");
        assert!(shows(&Object::new(other.clone()).expect("an object")).is_err());
        other["type"] = json!(TYPE);
        other["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(shows(&Object::new(other.clone()).expect("an object")).is_err());
        other["data"] = Value::Null;
        assert!(shows(&Object::new(other).expect("an object")).is_err());
    }
}
