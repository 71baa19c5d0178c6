//! Objects and lists in the form a client asked for.

use std::iter;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use pulselet_store::StoredObject;
use serde_json::{Value, json};

use crate::registry::object::Object;
use crate::registry::resource::Endpoint;
use crate::registry::{Listed, Registry};
use crate::rest::accept::{Form, View, WireFormat};
use crate::rest::answer::full;
use crate::rest::status::ApiError;
use crate::rest::table;
use crate::rest::{Body, BodyError};
use pulselet_schema::protobuf;

/// Appends one stored object as JSON.
pub(crate) fn render_json(
    registry: &Registry,
    endpoint: Endpoint,
    view: View,
    entry: &StoredObject,
    out: &mut BytesMut,
) -> Result<(), ApiError> {
    match view {
        View::Objects => registry.render(endpoint, entry, out),
        View::Metadata | View::Table(_) => {
            let value = object_view(registry, endpoint, view, Object::from_entry(entry)?);
            serde_json::to_writer(out.writer(), &value).map_err(ApiError::internal)
        }
    }
}

/// One stored object in the form asked for.
pub(crate) fn render_one(
    registry: &Registry,
    endpoint: Endpoint,
    form: Form,
    entry: &StoredObject,
) -> Result<Bytes, ApiError> {
    match form.wire {
        WireFormat::Json => {
            let mut out = BytesMut::new();
            render_json(registry, endpoint, form.view, entry, &mut out)?;
            Ok(out.freeze())
        }
        WireFormat::Protobuf => {
            let value = object_view(registry, endpoint, form.view, Object::from_entry(entry)?);
            in_protobuf(&value)
        }
    }
}

/// An object or a list in protobuf.
pub(crate) fn in_protobuf(value: &Value) -> Result<Bytes, ApiError> {
    let encoded = protobuf::encode(value).map(Bytes::from);
    encoded.ok_or_else(|| ApiError::not_acceptable(&["application/json"]))
}

/// One object, as stored, in the form asked for.
pub(crate) fn object_view(registry: &Registry, endpoint: Endpoint, view: View, object: Object) -> Value {
    match view {
        View::Objects => registry.present(endpoint, object).into_value(),
        View::Metadata => table::partial(&object),
        View::Table(include) => {
            let metadata = json!({"resourceVersion": object.resource_version()});
            let shown = registry.present(endpoint, object.clone());
            table::table(endpoint.kind, &[(object, shown)], include, &metadata)
        }
    }
}

/// A list in the form asked for.
pub(crate) fn render_list(
    registry: &Registry,
    endpoint: Endpoint,
    form: Form,
    listed: Listed,
) -> Result<Body, ApiError> {
    if !form.is_plain() {
        return render_whole_list(registry, endpoint, form, &listed).map(full);
    }
    let mut parts = registry.clone().render_list(endpoint, listed);
    match parts.next() {
        Some(first) if parts.has_more() => {
            let parts = iter::once(first).chain(parts);
            let frames = parts.map(|part| part.map(Frame::data).map_err(BodyError::from));
            Ok(StreamBody::new(stream::iter(frames)).boxed_unsync())
        }
        Some(only) => only.map(full),
        None => Ok(full(Bytes::new())),
    }
}

/// A list that is made all at once.
fn render_whole_list(
    registry: &Registry,
    endpoint: Endpoint,
    form: Form,
    listed: &Listed,
) -> Result<Bytes, ApiError> {
    let decoded = || -> Result<Vec<Object>, ApiError> {
        let objects = listed.entries.iter().map(Object::from_entry);
        Ok(objects.collect::<Result<_, _>>()?)
    };
    let value = match form.view {
        View::Objects => {
            let shown = decoded()?
                .into_iter()
                .map(|object| registry.present(endpoint, object).into_value());
            json!({
                "kind": format!("{}List", endpoint.info().kind),
                "apiVersion": endpoint.group_version.api_version(),
                "metadata": listed.metadata(),
                "items": shown.collect::<Vec<_>>(),
            })
        }
        View::Metadata => {
            let items: Vec<Value> = decoded()?.iter().map(table::partial).collect();
            json!({
                "kind": "PartialObjectMetadataList",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": listed.metadata(),
                "items": items,
            })
        }
        View::Table(include) => {
            let rows: Vec<(Object, Object)> = decoded()?
                .into_iter()
                .map(|object| (object.clone(), registry.present(endpoint, object)))
                .collect();
            table::table(endpoint.kind, &rows, include, &listed.metadata())
        }
    };
    match form.wire {
        WireFormat::Json => Ok(Bytes::from(value.to_string())),
        WireFormat::Protobuf => in_protobuf(&value),
    }
}
