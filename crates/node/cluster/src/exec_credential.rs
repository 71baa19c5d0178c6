//! Credential programs: a kubeconfig names a program, and what that prints is the credential.
//!
//! It is run for every connection, which is seldom: the first, and one after each refusal. It gets no input and a bounded
//! time, and what it prints is read up to a limit.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

/// How long a program may take.
const TIMEOUT: Duration = Duration::from_mins(1);
/// Bytes of what it prints.
const MAX_BYTES: u64 = 1024 * 1024;
/// The versions of the protocol that we speak.
const VERSIONS: [&str; 2] = [
    "client.authentication.k8s.io/v1",
    "client.authentication.k8s.io/v1beta1",
];

#[derive(Debug, thiserror::Error)]
pub enum ExecCredentialError {
    #[error(
        "the credential program speaks {version:?}, which is not supported: use client.authentication.k8s.io/v1"
    )]
    Version { version: String },
    #[error("cannot run the credential program {command:?}: {source}; {hint}")]
    Run {
        command: String,
        source: std::io::Error,
        hint: String,
    },
    #[error("the credential program {command:?} did not end within {TIMEOUT:?}")]
    Timeout { command: String },
    #[error("the credential program {command:?} ended with {status}")]
    Failed {
        command: String,
        status: std::process::ExitStatus,
    },
    #[error("what the credential program {command:?} printed is no credential: {why}")]
    Parse { command: String, why: String },
}

/// A program as a kubeconfig names it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExecProgram {
    api_version: String,
    command: String,
    #[serde(default)]
    args: Option<Vec<String>>,
    #[serde(default)]
    env: Option<Vec<Variable>>,
    #[serde(default)]
    install_hint: Option<String>,
    #[serde(default)]
    interactive_mode: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct Variable {
    name: String,
    value: String,
}

/// What a program printed.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ExecCredential {
    pub(crate) token: Option<String>,
    pub(crate) client_certificate_data: Option<String>,
    pub(crate) client_key_data: Option<String>,
}

impl ExecProgram {
    /// Whether the program can be used at all; a relative path is one beside the kubeconfig.
    pub(crate) fn resolve(mut self, directory: &Path) -> Result<Self, ExecCredentialError> {
        if !VERSIONS.contains(&self.api_version.as_str()) {
            let version = self.api_version;
            return Err(ExecCredentialError::Version { version });
        }
        if self.interactive_mode.as_deref() == Some("Always") {
            return Err(
                self.misfit("it wants to ask somebody, and a node has nobody (interactiveMode: Always)")
            );
        }
        let is_path = self.command.contains('/');
        if is_path && PathBuf::from(&self.command).is_relative() {
            self.command = directory.join(&self.command).display().to_string();
        }
        Ok(self)
    }

    fn misfit(&self, why: &str) -> ExecCredentialError {
        ExecCredentialError::Parse {
            command: self.command.clone(),
            why: why.to_owned(),
        }
    }

    /// Runs the program.
    pub(crate) async fn run(&self) -> Result<ExecCredential, ExecCredentialError> {
        let running = tokio::time::timeout(TIMEOUT, self.output());
        let command = || self.command.clone();
        let text = running
            .await
            .unwrap_or_else(|_| Err(ExecCredentialError::Timeout { command: command() }))?;
        let answer: Value = serde_json::from_slice(&text).map_err(|error| self.misfit(&error.to_string()))?;
        if answer["kind"] != "ExecCredential" || answer["apiVersion"] != self.api_version {
            return Err(self.misfit("it is of another kind or version"));
        }
        let credential: ExecCredential = serde_json::from_value(answer["status"].clone())
            .map_err(|error| self.misfit(&error.to_string()))?;
        let has_certificate =
            credential.client_certificate_data.is_some() && credential.client_key_data.is_some();
        if credential.token.is_none() && !has_certificate {
            return Err(self.misfit("it has neither a token nor a client certificate with its key"));
        }
        Ok(credential)
    }

    async fn output(&self) -> Result<Vec<u8>, ExecCredentialError> {
        let failed = |source| ExecCredentialError::Run {
            command: self.command.clone(),
            source,
            hint: self
                .install_hint
                .clone()
                .unwrap_or_else(|| "install it, or name another in the kubeconfig".to_owned()),
        };
        let info = json!({
            "kind": "ExecCredential",
            "apiVersion": self.api_version,
            "spec": {"interactive": false},
        });
        let mut command = Command::new(&self.command);
        command
            .args(self.args.iter().flatten())
            .envs(
                self.env
                    .iter()
                    .flatten()
                    .map(|variable| (&variable.name, &variable.value)),
            )
            .env("KUBERNETES_EXEC_INFO", info.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(failed)?;
        let mut text = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            stdout
                .take(MAX_BYTES)
                .read_to_end(&mut text)
                .await
                .map_err(failed)?;
        }
        let status = child.wait().await.map_err(failed)?;
        if status.success() {
            Ok(text)
        } else {
            let command = self.command.clone();
            Err(ExecCredentialError::Failed { command, status })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(script: &str) -> ExecProgram {
        let program = json!({"apiVersion": VERSIONS[0], "command": "sh", "args": ["-c", script],
            "env": [{"name": "WHO", "value": "ann"}]});
        serde_json::from_value(program).unwrap()
    }

    #[tokio::test]
    async fn what_a_program_prints_is_the_credential() {
        let script = r#"printf '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"%s"}}' "$WHO""#;
        let credential = program(script).run().await.unwrap();
        assert_eq!(credential.token.as_deref(), Some("ann"));
        for (script, complaint) in [
            ("exit 3", "exit status: 3"),
            ("echo nonsense", "no credential"),
            ("echo '{}'", "another kind"),
            (
                r#"echo '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{}}'"#,
                "neither a token",
            ),
        ] {
            let error = program(script).run().await.err().unwrap().to_string();
            assert!(error.contains(complaint), "{script}: {error}");
        }
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_says_how_to_get_it() {
        let missing =
            json!({"apiVersion": VERSIONS[0], "command": "./none", "installHint": "apt install none"});
        let program: ExecProgram = serde_json::from_value(missing).unwrap();
        let program = program.resolve(Path::new("/nowhere")).unwrap();
        let error = program.run().await.err().unwrap().to_string();
        assert!(
            error.contains("/nowhere/./none") && error.contains("apt install none"),
            "{error}"
        );
        let other = json!({"apiVersion": "v9", "command": "x"});
        let other: ExecProgram = serde_json::from_value(other).unwrap();
        assert!(other.resolve(Path::new("/")).is_err());
    }
}
