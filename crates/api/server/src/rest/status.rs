//! Errors as clients see them: `Status` objects in the words of an upstream API server.
//!
//! Clients decide by `code` and `reason`, people read `message`; scripts match both, so neither is ours to reword.

use std::fmt;

use http::StatusCode;
use pulselet_model::FieldError;
use pulselet_store::{Revision, StoreError};
use serde_json::{Value, json};

use crate::registry::resource::Endpoint;

/// Why a request failed, as `Status.reason` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusReason {
    AlreadyExists,
    BadRequest,
    Conflict,
    Expired,
    Forbidden,
    InternalError,
    Invalid,
    MethodNotAllowed,
    NotAcceptable,
    NotFound,
    RequestEntityTooLarge,
    ServiceUnavailable,
    Timeout,
    TooManyRequests,
    Unauthorized,
    UnsupportedMediaType,
}

impl StatusReason {
    pub const fn name(self) -> &'static str {
        match self {
            Self::AlreadyExists => "AlreadyExists",
            Self::BadRequest => "BadRequest",
            Self::Conflict => "Conflict",
            Self::Expired => "Expired",
            Self::Forbidden => "Forbidden",
            Self::InternalError => "InternalError",
            Self::Invalid => "Invalid",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::NotAcceptable => "NotAcceptable",
            Self::NotFound => "NotFound",
            Self::RequestEntityTooLarge => "RequestEntityTooLarge",
            Self::ServiceUnavailable => "ServiceUnavailable",
            Self::Timeout => "Timeout",
            Self::TooManyRequests => "TooManyRequests",
            Self::Unauthorized => "Unauthorized",
            Self::UnsupportedMediaType => "UnsupportedMediaType",
        }
    }

    pub const fn code(self) -> StatusCode {
        match self {
            Self::AlreadyExists | Self::Conflict => StatusCode::CONFLICT,
            Self::BadRequest => StatusCode::BAD_REQUEST,
            Self::Expired => StatusCode::GONE,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::InternalError => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::NotAcceptable => StatusCode::NOT_ACCEPTABLE,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::RequestEntityTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::ServiceUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Self::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        }
    }
}

/// A refused request.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    pub reason: StatusReason,
    pub message: String,
    pub details: Option<Value>,
    /// Seconds after which to try again.
    pub retry_after: Option<u32>,
    /// How to get the rest of a list.
    pub continue_token: Option<String>,
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

impl ApiError {
    pub fn new(reason: StatusReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            details: None,
            retry_after: None,
            continue_token: None,
        }
    }

    fn about(mut self, endpoint: Endpoint, name: &str) -> Self {
        self.details = Some(details(endpoint, name));
        self
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusReason::BadRequest, message)
    }

    pub fn not_found(endpoint: Endpoint, name: &str) -> Self {
        let message = format!("{} {name:?} not found", endpoint.qualified());
        Self::new(StatusReason::NotFound, message).about(endpoint, name)
    }

    /// The path names nothing.
    pub fn no_such_path() -> Self {
        Self::new(
            StatusReason::NotFound,
            "the server could not find the requested resource",
        )
    }

    pub fn already_exists(endpoint: Endpoint, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", endpoint.qualified());
        Self::new(StatusReason::AlreadyExists, message).about(endpoint, name)
    }

    pub fn modified(endpoint: Endpoint, name: &str) -> Self {
        let message =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(endpoint, name, message)
    }

    pub fn conflict(endpoint: Endpoint, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {name:?}: {why}",
            endpoint.qualified()
        );
        Self::new(StatusReason::Conflict, message).about(endpoint, name)
    }

    /// A rule about this object refuses the request.
    pub fn forbidden(endpoint: Endpoint, name: &str, why: &str) -> Self {
        let subject = if name.is_empty() {
            endpoint.qualified()
        } else {
            format!("{} {name:?}", endpoint.qualified())
        };
        Self::new(StatusReason::Forbidden, format!("{subject} is forbidden: {why}")).about(endpoint, name)
    }

    pub fn invalid(endpoint: Endpoint, name: &str, errors: &[FieldError]) -> Self {
        let list: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let list = match list.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let kind = endpoint.qualified_kind();
        let mut error = Self::new(
            StatusReason::Invalid,
            format!("{kind} {name:?} is invalid: {list}"),
        )
        .about(endpoint, name);
        if let Some(details) = &mut error.details {
            details["kind"] = json!(endpoint.info().kind);
            details["causes"] = json!(errors);
        }
        error
    }

    pub fn method_not_allowed() -> Self {
        Self::new(
            StatusReason::MethodNotAllowed,
            "the server does not allow this method on the requested resource",
        )
    }

    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let accepted = accepted.join(", ");
        Self::new(
            StatusReason::UnsupportedMediaType,
            format!(
                "the body of the request was in an unknown format - accepted media types include: {accepted}"
            ),
        )
    }

    pub fn not_acceptable(offered: &[&str]) -> Self {
        let offered = offered.join(", ");
        Self::new(
            StatusReason::NotAcceptable,
            format!("only the following media types are accepted: {offered}"),
        )
    }

    pub fn too_large(limit: usize) -> Self {
        Self::new(
            StatusReason::RequestEntityTooLarge,
            format!("Request entity too large: limit is {limit}"),
        )
    }

    pub fn unauthorized() -> Self {
        Self::new(StatusReason::Unauthorized, "Unauthorized")
    }

    pub fn internal(message: impl fmt::Display) -> Self {
        Self::new(
            StatusReason::InternalError,
            format!("Internal error occurred: {message}"),
        )
    }

    pub fn too_many_requests() -> Self {
        let mut error = Self::new(
            StatusReason::TooManyRequests,
            "Too many requests, please try again later.",
        );
        error.retry_after = Some(1);
        error
    }

    pub fn timeout(message: &str) -> Self {
        Self::new(StatusReason::Timeout, format!("Timeout: {message}"))
    }

    pub fn expired(asked: Revision, oldest: Revision) -> Self {
        Self::new(
            StatusReason::Expired,
            format!("too old resource version: {asked} ({oldest})"),
        )
    }

    /// The list whose next page was asked for cannot be continued.
    /// With a token by which the rest can be had as it is now.
    pub fn expired_continue(rest: &str) -> Self {
        let mut error = Self::new(
            StatusReason::Expired,
            "The provided continue parameter is too old to display a consistent list result. You can start a new \
             list without the continue parameter, or use the continue token in this response for the rest as it is now: \
             what has changed since the first page may be missing or come twice.",
        );
        error.continue_token = Some(rest.to_owned());
        error
    }

    /// As a `Status` object.
    pub fn to_status(&self) -> Value {
        let mut status = json!({
            "apiVersion": "v1",
            "kind": "Status",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason.name(),
            "code": self.reason.code().as_u16(),
        });
        if let Some(token) = &self.continue_token {
            status["metadata"]["continue"] = json!(token);
        }
        let mut details = self.details.clone();
        if let Some(seconds) = self.retry_after {
            details.get_or_insert_with(|| json!({}))["retryAfterSeconds"] = json!(seconds);
        }
        if let Some(details) = details {
            status["details"] = details;
        }
        status
    }
}

fn details(endpoint: Endpoint, name: &str) -> Value {
    let mut details = json!({"kind": endpoint.info().plural});
    if !name.is_empty() {
        details["name"] = json!(name);
    }
    let group = endpoint.group_version.group();
    if !group.is_empty() {
        details["group"] = json!(group);
    }
    details
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Compacted { asked, oldest } => Self::expired(asked, oldest),
            StoreError::Future { asked, newest } => {
                let mut error =
                    Self::timeout(&format!("Too large resource version: {asked}, current: {newest}"));
                error.details = Some(json!({"causes": [{
                    "reason": "ResourceVersionTooLarge",
                    "message": "Too large resource version",
                }]}));
                error.retry_after = Some(1);
                error
            }
            StoreError::Unanswered { .. } => {
                tracing::error!(%error, "the store did not answer a change");
                Self::timeout(&error.to_string())
            }
            StoreError::Unreachable { .. } => {
                tracing::error!(%error, "the store failed a request");
                let mut unavailable = Self::new(StatusReason::ServiceUnavailable, error.to_string());
                unavailable.retry_after = Some(1);
                unavailable
            }
            StoreError::TooLarge => Self::new(StatusReason::RequestEntityTooLarge, error.to_string()),
            StoreError::Open { .. }
            | StoreError::ReadCredential { .. }
            | StoreError::Format { .. }
            | StoreError::StartWriter { .. }
            | StoreError::Read { .. }
            | StoreError::Write { .. }
            | StoreError::Forgetful { .. }
            | StoreError::Identify { .. }
            | StoreError::Copy { .. }
            | StoreError::Closed => {
                tracing::error!(%error, "the store failed a request");
                Self::internal(error)
            }
        }
    }
}
