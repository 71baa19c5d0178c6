//! One request, from headers to answer.
//!
//! The order is fixed: what is asked for, whether the caller has any access, whether there is room, whether they may do
//! this, and only then the body and the work: a caller without access costs nothing. A request that fails at any step
//! changes nothing and gets a `Status` that says why. Who is asking has been found out before. `objects` answers requests
//! about objects, `documents` those about the server. The network is left to `server`.

mod documents;
mod objects;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Collected, Limited};
use rustls::pki_types::CertificateDer;

use crate::access::pki::Authority;
use crate::access::review::ReviewPath;
use crate::access::signing::CertificateSigner;
use crate::access::{Access, Authenticator, Authorizer, Identity};
use crate::audit::{AuditLog, AuditRecord};
use crate::metrics::{ApiMetrics, RequestLabels};
use crate::node_proxy::{Nodes, ProxyPath, usage};
use crate::registry::Registry;
use crate::rest::accept;
use crate::rest::answer::{failure, json_answer};
use crate::rest::body::{self, Encoding, MAX_BODY_BYTES};
use crate::rest::large_bodies::LargeBodies;
use crate::rest::query::Query;
use crate::rest::room::{Load, Room};
use crate::rest::route::{self, Route, Verb};
use crate::rest::status::ApiError;
use crate::rest::{Body, BodyError};

/// How long a request may take from its first byte to its answer. Watches and streams may take longer.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(1);
/// Answers requests.
#[derive(Debug)]
pub(crate) struct Handler {
    registry: Registry,
    authenticator: Arc<Authenticator>,
    authorizer: Authorizer,
    signer: CertificateSigner,
    /// Where clients reach the server.
    url: String,
    nodes: Nodes,
    room: Room,
    large_bodies: LargeBodies,
    metrics: Arc<ApiMetrics>,
    /// `None` if nobody wants to know.
    audit: Option<Arc<AuditLog>>,
}

impl Handler {
    pub(crate) fn new(
        registry: Registry,
        authenticator: Arc<Authenticator>,
        nodes: Nodes,
        audit: Option<Arc<AuditLog>>,
        authority: Arc<Authority>,
        url: String,
    ) -> Self {
        let gates = registry.rules().gates;
        Self {
            authorizer: Authorizer::new(registry.clone()),
            signer: CertificateSigner::new(authority, registry.clone()),
            url,
            registry,
            authenticator,
            nodes,
            room: Room::new(),
            large_bodies: LargeBodies::new(),
            metrics: ApiMetrics::new(gates),
            audit,
        }
    }

    /// Whether a client certificate alone proves who the client is.
    pub(crate) fn trusts(&self, chain: Option<&[CertificateDer<'_>]>) -> bool {
        chain.is_some_and(|chain| self.authenticator.certificate_identity(chain).is_some())
    }

    /// Who sends a request with these headers over a connection with this client certificate.
    pub(crate) async fn authenticate(
        &self,
        chain: Option<&[CertificateDer<'_>]>,
        headers: &HeaderMap,
    ) -> Result<Identity, ApiError> {
        let caller = self.authenticator.authenticate(chain, headers).await?;
        self.authorizer.impersonate(caller, headers).await
    }

    /// Answers a request of a caller.
    ///
    /// The future is boxed: the compiler cannot see through it that it may move between threads.
    pub(crate) fn handle(
        self: Arc<Self>,
        caller: Result<Identity, ApiError>,
        source: SocketAddr,
        request: Request<Body>,
    ) -> BoxFuture<'static, Response<Body>> {
        let began = Instant::now();
        let route = route::parse(request.uri().path());
        let asked = RequestLabels::of(&request, route.as_ref().ok());
        let (audited, request) = match &self.audit {
            Some(audit) => {
                let record = AuditRecord::new(&request, caller.as_ref().ok(), source);
                let (audited, request) = audit.begin(record, request);
                (Some(audited), request)
            }
            None => (None, request),
        };
        Box::pin(async move {
            if let Some(audited) = &audited {
                audited.received().await;
            }
            let answered = match caller {
                Ok(identity) => self.answer(identity, route, request).await,
                Err(error) => Err(error),
            };
            let answer = answered.unwrap_or_else(|error| failure(&error));
            self.metrics.answered(asked, answer.status(), began.elapsed());
            match audited {
                Some(audited) => audited.answered(answer).await,
                None => answer,
            }
        })
    }

    async fn answer(
        self: &Arc<Self>,
        identity: Identity,
        route: Result<Route, ApiError>,
        request: Request<Body>,
    ) -> Result<Response<Body>, ApiError> {
        let path = request.uri().path().to_owned();
        match route {
            Ok(Route::Objects(object)) => self.objects(identity, object, request).await,
            Ok(Route::Proxy(proxied)) => self.proxy(&identity, &proxied, request).await,
            Ok(Route::Review(review)) => self.review(&identity, &review, request).await,
            Ok(route @ Route::Usage(_)) if request.method() == Method::GET => {
                let authorizing = self
                    .authorizer
                    .authorize_route(&identity, &route, request.method(), &path);
                authorizing.await?;
                let query = Query::parse(request.uri().query().unwrap_or_default())?;
                self.usage(&identity, &route, &query).await
            }
            Ok(route) => {
                let authorizing = self
                    .authorizer
                    .authorize_route(&identity, &route, request.method(), &path);
                authorizing.await?;
                if request.method() != Method::GET && request.method() != Method::HEAD {
                    return Err(ApiError::method_not_allowed());
                }
                // Whether the server is healthy can be asked however busy it is.
                let is_open = matches!(route, Route::Health(_) | Route::Version);
                let permit = (!is_open).then(|| self.room.take(&identity, Load::Reading));
                let _permit = permit.transpose()?;
                let query = Query::parse(request.uri().query().unwrap_or_default())?;
                self.document(&route, &query, request.headers()).await
            }
            Err(error) => {
                // A caller who may not look around does not learn what is not there.
                let authorizing =
                    self.authorizer
                        .authorize_route(&identity, &Route::Paths, request.method(), &path);
                authorizing.await?;
                Err(error)
            }
        }
    }

    /// Answers a request for what pods and nodes use.
    async fn usage(
        &self,
        identity: &Identity,
        route: &Route,
        query: &Query,
    ) -> Result<Response<Body>, ApiError> {
        let Route::Usage(path) = route else {
            return Err(ApiError::no_such_path());
        };
        let _permit = self.room.take(identity, Load::Reading)?;
        let answering: BoxFuture<'_, _> = Box::pin(usage::answer(&self.registry, &self.nodes, path, query));
        Ok(json_answer(StatusCode::OK, &answering.await?))
    }

    /// Answers a question about who may do what.
    async fn review(
        &self,
        identity: &Identity,
        review: &ReviewPath,
        request: Request<Body>,
    ) -> Result<Response<Body>, ApiError> {
        review.authorize(identity, &self.authorizer).await?;
        if request.method() != Method::POST {
            return Err(ApiError::method_not_allowed());
        }
        accept::require_objects(header(request.headers(), &ACCEPT))?;
        // Nothing is stored: it takes no more than a read.
        let _permit = self.room.take(identity, Load::Reading)?;
        let (parts, incoming) = request.into_parts();
        let work = async {
            let bytes = read_body(incoming).await?;
            let encoding = Encoding::of(Some(header(&parts.headers, &CONTENT_TYPE)))?;
            let body = body::parse(&bytes, encoding)?.value;
            let answer = review
                .answer(body, identity, &self.authorizer, &self.authenticator)
                .await?;
            Ok(json_answer(StatusCode::CREATED, &answer))
        };
        tokio::time::timeout(REQUEST_TIMEOUT, work)
            .await
            .unwrap_or_else(|_| Err(late()))
    }

    /// Passes a request on to what a pod or a node serves itself.
    async fn proxy(
        &self,
        identity: &Identity,
        proxied: &ProxyPath,
        request: Request<Body>,
    ) -> Result<Response<Body>, ApiError> {
        let access = Access {
            verb: Verb::of_proxied(request.method())?,
            path: &proxied.object,
            selector: None,
        };
        self.authorizer.authorize_caller(identity, access).await?;
        let permit = self.room.take(identity, Load::LongRunning)?;
        self.authorizer.authorize(identity, access).await?;
        let passing: BoxFuture<'_, _> = Box::pin(self.nodes.proxy(proxied, request, permit));
        passing.await
    }
}

fn late() -> ApiError {
    ApiError::timeout("request did not complete within the allotted timeout")
}

/// A header as text, empty if it is missing or is not text.
fn header<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> &'a str {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

async fn read_body(body: Body) -> Result<Bytes, ApiError> {
    let collecting: BoxFuture<'static, Result<Collected<Bytes>, BodyError>> =
        Box::pin(Limited::new(body, MAX_BODY_BYTES).collect());
    match collecting.await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            Err(ApiError::too_large(MAX_BODY_BYTES))
        }
        Err(error) => Err(ApiError::bad_request(format!(
            "the body of the request cannot be read: {error}"
        ))),
    }
}
