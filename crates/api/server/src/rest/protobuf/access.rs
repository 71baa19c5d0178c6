//! Field numbers of what has to do with access: reviews, tokens, roles, bindings and certificate signing requests.

use super::{Field, METADATA, Message};

static USER: Message = Message(&[
    (1, "username", Field::Text),
    (2, "uid", Field::Text),
    (3, "groups", Field::Texts),
]);
static SELF_SUBJECT_STATUS: Message = Message(&[(1, "userInfo", Field::Message(&USER))]);
pub(super) static SELF_SUBJECT_REVIEW: Message = Message(&[
    (1, "metadata", Field::Message(&METADATA)),
    (2, "status", Field::Message(&SELF_SUBJECT_STATUS)),
]);

static BOUND_OBJECT: Message = Message(&[
    (1, "kind", Field::Text),
    (2, "apiVersion", Field::Text),
    (3, "name", Field::Text),
    (4, "uid", Field::Text),
]);
static TOKEN_REQUEST_SPEC: Message = Message(&[
    (1, "audiences", Field::Texts),
    (3, "boundObjectRef", Field::Message(&BOUND_OBJECT)),
    (4, "expirationSeconds", Field::OptionalInteger),
]);
pub(super) static TOKEN_REQUEST: Message = Message(&[
    (1, "metadata", Field::Message(&METADATA)),
    (2, "spec", Field::Message(&TOKEN_REQUEST_SPEC)),
]);
static TOKEN_REVIEW_SPEC: Message = Message(&[(1, "token", Field::Text), (2, "audiences", Field::Texts)]);
pub(super) static TOKEN_REVIEW: Message = Message(&[
    (1, "metadata", Field::Message(&METADATA)),
    (2, "spec", Field::Message(&TOKEN_REVIEW_SPEC)),
]);

static RESOURCE_ATTRIBUTES: Message = Message(&[
    (1, "namespace", Field::Text),
    (2, "verb", Field::Text),
    (3, "group", Field::Text),
    (4, "version", Field::Text),
    (5, "resource", Field::Text),
    (6, "subresource", Field::Text),
    (7, "name", Field::Text),
]);
static PATH_ATTRIBUTES: Message = Message(&[(1, "path", Field::Text), (2, "verb", Field::Text)]);
static ACCESS_SPEC: Message = Message(&[
    (1, "resourceAttributes", Field::Message(&RESOURCE_ATTRIBUTES)),
    (2, "nonResourceAttributes", Field::Message(&PATH_ATTRIBUTES)),
    (3, "user", Field::Text),
    (4, "groups", Field::Texts),
    (5, "extra", Field::TextsMap),
    (6, "uid", Field::Text),
]);
/// The reviews of others and of oneself: the latter have no subject.
pub(super) static ACCESS_REVIEW: Message = Message(&[
    (1, "metadata", Field::Message(&METADATA)),
    (2, "spec", Field::Message(&ACCESS_SPEC)),
]);
static RULES_SPEC: Message = Message(&[(1, "namespace", Field::Text)]);
pub(super) static RULES_REVIEW: Message = Message(&[
    (1, "metadata", Field::Message(&METADATA)),
    (2, "spec", Field::Message(&RULES_SPEC)),
]);

static RULE: Message = Message(&[
    (1, "verbs", Field::Texts),
    (2, "apiGroups", Field::Texts),
    (3, "resources", Field::Texts),
    (4, "resourceNames", Field::Texts),
    (5, "nonResourceURLs", Field::Texts),
]);
static REQUIREMENT: Message = Message(&[
    (1, "key", Field::Text),
    (2, "operator", Field::Text),
    (3, "values", Field::Texts),
]);
static SELECTOR: Message = Message(&[
    (1, "matchLabels", Field::TextMap),
    (2, "matchExpressions", Field::Messages(&REQUIREMENT)),
]);
static AGGREGATION: Message = Message(&[(1, "clusterRoleSelectors", Field::Messages(&SELECTOR))]);
/// A role, and one for the whole cluster, which may gather the rules of others.
pub(super) static ROLE: Message = Message(&[
    (1, "metadata", Field::Message(&METADATA)),
    (2, "rules", Field::Messages(&RULE)),
    (3, "aggregationRule", Field::Message(&AGGREGATION)),
]);
static SUBJECT: Message = Message(&[
    (1, "kind", Field::Text),
    (2, "apiGroup", Field::Text),
    (3, "name", Field::Text),
    (4, "namespace", Field::Text),
]);
static ROLE_REF: Message = Message(&[
    (1, "apiGroup", Field::Text),
    (2, "kind", Field::Text),
    (3, "name", Field::Text),
]);
static SIGNING_CONDITION: Message = Message(&[
    (1, "type", Field::Text),
    (2, "reason", Field::Text),
    (3, "message", Field::Text),
    (4, "lastUpdateTime", Field::Time),
    (5, "lastTransitionTime", Field::Time),
    (6, "status", Field::Text),
]);
static SIGNING_SPEC: Message = Message(&[
    (1, "request", Field::Bytes),
    (2, "username", Field::Text),
    (3, "uid", Field::Text),
    (4, "groups", Field::Texts),
    (5, "usages", Field::Texts),
    (6, "extra", Field::TextsMap),
    (7, "signerName", Field::Text),
    (8, "expirationSeconds", Field::OptionalInteger),
]);
static SIGNING_STATUS: Message = Message(&[
    (1, "conditions", Field::Messages(&SIGNING_CONDITION)),
    (2, "certificate", Field::Bytes),
]);
pub(super) static SIGNING_REQUEST: Message = Message(&[
    (1, "metadata", Field::Message(&METADATA)),
    (2, "spec", Field::Message(&SIGNING_SPEC)),
    (3, "status", Field::Message(&SIGNING_STATUS)),
]);
pub(super) static ROLE_BINDING: Message = Message(&[
    (1, "metadata", Field::Message(&METADATA)),
    (2, "subjects", Field::Messages(&SUBJECT)),
    (3, "roleRef", Field::Message(&ROLE_REF)),
]);
