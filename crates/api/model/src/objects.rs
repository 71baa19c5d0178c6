//! Config maps and secrets: their defaults and what is wrong with them. Only pods use them, so only what a pod can read
//! is checked: names, keys, size.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::field::{CauseReason, FieldError};
use crate::validation::{NameRule, validate_metadata};

/// Bytes of data in one config map or secret, as upstream has it.
pub const MAX_DATA_BYTES: usize = 1024 * 1024;
/// Ports of nodes that Services may have.
pub const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;
/// Longest key, in bytes.
const MAX_KEY: usize = 253;

/// What is wrong with a key of `data`, if anything.
pub fn data_key_error(field: &str, key: &str) -> Option<FieldError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let fits = !key.is_empty()
        && key.len() <= MAX_KEY
        && key != "."
        && !key.starts_with("..")
        && key.chars().all(is_plain);
    (!fits).then(|| FieldError {
        field: format!("{field}[{key}]"),
        reason: CauseReason::Invalid,
        message: format!(
            "Invalid value: {key:?}: a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. \
             'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
        ),
    })
}

/// What is wrong with an object whose data have so many bytes, if anything.
pub fn data_size_error(field: &str, bytes: usize) -> Option<FieldError> {
    (bytes > MAX_DATA_BYTES).then(|| FieldError {
        field: field.to_owned(),
        reason: CauseReason::TooLong,
        message: format!("Too long: may not be more than {MAX_DATA_BYTES} bytes"),
    })
}

/// Fills in defaults and checks. All errors are given together.
pub fn admit_config_map(mut object: ConfigMap) -> Result<ConfigMap, Vec<FieldError>> {
    let mut errors = admit_metadata(&mut object.metadata);
    let texts = object.data.iter().flatten();
    let texts: Vec<(&str, usize)> = texts.map(|(key, text)| (key.as_str(), text.len())).collect();
    let binary = sizes(object.binary_data.as_ref());
    errors.extend(texts.iter().filter_map(|(key, _)| data_key_error("data", key)));
    errors.extend(
        binary
            .iter()
            .filter_map(|(key, _)| data_key_error("binaryData", key)),
    );
    let known: BTreeSet<&str> = texts.iter().map(|(key, _)| *key).collect();
    for (key, _) in binary.iter().filter(|(key, _)| known.contains(key)) {
        errors.push(FieldError {
            field: format!("binaryData[{key}]"),
            reason: CauseReason::Invalid,
            message: format!("Invalid value: {key:?}: duplicate of key present in data"),
        });
    }
    let bytes = texts.iter().chain(&binary).map(|(_, bytes)| bytes).sum();
    errors.extend(data_size_error("data", bytes));
    if errors.is_empty() {
        Ok(object)
    } else {
        Err(errors)
    }
}

/// Fills in defaults, `stringData` among them, and checks. All errors are given together.
pub fn admit_secret(mut object: Secret) -> Result<Secret, Vec<FieldError>> {
    let mut errors = admit_metadata(&mut object.metadata);
    for (key, text) in object.string_data.take().into_iter().flatten() {
        let data = object.data.get_or_insert_default();
        data.insert(key, ByteString(text.into_bytes()));
    }
    object.type_.get_or_insert_with(|| "Opaque".to_owned());
    let data = sizes(object.data.as_ref());
    errors.extend(data.iter().filter_map(|(key, _)| data_key_error("data", key)));
    errors.extend(data_size_error("data", data.iter().map(|(_, bytes)| bytes).sum()));
    if errors.is_empty() {
        Ok(object)
    } else {
        Err(errors)
    }
}

fn sizes(data: Option<&BTreeMap<String, ByteString>>) -> Vec<(&str, usize)> {
    let data = data.into_iter().flatten();
    data.map(|(key, bytes)| (key.as_str(), bytes.0.len())).collect()
}

/// An object without a namespace is in the default one.
fn admit_metadata(metadata: &mut ObjectMeta) -> Vec<FieldError> {
    let namespace = metadata.namespace.get_or_insert_default();
    if namespace.is_empty() {
        "default".clone_into(namespace);
    }
    validate_metadata(metadata, NameRule::Subdomain, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_its_plain_texts_as_data() {
        let secret: Secret = serde_json::from_str(
            r#"{"metadata":{"name":"s"},"data":{"a":"eA=="},"stringData":{"a":"y","b":"z"}}"#,
        )
        .unwrap();
        let secret = admit_secret(secret).unwrap();
        let data = secret.data.unwrap();
        assert_eq!((&*data["a"].0, &*data["b"].0), (&b"y"[..], &b"z"[..]));
        assert_eq!(secret.metadata.namespace.as_deref(), Some("default"));
        assert_eq!(
            (secret.type_.as_deref(), secret.string_data),
            (Some("Opaque"), None)
        );
    }

    #[test]
    fn every_error_is_given() {
        let map: ConfigMap = serde_json::from_str(
            r#"{"metadata":{"name":"A"},"data":{"..":"","x":""},"binaryData":{"x":"eA==","a b":"eA=="}}"#,
        )
        .unwrap();
        let errors = admit_config_map(map).unwrap_err();
        let fields: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(
            fields,
            ["metadata.name", "data[..]", "binaryData[a b]", "binaryData[x]"]
        );
        let large = ConfigMap {
            metadata: ObjectMeta {
                name: Some("a".to_owned()),
                ..ObjectMeta::default()
            },
            data: Some([("a".to_owned(), "x".repeat(MAX_DATA_BYTES + 1))].into()),
            ..ConfigMap::default()
        };
        assert_eq!(
            admit_config_map(large).unwrap_err()[0].reason,
            CauseReason::TooLong
        );
    }
}
