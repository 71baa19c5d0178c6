//! Requests for what is not an object: discovery, schemas, keys, versions and metrics.

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use serde_json::{Value, json};

use super::{Handler, header};
use crate::access::tokens;
use crate::discovery::{self, openapi};
use crate::metrics;
use crate::node_proxy::usage;
use crate::rest::Body;
use crate::rest::accept::{self, DiscoveryView, WireFormat};
use crate::rest::answer::{bytes_answer, full, json_answer};
use crate::rest::query::Query;
use crate::rest::route::Route;
use crate::rest::status::ApiError;

impl Handler {
    /// Answers a request for something that is not an object.
    pub(super) async fn document(
        &self,
        route: &Route,
        query: &Query,
        headers: &HeaderMap,
    ) -> Result<Response<Body>, ApiError> {
        let accepted = header(headers, &ACCEPT);
        let aggregated = |core: bool, plain: fn() -> Value| match accept::discovery(accepted)? {
            DiscoveryView::Plain => Ok(json_answer(StatusCode::OK, &plain())),
            DiscoveryView::Aggregated(format) => {
                let mut answer = json_answer(StatusCode::OK, &discovery::aggregated(core, format));
                let content_type =
                    format!("application/json;g=apidiscovery.k8s.io;v={format};as=APIGroupDiscoveryList");
                if let Ok(value) = HeaderValue::from_str(&content_type) {
                    answer.headers_mut().insert(CONTENT_TYPE, value);
                }
                Ok(answer)
            }
        };
        let plain = |value: &Value| {
            accept::require_json(accepted)?;
            Ok(json_answer(StatusCode::OK, value))
        };
        match route {
            Route::Health(path) => path.answer(&self.registry, query).await,
            Route::IssuerDiscovery => plain(&tokens::discovery_document(&self.url)),
            Route::IssuerKeys => {
                let mut answer =
                    json_answer(StatusCode::OK, &self.authenticator.service_accounts().key_set());
                let content_type = HeaderValue::from_static("application/jwk-set+json");
                answer.headers_mut().insert(CONTENT_TYPE, content_type);
                Ok(answer)
            }
            Route::ReviewGroup(group) => plain(&discovery::review_group(*group)),
            Route::ReviewResources(group) => plain(&group.resources()),
            Route::Version => {
                let mut version = discovery::version();
                // Nodes remember whose pods they run.
                version["pulseletStore"] = json!(self.registry.store_identity());
                plain(&version)
            }
            Route::Metrics => Ok(self.metrics_page()),
            Route::CoreVersions => aggregated(true, discovery::core_versions),
            Route::Groups => aggregated(false, discovery::groups),
            Route::Group(group) => plain(&discovery::group(*group)),
            Route::Resources(group) => plain(&discovery::resources(*group)),
            Route::UsageGroup => plain(&discovery::usage_group()),
            Route::UsageResources => plain(&usage::resources()),
            Route::Paths => plain(&discovery::paths()),
            Route::OpenApiV2 if accept::wants_protobuf_openapi(accepted) => Ok(protobuf_openapi()),
            Route::OpenApiV2 => plain(&openapi::v2(self.registry.rules().profile)),
            Route::OpenApiV3Index => plain(&openapi::v3_index()),
            Route::OpenApiV3(group) => plain(&openapi::v3(*group, self.registry.rules().profile)),
            Route::Objects(_) | Route::Proxy(_) | Route::Review(_) | Route::Usage(_) => {
                Err(ApiError::no_such_path())
            }
        }
    }

    fn metrics_page(&self) -> Response<Body> {
        let mut answer = Response::new(full(Bytes::from(self.metrics.text())));
        let content_type = HeaderValue::from_static(metrics::CONTENT_TYPE);
        answer.headers_mut().insert(CONTENT_TYPE, content_type);
        answer
    }
}

fn protobuf_openapi() -> Response<Body> {
    let mut answer = bytes_answer(StatusCode::OK, openapi::v2_protobuf(), WireFormat::Json);
    let content_type = HeaderValue::from_static(accept::PROTOBUF_OPENAPI);
    answer.headers_mut().insert(CONTENT_TYPE, content_type);
    answer
}
