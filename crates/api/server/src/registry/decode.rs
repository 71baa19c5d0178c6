//! From a body to an object: strict decoding by the table of fields, for every kind.
//!
//! The client chooses what happens about unknown fields and duplicate keys (`fieldValidation`); a wrong type is always an
//! error.

use pulselet_schema::canonical::complete_all;
use pulselet_schema::check::{Problem, check};
use serde_json::{Value, json};

use super::object::Object;
use super::resource::Endpoint;
use super::strategies::Rules;
use crate::rest::body::Parsed;
use crate::rest::query::FieldValidation;
use crate::rest::status::ApiError;

/// A body in the stored form of its kind, and the warnings about it.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) object: Object,
    pub(crate) warnings: Vec<String>,
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
        .partition(|problem| problem.kind.is_tolerable());
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
    let stored = endpoint.kind.storage();
    let strategy = endpoint.kind.strategy();
    if endpoint != stored {
        value = strategy.to_stored(value);
    }
    if !strategy.is_typed() {
        complete_all(stored.message(), &mut value);
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

/// Upstream's answer to a body that does not fit its kind.
pub(super) fn cannot_handle(endpoint: Endpoint, why: &str) -> ApiError {
    let (kind, version) = (endpoint.info().kind, endpoint.group_version.version());
    ApiError::bad_request(format!(
        "{kind} in version {version:?} cannot be handled as a {kind}: {why}"
    ))
}
