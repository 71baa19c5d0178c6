//! Acting for another: `kubectl --as`.
//!
//! Whoever may `impersonate` a user, each of the groups and everything else that they name, acts as that user alone: what
//! they may do themselves does not count. The audit log names both.

use std::collections::BTreeMap;

use http::HeaderMap;
use percent_encoding::percent_decode_str;

use super::attributes::{Attributes, ResourceAttributes};
use super::authn::Identity;
use super::authz::{Authorizer, Decision};
use super::rbac::ACCOUNT_PREFIX;
use crate::rest::status::{ApiError, StatusReason};

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";
const EXTRA: &str = "impersonate-extra-";
/// Groups and other values that one request may name.
const MAX_VALUES: usize = 256;

/// What a request says about whom its sender acts for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wish {
    user: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl Authorizer {
    /// Whom a caller acts for; themselves, if the request names nobody.
    pub(crate) async fn impersonate(
        &self,
        caller: Identity,
        headers: &HeaderMap,
    ) -> Result<Identity, ApiError> {
        let Some(wish) = Wish::read(headers)? else {
            return Ok(caller);
        };
        for attributes in wish.needs() {
            if let Decision::Denied = self
                .decide(&caller, &Attributes::Resource(attributes.clone()))
                .await?
            {
                return Err(denied(&caller, &attributes));
            }
        }
        Ok(wish.identity(caller))
    }
}

impl Wish {
    /// Reads the headers; `None` if the sender acts for nobody else.
    fn read(headers: &HeaderMap) -> Result<Option<Self>, ApiError> {
        let mut wish = Self::default();
        let mut is_asked = false;
        let mut count = 0;
        for (name, value) in headers {
            let name = name.as_str();
            if !name.starts_with("impersonate-") {
                continue;
            }
            let value = value
                .to_str()
                .map_err(|_| ApiError::bad_request(format!("header {name} is not text")))?;
            is_asked = true;
            count += 1;
            if count > MAX_VALUES {
                return Err(ApiError::bad_request("too many Impersonate headers"));
            }
            match name {
                USER => value.clone_into(&mut wish.user),
                UID => value.clone_into(&mut wish.uid),
                GROUP => wish.groups.push(value.to_owned()),
                _ => {
                    let key = name
                        .strip_prefix(EXTRA)
                        .and_then(|key| percent_decode_str(key).decode_utf8().ok());
                    let key =
                        key.ok_or_else(|| ApiError::bad_request(format!("header {name} is not known")))?;
                    wish.extra
                        .entry(key.into_owned())
                        .or_default()
                        .push(value.to_owned());
                }
            }
        }
        if is_asked && wish.user.is_empty() {
            return Err(ApiError::bad_request(
                "requested impersonation without impersonating a user",
            ));
        }
        Ok(is_asked.then_some(wish))
    }

    /// What the sender must be allowed.
    fn needs(&self) -> Vec<ResourceAttributes> {
        let need = |group: &str, resource: &str, subresource: &str, namespace: &str, name: &str| {
            ResourceAttributes {
                verb: "impersonate".to_owned(),
                group: group.to_owned(),
                version: "v1".to_owned(),
                resource: resource.to_owned(),
                subresource: subresource.to_owned(),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }
        };
        let mut needs = vec![match account(&self.user) {
            Some((namespace, name)) => need("", "serviceaccounts", "", namespace, name),
            None => need("", "users", "", "", &self.user),
        }];
        needs.extend(self.groups.iter().map(|group| need("", "groups", "", "", group)));
        let group = "authentication.k8s.io";
        if !self.uid.is_empty() {
            needs.push(need(group, "uids", "", "", &self.uid));
        }
        for (key, values) in &self.extra {
            needs.extend(
                values
                    .iter()
                    .map(|value| need(group, "userextras", key, "", value)),
            );
        }
        needs
    }

    fn identity(self, impersonator: Identity) -> Identity {
        let mut groups = self.groups;
        if let (Some((namespace, _)), true) = (account(&self.user), groups.is_empty()) {
            groups.push("system:serviceaccounts".to_owned());
            groups.push(format!("system:serviceaccounts:{namespace}"));
        }
        let standing = if self.user == super::ANONYMOUS {
            "system:unauthenticated"
        } else {
            "system:authenticated"
        };
        if !groups.iter().any(|group| group == standing) {
            groups.push(standing.to_owned());
        }
        Identity {
            user: self.user,
            uid: self.uid,
            groups,
            extra: self.extra,
            impersonator: Some(Box::new(impersonator)),
        }
    }
}

/// Namespace and name of a service account; `None` if the user is none.
fn account(user: &str) -> Option<(&str, &str)> {
    user.strip_prefix(ACCOUNT_PREFIX)?.split_once(':')
}

fn denied(caller: &Identity, asked: &ResourceAttributes) -> ApiError {
    let ResourceAttributes {
        group,
        resource,
        name,
        namespace,
        ..
    } = asked;
    let scope = if namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {namespace:?}")
    };
    let message = format!(
        "{resource} {name:?} is forbidden: User {:?} cannot impersonate resource {resource:?} in API group {group:?} \
         {scope}",
        caller.user
    );
    ApiError::new(StatusReason::Forbidden, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&'static str, &str)]) -> Result<Option<Wish>, ApiError> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        Wish::read(&map)
    }

    #[test]
    fn everything_that_is_named_must_be_allowed() {
        let wish = read(&[
            ("impersonate-user", "system:serviceaccount:a:robot"),
            ("impersonate-group", "g1"),
            ("impersonate-group", "g2"),
            ("impersonate-extra-acme.com%2fscope", "x"),
        ]);
        let wish = wish.unwrap().unwrap();
        let needs: Vec<String> = wish
            .needs()
            .into_iter()
            .map(|need| format!("{}/{}/{}", need.resource, need.subresource, need.name))
            .collect();
        assert_eq!(
            needs,
            [
                "serviceaccounts//robot",
                "groups//g1",
                "groups//g2",
                "userextras/acme.com/scope/x"
            ]
        );
        let identity = wish.identity(Identity::default());
        assert_eq!(identity.groups, ["g1", "g2", "system:authenticated"]);
    }

    #[test]
    fn who_acts_for_nobody_names_nothing() {
        assert_eq!(read(&[("accept", "x")]).unwrap(), None);
        assert!(read(&[("impersonate-group", "g")]).is_err());
        assert!(read(&[("impersonate-user", "u"), ("impersonate-nonsense", "g")]).is_err());
    }
}
