//! Request bodies: from bytes to a JSON value.
//!
//! Size is bounded before this, depth by the parser. Duplicate keys are found here, unknown fields when the value is decoded
//! as its kind; the client chooses what happens about them (`fieldValidation`).

use std::fmt;

pub(crate) use pulselet_schema::document::Parsed;
use pulselet_schema::document::{parse_json, parse_yaml};
use pulselet_schema::protobuf::{self, ProtobufError};
use serde_json::Value;

use crate::rest::status::ApiError;

/// Bytes of a request body, as upstream has it.
pub(crate) const MAX_BODY_BYTES: usize = 3 * 1024 * 1024;

/// How a body is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Yaml,
    Protobuf,
}

/// The media types in which bodies may be written.
const ACCEPTED: [&str; 3] = [
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
];

impl Encoding {
    /// Reads a content type. `None` is a request without the header, which upstream reads as JSON.
    pub(crate) fn of(content_type: Option<&str>) -> Result<Self, ApiError> {
        let essence = content_type.map(|text| text.split(';').next().unwrap_or_default().trim());
        match essence {
            None | Some("" | "application/json") => Ok(Self::Json),
            Some("application/yaml") => Ok(Self::Yaml),
            Some("application/vnd.kubernetes.protobuf") => Ok(Self::Protobuf),
            Some(_) => Err(ApiError::unsupported_media_type(&ACCEPTED)),
        }
    }
}

/// Parses a body.
pub(crate) fn parse(bytes: &[u8], encoding: Encoding) -> Result<Parsed, ApiError> {
    let failed = |error: &dyn fmt::Display| {
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type Object): {error}"
        ))
    };
    match encoding {
        Encoding::Json => parse_json(bytes).map_err(|error| failed(&error)),
        Encoding::Yaml => {
            let text = std::str::from_utf8(bytes).map_err(|error| failed(&error))?;
            parse_yaml(text).map_err(|error| failed(&error))
        }
        Encoding::Protobuf => match protobuf::decode(bytes) {
            Ok(value) => Ok(value.into()),
            Err(error @ ProtobufError::UnknownKind { .. }) => Err(ApiError {
                message: error.to_string(),
                ..ApiError::unsupported_media_type(&ACCEPTED[..2])
            }),
            Err(error) => Err(failed(&error)),
        },
    }
}

/// Removes members that are null: to every field that means "not set".
pub(crate) fn strip_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, member| !member.is_null());
            map.values_mut().for_each(strip_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever arrives in whatever encoding: a value or a refusal, never a panic.
        #[test]
        fn no_body_breaks_the_server(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "[\\[\\]{}:,\"a-c0-9 \n&*!|-]{0,80}") {
            let enveloped = [b"k8s\0".as_slice(), &bytes].concat();
            for body in [bytes.as_slice(), text.as_bytes(), &enveloped] {
                for encoding in [Encoding::Json, Encoding::Yaml, Encoding::Protobuf] {
                    let _ = parse(body, encoding);
                }
            }
        }
    }

    #[test]
    fn what_is_not_json_is_refused_without_harm() {
        let deep = "[".repeat(100_000);
        for body in ["", "{", "{}x", "\u{0}", deep.as_str()] {
            assert!(parse(body.as_bytes(), Encoding::Json).is_err());
        }
        assert!(parse(b"\xff", Encoding::Yaml).is_err());
    }
}
