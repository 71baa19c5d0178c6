//! What differs between the kinds: decoding into their fields, defaults, validation, update rules.
//!
//! The registry does the work; here is only what it asks of a kind. Pods have the rules of `pulselet-model`; the other
//! kinds have upstream's names and defaults, and the few checks that keep nonsense out of the store.

mod access;
mod event;
mod plain;
mod pod;
mod service;
mod simple;

use pulselet_model::openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pulselet_model::{CauseReason, FieldError, GateSet, NameRule, Profile, validate_metadata};
use pulselet_schema::canonical::complete_all;
use pulselet_schema::check::{Problem, check};
use serde_json::{Value, json};

use crate::registry::object::Object;
use crate::registry::resource::{Endpoint, GroupVersion, ResourceKind, Subresource};
use crate::rest::body::Parsed;
use crate::rest::query::FieldValidation;
use crate::rest::status::ApiError;

pub(super) use service::has_node_ports;

/// Which rules for Pods the server was configured with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub profile: Profile,
    pub gates: GateSet,
}

/// A body in the stored form of its kind, and what there is to say about it.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) object: Object,
    pub(crate) warnings: Vec<String>,
}

/// A changed object, ready to be stored.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) object: Object,
    pub(crate) warnings: Vec<String>,
}

/// Why an object was not admitted.
#[derive(Debug)]
pub(crate) enum Refusal {
    Invalid(Vec<FieldError>),
    /// The object does not decode as its kind, which a patch can bring about.
    Undecodable(String),
}

impl Refusal {
    pub(crate) fn into_error(self, endpoint: Endpoint, name: &str) -> ApiError {
        match self {
            Self::Invalid(errors) => ApiError::invalid(endpoint, name, &errors),
            Self::Undecodable(why) => cannot_handle(endpoint, &why),
        }
    }
}

fn cannot_handle(endpoint: Endpoint, why: &str) -> ApiError {
    let (kind, version) = (endpoint.info().kind, endpoint.group_version.version());
    ApiError::bad_request(format!(
        "{kind} in version {version:?} cannot be handled as a {kind}: {why}"
    ))
}

/// Decodes a body that should be an object of the endpoint's kind.
pub(crate) fn decode(
    endpoint: Endpoint,
    parsed: Parsed,
    validation: FieldValidation,
    rules: Rules,
) -> Result<Decoded, ApiError> {
    let Parsed {
        mut value,
        problems: duplicates,
    } = parsed;
    if value.is_null() {
        value = json!({});
    }
    check_type(endpoint, &mut value)?;
    let message = endpoint.message();
    let mut problems = check(message, &mut value, rules.profile);
    problems.extend(duplicates);
    let (tolerable, errors): (Vec<Problem>, Vec<Problem>) = problems
        .into_iter()
        .partition(|problem| problem.fault.is_tolerable());
    if !errors.is_empty() {
        return Err(cannot_handle(endpoint, &list_problems(&errors)));
    }
    let warnings = match validation {
        FieldValidation::Strict if !tolerable.is_empty() => {
            let list = list_problems(&tolerable);
            return Err(cannot_handle(endpoint, &format!("strict decoding error: {list}")));
        }
        FieldValidation::Strict | FieldValidation::Ignore => Vec::new(),
        FieldValidation::Warn => tolerable.iter().map(ToString::to_string).collect(),
    };
    match (endpoint.kind, endpoint.group_version) {
        // The types of the model write a Pod in its form.
        (ResourceKind::Pod, _) => {}
        (ResourceKind::Event, GroupVersion::EventsV1) => {
            value = event::to_core(value);
            complete_all(endpoint.kind.storage().message(), &mut value);
        }
        _ => complete_all(message, &mut value),
    }
    let object = Object::new(value).ok_or_else(|| cannot_handle(endpoint, "metadata is not an object"))?;
    Ok(Decoded { object, warnings })
}

fn list_problems(problems: &[Problem]) -> String {
    let words: Vec<String> = problems.iter().map(Problem::upstream_text).collect();
    words.join(", ")
}

/// A body may leave out what it is, but not claim to be something else.
fn check_type(endpoint: Endpoint, value: &mut Value) -> Result<(), ApiError> {
    let (kind, version) = (endpoint.info().kind, endpoint.group_version.api_version());
    let Some(map) = value.as_object_mut() else {
        return Err(ApiError::bad_request(
            "the object provided is unrecognized (must be of type Object)",
        ));
    };
    for (field, expected) in [("apiVersion", version), ("kind", kind)] {
        let found = map.entry(field).or_insert_with(|| json!(expected));
        if found.as_str() == Some("") {
            *found = json!(expected);
        }
    }
    let (found_version, found_kind) = (&map["apiVersion"], &map["kind"]);
    if found_version.as_str() != Some(version) {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({}) does not match the expected API version ({version})",
            found_version.as_str().unwrap_or_default()
        )));
    }
    if found_kind.as_str() != Some(kind) {
        let found = found_kind.as_str().unwrap_or_default();
        return Err(ApiError::bad_request(format!(
            "{found} in version {version:?} cannot be handled as a {kind}: it is of another kind"
        )));
    }
    Ok(())
}

/// Fills in and checks a new object.
pub(crate) fn admit_create(kind: ResourceKind, object: Object, rules: Rules) -> Result<Admitted, Refusal> {
    if kind == ResourceKind::Pod {
        return pod::admit_create(&object, rules);
    }
    if let ResourceKind::Plain(kind) = kind {
        return plain::admit_create(kind, object, rules);
    }
    let mut object = object;
    simple::set_defaults(kind, &mut object);
    let mut errors = metadata_errors(kind, &object)?;
    errors.extend(simple::validate(kind, &object));
    finish(object, errors)
}

/// Fills in and checks a changed object, or the part of it that a subresource is about.
pub(crate) fn admit_update(
    kind: ResourceKind,
    subresource: Option<Subresource>,
    old: &Object,
    new: Object,
    rules: Rules,
) -> Result<Admitted, Refusal> {
    if kind == ResourceKind::Pod {
        return pod::admit_update(subresource, old, &new, rules);
    }
    if let ResourceKind::Plain(kind) = kind {
        return plain::admit_update(kind, subresource, old, new, rules);
    }
    let mut object = match subresource {
        Some(Subresource::Status) => {
            let mut object = with_part(old, &new, "status");
            // As upstream: whoever reports about a namespace may annotate it.
            if kind == ResourceKind::Namespace {
                for field in ["annotations", "labels"] {
                    object.set_meta(field, new.metadata().get(field).cloned().unwrap_or_default());
                }
            }
            object
        }
        Some(Subresource::Finalize) => with_part(old, &new, "spec"),
        _ => {
            let mut new = new;
            keep_system_metadata(&mut new, old);
            if matches!(kind, ResourceKind::Namespace | ResourceKind::Node) {
                copy_field(&mut new, old, "status");
            }
            if kind == ResourceKind::Namespace {
                copy_field(&mut new, old, "spec");
            }
            new
        }
    };
    simple::set_defaults(kind, &mut object);
    let mut errors = metadata_errors(kind, &object)?;
    errors.extend(immutable_metadata(&object, old));
    errors.extend(simple::validate(kind, &object));
    errors.extend(simple::validate_update(kind, &object, old));
    finish(object, errors)
}

fn finish(object: Object, errors: Vec<FieldError>) -> Result<Admitted, Refusal> {
    if errors.is_empty() {
        let warnings = Vec::new();
        Ok(Admitted { object, warnings })
    } else {
        Err(Refusal::Invalid(errors))
    }
}

/// The stored object with one part of the new one.
fn with_part(old: &Object, new: &Object, field: &str) -> Object {
    let mut object = old.clone();
    copy_field(&mut object, new, field);
    // A condition of the update, not a part of the object.
    object.set_meta("resourceVersion", json!(new.resource_version()));
    object
}

fn copy_field(to: &mut Object, from: &Object, field: &str) {
    let map = to.value_mut().as_object_mut().expect("an Object is a map");
    match from.value().get(field) {
        Some(value) => {
            map.insert(field.to_owned(), value.clone());
        }
        None => {
            map.remove(field);
        }
    }
}

/// What a client need not send back, and cannot change.
fn keep_system_metadata(new: &mut Object, old: &Object) {
    for field in ["uid", "creationTimestamp"] {
        if !new.metadata().contains_key(field) || new.text(&format!("/metadata/{field}")).is_empty() {
            new.set_meta(field, old.metadata().get(field).cloned().unwrap_or_default());
        }
    }
    for field in [
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "selfLink",
    ] {
        new.set_meta(field, old.metadata().get(field).cloned().unwrap_or_default());
    }
}

fn immutable_metadata(new: &Object, old: &Object) -> Vec<FieldError> {
    ["name", "namespace", "uid", "creationTimestamp"]
        .into_iter()
        .filter(|field| new.metadata().get(*field) != old.metadata().get(*field))
        .map(|field| {
            let shown = new.metadata().get(field).cloned().unwrap_or_default();
            invalid(&format!("metadata.{field}"), &shown, "field is immutable")
        })
        .collect()
}

fn metadata_errors(kind: ResourceKind, object: &Object) -> Result<Vec<FieldError>, Refusal> {
    let value = Value::Object(object.metadata().clone());
    let metadata: ObjectMeta =
        serde_json::from_value(value).map_err(|error| Refusal::Undecodable(error.to_string()))?;
    let rule = match kind {
        ResourceKind::Namespace => NameRule::Label,
        ResourceKind::Plain(kind) => kind.row().names,
        ResourceKind::ConfigMap
        | ResourceKind::Event
        | ResourceKind::Lease
        | ResourceKind::Node
        | ResourceKind::Pod
        | ResourceKind::Secret
        | ResourceKind::ServiceAccount => NameRule::Subdomain,
    };
    Ok(validate_metadata(&metadata, rule, kind.info().namespaced))
}

/// An Invalid error in upstream's form.
pub(crate) fn invalid(field: &str, value: &Value, detail: &str) -> FieldError {
    FieldError {
        field: field.to_owned(),
        reason: CauseReason::Invalid,
        message: format!("Invalid value: {value}: {detail}"),
    }
}

fn required(field: &str, detail: &str) -> FieldError {
    let message = if detail.is_empty() {
        "Required value".to_owned()
    } else {
        format!("Required value: {detail}")
    };
    FieldError {
        field: field.to_owned(),
        reason: CauseReason::Required,
        message,
    }
}

/// Whether reads of the kind must be rewritten, or can be served as stored.
pub(crate) fn served_as_stored(endpoint: Endpoint, rules: Rules) -> bool {
    endpoint == endpoint.kind.storage()
        && (endpoint.kind != ResourceKind::Pod || pod::shows_everything(rules))
}

/// An object as the endpoint shows it.
pub(crate) fn present(endpoint: Endpoint, object: Object, rules: Rules) -> Object {
    let mut object = match (endpoint.kind, endpoint.group_version) {
        (ResourceKind::Pod, _) if !pod::shows_everything(rules) => pod::hide(object, rules),
        (ResourceKind::Event, GroupVersion::EventsV1) => {
            let value = event::from_core(object.into_value());
            Object::new(value).expect("renaming fields keeps an object an object")
        }
        _ => object,
    };
    object.set_type(endpoint);
    object
}
