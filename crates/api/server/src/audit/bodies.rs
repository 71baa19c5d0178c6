//! What was sent and what was answered, for requests of which a policy wants to know that.
//!
//! A request's body is copied while the server reads it, an answer's when it is whole. Streams are never copied. A body that
//! cannot be shown as an object is left out, and the line says so.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body_util::BodyExt as _;
use serde_json::Value;

use crate::rest::Body;
use crate::rest::body::{self, Encoding, MAX_BODY_BYTES};

/// A copy of a request's body.
#[derive(Debug, Clone)]
pub(super) struct BodyCopy {
    encoding: Option<Encoding>,
    bytes: Arc<Mutex<BytesMut>>,
}

impl BodyCopy {
    /// A body that is copied while it is read.
    pub(super) fn of(headers: &HeaderMap, body: Body) -> (Self, Body) {
        let bytes: Arc<Mutex<BytesMut>> = Arc::default();
        let copy = Self {
            encoding: encoding(headers),
            bytes: Arc::clone(&bytes),
        };
        let copied = body.map_frame(move |frame| {
            if let Some(data) = frame.data_ref() {
                let mut bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner);
                let room = (MAX_BODY_BYTES + 1).saturating_sub(bytes.len());
                bytes.extend_from_slice(&data[..data.len().min(room)]);
            }
            frame
        });
        (copy, copied.boxed_unsync())
    }

    /// What was sent; `None` if that was nothing.
    pub(super) fn object(&self) -> Option<Result<Value, Unshown>> {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes.is_empty() {
            return None;
        }
        Some(object(&bytes, self.encoding))
    }
}

/// A body that is not shown.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unshown;

/// What is answered, as an object.
pub(super) fn answered(headers: &HeaderMap, bytes: &Bytes) -> Result<Value, Unshown> {
    object(bytes, encoding(headers))
}

fn object(bytes: &[u8], encoding: Option<Encoding>) -> Result<Value, Unshown> {
    let encoding = encoding
        .filter(|_| bytes.len() <= MAX_BODY_BYTES)
        .ok_or(Unshown)?;
    body::parse(bytes, encoding)
        .map(|parsed| parsed.value)
        .map_err(|_| Unshown)
}

/// How a body is written; patches are JSON or YAML, too.
fn encoding(headers: &HeaderMap) -> Option<Encoding> {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = content_type.map(|text| text.split(';').next().unwrap_or_default().trim());
    match essence {
        Some(patch) if patch.ends_with("+json") => Some(Encoding::Json),
        Some(patch) if patch.ends_with("+yaml") => Some(Encoding::Yaml),
        essence => Encoding::of(essence).ok(),
    }
}

/// Takes away who owns which field, of an object or of the objects of a list.
pub(super) fn strip_managed_fields(object: &mut Value) {
    let strip = |object: &mut Value| {
        let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
        if let Some(metadata) = metadata {
            metadata.remove("managedFields");
        }
    };
    strip(object);
    let items = object.get_mut("items").and_then(Value::as_array_mut);
    items.into_iter().flatten().for_each(strip);
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use serde_json::json;

    use super::*;

    #[test]
    fn bodies_are_shown_as_objects_or_not_at_all() {
        let shown = |content_type: &'static str, bytes: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
            answered(&headers, &Bytes::copy_from_slice(bytes))
        };
        assert_eq!(shown("application/json", b"{\"a\":1}"), Ok(json!({"a": 1})));
        assert_eq!(
            shown("application/merge-patch+json; charset=utf-8", b"{}"),
            Ok(json!({}))
        );
        assert_eq!(
            shown("application/apply-patch+yaml", b"a: b"),
            Ok(json!({"a": "b"}))
        );
        assert_eq!(shown("text/plain", b"{}"), Err(Unshown));
        assert_eq!(shown("application/json", b"{"), Err(Unshown));
        assert_eq!(
            shown("application/json", &vec![b' '; MAX_BODY_BYTES + 1]),
            Err(Unshown)
        );
    }

    #[test]
    fn managed_fields_are_taken_from_objects_and_lists() {
        let one = json!({"metadata": {"name": "a", "managedFields": [{}]}});
        let mut list = json!({"metadata": {}, "items": [one]});
        strip_managed_fields(&mut list);
        assert_eq!(
            list,
            json!({"metadata": {}, "items": [{"metadata": {"name": "a"}}]})
        );
    }
}
