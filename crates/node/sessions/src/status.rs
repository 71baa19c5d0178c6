//! How a command ended, in the words of the Kubernetes API.

use pulselet_streaming::StatusForm;
use serde_json::{Value, json};

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    ExitCode(i32),
    /// It was not run, or nobody knows how it ended.
    Error(String),
}

impl Outcome {
    /// What goes to the client; none where that is nothing.
    pub(crate) fn render(&self, form: StatusForm) -> Option<String> {
        match form {
            StatusForm::Json => Some(self.to_json().to_string()),
            StatusForm::Text => self.message(),
        }
    }

    fn message(&self) -> Option<String> {
        match self {
            Self::Success => None,
            Self::ExitCode(code) => Some(format!(
                "command terminated with non-zero exit code: exit status {code}"
            )),
            Self::Error(error) => Some(format!("Internal error occurred: {error}")),
        }
    }

    fn to_json(&self) -> Value {
        let message = self.message();
        match self {
            Self::Success => json!({"metadata": {}, "status": "Success"}),
            Self::ExitCode(code) => json!({
                "metadata": {},
                "status": "Failure",
                "message": message,
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
            }),
            Self::Error(error) => json!({
                "metadata": {},
                "status": "Failure",
                "message": message,
                "reason": "InternalError",
                "details": {"causes": [{"message": error}]},
                "code": 500,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_find_the_exit_code_where_they_look_for_it() {
        let status: Value =
            serde_json::from_str(&Outcome::ExitCode(3).render(StatusForm::Json).unwrap()).unwrap();
        assert_eq!(status["reason"], "NonZeroExitCode");
        assert_eq!(
            status["details"]["causes"][0],
            json!({"reason": "ExitCode", "message": "3"})
        );
        assert_eq!(Outcome::Success.render(StatusForm::Text), None);
        let error = Outcome::Error("no such file".to_owned());
        assert_eq!(
            error.render(StatusForm::Text).unwrap(),
            "Internal error occurred: no such file"
        );
    }
}
