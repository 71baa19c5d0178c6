//! Programs that keep secrets for docker: `docker-credential-<name>`, asked with the word `get`.
//!
//! Time and output are bounded. What a helper prints is never passed on: it may be the secret.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

use super::Auth;

/// How long a helper may take; some ask a server for a new token.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of an answer; tokens have a few thousand.
const MAX_ANSWER: u64 = 1 << 20;
/// The user that stands for a token.
const TOKEN_USER: &str = "<token>";
/// What helpers say, and leave with an error, when they know nothing about a registry.
const NOT_FOUND: &str = "credentials not found in native keychain";

#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    #[error("that is not the name of a helper")]
    Name,
    #[error("cannot run {program}: {source}")]
    Run { program: String, source: io::Error },
    #[error("no answer within {PATIENCE:?}")]
    Timeout,
    #[error("it failed with {0}")]
    Failed(ExitStatus),
    #[error("its answer makes no sense")]
    Answer,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: String,
}

/// Asks a helper for what it has about a server, under the name docker uses.
pub(super) async fn ask(helper: &str, server: &str) -> Result<Auth, HelperError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if helper.is_empty() || !helper.chars().all(plain) {
        return Err(HelperError::Name);
    }
    run(&format!("docker-credential-{helper}"), server).await
}

async fn run(program: &str, server: &str) -> Result<Auth, HelperError> {
    let failed = |source| HelperError::Run {
        program: program.to_owned(),
        source,
    };
    let mut child = Command::new(program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let answered = tokio::time::timeout(PATIENCE, converse(&mut child, server)).await;
    let (status, answer) = answered.map_err(|_| HelperError::Timeout)?.map_err(failed)?;
    if !status.success() {
        let unknown = String::from_utf8_lossy(&answer).contains(NOT_FOUND);
        return if unknown {
            Ok(Auth::Anonymous)
        } else {
            Err(HelperError::Failed(status))
        };
    }
    let Answer { username, secret } = serde_json::from_slice(&answer).map_err(|_| HelperError::Answer)?;
    Ok(if username == TOKEN_USER {
        Auth::IdentityToken(secret)
    } else {
        Auth::Basic {
            username,
            password: secret,
        }
    })
}

async fn converse(child: &mut Child, server: &str) -> io::Result<(ExitStatus, Vec<u8>)> {
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not read may still answer.
        let _ = stdin.write_all(server.as_bytes()).await;
    }
    let mut answer = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(MAX_ANSWER).read_to_end(&mut answer).await?;
    }
    Ok((child.wait().await?, answer))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    async fn answer(script: &str) -> Result<Auth, HelperError> {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("docker-credential-test");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        run(program.to_str().unwrap(), "registry.example").await
    }

    #[tokio::test]
    async fn a_helper_is_asked_for_a_server_and_answers_with_a_user_or_a_token() {
        let basic = r#"printf '{"ServerURL":"x","Username":"%s","Secret":"%s"}' "$1" "$(cat)""#;
        let expected = Auth::Basic {
            username: "get".into(),
            password: "registry.example".into(),
        };
        assert_eq!(answer(basic).await.unwrap(), expected);
        let token = r#"echo '{"Username":"<token>","Secret":"t"}'"#;
        assert_eq!(answer(token).await.unwrap(), Auth::IdentityToken("t".into()));
        let unknown = format!("echo {NOT_FOUND}; exit 1");
        assert_eq!(answer(&unknown).await.unwrap(), Auth::Anonymous);
    }

    #[tokio::test]
    async fn what_goes_wrong_says_nothing_of_the_secret() {
        for (script, words) in [
            ("echo hunter2; exit 3", "exit status: 3"),
            ("echo hunter2", "makes no sense"),
            ("exec cat /dev/zero", "it failed with"),
        ] {
            let error = answer(script).await.unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains("hunter2"), "{error}");
        }
        assert!(matches!(ask("../x", "s").await, Err(HelperError::Name)));
        assert!(matches!(
            ask("no-such-helper", "s").await,
            Err(HelperError::Run { .. })
        ));
    }
}
