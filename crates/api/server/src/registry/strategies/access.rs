//! Rules for roles, bindings and certificate signing requests.

use pulselet_model::{CauseReason, FieldError};
use serde_json::{Value, json};

use super::plain::Plain;
use super::{Admitted, Refusal, Rules, Strategy, Update, finish, invalid, required};
use crate::access::signing_request_error;
use crate::registry::object::Object;
use crate::registry::resource::{ResourceKind, Subresource};
use crate::rest::body::strip_nulls;
use crate::rest::query::WriteOptions;

const GROUP: &str = "rbac.authorization.k8s.io";
/// The conditions of a signing request that only its approval sets.
const VERDICTS: [&str; 2] = ["Approved", "Denied"];
/// The shortest time for which a certificate is asked for, as upstream has it.
const MIN_CERTIFICATE_SECONDS: i64 = 600;

pub(crate) static CLUSTER_ROLE: Plain = Plain {
    errors: |role| role_errors(role, false),
    ..Plain::NEW
};
pub(crate) static NAMESPACED_ROLE: Plain = Plain {
    errors: |role| role_errors(role, true),
    ..Plain::NEW
};
pub(crate) static CLUSTER_BINDING: Plain = Plain {
    errors: |binding| binding_errors(binding, false),
    ..Plain::immutable(&["roleRef"])
};
pub(crate) static NAMESPACED_BINDING: Plain = Plain {
    errors: |binding| binding_errors(binding, true),
    ..Plain::immutable(&["roleRef"])
};

/// Certificate signing requests.
#[derive(Debug)]
pub(crate) struct SigningRequest(Plain);

pub(crate) static CERTIFICATE_SIGNING_REQUEST: SigningRequest = SigningRequest(Plain {
    errors: request_errors,
    ..Plain::immutable(&["spec"])
});

impl Strategy for SigningRequest {
    /// The requester is the caller, whatever the request says.
    fn prepare_create(&self, request: &mut Object, options: &WriteOptions) {
        let Some(caller) = &options.caller else { return };
        let spec = &mut request.value_mut()["spec"];
        spec["username"] = json!(caller.user);
        spec["groups"] = json!(caller.groups);
        for (field, value) in [("uid", json!(caller.uid)), ("extra", json!(caller.extra))] {
            let is_empty =
                value.as_str() == Some("") || value.as_object().is_some_and(serde_json::Map::is_empty);
            spec[field] = if is_empty { Value::Null } else { value };
        }
        strip_nulls(spec);
    }

    fn admit_create(&self, kind: ResourceKind, object: Object, rules: Rules) -> Result<Admitted, Refusal> {
        self.0.admit_create(kind, object, rules)
    }

    fn admit_update(
        &self,
        kind: ResourceKind,
        mut update: Update<'_>,
        _: Rules,
    ) -> Result<Admitted, Refusal> {
        self.0.prepare_update(kind, &mut update);
        keep_parts(update.subresource, &mut update.new, update.old);
        let mut errors = self.0.all_errors(kind, &update.new)?;
        errors.extend(self.0.all_update_errors(&update.new, update.old));
        finish(update.new, errors)
    }
}

fn role_errors(role: &Object, namespaced: bool) -> Vec<FieldError> {
    let rules = role.value().get("rules").and_then(Value::as_array);
    let mut errors = Vec::new();
    for (index, rule) in rules.into_iter().flatten().enumerate() {
        let field = |name: &str| format!("rules[{index}].{name}");
        let is_empty = |name: &str| rule[name].as_array().is_none_or(Vec::is_empty);
        if is_empty("verbs") {
            errors.push(required(&field("verbs"), "verbs must contain at least one value"));
        }
        if !is_empty("nonResourceURLs") {
            if namespaced {
                let detail = "namespaced rules cannot apply to non-resource URLs";
                errors.push(invalid(
                    &field("nonResourceURLs"),
                    &rule["nonResourceURLs"],
                    detail,
                ));
            }
            if !is_empty("apiGroups") || !is_empty("resources") || !is_empty("resourceNames") {
                let detail = "rules cannot apply to both regular resources and non-resource URLs";
                errors.push(invalid(
                    &field("nonResourceURLs"),
                    &rule["nonResourceURLs"],
                    detail,
                ));
            }
            continue;
        }
        if is_empty("apiGroups") {
            errors.push(required(
                &field("apiGroups"),
                "resource rules must supply at least one api group",
            ));
        }
        if is_empty("resources") {
            errors.push(required(
                &field("resources"),
                "resource rules must supply at least one resource",
            ));
        }
    }
    errors
}

fn binding_errors(binding: &Object, namespaced: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if binding.text("/roleRef/apiGroup") != GROUP {
        errors.push(unsupported(
            "roleRef.apiGroup",
            binding.text("/roleRef/apiGroup"),
            &[GROUP],
        ));
    }
    let kinds: &[&str] = if namespaced {
        &["Role", "ClusterRole"]
    } else {
        &["ClusterRole"]
    };
    if !kinds.contains(&binding.text("/roleRef/kind")) {
        errors.push(unsupported("roleRef.kind", binding.text("/roleRef/kind"), kinds));
    }
    if binding.text("/roleRef/name").is_empty() {
        errors.push(required("roleRef.name", ""));
    }
    let subjects = binding.value().get("subjects").and_then(Value::as_array);
    for (index, subject) in subjects.into_iter().flatten().enumerate() {
        let field = |name: &str| format!("subjects[{index}].{name}");
        let text = |name: &str| subject[name].as_str().unwrap_or_default();
        if text("name").is_empty() {
            errors.push(required(&field("name"), ""));
        }
        match (text("kind"), text("apiGroup")) {
            ("ServiceAccount", "") => {
                if text("namespace").is_empty() && !namespaced {
                    errors.push(required(&field("namespace"), ""));
                }
            }
            ("User" | "Group", GROUP) => {}
            ("ServiceAccount", group) => errors.push(unsupported(&field("apiGroup"), group, &[""])),
            ("User" | "Group", group) => errors.push(unsupported(&field("apiGroup"), group, &[GROUP])),
            (kind, _) => errors.push(unsupported(
                &field("kind"),
                kind,
                &["ServiceAccount", "User", "Group"],
            )),
        }
    }
    errors
}

fn unsupported(field: &str, value: &str, supported: &[&str]) -> FieldError {
    let supported: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
    FieldError {
        field: field.to_owned(),
        reason: CauseReason::NotSupported,
        message: format!(
            "Unsupported value: {value:?}: supported values: {}",
            supported.join(", ")
        ),
    }
}

fn request_errors(request: &Object) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let text = request.text("/spec/request");
    if let Some(why) = signing_request_error(text) {
        errors.push(invalid("spec.request", &json!(text), &why));
    }
    let signer = request.text("/spec/signerName");
    if signer.is_empty() {
        errors.push(required("spec.signerName", ""));
    } else if signer
        .split_once('/')
        .is_none_or(|(domain, path)| domain.is_empty() || path.is_empty())
    {
        let detail = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.push(invalid("spec.signerName", &json!(signer), detail));
    }
    let usages = request.value().pointer("/spec/usages").and_then(Value::as_array);
    if usages.is_none_or(Vec::is_empty) {
        errors.push(required("spec.usages", "usages must contain at least one value"));
    }
    let seconds = request
        .value()
        .pointer("/spec/expirationSeconds")
        .and_then(Value::as_i64);
    if let Some(seconds) = seconds.filter(|seconds| *seconds < MIN_CERTIFICATE_SECONDS) {
        let detail = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(invalid("spec.expirationSeconds", &json!(seconds), detail));
    }
    errors
}

/// Keeps what a change of one part of a signing request may not touch: its approval gives the verdict and nothing else, its
/// status everything but the verdict.
fn keep_parts(subresource: Option<Subresource>, object: &mut Object, old: &Object) {
    let conditions = |object: &Object| -> Vec<Value> {
        let conditions = object
            .value()
            .pointer("/status/conditions")
            .and_then(Value::as_array);
        conditions.cloned().unwrap_or_default()
    };
    let is_verdict = |condition: &Value| VERDICTS.iter().any(|verdict| condition["type"] == *verdict);
    let (before, mut now) = (conditions(old), conditions(object));
    let mut status = old.value().get("status").cloned().unwrap_or_else(|| json!({}));
    match subresource {
        Some(Subresource::Approval) => {
            now.retain(is_verdict);
            now.extend(before.into_iter().filter(|condition| !is_verdict(condition)));
        }
        Some(Subresource::Status) => {
            now.retain(|condition| !is_verdict(condition));
            now.extend(before.into_iter().filter(is_verdict));
            status = object.value().get("status").cloned().unwrap_or_else(|| json!({}));
        }
        Some(_) | None => return,
    }
    for condition in &mut now {
        stamp(condition);
    }
    status["conditions"] = json!(now);
    object.value_mut()["status"] = status;
}

/// A condition says when it came about, and that it holds, also if its writer did not.
fn stamp(condition: &mut Value) {
    for field in ["lastUpdateTime", "lastTransitionTime"] {
        if condition[field].is_null() {
            condition[field] = crate::registry::object::now();
        }
    }
    if condition["status"].as_str().unwrap_or_default().is_empty() {
        condition["status"] = json!("True");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(rules: &Plain, value: Value) -> Vec<String> {
        let errors = (rules.errors)(&Object::new(value).unwrap());
        errors.into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn rules_say_what_and_bindings_whom() {
        let rules =
            json!([{"verbs": []}, {"verbs": ["get"], "nonResourceURLs": ["/x"], "resources": ["pods"]}]);
        assert_eq!(
            fields(&CLUSTER_ROLE, json!({"rules": rules})),
            [
                "rules[0].verbs",
                "rules[0].apiGroups",
                "rules[0].resources",
                "rules[1].nonResourceURLs"
            ]
        );
        let good = json!({"roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "User", "apiGroup": GROUP, "name": "ann"}]});
        assert!(fields(&NAMESPACED_BINDING, good).is_empty());
        let bad = json!({"roleRef": {"apiGroup": GROUP, "kind": "Role", "name": ""},
            "subjects": [{"kind": "Robot", "name": "r"}, {"kind": "ServiceAccount", "name": "s"}]});
        assert_eq!(
            fields(&CLUSTER_BINDING, bad),
            [
                "roleRef.kind",
                "roleRef.name",
                "subjects[0].kind",
                "subjects[1].namespace"
            ]
        );
    }

    #[test]
    fn approval_and_status_keep_out_of_each_others_way() {
        let object = |status: Value| Object::new(json!({"status": status})).unwrap();
        let old = object(json!({"certificate": "c", "conditions": [{"type": "Failed"}]}));
        let mut new = object(json!({"certificate": "forged", "conditions": [{"type": "Approved"}]}));
        keep_parts(Some(Subresource::Approval), &mut new, &old);
        assert_eq!(new.text("/status/certificate"), "c");
        assert_eq!(new.text("/status/conditions/0/type"), "Approved");
        assert_eq!(new.text("/status/conditions/1/type"), "Failed");
        let mut new = object(json!({"certificate": "d", "conditions": [{"type": "Approved"}]}));
        keep_parts(Some(Subresource::Status), &mut new, &old);
        assert_eq!(
            (
                new.text("/status/certificate"),
                new.text("/status/conditions/0/type")
            ),
            ("d", "")
        );
    }
}
