//! What form of answer a client wants, from its `Accept` header.
//!
//! Answers are JSON, and objects also Kubernetes' protobuf. A client may ask for a table of the columns people know, for
//! metadata only, or, of discovery, for everything in one document.

use crate::rest::query::Query;
use crate::rest::status::ApiError;
use pulselet_schema::protobuf;

const JSON: &str = "application/json";

/// `OpenAPI` v2 as older clients want it, and as the newest still do for lists.
pub(crate) const PROTOBUF_OPENAPI: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// How much of each object a table row carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Include {
    None,
    Metadata,
    Object,
}

/// A form of answer for objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    Objects,
    Table(Include),
    /// `PartialObjectMetadata`.
    Metadata,
}

/// How an answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WireFormat {
    Json,
    Protobuf,
}

/// A form of answer for objects, and how it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    pub view: View,
    pub wire: WireFormat,
}

impl Form {
    /// Whether it is objects as such, in JSON.
    pub(crate) fn is_plain(self) -> bool {
        self.view == View::Objects && self.wire == WireFormat::Json
    }
}

/// A form of answer for discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiscoveryView {
    Plain,
    /// Everything in one document, in this version of the format.
    Aggregated(&'static str),
}

/// One acceptable media type.
#[derive(Debug, PartialEq, Eq)]
struct Accepted<'a> {
    media_type: &'a str,
    kind: &'a str,
    version: &'a str,
    group: &'a str,
}

fn parse(header: &str) -> Vec<Accepted<'_>> {
    let parse_one = |part| {
        let mut pieces = str::split(part, ';').map(str::trim);
        let mut accepted = Accepted {
            media_type: pieces.next().unwrap_or_default(),
            kind: "",
            version: "",
            group: "",
        };
        for piece in pieces {
            match piece.split_once('=') {
                Some(("as", value)) => accepted.kind = value,
                Some(("v", value)) => accepted.version = value,
                Some(("g", value)) => accepted.group = value,
                _ => {}
            }
        }
        accepted
    };
    header.split(',').map(parse_one).collect()
}

fn is_json(media_type: &str) -> bool {
    matches!(media_type, "" | JSON | "*/*" | "application/*")
}

/// The first form in the header that we have.
pub(crate) fn form(header: &str, query: &Query) -> Result<Form, ApiError> {
    for accepted in &parse(header) {
        let wire = match accepted.media_type {
            protobuf::MEDIA_TYPE => WireFormat::Protobuf,
            media_type if is_json(media_type) => WireFormat::Json,
            _ => continue,
        };
        let view = match (accepted.kind, accepted.group, accepted.version) {
            ("", _, _) => View::Objects,
            // Tables are for people, and not in protobuf.
            ("Table", "meta.k8s.io", "v1") if wire == WireFormat::Json => View::Table(include(query)?),
            ("PartialObjectMetadata" | "PartialObjectMetadataList", "meta.k8s.io", "v1") => View::Metadata,
            _ => continue,
        };
        return Ok(Form { view, wire });
    }
    Err(ApiError::not_acceptable(&[JSON, protobuf::MEDIA_TYPE]))
}

fn include(query: &Query) -> Result<Include, ApiError> {
    match query.text("includeObject") {
        "" | "Metadata" => Ok(Include::Metadata),
        "None" => Ok(Include::None),
        "Object" => Ok(Include::Object),
        other => Err(ApiError::bad_request(format!(
            "unrecognized includeObject value: {other:?}"
        ))),
    }
}

/// The first form of discovery in the header that we have.
pub(crate) fn discovery(header: &str) -> Result<DiscoveryView, ApiError> {
    for accepted in parse(header)
        .iter()
        .filter(|accepted| is_json(accepted.media_type))
    {
        match (accepted.kind, accepted.group, accepted.version) {
            ("", _, _) => return Ok(DiscoveryView::Plain),
            ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") => {
                return Ok(DiscoveryView::Aggregated("v2"));
            }
            ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2beta1") => {
                return Ok(DiscoveryView::Aggregated("v2beta1"));
            }
            _ => {}
        }
    }
    Err(ApiError::not_acceptable(&[JSON]))
}

/// Refuses a client that does not take plain JSON, for answers that exist in no other form.
pub(crate) fn require_json(header: &str) -> Result<(), ApiError> {
    if parse(header).iter().any(|accepted| is_json(accepted.media_type)) {
        Ok(())
    } else {
        Err(ApiError::not_acceptable(&[JSON]))
    }
}

/// Refuses a client that takes tables or metadata alone, for answers that are not objects of the store.
pub(crate) fn require_objects(header: &str) -> Result<(), ApiError> {
    let is_plain = |accepted: &Accepted<'_>| {
        accepted.kind.is_empty()
            && (is_json(accepted.media_type) || accepted.media_type == protobuf::MEDIA_TYPE)
    };
    if parse(header).iter().any(is_plain) {
        Ok(())
    } else {
        Err(ApiError::not_acceptable(&[JSON]))
    }
}

/// Whether a client wants `OpenAPI` v2 in protobuf. The media type had an at sign once.
pub(crate) fn wants_protobuf_openapi(header: &str) -> bool {
    parse(header)
        .iter()
        .any(|accepted| accepted.media_type.replace('@', ".") == PROTOBUF_OPENAPI)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_form_we_have_wins() {
        let query = Query::default();
        let of = |header: &str| form(header, &query).map(|form| (form.view, form.wire));
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,\
                     application/json";
        assert_eq!(of(table), Ok((View::Table(Include::Metadata), WireFormat::Json)));
        assert_eq!(of(""), Ok((View::Objects, WireFormat::Json)));
        let protobuf_first = "application/vnd.kubernetes.protobuf, application/json;q=0.9";
        assert_eq!(of(protobuf_first), Ok((View::Objects, WireFormat::Protobuf)));
        let metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        assert_eq!(of(metadata), Ok((View::Metadata, WireFormat::Protobuf)));
        assert!(of("text/html").is_err());
        let aggregated =
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
        assert_eq!(discovery(aggregated), Ok(DiscoveryView::Aggregated("v2")));
        assert_eq!(discovery("*/*"), Ok(DiscoveryView::Plain));
    }
}
