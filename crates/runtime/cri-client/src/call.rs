//! Calls: a deadline for each, and what their errors mean.

use std::error::Error as _;
use std::future::Future;
use std::time::Duration;

use pulselet_runtime::{Error, ObjectKind, Operation, Result};
use tonic::{Code, Response, Status};

/// How long a question may take. Servers answer these from memory.
pub(crate) const ASK: Duration = Duration::from_secs(30);
/// How long making, starting or removing something may take, as a kubelet waits.
pub(crate) const CHANGE: Duration = Duration::from_mins(2);
/// How long a sandbox may take; network plugins are slow.
pub(crate) const RUN_SANDBOX: Duration = Duration::from_mins(4);
/// How long an image may take; registries are slow and layers are large.
pub(crate) const PULL: Duration = Duration::from_mins(30);
/// What a call that waits by itself, for a grace period or a command, may take beyond that.
pub(crate) const SLACK: Duration = Duration::from_secs(30);

/// Why a call gave no answer.
#[derive(Debug)]
pub(crate) enum CallError {
    Late(Duration),
    Refused(Status),
}

impl CallError {
    /// What it means for an operation on nothing that could be missing.
    pub(crate) fn of(self, operation: Operation) -> Error {
        match self {
            Self::Late(after) => Error::Timeout { operation, after },
            Self::Refused(status) if is_away(&status) => Error::unavailable(operation, explain(&status)),
            Self::Refused(status) => match status.code() {
                Code::Unimplemented => Error::Unsupported { operation },
                _ => Error::failed(operation, explain(&status)),
            },
        }
    }

    /// What it means for an operation on one object.
    pub(crate) fn on(self, operation: Operation, kind: ObjectKind, id: &str) -> Error {
        if self.is_not_found() {
            let id = id.to_owned();
            return Error::NotFound { kind, id };
        }
        self.of(operation)
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.code() == Some(Code::NotFound)
    }

    pub(crate) fn code(&self) -> Option<Code> {
        match self {
            Self::Late(_) => None,
            Self::Refused(status) => Some(status.code()),
        }
    }

    /// What the server said.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Late(_) => "",
            Self::Refused(status) => status.message(),
        }
    }
}

/// Waits for an answer, no longer than `within`.
pub(crate) async fn call<T>(
    within: Duration,
    answer: impl Future<Output = std::result::Result<Response<T>, Status>>,
) -> std::result::Result<T, CallError> {
    match tokio::time::timeout(within, answer).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(CallError::Refused(status)),
        Err(_) => Err(CallError::Late(within)),
    }
}

/// Lets work go on when the caller stops waiting.
pub(crate) async fn carry_out<T: Send + 'static>(
    operation: Operation,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    match tokio::spawn(work).await {
        Ok(result) => result,
        // It panicked, or the agent ends.
        Err(error) => Err(Error::unavailable(operation, error)),
    }
}

/// Whether it was the way to the server that failed. What a server says itself has no cause on this side.
pub(crate) fn is_away(status: &Status) -> bool {
    status.code() == Code::Unavailable || status.source().is_some()
}

/// What to say of a status, with the causes that its own text leaves out.
pub(crate) fn explain(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut cause = status.source();
    while let Some(error) = cause {
        let detail = error.to_string();
        if !text.contains(&detail) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&detail);
        }
        cause = error.source();
    }
    if text.is_empty() {
        status.code().description().clone_into(&mut text);
    }
    text
}

/// A duration in whole seconds, as CRI has them, never shorter than it is.
pub(crate) fn whole_seconds(duration: Duration) -> i64 {
    let up = u64::from(duration.subsec_nanos() > 0);
    i64::try_from(duration.as_secs().saturating_add(up)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_sorted_by_what_a_caller_does() {
        let error = |code| {
            CallError::Refused(Status::new(code, "why")).on(
                Operation::StopContainer,
                ObjectKind::Container,
                "c",
            )
        };
        assert!(error(Code::NotFound).is_not_found());
        assert!(matches!(error(Code::Unavailable), Error::Unavailable { .. }));
        assert!(matches!(error(Code::Unimplemented), Error::Unsupported { .. }));
        assert_eq!(error(Code::Unknown).to_string(), "cannot stop container: why");
    }

    #[test]
    fn a_broken_connection_is_no_answer_of_the_server() {
        let status = Status::from_error(Box::new(std::io::Error::other("reset")));
        assert!(is_away(&status));
        assert!(explain(&status).contains("reset"));
    }

    #[tokio::test]
    async fn an_answer_that_never_comes_is_not_waited_for() {
        let never = std::future::pending::<std::result::Result<Response<()>, Status>>();
        let error = call(Duration::from_millis(1), never)
            .await
            .expect_err("nothing came");
        assert!(matches!(error.of(Operation::List), Error::Timeout { .. }));
    }

    #[test]
    fn seconds_are_never_fewer() {
        let seconds = |millis| whole_seconds(Duration::from_millis(millis));
        assert_eq!(
            [seconds(0), seconds(1), seconds(1000), seconds(1001)],
            [0, 1, 1, 2]
        );
        assert_eq!(whole_seconds(Duration::MAX), i64::MAX);
    }
}
