//! One call of a plugin: a program that reads its configuration and answers on stdout.
//!
//! It is not trusted to end or to be brief: time and output are bounded, and what it left running is killed with it.

use std::{
    ffi::OsString,
    io,
    net::IpAddr,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use pulselet_sys::process_id;
use rustix::process::{Signal, kill_process_group};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, Command},
};

use super::config::kind;

/// What the pod sees its link as.
const LINK: &str = "eth0";

/// How long a plugin may take. Those that ask a server for an address take seconds.
const PATIENCE: Duration = Duration::from_mins(1);

/// Bytes of an answer, and of what is written to stderr.
const MAX_OUTPUT: u64 = 1 << 20;

/// Characters of a plugin's own words that are passed on.
const MAX_COMPLAINT: usize = 500;

#[derive(Debug, thiserror::Error)]
pub(crate) enum PluginError {
    #[error("failed to find plugin {kind:?} in path {dirs:?}")]
    NotFound { kind: String, dirs: Vec<PathBuf> },
    #[error("plugin type={kind:?} cannot be run: {source}")]
    Run { kind: String, source: io::Error },
    #[error("plugin type={kind:?} failed ({verb}): no answer within {PATIENCE:?}")]
    Timeout { kind: String, verb: &'static str },
    #[error("plugin type={kind:?} failed ({verb}): {complaint}")]
    Failed {
        kind: String,
        verb: &'static str,
        complaint: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Add,
    Check,
    Delete,
}

impl Verb {
    fn command(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Check => "CHECK",
            Self::Delete => "DEL",
        }
    }

    fn in_errors(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Check => "check",
            Self::Delete => "delete",
        }
    }
}

/// What all plugins of a list are given.
pub(super) struct Call<'a> {
    pub(super) verb: Verb,
    pub(super) container: &'a str,
    /// `None` if it is gone.
    pub(super) namespace: Option<&'a Path>,
    pub(super) args: &'a str,
    pub(super) dirs: &'a [PathBuf],
}

/// What a plugin says when it fails.
#[derive(Deserialize)]
struct Complaint {
    msg: String,
    #[serde(default)]
    details: String,
}

impl Call<'_> {
    /// Runs a plugin that answers with a result.
    pub(super) async fn add(
        &self,
        plugin: &Map<String, Value>,
        config: &Map<String, Value>,
    ) -> Result<Value, PluginError> {
        let answer = self.run(plugin, config).await?;
        serde_json::from_slice(&answer)
            .map_err(|error| self.failed(kind(plugin), format!("its answer is no result: {error}")))
    }

    pub(super) async fn run(
        &self,
        plugin: &Map<String, Value>,
        config: &Map<String, Value>,
    ) -> Result<Vec<u8>, PluginError> {
        let kind = kind(plugin);
        let program = find(kind, self.dirs)?;
        let run = |source| PluginError::Run {
            kind: kind.to_owned(),
            source,
        };
        let mut child = self.command(&program).spawn().map_err(run)?;
        let group = child.id().and_then(|id| process_id(id.cast_signed()));
        let config = serde_json::to_vec(config).expect("a map of values is JSON");
        let ended = tokio::time::timeout(PATIENCE, converse(&mut child, &config)).await;
        let Ok(ended) = ended else {
            // The child is not reaped yet, so the number is still its own. Plugins run other plugins.
            let _ = group.map(|group| kill_process_group(group, Signal::KILL));
            return Err(PluginError::Timeout {
                kind: kind.to_owned(),
                verb: self.verb.in_errors(),
            });
        };
        let (status, stdout, stderr) = ended.map_err(run)?;
        if status.success() {
            return Ok(stdout);
        }
        Err(self.failed(kind, complaint(status, &stdout, &stderr)))
    }

    fn command(&self, program: &Path) -> Command {
        let dirs: Vec<OsString> = self.dirs.iter().map(|dir| dir.clone().into_os_string()).collect();
        let mut command = Command::new(program);
        command
            .env("CNI_COMMAND", self.verb.command())
            .env("CNI_CONTAINERID", self.container)
            .env("CNI_NETNS", self.namespace.unwrap_or(Path::new("")))
            .env("CNI_IFNAME", LINK)
            .env("CNI_ARGS", self.args)
            .env("CNI_PATH", dirs.join(&OsString::from(":")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        command
    }

    fn failed(&self, kind: &str, complaint: String) -> PluginError {
        PluginError::Failed {
            kind: kind.to_owned(),
            verb: self.verb.in_errors(),
            complaint,
        }
    }
}

/// The program of a plugin.
pub(super) fn find(kind: &str, dirs: &[PathBuf]) -> Result<PathBuf, PluginError> {
    dirs.iter()
        .map(|dir| dir.join(kind))
        .find(|path| path.is_file())
        .ok_or_else(|| PluginError::NotFound {
            kind: kind.to_owned(),
            dirs: dirs.to_vec(),
        })
}

async fn converse(child: &mut Child, config: &[u8]) -> io::Result<(ExitStatus, Vec<u8>, Vec<u8>)> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let send = async move {
        if let Some(mut stdin) = stdin {
            // One that does not read may still answer.
            let _ = stdin.write_all(config).await;
        }
    };
    let ((), stdout, stderr) = tokio::join!(send, read(stdout), read(stderr));
    Ok((child.wait().await?, stdout?, stderr?))
}

/// Reads to the end or the limit, and closes: who writes more than that fails.
async fn read(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(MAX_OUTPUT).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

fn complaint(status: ExitStatus, stdout: &[u8], stderr: &[u8]) -> String {
    let text = match serde_json::from_slice(stdout) {
        Ok(Complaint { msg, details }) if details.is_empty() => msg,
        Ok(Complaint { msg, details }) => format!("{msg}; {details}"),
        Err(_) => {
            let words = String::from_utf8_lossy(stderr);
            format!("{status}: {}", words.trim())
        }
    };
    text.chars().take(MAX_COMPLAINT).collect()
}

/// For a fuzzer.
pub(super) fn fuzz_complaint(bytes: &[u8]) {
    let text = complaint(ExitStatus::default(), bytes, bytes);
    assert!(text.chars().count() <= MAX_COMPLAINT);
}

/// The addresses in a result that are the pod's, in order.
pub(crate) fn addresses(result: &Value) -> Vec<IpAddr> {
    let list = |name: &str| result.get(name).and_then(Value::as_array);
    let in_pod = |ip: &Value| {
        // Without an interface it can only be the pod's; bridges and the host's ends are named without a sandbox.
        let Some(index) = ip.get("interface").and_then(Value::as_u64) else {
            return true;
        };
        let interface = list("interfaces").and_then(|all| all.get(usize::try_from(index).ok()?));
        let sandbox = interface.and_then(|interface| interface.get("sandbox")?.as_str());
        sandbox.is_some_and(|sandbox| !sandbox.is_empty())
    };
    let address = |ip: &Value| {
        let (address, _prefix) = ip.get("address")?.as_str()?.split_once('/')?;
        address.parse().ok()
    };
    let ips = list("ips").into_iter().flatten();
    ips.filter(|ip| in_pod(ip)).filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use serde_json::json;

    use super::*;

    /// Runs a script as a plugin.
    async fn run(verb: Verb, script: &str) -> Result<Value, PluginError> {
        let directory = tempfile::tempdir().expect("a directory");
        let program = directory.path().join("test");
        fs::write(&program, format!("#!/bin/sh\n{script}")).expect("writes");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("changes");
        let call = Call {
            verb,
            container: "c1",
            namespace: Some(Path::new("/n")),
            args: "A=b",
            dirs: &[PathBuf::from("/nowhere"), directory.path().to_owned()],
        };
        let plugin = json!({"type": "test"});
        let config = json!({"type": "test", "name": "pods"});
        let map = |value: Value| value.as_object().expect("a map").clone();
        call.add(&map(plugin), &map(config)).await
    }

    #[tokio::test]
    async fn a_plugin_gets_its_configuration_and_variables() {
        let script = r#"printf '{"config": %s, "words": "%s"}' "$(cat)" \
            "$CNI_COMMAND $CNI_CONTAINERID $CNI_NETNS $CNI_IFNAME $CNI_ARGS""#;
        let answer = run(Verb::Add, script).await.expect("answers");
        assert_eq!(
            answer,
            json!({"config": {"type": "test", "name": "pods"}, "words": "ADD c1 /n eth0 A=b"})
        );
    }

    #[tokio::test]
    async fn what_goes_wrong_is_told_in_the_plugins_words() {
        let error_object = r#"echo '{"code": 11, "msg": "no room", "details": "at all"}'; exit 1"#;
        let endless = "while true; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx || exit 4; done";
        for (verb, script, words) in [
            (
                Verb::Add,
                error_object,
                "plugin type=\"test\" failed (add): no room; at all",
            ),
            (Verb::Delete, error_object, "failed (delete): no room"),
            (Verb::Check, "echo odd >&2; exit 3", "exit status: 3: odd"),
            (Verb::Add, "echo hello", "its answer is no result"),
            (Verb::Add, endless, "failed (add)"),
        ] {
            let error = run(verb, script).await.expect_err("fails").to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn only_the_pods_addresses_are_taken() {
        let result = json!({
            "interfaces": [{"name": "br"}, {"name": "eth0", "sandbox": "/n"}],
            "ips": [
                {"address": "10.1.0.1/16", "interface": 0},
                {"address": "10.1.0.7/16", "interface": 1},
                {"address": "fd00::7/64"},
                {"address": "nonsense", "interface": 1},
                {"address": "10.1.0.8/16", "interface": 9},
            ],
        });
        let found: Vec<String> = addresses(&result).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.1.0.7", "fd00::7"]);
        assert!(addresses(&json!(null)).is_empty());
    }
}
