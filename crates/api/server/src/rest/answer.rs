//! Answers as they go out: their bodies, their headers and their warnings.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WARNING};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use crate::registry::object::Object;
use crate::registry::resource::ResourceKind;
use crate::rest::Body;
use crate::rest::accept::WireFormat;
use crate::rest::render::in_protobuf;
use crate::rest::status::ApiError;
use pulselet_schema::protobuf;

/// How many warnings go with one answer, and how many bytes each may have: headers have no room for more.
const MAX_WARNINGS: usize = 32;
const MAX_WARNING_BYTES: usize = 256;

/// A write that has no object to show; what was deleted is named.
pub(super) fn success(deleted: Option<(ResourceKind, &Object)>) -> Value {
    let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    match deleted {
        Some((kind, object)) => {
            status["details"] = json!({
                "name": object.name(),
                "group": kind.storage().group_version.group(),
                "kind": kind.info().plural,
                "uid": object.uid(),
            });
        }
        None => status["code"] = json!(201),
    }
    status
}

pub(super) fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

pub(super) fn bytes_answer(code: StatusCode, bytes: Bytes, wire: WireFormat) -> Response<Body> {
    body_answer(code, full(bytes), wire)
}

pub(super) fn body_answer(code: StatusCode, body: Body, wire: WireFormat) -> Response<Body> {
    let mut answer = Response::new(body);
    *answer.status_mut() = code;
    let headers = answer.headers_mut();
    let content_type = match wire {
        WireFormat::Json => "application/json",
        WireFormat::Protobuf => protobuf::MEDIA_TYPE,
    };
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    answer
}

pub(super) fn json_answer(code: StatusCode, value: &Value) -> Response<Body> {
    bytes_answer(code, Bytes::from(value.to_string()), WireFormat::Json)
}

/// An object as the client wants it written.
pub(super) fn value_answer(
    code: StatusCode,
    value: &Value,
    wire: WireFormat,
) -> Result<Response<Body>, ApiError> {
    match wire {
        WireFormat::Json => Ok(json_answer(code, value)),
        WireFormat::Protobuf => Ok(bytes_answer(code, in_protobuf(value)?, wire)),
    }
}

/// The answer to a request that failed.
pub(super) fn failure(error: &ApiError) -> Response<Body> {
    let mut answer = json_answer(error.reason.code(), &error.to_status());
    if let Some(seconds) = error.retry_after {
        answer
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

pub(super) fn add_warnings(answer: &mut Response<Body>, warnings: &[String]) {
    for warning in warnings.iter().take(MAX_WARNINGS) {
        let mut text: String = warning
            .chars()
            .filter(|character| !character.is_control())
            .flat_map(|character| match character {
                '"' | '\\' => vec!['\\', character],
                _ => vec![character],
            })
            .collect();
        if text.len() > MAX_WARNING_BYTES {
            let mut end = MAX_WARNING_BYTES;
            while !text.is_char_boundary(end) || text[..end].ends_with('\\') {
                end -= 1;
            }
            text.truncate(end);
        }
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{text}\"").as_bytes()) {
            answer.headers_mut().append(WARNING, value);
        }
    }
}
