//! Errors as gRPC has them. The codes are those that kubelets and other clients of CRI act upon.

use pulselet_runtime::{Error, ImageErrorKind, RuntimeImageError};
use tonic::{Code, Status};

/// Why a request is not carried out, as far as the request itself is to blame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("{field} is missing")]
    Missing { field: &'static str },
    #[error("{field}: {detail}")]
    Invalid { field: &'static str, detail: String },
    #[error("{field} is not supported by this runtime: {hint}")]
    Unsupported { field: &'static str, hint: &'static str },
}

impl RequestError {
    pub(crate) fn invalid(field: &'static str, detail: impl Into<String>) -> Self {
        Self::Invalid {
            field,
            detail: detail.into(),
        }
    }
}

impl From<RequestError> for Status {
    fn from(error: RequestError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

/// The code for what a runtime says.
#[expect(
    clippy::needless_pass_by_value,
    reason = "errors are mapped by this, and those are values"
)]
pub(crate) fn refused(error: Error) -> Status {
    let code = match &error {
        Error::NotFound { .. } => Code::NotFound,
        Error::AlreadyExists { .. } => Code::AlreadyExists,
        Error::Invalid { .. } => Code::InvalidArgument,
        Error::WrongState { .. } => Code::FailedPrecondition,
        Error::Unsupported { .. } => Code::Unimplemented,
        Error::Timeout { .. } => Code::DeadlineExceeded,
        Error::Unavailable { .. } => Code::Unavailable,
        Error::Image(error) => image_code(error),
        // As other servers have it: the text is for people.
        Error::CannotRun { .. } | Error::Failed { .. } => Code::Unknown,
    };
    Status::new(code, error.to_string())
}

fn image_code(error: &RuntimeImageError) -> Code {
    match error.kind {
        ImageErrorKind::InvalidName => Code::InvalidArgument,
        ImageErrorKind::NotFound => Code::NotFound,
        ImageErrorKind::InUse => Code::FailedPrecondition,
        ImageErrorKind::Pull => Code::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pulselet_runtime::Operation;

    use super::*;

    #[test]
    fn clients_find_the_codes_they_act_upon() {
        assert_eq!(refused(Error::no_container("x")).code(), Code::NotFound);
        let late = Error::Timeout {
            operation: Operation::Exec,
            after: Duration::from_secs(1),
        };
        assert_eq!(refused(late).code(), Code::DeadlineExceeded);
        let cannot = Error::CannotRun {
            message: "exec: \"x\": executable file not found in $PATH".into(),
        };
        let status = refused(cannot);
        assert_eq!(status.code(), Code::Unknown);
        assert!(status.message().starts_with("exec: "));
        let status = Status::from(RequestError::Missing { field: "config" });
        assert_eq!(
            (status.code(), status.message()),
            (Code::InvalidArgument, "config is missing")
        );
    }
}
