//! What is answered, once it is clear that the one who asks may.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::Stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use percent_encoding::percent_decode_str;
use pulselet_vocabulary::{ParsePodNameError, PodName};
use serde::Serialize;

use crate::access::{Access, Judgement};
use crate::assets::{self, CONTENT_SECURITY_POLICY};
use crate::feed::PageFeed;
use crate::logs::{LogViewers, TooManyViewers};
use crate::manifest::{self, ExplainError};
use crate::source::{DashboardSource, PodInPlace, SourceError};
use crate::sse;
use crate::what_if::{self, Change, WhatIfError};

pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
/// Bytes of a change that are read: a few numbers.
const MAX_CHANGE: usize = 64 * 1024;

/// What every request is answered from.
#[derive(Debug)]
pub(crate) struct Routes {
    pub(crate) access: Access,
    pub(crate) source: DashboardSource,
    pub(crate) feed: Arc<PageFeed>,
    pub(crate) viewers: LogViewers,
}

/// Why there is no good answer.
#[derive(Debug, thiserror::Error)]
enum RouteError {
    #[error("there is nothing here")]
    NoSuchPath,
    #[error("the request names no {0}")]
    MissingParameter(&'static str),
    #[error(transparent)]
    ReadPodName(#[from] ParsePodNameError),
    #[error("cannot read the request: {0}")]
    ReadBody(Box<dyn std::error::Error + Send + Sync>),
    #[error("the request cannot be understood: {0}")]
    DecodeChange(serde_json::Error),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Explain(#[from] ExplainError),
    #[error(transparent)]
    WhatIf(#[from] WhatIfError),
    #[error(transparent)]
    Viewers(#[from] TooManyViewers),
}

impl RouteError {
    fn status(&self) -> StatusCode {
        match self {
            Self::NoSuchPath => StatusCode::NOT_FOUND,
            Self::MissingParameter(_) | Self::ReadPodName(_) | Self::ReadBody(_) | Self::DecodeChange(_) => {
                StatusCode::BAD_REQUEST
            }
            Self::Source(error) => {
                let refusal = error.refusal().and_then(|code| StatusCode::from_u16(code).ok());
                refusal.unwrap_or(StatusCode::BAD_GATEWAY)
            }
            Self::Explain(_) | Self::WhatIf(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Viewers(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl Routes {
    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Answer {
        let (parts, body) = request.into_parts();
        let secret = parameter(&parts, "secret");
        let mut answer = match self.access.judge(&parts, secret.as_deref()) {
            Judgement::Refused { status, message } => full(status, TEXT, message),
            Judgement::Granted => self.routed(&parts, body).await,
            // The page itself: what it loads next has the cookie, wherever the link to it was.
            Judgement::Admitted { cookie } => {
                let mut page = self.routed(&parts, body).await;
                if let Ok(cookie) = HeaderValue::from_str(&cookie) {
                    page.headers_mut().insert(header::SET_COOKIE, cookie);
                }
                page
            }
        };
        protect(&mut answer);
        answer
    }

    async fn routed(&self, parts: &Parts, body: Incoming) -> Answer {
        self.route(parts, body)
            .await
            .unwrap_or_else(|error| full(error.status(), TEXT, format!("{error}\n")))
    }

    async fn route(&self, parts: &Parts, body: Incoming) -> Result<Answer, RouteError> {
        match (&parts.method, parts.uri.path()) {
            (&Method::GET, "/api/events") => {
                let last = parts.headers.get("last-event-id").and_then(|id| id.to_str().ok());
                Ok(sse::follow(Arc::clone(&self.feed), last))
            }
            (&Method::GET, "/api/logs") => {
                let (pod, container) = (pod(parts)?, required(parts, "container")?);
                let events = self.viewers.follow(self.source.clone(), pod, container)?;
                Ok(sse::pass_on(events))
            }
            (&Method::GET, "/api/pod") => {
                let PodInPlace { pod, rules } = self.source.pod(&pod(parts)?).await?;
                Ok(json(&manifest::explained(&pod, &rules)?))
            }
            (&Method::POST, "/api/what-if") => {
                let body = Limited::new(body, MAX_CHANGE).collect().await;
                let body = body.map_err(RouteError::ReadBody)?.to_bytes();
                let change: Change = serde_json::from_slice(&body).map_err(RouteError::DecodeChange)?;
                let PodInPlace { pod, rules } = self.source.pod(&change.pod.parse()?).await?;
                Ok(json(&what_if::compare(&pod, &rules, &change)?))
            }
            (&Method::GET, path) => assets::file(path).ok_or(RouteError::NoSuchPath),
            _ => Err(RouteError::NoSuchPath),
        }
    }
}

fn pod(parts: &Parts) -> Result<PodName, RouteError> {
    Ok(required(parts, "pod")?.parse()?)
}

fn required(parts: &Parts, key: &'static str) -> Result<String, RouteError> {
    parameter(parts, key).ok_or(RouteError::MissingParameter(key))
}

/// The value of a key of the address; `None` if it has none, or one that is not text.
fn parameter(parts: &Parts, key: &str) -> Option<String> {
    let mut pairs = parts
        .uri
        .query()?
        .split('&')
        .filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(name, _)| *name == key)?;
    let text = percent_decode_str(value).decode_utf8().ok()?;
    Some(text.into_owned())
}

/// What every answer says to the browser, so that nothing of another origin gets in or at it.
fn protect(answer: &mut Answer) {
    let headers = [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ];
    for (name, value) in headers {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
}

fn json(value: &impl Serialize) -> Answer {
    let text = serde_json::to_vec(value).expect("answers are plain data");
    full(StatusCode::OK, JSON, text)
}

/// A complete answer.
pub(crate) fn full(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(UnsyncBoxBody::new(Full::new(body.into())));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// An answer that goes on.
pub(crate) fn streaming(
    kind: &'static str,
    frames: impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + 'static,
) -> Answer {
    let mut answer = Response::new(UnsyncBoxBody::new(StreamBody::new(frames)));
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}
